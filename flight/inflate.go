package flight

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// Codecs of compressed record batches, as in Message.fbs.
const (
	codecLZ4  = 0
	codecZstd = 1
	// sizePrefix is before each compressed buffer: its size without compression.
	sizePrefix = 8
)

// zstdDecoder decodes whole buffers into as much room as it is given, however
// large the window or the content that a frame claims. It has no goroutines.
var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // the options are right or wrong for good
	}
	return d
})

// inflate decompresses a buffer. What it claims to have is counted before there
// is any.
func (d *decoder) inflate(b []byte) ([]byte, error) {
	if len(b) < sizePrefix {
		return nil, fmt.Errorf("%w: a compressed buffer has %d bytes, its size alone takes %d", schema.ErrInvalid,
			len(b), sizePrefix)
	}
	n := int64(binary.LittleEndian.Uint64(b))
	b = b[sizePrefix:]
	if n == -1 { // it would not become smaller
		return d.place(b)
	}
	if n < 0 {
		return nil, fmt.Errorf("%w: a compressed buffer claims %d bytes", schema.ErrInvalid, n)
	}
	if most := 2 * int64(d.in.opts.MaxMessageBytes); n > most-d.inflated {
		return nil, fmt.Errorf("%w: a record batch, decompressed, takes more than twice MaxMessageBytes, which is %d",
			schema.ErrLimit, most/2)
	}
	d.inflated += n
	if err := d.in.lease.Grow(n); err != nil {
		return nil, err
	}
	out := aligned(int(n))
	err := d.in.turn(func(*admission.Turn) error {
		switch d.codec {
		case codecZstd:
			got, err := zstdDecoder().DecodeAll(b, out[:0])
			if err == nil && len(got) != len(out) {
				err = io.ErrUnexpectedEOF
			}
			return err
		case codecLZ4:
			_, err := io.ReadFull(lz4.NewReader(bytes.NewReader(b)), out)
			return err
		}
		return fmt.Errorf("codec %d is not known", d.codec)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: a compressed buffer of %d bytes that claims %d cannot be decompressed: %v", schema.ErrInvalid, len(b), n, err) //nolint:errorlint // a client's mistake, whatever it wraps
	}
	return out, nil
}

// place returns b where its values can be read: they have to begin at a multiple
// of bodyAlign, as all writers have it.
func (d *decoder) place(b []byte) ([]byte, error) {
	if len(b) == 0 || uintptr(unsafe.Pointer(&b[0]))%bodyAlign == 0 {
		return b, nil
	}
	if err := d.in.lease.Grow(int64(len(b))); err != nil {
		return nil, err
	}
	return append(aligned(len(b))[:0], b...), nil
}

// bodyAlign is what Arrow's values are aligned to.
const bodyAlign = 8

// aligned returns n bytes whose first is at a multiple of bodyAlign.
func aligned(n int) []byte { return make([]byte, (n+bodyAlign-1)/bodyAlign*bodyAlign)[:n:n] }

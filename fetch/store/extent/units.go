package extent

import (
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"golang.org/x/sync/semaphore"

	"bowstring/schema"
)

// MaxUnitBytes is how large a unit may be, encoded and decoded. All of it is in memory
// while a blob is taken out.
const MaxUnitBytes = 64 << 20

// unitsAtOnce is how many bytes units that are being read and decoded may have together.
const unitsAtOnce = 4 * MaxUnitBytes

// units are compressed stretches of objects. Decoded ones are kept in an LRU cache: their
// blobs are often read together, and each would cost decoding the whole unit again.
type units struct {
	s     *Store
	reads flights[unitName, []byte]
	// room bounds the bytes of units in flight, encoded and decoded: without it,
	// concurrent reads of large units could take any amount of memory.
	room *semaphore.Weighted

	mu   sync.Mutex
	kept lru[unitName, []byte]
}

type unitName struct {
	prefix schema.ObjectPrefix
	object uint32
	unit   schema.Unit
}

func (u *units) init(s *Store, bytes int64) {
	u.s, u.reads.s, u.kept.limit = s, s, bytes
	u.room = semaphore.NewWeighted(unitsAtOnce)
}

// get returns a decoded unit. The caller must not change it; the garbage collector frees
// it.
func (u *units) get(ctx context.Context, at place) ([]byte, error) {
	name := unitName{at.prefix, at.number, *at.unit}
	u.mu.Lock()
	data, ok := u.kept.get(name)
	u.mu.Unlock()
	if ok {
		return data, nil
	}
	return u.reads.do(ctx, name, func(ctx context.Context) ([]byte, error) {
		u.mu.Lock()
		data, ok := u.kept.get(name) // by a flight that has just ended
		u.mu.Unlock()
		if ok {
			return data, nil
		}
		data, err := u.read(ctx, at)
		if err != nil {
			return nil, err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.kept.add(name, data, int64(len(data)))
		return data, nil
	})
}

// read reads a unit from its bucket and decodes it. Damaged bytes are a
// schema.ErrDataLoss that names the object.
func (u *units) read(ctx context.Context, at place) ([]byte, error) {
	if err := CheckUnit(at.url, at.object, at.unit); err != nil {
		return nil, err
	}
	weight := at.unit.Length + at.unit.Size
	if err := u.room.Acquire(ctx, weight); err != nil {
		return nil, context.Cause(ctx)
	}
	defer u.room.Release(weight)
	bucket, err := u.s.buckets.open(ctx, at.url)
	if err != nil {
		return nil, err
	}
	packed := make([]byte, at.unit.Length)
	if err := read(ctx, bucket, at.object, at.unit.Offset, packed); err != nil {
		return nil, err
	}
	data := make([]byte, at.unit.Size)
	if err := Decode(at.unit.Codec, packed, data); err != nil {
		return nil, fmt.Errorf("unit at %d of object %s in %s: %w", at.unit.Offset, schema.Quote(at.object.Key), at.url, err)
	}
	return data, nil
}

// CheckUnit is a schema.ErrNotSupported if a unit is too large to be read.
func CheckUnit(url string, o schema.Object, u *schema.Unit) error {
	if u.Length > MaxUnitBytes || u.Size > MaxUnitBytes {
		return fmt.Errorf("%w: the unit at %d of object %s in %s has %d bytes, and %d decoded: at most %d are read at once; "+
			"import it instead", schema.ErrNotSupported, u.Offset, schema.Quote(o.Key), url, u.Length, u.Size, MaxUnitBytes)
	}
	return nil
}

// zstds decode frames; each call takes as much memory as its window.
var zstds = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxUnitBytes),
		zstd.WithDecodeAllCapLimit(true))
})

// Decode decodes packed into data. If the result has more or fewer bytes than data, that
// is a schema.ErrDataLoss. It never writes beyond data, whatever packed holds, since a
// source may be malicious.
func Decode(codec schema.Codec, packed, data []byte) (err error) {
	defer func() {
		if p := recover(); p != nil { // a defect of a decoder is met by made up bytes alone
			err = fmt.Errorf("%w: %s: the decoder fails: %v", schema.ErrDataLoss, codec, p)
		}
	}()
	n, err := decode(codec, packed, data)
	switch {
	case errors.Is(err, schema.ErrNotSupported):
		return err
	case err != nil:
		return fmt.Errorf("%w: %s: %v", schema.ErrDataLoss, codec, err) //nolint:errorlint // whatever the decoder says, the bytes are wrong
	case n != len(data):
		return fmt.Errorf("%w: %s: %d bytes where there should be %d", schema.ErrDataLoss, codec, n, len(data))
	}
	return nil
}

var errLonger = errors.New("there are more bytes than there should be")

// decode returns how many bytes were decoded. Codecs that do not know their length are
// read by drain.
func decode(codec schema.Codec, packed, data []byte) (int, error) {
	in := bytes.NewReader(packed)
	switch codec {
	case schema.CodecZstd:
		d, err := zstds()
		if err != nil {
			return 0, err
		}
		out, err := d.DecodeAll(packed, data[:0:len(data)])
		if err == nil && len(out) > 0 && len(data) > 0 && &out[0] != &data[0] {
			err = errLonger
		}
		return len(out), err
	case schema.CodecGzip:
		r, err := gzip.NewReader(in)
		if err != nil {
			return 0, err
		}
		return drain(r, data)
	case schema.CodecDeflate:
		return drain(flate.NewReader(in), data)
	case schema.CodecSnappy:
		n, err := snappy.DecodedLen(packed)
		if err != nil || n != len(data) {
			return n, err
		}
		out, err := snappy.Decode(data, packed)
		return len(out), err
	case schema.CodecLZ4:
		return drain(lz4.NewReader(in), data)
	case schema.CodecLZ4Raw:
		return lz4.UncompressBlock(packed, data)
	case schema.CodecBrotli:
		return drain(brotli.NewReader(in), data)
	case schema.CodecBzip2:
		return drain(bzip2.NewReader(in), data)
	}
	return 0, fmt.Errorf("%w: the codec %q", schema.ErrNotSupported, codec)
}

// drain fills data, and checks that nothing follows: decoders compare a checksum at the
// end only when the end is read.
func drain(r io.Reader, data []byte) (int, error) {
	n, err := io.ReadFull(r, data)
	if err != nil {
		return n, err
	}
	var more [1]byte
	switch m, err := io.ReadFull(r, more[:]); {
	case m > 0:
		return n, errLonger
	case !errors.Is(err, io.EOF):
		return n, err
	}
	return n, nil
}

package source

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// zstdOptions bound the memory of a frame: 128 MiB is the window of zstd --long=27, the
// largest that the zstd tool accepts by default.
var zstdOptions = []zstd.DOption{zstd.WithDecoderMaxWindow(128 << 20), zstd.WithDecoderConcurrency(1),
	zstd.WithDecoderLowmem(true)}

// errJunk means that bytes follow the end of an archive or of a compressed stream that
// are not another one.
var errJunk = errors.New("unknown bytes behind the end")

// compressionOf recognises a compression by the first bytes of a file: gz, zstd, bz2, xz,
// or "" for any other. The name of a file is not trusted, because archives are often
// renamed.
func compressionOf(in *bufio.Reader) string {
	head, _ := in.Peek(512) // reading a shorter file reports its errors
	switch {
	// The magic of a tar is at offset 257. The name of its first member may begin like
	// any other magic.
	case len(head) > 262 && string(head[257:262]) == "ustar":
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return "gz"
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), // a frame
		len(head) > 3 && head[0]&0xf0 == 0x50 && bytes.HasPrefix(head[1:], []byte{0x2a, 0x4d, 0x18}): // a skippable frame
		return "zstd"
	// After "BZh" and the level, bzip2 has the magic of a block, or that of the end of an
	// empty stream.
	case len(head) > 9 && string(head[:3]) == "BZh" && (string(head[4:10]) == "1AY&SY" ||
		string(head[4:10]) == "\x17\x72\x45\x38\x50\x90"):
		return "bz2"
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return "xz" // decompress rejects it by name
	}
	return ""
}

// decompress reads a stream compressed by gz, zstd, bz2 or br. It returns the reader and
// a function that frees it.
//
// Several streams in a row are read as one, because cat joins files so. Zeros after the
// last gzip member are padding; any other bytes there are an error that wraps errJunk.
// name may have a level after a colon, which is ignored.
func decompress(in *bufio.Reader, name string) (io.Reader, func(), error) {
	switch algorithm, _, _ := strings.Cut(name, ":"); algorithm {
	case "gz":
		r, err := newGzipMembers(in)
		return r, func() {}, err
	case "zstd":
		z, err := zstd.NewReader(in, zstdOptions...)
		if err != nil {
			return nil, nil, err
		}
		return &streamEnd{in: z, name: "zstd frame"}, z.Close, nil
	case "bz2":
		return &streamEnd{in: bzip2.NewReader(in), name: "bzip2 stream"}, func() {}, nil
	case "br":
		return brotli.NewReader(in), func() {}, nil
	}
	return nil, nil, fmt.Errorf("compression %q; want zstd, gz, br, bz2 or snappy", name)
}

// gzipMembers reads the members of a gzip file in a row. RFC 1952 allows any number of
// them. The reader of the standard library does so as well, but reports padding and junk
// after the last member as the same error.
type gzipMembers struct {
	in      *bufio.Reader
	z       *gzip.Reader
	members int
	// err is the error that ended reading; io.EOF at a proper end.
	err error
}

// newGzipMembers reads the header of the first member.
func newGzipMembers(in *bufio.Reader) (*gzipMembers, error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return &gzipMembers{in: in, z: z, members: 1}, nil
}

// Read implements io.Reader.
func (g *gzipMembers) Read(p []byte) (int, error) {
	for g.err == nil {
		n, err := g.z.Read(p)
		if errors.Is(err, io.EOF) {
			err = g.next()
		}
		if g.err = err; n > 0 {
			return n, err
		}
	}
	return 0, g.err
}

// next starts the next member. It returns io.EOF if there is none, and errJunk if other
// bytes follow.
func (g *gzipMembers) next() error {
	err := skipZeros(g.in)
	if err == nil {
		if magic, _ := g.in.Peek(2); !bytes.HasPrefix([]byte{0x1f, 0x8b}, magic) {
			err = gzip.ErrHeader
		} else {
			err = g.z.Reset(g.in)
		}
	}
	switch {
	case err == nil:
		g.z.Multistream(false)
		g.members++
		return nil
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, gzip.ErrHeader):
		return fmt.Errorf("%w: what follows gzip member %d is none", errJunk, g.members)
	}
	return err
}

// skipZeros skips zeros. It returns io.EOF if nothing else follows. Tapes and block
// devices pad files so.
func skipZeros(in *bufio.Reader) error {
	for {
		b, err := in.ReadByte()
		if err != nil {
			return err
		}
		if b != 0 {
			return in.UnreadByte()
		}
	}
}

// streamEnd explains a decoder's error at the end: an unknown magic after the first
// stream is junk, and not damage.
type streamEnd struct {
	in   io.Reader
	name string
	n    int64 // bytes decoded
}

// Read implements io.Reader. At the very start an unknown magic stays the decoder's own
// error.
func (s *streamEnd) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.n += int64(n)
	var structural bzip2.StructuralError
	switch {
	case s.n == 0:
	case errors.Is(err, zstd.ErrMagicMismatch), errors.As(err, &structural) && bytes.Contains([]byte(structural),
		[]byte("magic")):
		err = fmt.Errorf("%w: what follows the last %s, behind %d decoded bytes, is none", errJunk, s.name, s.n)
	}
	return n, err
}

package parquet

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/pierrec/lz4/v4"
)

// lz4Raw is the number of the codec LZ4_RAW.
const lz4Raw compress.Compression = 7

func init() { //nolint:gochecknoinits // codecs are registered before any of them is used
	compress.RegisterCodec(lz4Raw, lz4Codec{})
	compress.RegisterCodec(compress.Codecs.Lz4, lz4Codec{hadoop: true})
}

// lz4Codec is LZ4_RAW: one block of LZ4. With hadoop it is LZ4, the older codec: blocks behind their sizes, as Hadoop
// writes them, or one block without.
type lz4Codec struct{ hadoop bool }

// Decode decompresses a page into dst, which has its size. It panics about a page that is malformed, as the library's
// own codecs do.
func (c lz4Codec) Decode(dst, src []byte) []byte {
	if c.hadoop {
		if out, ok := decodeHadoop(dst, src); ok {
			return out
		}
	}
	n, err := lz4.UncompressBlock(src, dst)
	if err != nil {
		panic(fmt.Errorf("LZ4: %w", err))
	}
	return dst[:n]
}

// decodeHadoop decompresses blocks, before each of which its size stands, without and with compression.
func decodeHadoop(dst, src []byte) ([]byte, bool) {
	done := 0
	for len(src) > 0 {
		if len(src) < 8 {
			return nil, false
		}
		raw, packed := binary.BigEndian.Uint32(src), binary.BigEndian.Uint32(src[4:])
		if src = src[8:]; int64(packed) > int64(len(src)) || int64(raw) > int64(len(dst)-done) {
			return nil, false
		}
		n, err := lz4.UncompressBlock(src[:packed], dst[done:done+int(raw)])
		if err != nil || n != int(raw) {
			return nil, false
		}
		done += n
		src = src[packed:]
	}
	return dst[:done], true
}

// Encode compresses a page as one block.
func (lz4Codec) Encode(dst, src []byte) []byte {
	if most := lz4.CompressBlockBound(len(src)); cap(dst) < most {
		dst = make([]byte, most)
	}
	var c lz4.Compressor
	n, err := c.CompressBlock(src, dst[:cap(dst)])
	if err != nil {
		panic(fmt.Errorf("LZ4: %w", err))
	}
	return dst[:n]
}

// EncodeLevel is Encode: there is one level.
func (c lz4Codec) EncodeLevel(dst, src []byte, _ int) []byte { return c.Encode(dst, src) }

// CompressBound is the size that a page of n bytes has at most.
func (lz4Codec) CompressBound(n int64) int64 { return int64(lz4.CompressBlockBound(int(n))) }

// NewReader reads the frame format of LZ4: a block has no beginning and no end in a stream.
func (lz4Codec) NewReader(r io.Reader) io.ReadCloser { return io.NopCloser(lz4.NewReader(r)) }

// NewWriter writes the frame format of LZ4.
func (lz4Codec) NewWriter(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) }

// NewWriterLevel is NewWriter: there is one level.
func (c lz4Codec) NewWriterLevel(w io.Writer, _ int) (io.WriteCloser, error) {
	return c.NewWriter(w), nil
}

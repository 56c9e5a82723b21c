package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"

	"github.com/apache/arrow/go/v17/arrow/memory"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/schema"
	"github.com/pierrec/lz4/v4"
)

// byteStreamSplit is the number of BYTE_STREAM_SPLIT in the format. The library has no
// name for it.
const byteStreamSplit pq.Encoding = 9

var errLevels = errors.New("a page with fewer levels than values")

// plainPages replaces pages in encodings that the library does not decode by pages in
// PLAIN: BYTE_STREAM_SPLIT, and DELTA_BYTE_ARRAY for values of fixed length. It also
// rejects pages on which the library would loop forever. It works between the page reader
// and the column reader of the library, so that both stay as they are.
type plainPages struct {
	file.PageReader
	column *schema.Column
	// plain is the replacement of the current page; nil if the page needs none.
	plain file.Page
	// where records the extent of each value; nil if the caller does not need extents.
	where *locator
	// defs are the encoded definition levels of the current page. They are nil in the
	// deprecated BIT_PACKED encoding, and if there are none.
	defs []byte
	// err is the first error; it ends the chunk.
	err error
}

// Next goes to the next page. It returns false at the end and on an error, which Err
// returns.
func (p *plainPages) Next() bool {
	p.plain, p.defs = nil, nil
	if p.err != nil || !p.PageReader.Next() {
		return false
	}
	page := p.PageReader.Page()
	var levels int
	switch page := page.(type) {
	case *file.DataPageV1:
		levels, p.err = p.first(page)
	case *file.DataPageV2:
		levels, p.err = p.second(page)
	case *file.DictionaryPage:
		if p.where != nil {
			p.err = p.where.dictionary(page)
		}
		return p.err == nil
	default:
		return true
	}
	// These checks come before the library sees the page: it would not return from a page
	// with too few values.
	if p.err == nil {
		p.err = p.enough(page, page.Data()[levels:])
	}
	if p.where != nil && p.err == nil {
		p.err = p.locate(page, levels)
	}
	if values := p.decoder(pq.Encoding(page.Encoding())); values != nil && p.err == nil {
		p.plain, p.err = replaced(page, levels, values)
	}
	return p.err == nil
}

// locate records the extents of the values of a page. Once an extent is lost, the count
// of values is lost with it, and so all later values of the leaf have none.
func (p *plainPages) locate(page file.Page, levels int) error {
	if p.defs == nil && p.column.MaxDefinitionLevel() > 0 && p.where.lost == "" {
		p.where.lost = "its page has levels of a kind that is no longer written"
	}
	if p.where.lost != "" { // the number of values is unknown, too
		return nil
	}
	n, ok := present(p.defs, p.column.MaxDefinitionLevel(), int(page.NumValues()))
	if !ok {
		return errLevels
	}
	return p.where.data(page, levels, n)
}

// decoder returns the function that makes plain values of an encoding; nil if the library
// decodes it.
func (p *plainPages) decoder(e pq.Encoding) func(values []byte) ([]byte, error) {
	switch {
	case e == byteStreamSplit:
		return p.join
	case e == pq.Encodings.DeltaByteArray && p.column.PhysicalType() == pq.Types.FixedLenByteArray:
		return p.undelta
	}
	return nil
}

// Page returns the current page or its replacement.
func (p *plainPages) Page() file.Page {
	if p.plain != nil {
		return p.plain
	}
	return p.PageReader.Page()
}

// Err returns why Next has returned false; nil at the end of the chunk.
func (p *plainPages) Err() error { return errors.Join(p.err, p.PageReader.Err()) }

// first returns the number of bytes of levels in a data page of version 1. There the
// repetition levels come before the definition levels. RLE levels have a prefix of four
// bytes with their length; BIT_PACKED levels have none, and their length follows from the
// number of values. A level that can only be 0 is not stored.
func (p *plainPages) first(page *file.DataPageV1) (levels int, err error) {
	for _, l := range []struct {
		most     int16
		encoding pq.Encoding
	}{{p.column.MaxRepetitionLevel(), page.RepetitionLevelEncoding()},
		{p.column.MaxDefinitionLevel(), page.DefinitionLevelEncoding()}} {
		if l.most == 0 {
			continue
		}
		rest, width := page.Data()[levels:], bits.Len16(uint16(l.most))
		switch l.encoding {
		case pq.Encodings.BitPacked:
			n := (int64(page.NumValues())*int64(width) + 7) / 8
			if n > int64(len(rest)) {
				return 0, errLevels
			}
			p.defs = nil
			levels += int(n)
		case pq.Encodings.RLE:
			if len(rest) < 4 {
				return 0, errLevels
			}
			n := int64(binary.LittleEndian.Uint32(rest))
			if n > int64(len(rest)-4) || !hasLevels(rest[4:4+n], width, int64(page.NumValues())) {
				return 0, errLevels
			}
			p.defs = rest[4 : 4+n] // definition levels come last
			levels += int(n) + 4
		default:
			return 0, fmt.Errorf("levels with the encoding %s", l.encoding)
		}
	}
	return levels, nil
}

// second returns the number of bytes of levels in a data page of version 2. Its header
// states the lengths of both, and the levels have no prefix.
func (p *plainPages) second(page *file.DataPageV2) (levels int, err error) {
	data, n := page.Data(), int64(page.NumValues())
	rep, def := int64(page.RepetitionLevelByteLen()), int64(page.DefinitionLevelByteLen())
	if rep < 0 || def < 0 || rep+def > int64(len(data)) {
		return 0, errLevels
	}
	if most := p.column.MaxRepetitionLevel(); most > 0 && !hasLevels(data[:rep], bits.Len16(uint16(most)), n) {
		return 0, errLevels
	}
	if most := p.column.MaxDefinitionLevel(); most > 0 &&
		!hasLevels(data[rep:rep+def], bits.Len16(uint16(most)), n) {
		return 0, errLevels
	}
	p.defs = data[rep : rep+def]
	return int(rep + def), nil
}

// hasLevels reports whether encoded levels hold at least want levels. The library would
// loop forever on a page that has fewer. The encoding is the hybrid of RLE and
// bit-packing: a run has a varint as its head, whose lowest bit distinguishes bit-packed
// groups of eight from a repeated value.
func hasLevels(data []byte, width int, want int64) bool {
	for have := int64(0); have < want; {
		head, n := binary.Uvarint(data)
		if n <= 0 || head>>1 > math.MaxInt32 {
			return false
		}
		data = data[n:]
		count, size := int64(head>>1), int64(width+7)/8
		if head&1 == 1 { // bit-packed groups of eight; the last may be cut short
			size = count * int64(width)
			count = min(size, int64(len(data))) * 8 / int64(width)
			size = min(size, int64(len(data)))
		}
		if size > int64(len(data)) {
			return false
		}
		have += count
		data = data[size:]
	}
	return true
}

// enough checks that a page of a required column has as many values as its header states.
// It checks only delta encodings, which store their own count; the library would loop
// forever on a page that has fewer.
func (p *plainPages) enough(page file.Page, values []byte) error {
	if p.column.MaxDefinitionLevel() > 0 {
		return nil
	}
	switch pq.Encoding(page.Encoding()) {
	case pq.Encodings.DeltaBinaryPacked, pq.Encodings.DeltaLengthByteArray, pq.Encodings.DeltaByteArray:
	default:
		return nil
	}
	var count uint64
	// The head of DELTA_BINARY_PACKED: the size of a block, the number of miniblocks, the
	// number of values.
	for range 3 {
		v, n := binary.Uvarint(values)
		if n <= 0 {
			return errDelta
		}
		count, values = v, values[n:]
	}
	if count != uint64(page.NumValues()) {
		return fmt.Errorf("a page of %d values that holds %d", page.NumValues(), count)
	}
	return nil
}

// replaced returns a page with plain values instead of its own. The levels stay as they
// are.
func replaced(page file.Page, levels int, values func([]byte) ([]byte, error)) (file.Page, error) {
	plain, err := values(page.Data()[levels:])
	if err != nil {
		return nil, err
	}
	whole := memory.NewBufferBytes(slices.Concat(page.Data()[:levels], plain))
	switch page := page.(type) {
	case *file.DataPageV1:
		return file.NewDataPageV1(whole, page.NumValues(), pq.Encodings.Plain, page.DefinitionLevelEncoding(),
			page.RepetitionLevelEncoding(), page.UncompressedSize()), nil
	case *file.DataPageV2:
		return file.NewDataPageV2(whole, page.NumValues(), page.NumNulls(), page.NumRows(), pq.Encodings.Plain,
			page.DefinitionLevelByteLen(), page.RepetitionLevelByteLen(), page.UncompressedSize(), false), nil
	}
	return nil, fmt.Errorf("a page of type %T", page)
}

// join decodes BYTE_STREAM_SPLIT. The encoding stores the first bytes of all values, then
// all second bytes, and so on: similar bytes compress better side by side.
func (p *plainPages) join(streams []byte) ([]byte, error) {
	width := 0
	switch p.column.PhysicalType() {
	case pq.Types.Int32, pq.Types.Float:
		width = 4
	case pq.Types.Int64, pq.Types.Double:
		width = 8
	case pq.Types.FixedLenByteArray:
		width = p.column.TypeLength()
	}
	if width < 1 || len(streams)%width != 0 {
		return nil, fmt.Errorf("%d bytes with the encoding BYTE_STREAM_SPLIT for values of type %s", len(streams),
			p.column.PhysicalType())
	}
	values, n := make([]byte, len(streams)), len(streams)/width
	for k := range width {
		for i, b := range streams[k*n : (k+1)*n] {
			values[i*width+k] = b
		}
	}
	return values, nil
}

// maxDeltas bounds the integers of a page. Equal deltas have a width of 0 bits, so that a
// few bytes could claim any number of values.
const maxDeltas = 1 << 24

var errDelta = errors.New("malformed values with a delta encoding")

// undelta decodes DELTA_BYTE_ARRAY for values of fixed length. The encoding has the
// lengths of the prefixes that values share with their predecessors, then the lengths of
// the suffixes, then the suffixes. A prefix and its suffix must add up to the length of
// the type.
func (p *plainPages) undelta(data []byte) ([]byte, error) {
	width := p.column.TypeLength()
	shared, data, err := deltas(data)
	if err != nil {
		return nil, err
	}
	own, data, err := deltas(data)
	if err != nil {
		return nil, err
	}
	if len(shared) != len(own) {
		return nil, errDelta
	}
	var values []byte
	for i, n := range shared {
		if n < 0 || own[i] < 0 || n > int64(width) || n+own[i] != int64(width) || n > 0 && i == 0 ||
			own[i] > int64(len(data)) {
			return nil, errDelta
		}
		if n > 0 {
			values = append(values, values[len(values)-width:][:n]...)
		}
		values = append(values, data[:own[i]]...)
		data = data[own[i]:]
	}
	return values, nil
}

// deltas decodes DELTA_BINARY_PACKED and returns the bytes behind it. A block has the
// smallest delta as a zigzag varint, the bit widths of its miniblocks, and the
// miniblocks: each delta is stored as its distance from the smallest. The format wants a
// block of a multiple of 128 values and miniblocks of a multiple of 32; this decoder
// needs multiples of 8 only.
func deltas(data []byte) (values []int64, rest []byte, err error) {
	var head [3]uint64 // values in a block, miniblocks in a block, values in total
	for i := range head {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return nil, nil, errDelta
		}
		head[i], data = v, data[n:]
	}
	last, n := binary.Varint(data)
	if n <= 0 {
		return nil, nil, errDelta
	}
	data = data[n:]
	block, parts, count := head[0], head[1], head[2]
	if parts == 0 || block == 0 || block > 1<<20 || parts > block || block%parts != 0 || count > maxDeltas {
		return nil, nil, errDelta
	}
	if count > 0 {
		values = append(values, last)
	}
	for uint64(len(values)) < count {
		least, n := binary.Varint(data)
		if n <= 0 || uint64(len(data)-n) < parts {
			return nil, nil, errDelta
		}
		widths := data[n : n+int(parts)]
		data = data[n+int(parts):]
		for _, width := range widths {
			left := count - uint64(len(values))
			if left == 0 {
				break // unneeded miniblocks have widths, but no bytes
			}
			size := block / parts * uint64(width) / 8
			if width > 64 || block/parts%8 != 0 || size > uint64(len(data)) {
				return nil, nil, errDelta
			}
			for i := range min(block/parts, left) {
				last += least + int64(bitsAt(data[:size], i*uint64(width), width))
				values = append(values, last)
			}
			data = data[size:]
		}
	}
	return values, data, nil
}

// bitsAt returns the number of the given width that begins at a bit. Bit-packed values
// begin at the lowest bit of a byte.
func bitsAt(data []byte, at uint64, width byte) (v uint64) {
	for i := range uint64(width) {
		bit := uint64(data[(at+i)/8]>>((at+i)%8)) & 1
		v |= bit << i
	}
	return v
}

// lz4Raw is the number of LZ4_RAW in the format. The library has no name for it.
const lz4Raw compress.Compression = 7

func init() { //nolint:gochecknoinits // codecs are registered before any of them is used
	compress.RegisterCodec(lz4Raw, lz4Codec{})
	compress.RegisterCodec(compress.Codecs.Lz4, lz4Codec{hadoop: true})
}

// lz4Codec is LZ4_RAW: one LZ4 block. With hadoop it is the deprecated codec LZ4, which
// the format leaves undefined. Most writers wrote Hadoop's framing for it, and some a
// bare block: Decode accepts both.
type lz4Codec struct{ hadoop bool }

// Decode decompresses a page into dst, which has the decoded size. It panics on a
// malformed page, as the library's own codecs do; the interface has no error.
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

// decodeHadoop decompresses Hadoop's framing: before each block, its decoded and its
// compressed size as big-endian 32-bit numbers. false means that src is not framed so.
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

// EncodeLevel is Encode: LZ4 blocks have one level here.
func (c lz4Codec) EncodeLevel(dst, src []byte, _ int) []byte { return c.Encode(dst, src) }

// CompressBound returns the largest compressed size of a page of n bytes.
func (lz4Codec) CompressBound(n int64) int64 { return int64(lz4.CompressBlockBound(int(n))) }

// NewReader reads the LZ4 frame format. A bare block has no end in a stream, so that it
// cannot be streamed; page readers use Decode.
func (lz4Codec) NewReader(r io.Reader) io.ReadCloser { return io.NopCloser(lz4.NewReader(r)) }

// NewWriter writes the frame format of LZ4.
func (lz4Codec) NewWriter(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) }

// NewWriterLevel is NewWriter: there is one level.
func (c lz4Codec) NewWriterLevel(w io.Writer, _ int) (io.WriteCloser, error) {
	return c.NewWriter(w), nil
}

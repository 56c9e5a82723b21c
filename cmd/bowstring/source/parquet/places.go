package parquet

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/file"

	"bowstring/schema"
)

// MaxPage is the largest compressed page whose values get an extent. Each read of such a
// value decodes the whole page.
const MaxPage = 64 << 20

// Place is the extent of a value of type BYTE_ARRAY in its file.
type Place struct {
	// Offset and Length are in bytes: within the file, or within the decoded Unit.
	Offset, Length int64
	// Unit is the compressed part of a page that holds the value; nil if the file holds
	// it uncompressed. Values of one page share one Unit: callers do not change it.
	Unit *schema.Unit
	// Why says why the value has no extent; "" if it has one. The other fields are then
	// meaningless.
	Why string
}

// Places are the extents of a column's values in one record, by row and element.
type Places struct {
	// first[row] is the index in at of the row's first element. Without a list each row
	// has one element.
	first []int
	// at[element] is an index in places; -1 for a null. Dictionary pages make many
	// elements share a place.
	at     []int
	places []Place
}

// At returns the place of a value: of a row, or of an element of the list in that row.
// For a null, and for a value that does not exist, Why is set. p may be nil: a column
// without BYTE_ARRAY.
func (p *Places) At(row, element int) Place {
	if p == nil {
		return Place{Why: "its column has values of a fixed length"}
	}
	if row < 0 || row >= len(p.first) || element < 0 || p.first[row]+element >= len(p.at) {
		return Place{Why: "there is no such value"}
	}
	if i := p.at[p.first[row]+element]; i >= 0 {
		return p.places[i]
	}
	return Place{Why: "it is null"}
}

// Locate makes Next record the extents of a column: of bytes, of structs with a field
// "bytes", or of lists of either. Call it before the first Next. For other columns it
// does nothing.
func (r *Records) Locate(column int) {
	if leaf, _ := r.columns[column].bytes(); leaf != nil {
		r.leaves[leaf.first].where = &locator{}
	}
}

// Places returns the extents of a column in the record that Next returned last; nil if
// Locate was not called for the column, or the column has no bytes.
func (r *Records) Places(column int) *Places {
	if r.places == nil {
		return nil
	}
	return r.places[column]
}

// bytes returns the leaf with the bytes of a column, and the list around it; nil for a
// column of another shape. A struct is the layout of Hugging Face: the fields "bytes" and
// "path".
func (n *node) bytes() (leaf, list *node) {
	if n.kind == kindList || n.kind == kindFixedList {
		list, n = n, n.children[0]
	}
	if n.kind == kindStruct {
		for _, c := range n.children {
			if c.name == "bytes" {
				n = c
				break
			}
		}
	}
	if n.kind != kindLeaf || n.column.PhysicalType() != pq.Types.ByteArray {
		return nil, nil
	}
	return n, list
}

// located matches the levels of a batch with the recorded places. The lengths are
// compared with the decoded values: places come from this package's parser of pages and
// values from the library, and a difference would address wrong bytes.
func (n *node) located(batches []batch) (*Places, error) {
	leaf, list := n.bytes()
	if leaf == nil {
		return nil, nil //nolint:nilnil // a column without bytes
	}
	b := &batches[leaf.first]
	if b.leaf == nil || b.leaf.where == nil {
		return nil, nil //nolint:nilnil // not asked for
	}
	p := &Places{first: make([]int, 0, len(b.def)), at: make([]int, 0, len(b.def))}
	next := 0
	for i, d := range b.def {
		if b.rep == nil || b.rep[i] == 0 {
			p.first = append(p.first, len(p.at))
		}
		if list != nil && d < list.element {
			continue
		}
		if d != leaf.def {
			p.at = append(p.at, -1)
			continue
		}
		p.at = append(p.at, next)
		next++
	}
	p.places = b.leaf.where.take(next)
	for i, v := range b.leaf.values.(*dense[pq.ByteArray]).v[:next] {
		if at := p.places[i]; at.Why == "" && at.Length != int64(len(v)) {
			return nil, fmt.Errorf("a value of %d bytes, where its page has one of %d", len(v), at.Length)
		}
	}
	return p, nil
}

// locator records the places of the values of a leaf, page by page, in the order in which
// the leaf reads them. The leaf reads from the front and drops at the front, so that both
// queues stay in step.
type locator struct {
	// from and codec belong to the open chunk; dict has the places of its dictionary.
	from   *stream
	codec  compress.Compression
	dict   []Place
	places []Place // places of the buffered values
	// lost says why places after this point are unknown; "" while they are known.
	lost string
}

// begin starts a column chunk. A dictionary is valid for its own chunk only.
func (l *locator) begin(from *stream, codec compress.Compression) {
	l.from, l.codec, l.dict = from, codec, nil
}

// take copies the places of the next n values. drop removes them later, together with the
// values.
func (l *locator) take(n int) []Place {
	out := make([]Place, n)
	for i := copy(out, l.places); i < n; i++ {
		out[i].Why = cmp.Or(l.lost, "it is after the pages that were read")
	}
	return out
}

// drop forgets the first n places.
func (l *locator) drop(n int) {
	n = min(n, len(l.places))
	rest := copy(l.places, l.places[n:])
	clear(l.places[rest:])
	l.places = l.places[:rest]
}

// codecs maps the codecs of Parquet to those of units. LZ4 with Hadoop's framing is
// absent: its content is several blocks.
var codecs = map[compress.Compression]schema.Codec{compress.Codecs.Snappy: schema.CodecSnappy,
	compress.Codecs.Gzip: schema.CodecGzip, compress.Codecs.Brotli: schema.CodecBrotli,
	compress.Codecs.Zstd: schema.CodecZstd, lz4Raw: schema.CodecLZ4Raw}

// base returns the place of the first value of the page that was read last.
//
// decoded is the size of the decoded page, and levels the number of bytes of levels
// before the values. packed says that the values are compressed. levelsApart says that
// the levels are not part of what is compressed: version 2 of the data page stores them
// uncompressed in front, so that the unit begins behind them.
func (l *locator) base(decoded, levels int, packed, levelsApart bool) Place {
	begin, size := l.from.start+l.from.mark, l.from.at-l.from.mark
	if !packed {
		return Place{Offset: begin + int64(levels)}
	}
	codec, ok := codecs[l.codec]
	if !ok {
		return Place{Why: fmt.Sprintf("it is in a page with the compression %s, which has no plain form", l.codec)}
	}
	if decoded > MaxPage {
		return Place{Why: fmt.Sprintf("it is in a compressed page of %d bytes, more than the %d that are decoded for "+
			"one value: import it instead", decoded, MaxPage)}
	}
	u := &schema.Unit{Offset: begin, Length: size, Size: int64(decoded), Codec: codec}
	if !levelsApart {
		return Place{Offset: int64(levels), Unit: u}
	}
	u.Offset, u.Length, u.Size = u.Offset+int64(levels), u.Length-int64(levels), u.Size-int64(levels)
	return Place{Unit: u}
}

// dictionary records the values of a dictionary page. It is in PLAIN and has no levels.
func (l *locator) dictionary(page *file.DictionaryPage) error {
	data, n := page.Data(), int(page.NumValues())
	base := l.base(len(data), 0, l.codec != compress.Codecs.Uncompressed, false)
	var err error
	l.dict, err = plainPlaces(nil, base, data, n)
	return err
}

// data records the values of a data page. present is the number of non-null values.
// Version 2 has a flag for pages that are not compressed in a compressed chunk.
func (l *locator) data(page file.Page, levels, present int) error {
	packed, apart := l.codec != compress.Codecs.Uncompressed, false
	if v2, ok := page.(*file.DataPageV2); ok {
		packed, apart = packed && v2.IsCompressed(), true
	}
	data := page.Data()
	base := l.base(len(data), levels, packed, apart)
	var err error
	switch e := pq.Encoding(page.Encoding()); e {
	case pq.Encodings.Plain:
		l.places, err = plainPlaces(l.places, base, data[levels:], present)
	case pq.Encodings.DeltaLengthByteArray:
		err = l.deltaLengths(base, data[levels:], present)
	case pq.Encodings.RLEDict, pq.Encodings.PlainDict:
		err = l.indexes(data[levels:], present)
	default:
		why := fmt.Sprintf("its page has the encoding %s, which does not keep values whole", e)
		for range present {
			l.places = append(l.places, Place{Why: why})
		}
	}
	return err
}

// errPlaces is an error and not a missing place: such a page is malformed.
var errPlaces = errors.New("a page with fewer values than levels")

// plainPlaces appends the places of PLAIN values: each has its length before it, as a
// little-endian 32-bit number.
func plainPlaces(to []Place, base Place, data []byte, n int) ([]Place, error) {
	at := 0
	for range n {
		if len(data)-at < 4 {
			return nil, errPlaces
		}
		size := binary.LittleEndian.Uint32(data[at:])
		if at += 4; int64(size) > int64(len(data)-at) {
			return nil, errPlaces
		}
		to = append(to, base.part(at, int(size)))
		at += int(size)
	}
	return to, nil
}

// part returns a place of size bytes that begins at bytes behind another.
func (p Place) part(at, size int) Place {
	return Place{Offset: p.Offset + int64(at), Length: int64(size), Unit: p.Unit, Why: p.Why}
}

// deltaLengths records DELTA_LENGTH_BYTE_ARRAY: all lengths in DELTA_BINARY_PACKED, then
// the bytes of all values without gaps.
func (l *locator) deltaLengths(base Place, data []byte, n int) error {
	sizes, rest, err := deltas(data)
	if err != nil {
		return err
	}
	if len(sizes) < n {
		return errPlaces
	}
	at, left := len(data)-len(rest), int64(len(rest))
	for _, size := range sizes[:n] {
		if size < 0 || size > left {
			return errPlaces
		}
		l.places = append(l.places, base.part(at, int(size)))
		at, left = at+int(size), left-size
	}
	return nil
}

// indexes records values of the dictionary: a byte with the bit width, then indexes in
// the hybrid of RLE and bit-packing.
func (l *locator) indexes(data []byte, n int) error {
	if n == 0 {
		return nil
	}
	if len(data) == 0 {
		return errPlaces
	}
	width := int(data[0])
	if width > 32 {
		return fmt.Errorf("indexes of %d bits", width)
	}
	var bad error
	got := eachRun(data[1:], width, n, func(v uint64, times int) {
		if v >= uint64(len(l.dict)) {
			bad = fmt.Errorf("value %d of a dictionary of %d", v, len(l.dict))
			return
		}
		for range times {
			l.places = append(l.places, l.dict[v])
		}
	})
	if !got && bad == nil {
		bad = errPlaces
	}
	return bad
}

// eachRun decodes n values in the hybrid of RLE and bit-packing, the encoding of levels
// and dictionary indexes. f receives a value and how often it is repeated. eachRun
// returns false if data holds fewer than n values.
func eachRun(data []byte, width, n int, f func(v uint64, times int)) bool {
	for n > 0 {
		head, size := binary.Uvarint(data)
		if size <= 0 {
			return false
		}
		data = data[size:]
		// RLE: the value takes the fewest whole bytes that hold width bits.
		if head&1 == 0 {
			bytes := (width + 7) / 8
			if bytes > len(data) || head == 0 {
				return false
			}
			var eight [8]byte
			copy(eight[:], data[:bytes])
			times := int(min(head>>1, uint64(n)))
			f(binary.LittleEndian.Uint64(eight[:]), times)
			data, n = data[bytes:], n-times
			continue
		}
		if head == 1 {
			return false
		}
		// Bit-packing: head>>1 groups of eight values. The last group may be cut off in
		// the file.
		bytes := int(min(head>>1, uint64(len(data)+1))) * width
		packed := data[:min(bytes, len(data))]
		count := n
		if whole := head >> 1 << 3; uint64(n) > whole {
			count = int(whole)
		}
		if count*width > len(packed)*8 {
			return false
		}
		for i := range count {
			f(bitsAt(packed, uint64(i)*uint64(width), byte(width)), 1)
		}
		data, n = data[len(packed):], n-count
	}
	return true
}

// present counts the levels that stand for a value. It returns false if there are fewer
// than n levels.
func present(levels []byte, most int16, n int) (count int, ok bool) {
	if most == 0 {
		return n, true
	}
	ok = eachRun(levels, bits.Len16(uint16(most)), n, func(v uint64, times int) {
		if v == uint64(most) {
			count += times
		}
	})
	return count, ok
}

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

// MaxPage bounds a page that has places of values: it is read and decoded as a whole for each of them.
const MaxPage = 64 << 20

// Place is where a value of bytes is in its file.
type Place struct {
	// Offset is where the bytes begin: in the file, or in the decoded unit.
	Offset, Length int64
	// Unit is the compressed part of a page that holds the value; nil if the file has the
	// value as it is. Values of one page have the same.
	Unit *schema.Unit
	// Why says why the value is nowhere in one piece, "" if it is.
	Why string
}

// Places has the places of the values of a column, row by row.
type Places struct {
	first  []int // elements before those of a row
	at     []int // places by element; -1 for a null
	places []Place
}

// At returns the place of a value: that of a row, or of an element of the list in it. It says why there is none, of a
// null as well. nil is the column of no bytes.
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

// Locate makes Next record the places of the values of a column: one of bytes, of structs
// with a field "bytes", or of lists of either. It is called before Next.
func (r *Records) Locate(column int) {
	if leaf, _ := r.columns[column].bytes(); leaf != nil {
		r.leaves[leaf.first].where = &locator{}
	}
}

// Places returns the places of the values of a column in the record that Next returned
// last; nil if Locate was not asked for it, or the column has no bytes.
func (r *Records) Places(column int) *Places {
	if r.places == nil {
		return nil
	}
	return r.places[column]
}

// bytes returns the leaf that holds the bytes of a column, and the list around it; nil where there is none.
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

// located finds the places of the values in a batch.
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
// they are read.
type locator struct {
	from   *stream
	codec  compress.Compression
	dict   []Place
	places []Place // of the values that were not yet dropped
	lost   string  // why no more is known
}

// begin takes note of a chunk before its pages.
func (l *locator) begin(from *stream, codec compress.Compression) {
	l.from, l.codec, l.dict = from, codec, nil
}

// take returns the places of the next n values.
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

// codecs are those that units have, by the codecs of Parquet.
var codecs = map[compress.Compression]schema.Codec{compress.Codecs.Snappy: schema.CodecSnappy,
	compress.Codecs.Gzip: schema.CodecGzip, compress.Codecs.Brotli: schema.CodecBrotli,
	compress.Codecs.Zstd: schema.CodecZstd, lz4Raw: schema.CodecLZ4Raw}

// base returns the place of the values of the page that was read last, after the given
// number of bytes of levels. decoded is the size of the page.
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

// dictionary notes the values of a dictionary.
func (l *locator) dictionary(page *file.DictionaryPage) error {
	data, n := page.Data(), int(page.NumValues())
	base := l.base(len(data), 0, l.codec != compress.Codecs.Uncompressed, false)
	var err error
	l.dict, err = plainPlaces(nil, base, data, n)
	return err
}

// data notes the values of a page. present is how many of them are not null.
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

var errPlaces = errors.New("a page with fewer values than levels")

// plainPlaces appends the places of values that stand behind their lengths.
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

// part is a place behind the beginning of another.
func (p Place) part(at, size int) Place {
	return Place{Offset: p.Offset + int64(at), Length: int64(size), Unit: p.Unit, Why: p.Why}
}

// deltaLengths notes values that stand one behind the other, behind all their lengths.
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

// indexes notes values that are those of the dictionary.
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

// eachRun calls f for n values of runs, as levels and indexes are written: one value
// several times, or groups of eight values that are packed. It reports whether there are
// that many.
func eachRun(data []byte, width, n int, f func(v uint64, times int)) bool {
	for n > 0 {
		head, size := binary.Uvarint(data)
		if size <= 0 {
			return false
		}
		data = data[size:]
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

// present counts the levels that say that a value is there. false if there are fewer levels than values.
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

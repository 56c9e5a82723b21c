package schema

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/decimal128"
	"github.com/apache/arrow/go/v17/arrow/float16"
)

const (
	// statisticsVersion begins the statistics of a page. Those of another version are
	// ignored.
	statisticsVersion = 1
	statisticsHeader  = 8
	// maxStatistics is how many columns and fields of structs have statistics, in schema
	// order; the rest has none. It bounds the index of a chunk.
	maxStatistics = 512

	recordHeader = 16 // nulls, flags, bytes
	textBound    = 32 // a byte for the length, then the text
)

// Flags of a column's record.
const (
	flagMin = 1 << iota // there is a lower bound
	flagMax             // there is an upper bound
	flagNaN             // some values are NaN
)

// boundKind is the encoding of the bounds of a type's values.
type boundKind uint8

const (
	boundNone  boundKind = iota // no bounds
	boundInt                    // two i64
	boundUint                   // two u64
	boundFloat                  // two f64
	boundText                   // two texts, shortened to textBound-1 bytes
)

// size is the length of both bounds in bytes.
func (k boundKind) size() int {
	switch k {
	case boundNone:
		return 0
	case boundText:
		return 2 * textBound
	}
	return 16
}

// boundKindOf is the encoding of the bounds of a type.
func boundKindOf(t arrow.DataType) boundKind {
	switch t.ID() {
	case arrow.BOOL, arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64:
		return boundUint
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64,
		arrow.TIMESTAMP, arrow.DATE32, arrow.DATE64, arrow.TIME32, arrow.TIME64, arrow.DURATION:
		return boundInt
	case arrow.FLOAT16, arrow.FLOAT32, arrow.FLOAT64, arrow.DECIMAL128:
		return boundFloat
	case arrow.STRING, arrow.LARGE_STRING, arrow.BINARY, arrow.FIXED_SIZE_BINARY:
		return boundText
	}
	return boundNone
}

// statisticsLayout is the layout of the records of a page's columns. It follows from the
// logical schema, so it is the same for all pages, and records need no names.
type statisticsLayout struct {
	columns []statisticsField // by column of the schema; none of the id
	size    int               // header included
}

// statisticsField is the place of the record of a column, or of a struct's field.
type statisticsField struct {
	name   string
	at     int // offset of the record; 0 if there is none
	kind   boundKind
	blob   bool
	fields []statisticsField // of a struct
}

func newStatisticsLayout(s *arrow.Schema) *statisticsLayout {
	l := &statisticsLayout{size: statisticsHeader, columns: make([]statisticsField, s.NumFields())}
	records := 0
	for i, f := range s.Fields() {
		switch {
		case f.Name == IDColumn:
		case IsBlob(f):
			l.place(&l.columns[i], f.Name, boundUint, &records)
			l.columns[i].blob = true
		default:
			l.field(&l.columns[i], f, &records)
		}
	}
	return l
}

// place reserves the space of a record, unless there are too many.
func (l *statisticsLayout) place(f *statisticsField, name string, kind boundKind, records *int) {
	f.name = name
	if *records++; *records <= maxStatistics {
		f.at, f.kind = l.size, kind
		l.size += recordHeader + kind.size()
	}
}

// field reserves the records of a metadata column and of its structs' fields.
func (l *statisticsLayout) field(f *statisticsField, of arrow.Field, records *int) {
	l.place(f, of.Name, boundKindOf(of.Type), records)
	if t, ok := of.Type.(*arrow.StructType); ok {
		f.fields = make([]statisticsField, t.NumFields())
		for i, sub := range t.Fields() {
			l.field(&f.fields[i], sub, records)
		}
	}
}

// Statistics are the statistics of a page, which are known without reading it. They refer
// to the bytes of the list of pages.
type Statistics struct {
	layout *statisticsLayout
	raw    []byte
	rows   int64
}

// ColumnStatistics are the statistics of a column of a page, or of a field of its
// structs.
type ColumnStatistics struct {
	// Rows is the number of rows of the page, Nulls the number of rows in which the
	// column is null. A field is null if its struct is.
	Rows, Nulls int64
	// Bytes is the total size of the values, as [Page.CellBytes] counts them.
	Bytes int64
	// Min and Max enclose the values, except NaN: each value is at least Min and at most
	// Max. They need not be values themselves. They are int64 for signed integers, dates,
	// times and durations; uint64 for unsigned integers, bools (0 and 1) and blobs (their
	// sizes); float64 for floating-point numbers and decimals; and string for texts and
	// bytes. nil means unknown.
	Min, Max any
	// NaN reports whether some values are NaN.
	NaN bool
}

// Statistics returns the statistics of a page of the snapshot from the list of pages; ok
// is false if there are none.
func (f *Form) Statistics(page *Chunk) (s Statistics, ok bool) {
	raw := page.Statistics
	if len(raw) != f.statistics.size || binary.LittleEndian.Uint32(raw) != statisticsVersion {
		return s, false
	}
	return Statistics{f.statistics, raw, page.Rows}, true
}

// Column returns the statistics of a stored column, by its index in the schema, or of a
// field of its structs, by the path of names; ok is false if there are none.
func (s Statistics) Column(i int, path ...string) (c ColumnStatistics, ok bool) {
	f := &s.layout.columns[i]
next:
	for _, name := range path {
		for k := range f.fields {
			if f.fields[k].name == name {
				f = &f.fields[k]
				continue next
			}
		}
		return c, false
	}
	if f.at == 0 {
		return c, false
	}
	return s.record(f)
}

// record parses a record; ok is false if it is impossible.
func (s Statistics) record(f *statisticsField) (c ColumnStatistics, ok bool) {
	b := s.raw[f.at:]
	flags := binary.LittleEndian.Uint32(b[4:])
	c = ColumnStatistics{
		Rows: s.rows, Nulls: int64(binary.LittleEndian.Uint32(b)),
		Bytes: int64(binary.LittleEndian.Uint64(b[8:])), NaN: flags&flagNaN != 0,
	}
	if c.Nulls > c.Rows || c.Bytes < 0 {
		return c, false
	}
	half := f.kind.size() / 2
	b = b[recordHeader:]
	if flags&flagMin != 0 {
		c.Min = f.kind.read(b[:half])
	}
	if flags&flagMax != 0 {
		c.Max = f.kind.read(b[half : 2*half])
	}
	return c, true
}

// read parses a bound; nil if it is impossible.
func (k boundKind) read(b []byte) any {
	switch k {
	case boundInt:
		return int64(binary.LittleEndian.Uint64(b))
	case boundUint:
		return binary.LittleEndian.Uint64(b)
	case boundFloat:
		if f := math.Float64frombits(binary.LittleEndian.Uint64(b)); f == f {
			return f
		}
	case boundText:
		if n := int(b[0]); n < textBound {
			return string(b[1 : 1+n])
		}
	}
	return nil
}

// CellBytes is the size in bytes of one value of a stored column, by its index in the
// schema: the length of a text, the width of a fixed-width type (one byte for a bool),
// the values of a list or struct, the size of a blob, and 0 for null. It does not include
// the overhead of an encoding.
func (p *Page) CellBytes(column, row int) int64 {
	if first := len(p.columns) - len(p.refs); column >= first {
		ref, _ := p.Blob(column-first, row)
		return ref.Size
	}
	return p.columns[column].cellBytes(row)
}

func (v *view) cellBytes(i int) (n int64) {
	if v.null(i) {
		return 0
	}
	switch v.shape {
	case shapeBits:
		return 1
	case shapeFixed:
		return int64(v.width)
	case shapeBytes:
		return int64(v.off32[i+1] - v.off32[i])
	case shapeBytes8:
		return v.off64[i+1] - v.off64[i]
	case shapeList:
		return v.children[0].itemBytes(int(v.off32[i]), int(v.off32[i+1]))
	case shapeFixedList:
		return v.children[0].itemBytes(i*v.width, (i+1)*v.width)
	case shapeStruct:
		for c := range v.children {
			n += v.children[c].cellBytes(i)
		}
	}
	return n
}

// itemBytes is the total size of the values [from, to).
func (v *view) itemBytes(from, to int) (n int64) {
	if v.shape == shapeFixed && v.validity == nil {
		return int64(to-from) * int64(v.width)
	}
	for ; from < to; from++ {
		n += v.cellBytes(from)
	}
	return n
}

// make writes the statistics of a page with these columns, which are in the order of the
// schema.
func (l *statisticsLayout) make(cols []view) []byte {
	out := make([]byte, l.size)
	binary.LittleEndian.PutUint32(out, statisticsVersion)
	binary.LittleEndian.PutUint32(out[4:], uint32(l.size))
	for i := range l.columns {
		l.columns[i].put(out, &cols[i], nil)
	}
	return out
}

// put writes the records of a column and of the fields of its structs. above are the
// structs around it.
func (f *statisticsField) put(out []byte, v *view, above []*view) {
	if f.at > 0 {
		f.record(out[f.at:], v, above)
	}
	within := append(above[:len(above):len(above)], v)
	for i := range f.fields {
		f.fields[i].put(out, &v.children[i], within)
	}
}

// record writes the record of one column.
func (f *statisticsField) record(out []byte, v *view, above []*view) {
	valid := validIn(v, above)
	nulls := 0
	if valid != nil {
		nulls = v.n - bitutil.CountSetBits(valid, 0, v.n)
	}
	var bytes int64
	switch {
	case f.blob:
		for i, size := range cast[uint64](v.children[1].values)[:v.n] {
			if isValid(valid, i) {
				bytes += int64(size)
			}
		}
	case v.shape == shapeFixed || v.shape == shapeBits:
		bytes = int64(v.n-nulls) * int64(max(v.width, 1))
		if v.shape == shapeFixed {
			bytes = int64(v.n-nulls) * int64(v.width)
		}
	default:
		for i := range v.n {
			if isValid(valid, i) {
				bytes += v.cellBytes(i)
			}
		}
	}
	binary.LittleEndian.PutUint32(out, uint32(nulls))
	binary.LittleEndian.PutUint64(out[8:], uint64(bytes))
	flags := f.bounds(out[recordHeader:recordHeader+f.kind.size()], v, valid)
	binary.LittleEndian.PutUint32(out[4:], flags)
}

// validIn is a bitmap of the rows in which neither v nor a struct above it is null; nil
// if these are all rows.
func validIn(v *view, above []*view) []byte {
	var valid []byte
	for _, u := range append(above[:len(above):len(above)], v) {
		if u.validity == nil {
			continue
		}
		if valid == nil {
			valid = make([]byte, (v.n+7)/8)
			bitutil.CopyBitmap(u.validity, u.bit, v.n, valid, 0)
			continue
		}
		for i := range v.n {
			if u.null(i) {
				bitutil.ClearBit(valid, i)
			}
		}
	}
	return valid
}

func isValid(valid []byte, i int) bool { return valid == nil || bitutil.BitIsSet(valid, i) }

// bounds writes the bounds of the valid values, and returns the flags of the bounds that
// exist.
func (f *statisticsField) bounds(out []byte, v *view, valid []byte) uint32 {
	if f.blob {
		return boundsOf(out, uint64s[uint64], cast[uint64](v.children[1].values)[:v.n], valid)
	}
	switch v.dt.ID() {
	case arrow.BOOL:
		bits := make([]uint8, v.n)
		for i := range bits {
			if bitutil.BitIsSet(v.values, v.bit+i) {
				bits[i] = 1
			}
		}
		return boundsOf(out, uint64s[uint8], bits, valid)
	case arrow.UINT8:
		return boundsOf(out, uint64s[uint8], cast[uint8](v.values)[:v.n], valid)
	case arrow.UINT16:
		return boundsOf(out, uint64s[uint16], cast[uint16](v.values)[:v.n], valid)
	case arrow.UINT32:
		return boundsOf(out, uint64s[uint32], cast[uint32](v.values)[:v.n], valid)
	case arrow.UINT64:
		return boundsOf(out, uint64s[uint64], cast[uint64](v.values)[:v.n], valid)
	case arrow.INT8:
		return boundsOf(out, uint64s[int8], cast[int8](v.values)[:v.n], valid)
	case arrow.INT16:
		return boundsOf(out, uint64s[int16], cast[int16](v.values)[:v.n], valid)
	case arrow.INT32, arrow.DATE32, arrow.TIME32:
		return boundsOf(out, uint64s[int32], cast[int32](v.values)[:v.n], valid)
	case arrow.INT64, arrow.DATE64, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return boundsOf(out, uint64s[int64], cast[int64](v.values)[:v.n], valid)
	case arrow.FLOAT16, arrow.FLOAT32, arrow.FLOAT64, arrow.DECIMAL128:
		return floatBounds(out, v, valid)
	case arrow.STRING, arrow.LARGE_STRING, arrow.BINARY, arrow.FIXED_SIZE_BINARY:
		return textBounds(out, v, valid)
	}
	return 0
}

// boundsOf writes the least and the greatest valid value, each converted to 64 bits by
// raw.
func boundsOf[T cmp.Ordered](out []byte, raw func(T) uint64, values []T, valid []byte) uint32 {
	var low, high T
	some := false
	for i, x := range values {
		switch {
		case !isValid(valid, i):
		case !some:
			low, high, some = x, x, true
		default:
			low, high = min(low, x), max(high, x)
		}
	}
	if !some {
		return 0
	}
	binary.LittleEndian.PutUint64(out, raw(low))
	binary.LittleEndian.PutUint64(out[8:], raw(high))
	return flagMin | flagMax
}

func uint64s[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](x T) uint64 {
	return uint64(x)
}

// floatBounds writes bounds of the values as float64. A zero bound covers both zeros. The
// conversion of a decimal is inexact, so its bounds are widened by some steps.
func floatBounds(out []byte, v *view, valid []byte) (flags uint32) {
	value := floatsOf(v)
	low, high := math.Inf(1), math.Inf(-1)
	for i := range v.n {
		if !isValid(valid, i) {
			continue
		}
		x := value(i)
		if x != x {
			flags |= flagNaN
			continue
		}
		flags |= flagMin | flagMax
		low, high = min(low, x), max(high, x)
	}
	if flags&flagMin == 0 {
		return flags
	}
	if v.dt.ID() == arrow.DECIMAL128 {
		for range 4 {
			low, high = math.Nextafter(low, math.Inf(-1)), math.Nextafter(high, math.Inf(1))
		}
	}
	if low == 0 {
		low = math.Copysign(0, -1)
	}
	if high == 0 {
		high = 0
	}
	binary.LittleEndian.PutUint64(out, math.Float64bits(low))
	binary.LittleEndian.PutUint64(out[8:], math.Float64bits(high))
	return flags
}

// floatsOf reads the values of a column as float64.
func floatsOf(v *view) func(int) float64 {
	switch dt := v.dt.(type) {
	case *arrow.Float16Type:
		bits := cast[uint16](v.values)
		return func(i int) float64 { return float64(float16.FromBits(bits[i]).Float32()) }
	case *arrow.Float32Type:
		bits := cast[uint32](v.values)
		return func(i int) float64 { return float64(math.Float32frombits(bits[i])) }
	case *arrow.Decimal128Type:
		words := cast[uint64](v.values)
		return func(i int) float64 { return decimal128.New(int64(words[2*i+1]), words[2*i]).ToFloat64(dt.Scale) }
	}
	bits := cast[uint64](v.values)
	return func(i int) float64 { return math.Float64frombits(bits[i]) }
}

// textBounds writes bounds of texts: prefixes of the least and of the greatest one. The
// upper prefix is incremented if it was shortened. If that is impossible, because all of
// its bytes are 0xff, there is no upper bound.
func textBounds(out []byte, v *view, valid []byte) uint32 {
	text := func(i int) []byte { return v.values[v.off(i):v.off(i+1)] }
	low, high := -1, -1
	for i := range v.n {
		if !isValid(valid, i) {
			continue
		}
		if low < 0 {
			low, high = i, i
			continue
		}
		if string(text(i)) < string(text(low)) {
			low = i
		}
		if string(text(i)) > string(text(high)) {
			high = i
		}
	}
	if low < 0 {
		return 0
	}
	const most = textBound - 1
	least := text(low)
	out[0] = byte(copy(out[1:textBound], least[:min(len(least), most)]))
	greatest := text(high)
	if len(greatest) > most {
		greatest = append([]byte(nil), greatest[:most]...)
		for len(greatest) > 0 && greatest[len(greatest)-1] == 0xff {
			greatest = greatest[:len(greatest)-1]
		}
		if len(greatest) == 0 {
			return flagMin
		}
		greatest[len(greatest)-1]++
	}
	out[textBound] = byte(copy(out[textBound+1:], greatest))
	return flagMin | flagMax
}

// off is the offset of text i in values.
func (v *view) off(i int) int64 {
	switch v.shape {
	case shapeBytes:
		return int64(v.off32[i])
	case shapeBytes8:
		return v.off64[i]
	}
	return int64(i) * int64(v.width)
}

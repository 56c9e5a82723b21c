package schema

import (
	"encoding/binary"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
)

const (
	// statisticsVersion is what the statistics of a page begin with. Those of another
	// version are ignored.
	statisticsVersion = 1
	statisticsHeader  = 8
	// maxStatistics is how many columns and fields of structs have statistics: those
	// after them have none.
	maxStatistics = 512

	recordHeader = 16 // nulls, flags, bytes
	textBound    = 32 // a byte for the length, and the text
)

// Flags of a column's record.
const (
	flagMin = 1 << iota // there is a least value, or a bound below it
	flagMax             // there is a greatest value, or a bound above it
	flagNaN             // some values are no numbers
)

// boundKind is how a record tells the bounds of a type's values.
type boundKind uint8

const (
	boundNone  boundKind = iota // it does not
	boundInt                    // two i64
	boundUint                   // two u64
	boundFloat                  // two f64
	boundText                   // two texts, shortened to textBound-1 bytes
)

func (k boundKind) size() int {
	switch k {
	case boundNone:
		return 0
	case boundText:
		return 2 * textBound
	}
	return 16
}

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

// statisticsLayout says where the records of a page's columns lie. It follows from the
// logical schema, so it is the same for all pages.
type statisticsLayout struct {
	columns []statisticsField // by column of the schema; none of the id
	size    int               // header included
}

// statisticsField is the place of a column's record, or of that of a struct's field.
type statisticsField struct {
	name   string
	at     int // 0 if there is none
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

func (l *statisticsLayout) place(f *statisticsField, name string, kind boundKind, records *int) {
	f.name = name
	if *records++; *records <= maxStatistics {
		f.at, f.kind = l.size, kind
		l.size += recordHeader + kind.size()
	}
}

func (l *statisticsLayout) field(f *statisticsField, of arrow.Field, records *int) {
	l.place(f, of.Name, boundKindOf(of.Type), records)
	if t, ok := of.Type.(*arrow.StructType); ok {
		f.fields = make([]statisticsField, t.NumFields())
		for i, sub := range t.Fields() {
			l.field(&f.fields[i], sub, records)
		}
	}
}

// Statistics tell of a page what can be said without reading it. Its bytes are those of
// the list that the page is in.
type Statistics struct {
	layout *statisticsLayout
	raw    []byte
	rows   int64
}

// ColumnStatistics tell of a column of a page, or of a field of its structs.
type ColumnStatistics struct {
	// Rows is how many rows the page has, and in Nulls of them the column is null. A field is null where
	// its struct is, too.
	Rows, Nulls int64
	// Bytes is the sum of the sizes of the values, as [Page.CellBytes] counts them.
	Bytes int64
	// Min and Max enclose the values, those that are no numbers left out: each is at least Min, and at most
	// Max. They need not be values themselves. They are int64 for signed integers, dates, times and
	// durations, uint64 for unsigned ones, for bools (0 and 1) and for blobs, whose sizes they are, float64
	// for floating-point numbers and decimals, and string for texts and bytes. One that is nil is not known.
	Min, Max any
	// NaN reports whether some values are no numbers.
	NaN bool
}

// Statistics returns what is known of a page of the snapshot without reading it, as its list tells; ok
// is false if that is nothing.
func (f *Form) Statistics(page *Chunk) (s Statistics, ok bool) {
	raw := page.Statistics
	if len(raw) != f.statistics.size || binary.LittleEndian.Uint32(raw) != statisticsVersion {
		return s, false
	}
	return Statistics{f.statistics, raw, page.Rows}, true
}

// Column returns what is known of a stored column, by its index in the schema, or of a field of its structs, by
// the names that lead to it; ok is false if that is nothing.
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

// record reads a record. One that cannot be is none.
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

// read reads a bound, nil if it is none.
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

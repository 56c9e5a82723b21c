package schema

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// plainBytes is the size of a value, computed from Arrow's arrays.
func plainBytes(a arrow.Array, i int) (n int64) {
	if a.IsNull(i) {
		return 0
	}
	switch a := a.(type) {
	case *array.Boolean:
		return 1
	case *array.String:
		return int64(len(a.Value(i)))
	case *array.LargeString:
		return int64(len(a.Value(i)))
	case *array.Binary:
		return int64(len(a.Value(i)))
	case array.ListLike:
		for from, to := a.ValueOffsets(i); from < to; from++ {
			n += plainBytes(a.ListValues(), int(from))
		}
		return n
	case *array.Struct:
		for f := range a.NumField() {
			n += plainBytes(a.Field(f), i)
		}
		return n
	}
	return int64(a.DataType().(arrow.FixedWidthDataType).BitWidth() / 8)
}

// plainValue is a value as bounds have it, nil where there are none of the type.
func plainValue(a arrow.Array, i int) any {
	switch a := a.(type) {
	case *array.Boolean:
		return map[bool]uint64{true: 1}[a.Value(i)]
	case *array.String:
		return a.Value(i)
	case *array.LargeString:
		return a.Value(i)
	case *array.Binary:
		return string(a.Value(i))
	case *array.FixedSizeBinary:
		return string(a.Value(i))
	case *array.Float16:
		return float64(a.Value(i).Float32())
	case *array.Decimal128:
		return a.Value(i).ToFloat64(a.DataType().(*arrow.Decimal128Type).Scale)
	case array.ListLike, *array.Struct, *array.Decimal256:
		return nil
	}
	v := reflect.ValueOf(a).MethodByName("Value").Call([]reflect.Value{reflect.ValueOf(i)})[0]
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return v.Uint()
	}
	return v.Float()
}

// encloses reports whether a value is within bounds.
func encloses(low, high, v any) bool {
	switch v := v.(type) {
	case int64:
		return low.(int64) <= v && v <= high.(int64)
	case uint64:
		return low.(uint64) <= v && v <= high.(uint64)
	case float64:
		return low.(float64) <= v && v <= high.(float64)
	case string:
		return (low == nil || low.(string) <= v) && (high == nil || v <= high.(string))
	}
	return low == nil && high == nil
}

// Statistics say what the rows are, whatever the type.
func TestStatistics(t *testing.T) {
	rng, mem, s := random(t), checked(t), everySchema(t)
	for range 20 {
		d := makeDataset(t, rng, mem, s, 1+rng.IntN(40))
		held := 0
		m := d.open(t, &held)
		form, page, chunk := m.Form(), m.Page(0), d.snap.Chunks[0]
		stats, ok := form.Statistics(&chunk)
		if !ok {
			t.Fatal("no statistics")
		}
		for i, field := range s.Fields()[1:] {
			a := page.Column(i + 1)
			c, ok := stats.Column(i + 1)
			if !ok {
				t.Fatalf("%s: none", field.Name)
			}
			want, some := ColumnStatistics{Rows: chunk.Rows}, false
			for row := range page.Rows() {
				if n := page.CellBytes(i+1, row); !IsBlob(field) && n != plainBytes(a, row) {
					t.Fatalf("%s: a cell has %d bytes, want %d", field.Name, n, plainBytes(a, row))
				}
				want.Bytes += page.CellBytes(i+1, row)
				if a.IsNull(row) {
					want.Nulls++
					continue
				}
				some = true
				v := plainValue(a, row)
				if IsBlob(field) {
					ref, _ := page.Blob(i+1-form.first, row)
					v = uint64(ref.Size)
				}
				if !encloses(c.Min, c.Max, v) {
					t.Fatalf("%s: %v is not within %v and %v", field.Name, v, c.Min, c.Max)
				}
			}
			if !some && (c.Min != nil || c.Max != nil) {
				t.Fatalf("%s: bounds %v, %v of nothing", field.Name, c.Min, c.Max)
			}
			want.Min, want.Max, want.NaN = c.Min, c.Max, c.NaN
			if c != want {
				t.Fatalf("%s: %+v, want %+v", field.Name, c, want)
			}
			if st, ok := a.(*array.Struct); ok && !IsBlob(field) {
				f, ok := stats.Column(i+1, "a")
				nulls := int64(0)
				for row := range page.Rows() {
					if st.IsNull(row) || st.Field(0).IsNull(row) {
						nulls++
					} else if !encloses(f.Min, f.Max, plainValue(st.Field(0), row)) {
						t.Fatalf("%s.a: %v to %v", field.Name, f.Min, f.Max)
					}
				}
				if !ok || f.Nulls != nulls {
					t.Fatalf("%s.a: %+v, %d nulls", field.Name, f, nulls)
				}
			}
		}
		m.Close()
		d.release()
	}
}

// statisticsOfArray is what is said of a column.
func statisticsOfArray(t *testing.T, s *arrow.Schema, col arrow.Array) ColumnStatistics {
	t.Helper()
	rec := array.NewRecord(arrow.NewSchema(MetaFields(s), nil), []arrow.Array{col}, int64(col.Len()))
	defer rec.Release()
	b := NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	if err := b.AppendBatch(make([]ID, col.Len()), rec, nil); err != nil {
		t.Fatal(err)
	}
	_, c, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	form, err := NewForm(&Snapshot{Schema: s})
	if err != nil {
		t.Fatal(err)
	}
	stats, _ := form.Statistics(&c)
	column, ok := stats.Column(1)
	if !ok {
		t.Fatal("no statistics")
	}
	return column
}

// Long texts have bounds that are shortened; one that cannot be increased has none above it.
func TestStatisticsOfTexts(t *testing.T) {
	s, err := NewSchema([]arrow.Field{{Name: "x", Type: arrow.BinaryTypes.Binary, Nullable: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := func(n int) string { return strings.Repeat("a", n) }
	ff := func(n int) string { return strings.Repeat("\xff", n) }
	for _, c := range []struct {
		values    []string
		low, high any
	}{
		{[]string{"b", "", "c"}, "", "c"},
		{[]string{a(31)}, a(31), a(31)},
		{[]string{a(32)}, a(31), a(30) + "b"},
		{[]string{a(30) + "\xff\x01"}, a(30) + "\xff", a(29) + "b"},
		{[]string{ff(31)}, ff(31), ff(31)},
		{[]string{"x", ff(32)}, "x", nil},
		{[]string{"x\x00", "x"}, "x", "x\x00"},
	} {
		b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
		for _, v := range c.values {
			b.Append([]byte(v))
		}
		col := b.NewArray()
		if got := statisticsOfArray(t, s, col); got.Min != c.low || got.Max != c.high {
			t.Errorf("%q: %q to %q, want %q to %q", c.values, got.Min, got.Max, c.low, c.high)
		}
		col.Release()
		b.Release()
	}
}

// NaN is reported, and is within no bounds; zeros count as both zeros.
func TestStatisticsOfFloats(t *testing.T) {
	nan, minus := math.NaN(), math.Copysign(0, -1)
	s, err := NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Float64, Nullable: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		values    []float64
		low, high any
		nan       bool
	}{
		{[]float64{3, nan, 1}, 1., 3., true},
		{[]float64{nan}, nil, nil, true},
		{[]float64{0}, minus, 0., false},
		{[]float64{minus, -1}, -1., 0., false},
		{[]float64{math.Inf(1), math.Inf(-1)}, math.Inf(-1), math.Inf(1), false},
	} {
		b := array.NewFloat64Builder(memory.DefaultAllocator)
		b.AppendValues(c.values, nil)
		col := b.NewArray()
		got := statisticsOfArray(t, s, col)
		same := func(a, b any) bool {
			if a == nil || b == nil {
				return a == b
			}
			return math.Float64bits(a.(float64)) == math.Float64bits(b.(float64))
		}
		if !same(got.Min, c.low) || !same(got.Max, c.high) || got.NaN != c.nan {
			t.Errorf("%v: %+v", c.values, got)
		}
		col.Release()
		b.Release()
	}
}

// Unsigned numbers are no signed ones, and of nulls alone there are no bounds.
func TestStatisticsOfIntegers(t *testing.T) {
	s, err := NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Uint64, Nullable: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewUint64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues([]uint64{math.MaxUint64, 7, 3}, []bool{true, false, true})
	col := b.NewArray()
	defer col.Release()
	if got := statisticsOfArray(t, s, col); got != (ColumnStatistics{Rows: 3, Nulls: 1, Bytes: 16, Min: uint64(3),
		Max: uint64(math.MaxUint64)}) {
		t.Errorf("%+v", got)
	}
	b.AppendValues([]uint64{1, 2}, []bool{false, false})
	nulls := b.NewArray()
	defer nulls.Release()
	if got := statisticsOfArray(t, s, nulls); got != (ColumnStatistics{Rows: 2, Nulls: 2}) {
		t.Errorf("%+v", got)
	}
}

// Lists of pages with and without statistics, and with those of a later version, are read.
func TestStatisticsInLists(t *testing.T) {
	rng, mem, s := random(t), checked(t), everySchema(t)
	d := makeDataset(t, rng, mem, s, 7, 5)
	defer d.release()
	form, err := NewForm(&d.snap)
	if err != nil {
		t.Fatal(err)
	}
	list := func(change func([]byte) []byte) []Chunk {
		var l PageList
		for _, c := range d.snap.Chunks {
			c.Statistics = change(bytes.Clone(c.Statistics))
			l.Add(c)
		}
		data, c := l.Finish()
		c.BlobRef = RefOf(data)
		pages, err := c.OpenIndex(data)
		if err != nil {
			t.Fatal(err)
		}
		return pages
	}
	if got := list(func(b []byte) []byte { return b }); !reflect.DeepEqual(got, d.snap.Chunks) {
		t.Errorf("read back %v, want %v", got, d.snap.Chunks)
	}
	for name, change := range map[string]func([]byte) []byte{
		"none":  func([]byte) []byte { return nil },
		"later": func(b []byte) []byte { binary.LittleEndian.PutUint32(b, 2); return append(b, 1, 2, 3) },
		"short": func(b []byte) []byte { return b[:len(b)-1] },
		"long":  func(b []byte) []byte { return append(b, 0) },
	} {
		for i, c := range list(change) {
			if c.BlobRef != d.snap.Chunks[i].BlobRef || c.Rows != d.snap.Chunks[i].Rows {
				t.Errorf("%s: page %d is %v", name, i, c)
			}
			if _, ok := form.Statistics(&c); ok {
				t.Errorf("%s: there are statistics", name)
			}
		}
	}
	// Broken statistics, with more nulls than rows or texts longer than their field, are
	// ignored.
	broken := d.snap.Chunks[0]
	broken.Statistics = bytes.Clone(broken.Statistics)
	for i := statisticsHeader; i < len(broken.Statistics); i++ {
		broken.Statistics[i] = 0xff
	}
	stats, _ := form.Statistics(&broken)
	for i := range s.NumFields() {
		if c, ok := stats.Column(i); ok {
			t.Errorf("column %d: %+v", i, c)
		}
	}
}

// A page has as many rows as one of PageBytes has, wherever calls divide the rows.
func TestPagesOfLargeRows(t *testing.T) {
	rng := random(t)
	s, err := NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "n", Type: arrow.PrimitiveTypes.Int32}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(MetaFields(s), nil))
	defer rb.Release()
	const n = 120
	for range n {
		if rng.IntN(5) == 0 {
			rb.Field(0).AppendNull()
		} else {
			rb.Field(0).(*array.StringBuilder).Append(strings.Repeat("x", rng.IntN(150_000)))
		}
		rb.Field(1).(*array.Int32Builder).Append(1)
	}
	rec := rb.NewRecord()
	defer rec.Release()
	ids := make([]ID, n)
	cut := func(calls int) (pages []int64, most int) {
		b := NewChunkBuilder(memory.DefaultAllocator, s)
		defer b.Release()
		finish := func() {
			data, c, err := b.Finish()
			if err != nil {
				t.Fatal(err)
			}
			pages, most = append(pages, c.Rows), max(most, len(data))
		}
		for start := 0; start < n; {
			end := min(start+calls, n)
			for start < end {
				room := b.Room(rec, start, end, 50)
				if room == 0 {
					t.Fatal("no room in a builder that is not full")
				}
				part := rec.NewSlice(int64(start), int64(start+room))
				if err := b.AppendBatch(ids[start:start+room], part, nil); err != nil {
					t.Fatal(err)
				}
				part.Release()
				if start += room; b.Full(50) {
					finish()
				}
			}
		}
		if b.Rows() > 0 {
			finish()
		}
		return pages, most
	}
	want, most := cut(n)
	if len(want) < 4 || most > PageBytes+200_000 {
		t.Errorf("pages of %d rows, and up to %d bytes", want, most)
	}
	for _, calls := range []int{1, 3, 17} {
		if got, _ := cut(calls); !reflect.DeepEqual(got, want) {
			t.Errorf("in calls of %d rows pages have %d rows, want %d", calls, got, want)
		}
	}
}

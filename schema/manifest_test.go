package schema

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/decimal128"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with the file testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs:\n got %s\nwant %s", path, got, want)
	}
}

// random returns a generator whose seed is printed if the test fails.
func random(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// everyField has a metadata column of every supported type.
func everyField() []arrow.Field {
	types := []arrow.DataType{
		arrow.FixedWidthTypes.Boolean,
		arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32,
		arrow.PrimitiveTypes.Uint64,
		arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
		arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.Binary,
		&arrow.FixedSizeBinaryType{ByteWidth: 3}, &arrow.FixedSizeBinaryType{ByteWidth: 16},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Date64,
		arrow.FixedWidthTypes.Time32s, arrow.FixedWidthTypes.Time64us,
		&arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, arrow.FixedWidthTypes.Duration_ms,
		&arrow.Decimal128Type{Precision: 20, Scale: 3},
		arrow.ListOf(arrow.BinaryTypes.String),
		arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32),
		arrow.FixedSizeListOf(2, arrow.FixedWidthTypes.Boolean),
		arrow.StructOf(
			arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int16, Nullable: true},
			arrow.Field{Name: "b", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int32)), Nullable: true},
			arrow.Field{Name: "c", Type: arrow.FixedSizeListOf(2, arrow.BinaryTypes.LargeString), Nullable: true}),
		arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.FixedWidthTypes.Boolean, Nullable: true})),
	}
	var fields []arrow.Field
	for i, dt := range types {
		fields = append(fields,
			arrow.Field{Name: fmt.Sprintf("n%02d_%s", i, dt.ID()), Type: dt, Nullable: true},
			arrow.Field{Name: fmt.Sprintf("v%02d_%s", i, dt.ID()), Type: dt, Nullable: false})
	}
	return append(fields, ClassField("label", []string{"cat", "dog"}),
		arrow.Field{Name: PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
}

func everySchema(t testing.TB) *arrow.Schema {
	s, err := NewSchema(everyField(), []arrow.Field{
		BlobField("image", MediaImage, true), BlobField("audio", MediaAudio, false), BlobField("raw", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// appendRandom adds a value to b, whatever its type.
func appendRandom(r *rand.Rand, b array.Builder, nullable bool) {
	if nullable && r.IntN(4) == 0 {
		b.AppendNull()
		return
	}
	word := func() string { return strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(7)) }
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(r.IntN(2) == 0)
	case *array.Int8Builder:
		b.Append(int8(r.Int()))
	case *array.Int16Builder:
		b.Append(int16(r.Int()))
	case *array.Int32Builder:
		b.Append(int32(r.Int()))
	case *array.Int64Builder:
		b.Append(int64(r.IntN(2)))
	case *array.Uint8Builder:
		b.Append(uint8(r.Int()))
	case *array.Uint16Builder:
		b.Append(uint16(r.Int()))
	case *array.Uint32Builder:
		b.Append(uint32(r.Int()))
	case *array.Uint64Builder:
		b.Append(r.Uint64())
	case *array.Float16Builder:
		b.Append(float16.New(r.Float32()))
	case *array.Float32Builder:
		b.Append(r.Float32())
	case *array.Float64Builder:
		b.Append(r.Float64())
	case *array.StringBuilder:
		b.Append(word())
	case *array.LargeStringBuilder:
		b.Append(word())
	case *array.BinaryBuilder:
		b.Append([]byte(word()))
	case *array.FixedSizeBinaryBuilder:
		v := make([]byte, b.Type().(*arrow.FixedSizeBinaryType).ByteWidth)
		for i := range v {
			v[i] = byte(r.Int())
		}
		b.Append(v)
	case *array.Date32Builder:
		b.Append(arrow.Date32(r.IntN(20000)))
	case *array.Date64Builder:
		b.Append(arrow.Date64(int64(r.IntN(20000)) * 86400000))
	case *array.Time32Builder:
		b.Append(arrow.Time32(r.IntN(86400)))
	case *array.Time64Builder:
		b.Append(arrow.Time64(r.IntN(86400000)))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(r.Int64N(1 << 50)))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(r.Int64N(1 << 50)))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(r.Int64N(1 << 50)))
	case *array.ListBuilder:
		b.Append(true)
		for range r.IntN(4) {
			appendRandom(r, b.ValueBuilder(), true)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range b.Type().(*arrow.FixedSizeListType).Len() {
			appendRandom(r, b.ValueBuilder(), true)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			appendRandom(r, b.FieldBuilder(i), true)
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

func randomRecord(r *rand.Rand, mem memory.Allocator, fields []arrow.Field, rows int) arrow.Record {
	b := array.NewRecordBuilder(mem, arrow.NewSchema(fields, nil))
	defer b.Release()
	for range rows {
		for i, f := range fields {
			appendRandom(r, b.Field(i), f.Nullable)
		}
	}
	return b.NewRecord()
}

type pin struct{ held *int }

func (p pin) Unpin() { *p.held-- }

// dataset is a snapshot in memory with what it was made of.
type dataset struct {
	snap   Snapshot
	chunks [][]byte
	meta   []arrow.Record // by chunk
	ids    []ID
	blobs  [][][]byte // [blob column][position]
}

func (d *dataset) open(t testing.TB, held *int) *Manifest {
	t.Helper()
	m, err := OpenManifest(&d.snap, d.pins(held))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (d *dataset) pins(held *int) []Blob {
	out := make([]Blob, len(d.chunks))
	for i, c := range d.chunks {
		*held++
		out[i] = NewBlob(c, pin{held})
	}
	return out
}

func makeDataset(t testing.TB, r *rand.Rand, mem memory.Allocator, s *arrow.Schema, chunkRows ...int) *dataset {
	t.Helper()
	d := &dataset{snap: Snapshot{Dataset: "test", Number: 1, Schema: s}}
	cols := BlobFields(s)
	d.blobs = make([][][]byte, len(cols))
	b := NewChunkBuilder(mem, s)
	defer b.Release()
	for _, rows := range chunkRows {
		rec := randomRecord(r, mem, MetaFields(s), rows)
		d.meta = append(d.meta, rec)
		ids := make([]ID, rows)
		refs := make([][]*BlobRef, len(cols))
		for i := range ids {
			ids[i] = SampleID("test", fmt.Sprint(len(d.ids)+i))
			for c := range cols {
				var blob []byte
				if !cols[c].Nullable || r.IntN(4) > 0 {
					blob = []byte(strings.Repeat(fmt.Sprint(r.IntN(10)), r.IntN(30)))
				}
				d.blobs[c] = append(d.blobs[c], blob)
				if blob == nil {
					refs[c] = append(refs[c], nil)
				} else {
					ref := RefOf(blob)
					refs[c] = append(refs[c], &ref)
				}
			}
		}
		d.ids = append(d.ids, ids...)
		if r.IntN(2) == 0 {
			if err := b.AppendBatch(ids, rec, refs); err != nil {
				t.Fatal(err)
			}
		} else {
			for i, id := range ids {
				row := make([]*BlobRef, len(cols))
				for c := range cols {
					row[c] = refs[c][i]
				}
				if err := b.Append(id, rec, i, row); err != nil {
					t.Fatal(err)
				}
			}
		}
		if b.Rows() != rows {
			t.Fatalf("builder has %d rows, want %d", b.Rows(), rows)
		}
		data, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.BlobRef = RefOf(data)
		d.chunks = append(d.chunks, data)
		d.snap.Chunks = append(d.snap.Chunks, c)
	}
	if n := d.snap.Rows(); n > 1 {
		d.snap.Splits = []Split{
			{Name: "train", Ranges: []Range{{0, n / 2}}},
			{Name: "val", Ranges: []Range{{n - n/4, n}}}}
	}
	return d
}

func (d *dataset) release() {
	for _, r := range d.meta {
		r.Release()
	}
}

func checked(t testing.TB) *memory.CheckedAllocator {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	t.Cleanup(func() { mem.AssertSize(t, 0) })
	return mem
}

func TestManifest(t *testing.T) {
	r, mem := random(t), checked(t)
	for _, shape := range [][]int{{1}, {7}, {64, 64, 64}, {64, 64, 9}, {5, 64, 1, 17}, {64, 65}} {
		d := makeDataset(t, r, mem, everySchema(t), shape...)
		held := 0
		m := d.open(t, &held)
		if m.Rows() != int64(len(d.ids)) || m.Snapshot() != &d.snap {
			t.Fatalf("rows %d, want %d", m.Rows(), len(d.ids))
		}
		for pos, id := range d.ids {
			pos := int64(pos)
			if m.ID(pos) != id {
				t.Fatalf("id at %d", pos)
			}
			if got, ok := m.Lookup(id); !ok || got != pos {
				t.Fatalf("lookup of %d: %d %v", pos, got, ok)
			}
			for c := range d.blobs {
				ref, ok := m.Blob(c, pos)
				want := d.blobs[c][pos]
				if ok != (want != nil) || ok && ref != RefOf(want) {
					t.Fatalf("blob %d at %d: %v %v", c, pos, ref, ok)
				}
			}
			want, n := "", m.Rows()
			switch {
			case n > 1 && pos < n/2:
				want = "train"
			case n > 1 && pos >= n-n/4:
				want = "val"
			}
			if got := m.SplitOf(pos); got != want {
				t.Fatalf("split of %d: %q, want %q", pos, got, want)
			}
		}
		if _, ok := m.Lookup(SampleID("test", "no such")); ok {
			t.Fatal("found an id that is not there")
		}
		for i, f := range MetaFields(d.snap.Schema) {
			arrs, err := m.Column(f.Name)
			if err != nil {
				t.Fatal(err)
			}
			for c, a := range arrs {
				if !array.Equal(a, d.meta[c].Column(i)) {
					t.Fatalf("column %s of chunk %d:\n got %v\nwant %v", f.Name, c, a, d.meta[c].Column(i))
				}
			}
		}
		if _, err := m.Column("nope"); !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		m.Close()
		if held != 0 {
			t.Fatalf("%d chunks still pinned", held)
		}
		d.release()
	}
}

// Any Arrow reader can read a chunk.
func TestChunkIsArrowStream(t *testing.T) {
	r, mem := random(t), checked(t)
	d := makeDataset(t, r, mem, everySchema(t), 100)
	defer d.release()
	rd, err := ipc.NewReader(bytes.NewReader(d.chunks[0]), ipc.WithAllocator(mem))
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Release()
	if !rd.Next() {
		t.Fatal(rd.Err())
	}
	rec := rd.Record()
	if !rec.Schema().Equal(ChunkSchema(d.snap.Schema)) {
		t.Fatal(rec.Schema())
	}
	for i := range MetaFields(d.snap.Schema) {
		if !array.Equal(rec.Column(i+1), d.meta[0].Column(i)) {
			t.Fatalf("column %d: %v", i, rec.Column(i+1))
		}
	}
	if rd.Next() || rd.Err() != nil {
		t.Fatal("more than one batch", rd.Err())
	}
}

func TestChunkDeterministic(t *testing.T) {
	r, mem := random(t), checked(t)
	s := everySchema(t)
	rec := randomRecord(r, mem, MetaFields(s), 50)
	defer rec.Release()
	var first []byte
	for try := range 3 {
		b := NewChunkBuilder(mem, s)
		ref := RefOf([]byte("x"))
		if try == 1 { // leave something in the buffers
			if err := b.Append(ID{9}, rec, 3, []*BlobRef{&ref, &ref, &ref}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.Finish(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 50 {
			if err := b.Append(ID{byte(i)}, rec, i, []*BlobRef{nil, &ref, nil}); err != nil {
				t.Fatal(err)
			}
		}
		data, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if c.Rows != 50 || c.BlobBytes[0] != 0 || c.BlobBytes[1] != 50 || b.Rows() != 0 {
			t.Fatal(c)
		}
		if first == nil {
			first = data
		}
		if !bytes.Equal(first, data) {
			t.Fatal("equal rows made different bytes")
		}
		b.Release()
	}
}

func TestChunkBuilderErrors(t *testing.T) {
	mem := checked(t)
	s, err := NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int32}, {Name: "s",
		Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int8}), Nullable: true}},
		[]arrow.Field{BlobField("b", "", false)})
	if err != nil {
		t.Fatal(err)
	}
	b := NewChunkBuilder(mem, s)
	defer b.Release()
	rb := array.NewRecordBuilder(mem, arrow.NewSchema(MetaFields(s), nil))
	defer rb.Release()
	rb.Field(0).(*array.Int32Builder).AppendValues([]int32{1, 2, 3}, []bool{true, false, true})
	sb := rb.Field(1).(*array.StructBuilder)
	sb.AppendNull()
	sb.Append(true)
	sb.FieldBuilder(0).(*array.Int8Builder).Append(1)
	sb.Append(true)
	sb.FieldBuilder(0).AppendNull()
	rec := rb.NewRecord()
	defer rec.Release()
	ref := RefOf(nil)
	one := []*BlobRef{&ref}
	other, fewer := swap(rec), narrower(rec)
	defer other.Release()
	defer fewer.Release()
	for name, try := range map[string]func() error{
		"null in a column that has none": func() error { return b.Append(ID{}, rec, 1, one) },
		"null in a field that has none":  func() error { return b.Append(ID{}, rec, 2, one) },
		"null blob":                      func() error { return b.Append(ID{}, rec, 0, []*BlobRef{nil}) },
		"row out of range":               func() error { return b.Append(ID{}, rec, 3, one) },
		"negative row":                   func() error { return b.Append(ID{}, rec, -1, one) },
		"no metadata":                    func() error { return b.Append(ID{}, nil, 0, one) },
		"no blobs":                       func() error { return b.Append(ID{}, rec, 0, nil) },
		"batch of another length": func() error {
			return b.AppendBatch(make([]ID, 2), rec, [][]*BlobRef{{&ref, &ref}})
		},
		"batch with a null": func() error {
			return b.AppendBatch(make([]ID, 3), rec, [][]*BlobRef{{&ref, &ref, &ref}})
		},
		"batch with fewer references than ids": func() error {
			return b.AppendBatch(make([]ID, 3), rec, [][]*BlobRef{{&ref}})
		},
		"blob of negative size":                 func() error { return b.Append(ID{}, rec, 0, []*BlobRef{{Size: -1}}) },
		"batch without columns of references":   func() error { return b.AppendBatch(make([]ID, 3), rec, nil) },
		"metadata of another type":              func() error { return b.Append(ID{}, other, 0, one) },
		"metadata of another number of columns": func() error { return b.Append(ID{}, fewer, 0, one) },
	} {
		if err := try(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if b.Rows() != 0 {
			t.Fatalf("%s: left %d rows", name, b.Rows())
		}
	}
	if err := b.Append(ID{}, rec, 0, one); err != nil { // the null struct hides the null in it
		t.Fatal(err)
	}
}

func swap(rec arrow.Record) arrow.Record {
	s := rec.Schema()
	return array.NewRecord(arrow.NewSchema([]arrow.Field{s.Field(1), s.Field(0)}, nil),
		[]arrow.Array{rec.Column(1), rec.Column(0)}, rec.NumRows())
}

func narrower(rec arrow.Record) arrow.Record {
	return array.NewRecord(arrow.NewSchema(rec.Schema().Fields()[:1], nil), rec.Columns()[:1], rec.NumRows())
}

func TestOpenManifestErrors(t *testing.T) {
	r, mem := random(t), checked(t)
	s, err := NewSchema([]arrow.Field{{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true}},
		[]arrow.Field{BlobField("b", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	d := makeDataset(t, r, mem, s, 10, 10)
	defer d.release()
	for name, breakIt := range map[string]func(s *Snapshot, chunks [][]byte) [][]byte{
		"a chunk too few": func(_ *Snapshot, c [][]byte) [][]byte { return c[:1] },
		"a flipped bit": func(_ *Snapshot, c [][]byte) [][]byte {
			b := bytes.Clone(c[0])
			b[len(b)/2] ^= 4
			return [][]byte{b, c[1]}
		},
		"a short chunk": func(_ *Snapshot, c [][]byte) [][]byte { return [][]byte{c[0][:len(c[0])-1], c[1]} },
		"an empty chunk": func(s *Snapshot, c [][]byte) [][]byte {
			s.Chunks[1].BlobRef = RefOf(nil)
			return [][]byte{c[0], nil}
		},
		"other rows":       func(s *Snapshot, c [][]byte) [][]byte { s.Chunks[0].Rows++; return c },
		"other blob bytes": func(s *Snapshot, c [][]byte) [][]byte { s.Chunks[0].BlobBytes = []int64{-5}; return c },
		"no blob bytes":    func(s *Snapshot, c [][]byte) [][]byte { s.Chunks[0].BlobBytes = nil; return c },
		"another schema": func(s *Snapshot, c [][]byte) [][]byte {
			s.Schema, _ = NewSchema(nil, []arrow.Field{BlobField("b", "", true)})
			return c
		},
		"no schema":        func(s *Snapshot, c [][]byte) [][]byte { s.Schema = nil; return c },
		"a split too long": func(s *Snapshot, c [][]byte) [][]byte { s.Splits[1].Ranges[0].End++; return c },
		"splits that meet": func(s *Snapshot, c [][]byte) [][]byte { s.Splits[1].Ranges[0].Start = 3; return c },
		"a split upside down": func(s *Snapshot, c [][]byte) [][]byte {
			s.Splits[1].Ranges[0] = Range{9, 8}
			return c
		},
	} {
		snap := d.snap
		snap.Chunks = append([]Chunk(nil), d.snap.Chunks...)
		snap.Splits = []Split{{"a", []Range{{0, 5}}}, {"b", []Range{{5, 20}}}}
		held := 0
		broken := dataset{snap: snap, chunks: d.chunks}
		broken.chunks = breakIt(&broken.snap, d.chunks)
		m, err := OpenManifest(&broken.snap, broken.pins(&held))
		if m != nil || !errors.Is(err, ErrDataLoss) {
			t.Errorf("%s: %v", name, err)
		}
		if held != 0 {
			t.Errorf("%s: %d chunks still pinned", name, held)
		}
	}
}

// A chunk at an odd address is read all the same.
func TestManifestUnaligned(t *testing.T) {
	r, mem := random(t), checked(t)
	d := makeDataset(t, r, mem, everySchema(t), 10)
	defer d.release()
	shifted := alignedBytes(len(d.chunks[0]) + 3)[3:]
	copy(shifted, d.chunks[0])
	d.chunks[0] = shifted
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	if m.ID(9) != d.ids[9] {
		t.Fatal("id")
	}
}

func TestManifestEmpty(t *testing.T) {
	d := &dataset{snap: Snapshot{Dataset: "none", Schema: everySchema(t)}}
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	if _, ok := m.Lookup(ID{}); ok || m.Rows() != 0 || m.SplitOf(0) != "" {
		t.Fatal("rows in an empty manifest")
	}
	p, err := NewProjection(&d.snap, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Assemble(m, nil, make([][]Blob, 3))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	rec, err := b.Record(memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	if rec.NumRows() != 0 {
		t.Fatal(rec)
	}
}

func TestManifestDoesNotAllocate(t *testing.T) {
	r, mem := random(t), checked(t)
	d := makeDataset(t, r, mem, everySchema(t), 20, 30)
	defer d.release()
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	if n := testing.AllocsPerRun(100, func() {
		for pos := range m.Rows() {
			_ = m.ID(pos)
			_, _ = m.Blob(1, pos)
			_ = m.SplitOf(pos)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	m.Lookup(ID{})
	if n := testing.AllocsPerRun(100, func() { m.Lookup(d.ids[7]) }); n != 0 {
		t.Errorf("%v allocations a lookup", n)
	}
}

// fuzzSchema has every shape of column once.
func fuzzSchema(t testing.TB) *arrow.Schema {
	s, err := NewSchema([]arrow.Field{
		{Name: "bool", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "int", Type: arrow.PrimitiveTypes.Int32},
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "large", Type: arrow.BinaryTypes.LargeString},
		{Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.Binary), Nullable: true},
		{Name: "pair", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float64)},
		{Name: "struct", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int8, Nullable: true}),
			Nullable: true},
	}, []arrow.Field{BlobField("blob", MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Whatever the bytes, opening gives an ErrDataLoss or a manifest whose every
// cell can be read.
func FuzzOpenManifest(f *testing.F) {
	d := makeDataset(f, rand.New(rand.NewPCG(1, 2)), memory.DefaultAllocator, fuzzSchema(f), 5)
	f.Add(d.chunks[0], int64(5), d.snap.Chunks[0].BlobBytes[0])
	f.Fuzz(func(t *testing.T, data []byte, rows, size int64) { openMutated(t, &d.snap, data, rows, size) })
}

// The same, with mutations that keep most of a chunk whole.
func TestOpenManifestMutated(t *testing.T) {
	r := random(t)
	d := makeDataset(t, r, memory.DefaultAllocator, fuzzSchema(t), 5)
	opened := 0
	for range 5000 {
		data := bytes.Clone(d.chunks[0])
		for range 1 + r.IntN(3) {
			at := r.IntN(len(data))
			switch r.IntN(3) {
			case 0:
				data[at] = byte(r.Int())
			case 1:
				data[at] ^= 1 << r.IntN(8)
			case 2:
				data[at] = []byte{0, 0xff, 0x7f, 0x80}[r.IntN(4)]
			}
		}
		if r.IntN(20) == 0 {
			data = data[:r.IntN(len(data))]
		}
		if openMutated(t, &d.snap, data, 5, d.snap.Chunks[0].BlobBytes[0]) {
			opened++
		}
	}
	if opened == 0 {
		t.Error("no mutation was harmless, which means that none was tried")
	}
}

func openMutated(t *testing.T, base *Snapshot, data []byte, rows, size int64) bool {
	snap := *base
	snap.Chunks = []Chunk{{BlobRef: RefOf(data), Rows: rows, BlobBytes: []int64{size}}}
	snap.Splits = nil
	held := 1
	m, err := OpenManifest(&snap, []Blob{NewBlob(data, pin{&held})})
	if err != nil {
		if !errors.Is(err, ErrDataLoss) {
			t.Fatal(err)
		}
		if held != 0 {
			t.Fatal("still pinned")
		}
		return false
	}
	defer m.Close()
	if m.Rows() > 1000 {
		return true
	}
	p, err := NewProjection(&snap, nil, LayoutHuggingFace)
	if err != nil {
		t.Fatal(err)
	}
	for _, backwards := range []bool{false, true} {
		var positions []int64
		for pos := range m.Rows() {
			if m.Lookup(m.ID(pos)); backwards {
				pos = m.Rows() - 1 - pos
			}
			positions = append(positions, pos)
		}
		b, err := p.Assemble(m, positions, [][]Blob{make([]Blob, len(positions))})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := b.Record(memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		_ = fmt.Sprint(rec)
		rec.Release()
		b.Release()
	}
	return true
}

func bigDataset(tb testing.TB, rows int) *dataset {
	s, err := NewSchema([]arrow.Field{
		ClassField("label", []string{"a", "b"}),
		{Name: "width", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "file_name", Type: arrow.BinaryTypes.String, Nullable: true},
	}, []arrow.Field{BlobField("image", MediaImage, true)})
	if err != nil {
		tb.Fatal(err)
	}
	d := &dataset{snap: Snapshot{Dataset: "big", Number: 1, Schema: s}}
	b := NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(MetaFields(s), nil))
	defer rb.Release()
	for at := 0; at < rows; {
		n := min(ChunkRows, rows-at)
		ids := make([]ID, n)
		refs := [][]*BlobRef{make([]*BlobRef, n)}
		for i := range ids {
			ids[i] = SampleID("big", fmt.Sprint(at+i))
			refs[0][i] = &BlobRef{Key: Key{byte(i), byte(i >> 8)}, Size: 110_000}
			rb.Field(0).(*array.Int64Builder).Append(int64(i & 1))
			rb.Field(1).(*array.Int32Builder).Append(int32(i & 1023))
			rb.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("n%08d/image_%08d.jpg", i&1023, at+i))
		}
		rec := rb.NewRecord()
		if err := b.AppendBatch(ids, rec, refs); err != nil {
			tb.Fatal(err)
		}
		rec.Release()
		data, c, err := b.Finish()
		if err != nil {
			tb.Fatal(err)
		}
		c.BlobRef = RefOf(data)
		d.chunks, d.snap.Chunks = append(d.chunks, data), append(d.snap.Chunks, c)
		at += n
	}
	return d
}

func BenchmarkOpenManifest(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	runtime.GC()
	b.ReportAllocs()
	for b.Loop() {
		d.open(b, &held).Close()
	}
}

func BenchmarkLookupIndex(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	b.ReportAllocs()
	for b.Loop() {
		m.buildIndex()
	}
}

func BenchmarkBlobRef(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	r := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	for b.Loop() {
		m.Blob(0, r.Int64N(1_000_000))
	}
}

func BenchmarkAssembleMetadata(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	p, err := NewProjection(&d.snap, []string{"id", "label", "width", "file_name", "position", "split"}, "")
	if err != nil {
		b.Fatal(err)
	}
	positions := make([]int64, ChunkRows)
	for _, order := range []string{"sequential", "shuffled"} {
		b.Run(order, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			for i := range positions {
				if positions[i] = int64(i) + 1000; order == "shuffled" {
					positions[i] = r.Int64N(1_000_000)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				batch, err := p.Assemble(m, positions, nil)
				if err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
			b.ReportMetric(float64(len(positions))*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

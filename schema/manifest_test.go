package schema

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
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

package ingest

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

func openStore(t *testing.T) *local.Store {
	t.Helper()
	s, err := local.Open(t.TempDir(), local.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var (
	metaFields = []arrow.Field{
		schema.ClassField("label", []string{"ant", "bee"}),
		{Name: "name", Type: arrow.BinaryTypes.String},
	}
	blobFields = []arrow.Field{schema.BlobField("image", schema.MediaImage, false), schema.BlobField("mask", "", true)}
)

func testSchema(t *testing.T) *arrow.Schema {
	t.Helper()
	s, err := schema.NewSchema(metaFields, blobFields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rows are the rows numbered from to to. The contents of a row depend only on its number.
type rows struct {
	ids   []schema.ID
	meta  arrow.Record
	blobs [][][]byte
}

func makeRows(mem memory.Allocator, from, to int) rows {
	b := array.NewRecordBuilder(mem, arrow.NewSchema(metaFields, nil))
	defer b.Release()
	r := rows{blobs: make([][][]byte, 2)}
	for i := from; i < to; i++ {
		r.ids = append(r.ids, schema.SampleID("d", fmt.Sprint(i)))
		if i%7 == 0 {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.Int64Builder).Append(int64(i % 2))
		}
		b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("row %d", i))
		r.blobs[0] = append(r.blobs[0], image(i))
		r.blobs[1] = append(r.blobs[1], mask(i))
	}
	r.meta = b.NewRecord()
	return r
}

func image(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(i >> 16)}, 1+i%5) }

func mask(i int) []byte {
	switch i % 3 {
	case 0:
		return nil
	case 1:
		return []byte{} // empty is not null
	default:
		return []byte{byte(i % 4)}
	}
}

// part is one call of Write.
type part struct {
	split    string
	from, to int
}

// write opens a Writer, writes the parts and commits.
func write(t *testing.T, store store.Store, mode Mode, parts ...part) (*schema.Snapshot, bool, error) {
	t.Helper()
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	w, err := New(t.Context(), store, Options{Dataset: "d", Source: "test", Schema: testSchema(t), Mode: mode, Mem: mem,
		Workers: 3})
	if err != nil {
		return nil, false, err
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, p := range parts {
		r := makeRows(mem, p.from, p.to)
		err := w.Write(t.Context(), p.split, r.ids, r.meta, r.blobs)
		r.meta.Release()
		if err != nil {
			return nil, false, err
		}
	}
	return w.Commit(t.Context())
}

func mustWrite(t *testing.T, store store.Store, mode Mode, parts ...part) *schema.Snapshot {
	t.Helper()
	s, changed, err := write(t, store, mode, parts...)
	if err != nil {
		t.Fatal(err)
	}
	if !changed {
		t.Fatalf("nothing changed, want a new snapshot")
	}
	return s
}

// contents reads a snapshot back, one line a row.
func contents(t *testing.T, store store.Store, snap *schema.Snapshot) []string {
	t.Helper()
	var chunks []schema.Blob
	for _, c := range snap.Chunks {
		b, err := store.Get(t.Context(), c.BlobRef)
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, b)
	}
	m, err := schema.OpenManifest(snap, chunks)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	names, err := m.Column("name")
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, a := range names {
		for i := range a.Len() {
			text = append(text, a.ValueStr(i))
		}
	}
	var lines []string
	for pos := range m.Rows() {
		line := fmt.Sprintf("%x %s %s", m.ID(pos), m.SplitOf(pos), text[pos])
		for col := range 2 {
			ref, ok := m.Blob(col, pos)
			if !ok {
				line += " null"
				continue
			}
			b, err := store.Get(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if err := ref.Check(b.Bytes()); err != nil {
				t.Error(err)
			}
			line += fmt.Sprintf(" %x", b.Bytes())
			b.Release()
		}
		lines = append(lines, line)
	}
	return lines
}

// want returns the expected result of contents for the parts.
func want(parts ...part) (lines []string) {
	for _, p := range parts {
		for i := p.from; i < p.to; i++ {
			line := fmt.Sprintf("%x %s row %d %x", schema.SampleID("d", fmt.Sprint(i)), p.split, i, image(i))
			if m := mask(i); m == nil {
				line += " null"
			} else {
				line += fmt.Sprintf(" %x", m)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("row %d: %s, want %s", i, got[i], want[i])
		}
	}
}

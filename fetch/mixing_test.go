package fetch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// labelled is a store with a dataset "d" of n small samples: a column of classes that label says, and files in directories.
func labelled(t *testing.T, n int, label func(i int) int32, file func(i int) string) store.Store {
	t.Helper()
	s := must(local.Open(t.TempDir(), local.Options{}))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	fields := []arrow.Field{{Name: schema.PathColumn, Type: arrow.BinaryTypes.String}}
	if label != nil {
		fields = append(fields, arrow.Field{Name: "label", Type: arrow.PrimitiveTypes.Int32})
	}
	sch := must(schema.NewSchema(fields, []arrow.Field{schema.BlobField("data", "", false)}))
	w := must(ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace}))
	defer w.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	ids, blobs, one := make([]schema.ID, n), make([][]byte, n), make([]byte, 1<<10)
	for i := range n {
		ids[i], blobs[i] = sampleID("d", i), one
		b.Field(0).(*array.StringBuilder).Append(file(i))
		if label != nil {
			b.Field(1).(*array.Int32Builder).Append(label(i))
		}
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(t.Context(), "train", ids, rec, [][][]byte{blobs}); err != nil {
		t.Fatal(err)
	}
	must2(w.Commit(t.Context()))
	return s
}

func must2[A, B any](a A, b B, err error) (A, B) {
	if err != nil {
		panic(err)
	}
	return a, b
}

// Blocks of rows that are sorted by class mix poorly, small blocks less so, and blocks of unsorted rows mix well. The
// result is the same each time, and never uses a column that the caller may not see.
func TestMixing(t *testing.T) {
	const n = 40_000
	sorted := func(i int) int32 { return int32(i * 100 / n) }
	none := func(i int) int32 { return rand.New(rand.NewPCG(uint64(i), 1)).Int32N(100) }
	folder := func(i int) string { return fmt.Sprintf("%03d/%06d.jpg", i*50/n, i) }
	plain := func(i int) string { return fmt.Sprintf("%06d.jpg", i) }
	blocks := &schema.Shuffle{Seed: 3, BlockRows: 100, Blocks: 16}
	for name, c := range map[string]struct {
		label     func(int) int32
		file      func(int) string
		shuffle   *schema.Shuffle
		within    *schema.Restriction
		by        string
		low, high float64
	}{
		"sorted":          {sorted, folder, blocks, nil, "column label", 10, 500},
		"in small blocks": {sorted, folder, &schema.Shuffle{Seed: 3, BlockRows: 2, Blocks: 8000}, nil, "column label", 0.8, 4},
		"in no order":     {none, folder, blocks, nil, "column label", 0.8, 1.25},
		"hidden":          {sorted, folder, blocks, &schema.Restriction{Columns: []string{"id", schema.PathColumn, "data"}}, "directory", 10, 500},
		"directories":     {nil, folder, blocks, nil, "directory", 10, 500},
		"no classes":      {nil, plain, blocks, nil, "", 0, 0},
		"global":          {sorted, folder, &schema.Shuffle{Seed: 3}, nil, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := must(fetch.NewEngine(labelled(t, n, c.label, c.file), fetch.Options{Logger: quiet}))
			defer func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}()
			j := must(e.Open(t.Context(), schema.Request{Dataset: "d", Batch: 100, Shuffle: c.shuffle, Within: c.within}))
			defer j.Close()
			m := must(e.Mixing(t.Context(), j))
			if c.by == "" {
				if m != nil {
					t.Fatalf("got %+v, want nothing", m)
				}
				return
			}
			if m == nil || m.By != c.by || m.ChiSquare < c.low || m.ChiSquare > c.high {
				t.Fatalf("got %+v, want %v to %v by %s", m, c.low, c.high, c.by)
			}
			if again := must(e.Mixing(t.Context(), j)); *again != *m {
				t.Errorf("at first it was %+v, then %+v", m, again)
			}
			t.Log(m)
		})
	}
}

// For samples in a bucket without classes, Mixing measures how objects are mixed.
func TestMixingOfObjects(t *testing.T) {
	s, _ := attached(t, 4000, 100, content)
	e := must(fetch.NewEngine(s, fetch.Options{Logger: quiet}))
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	j := must(e.Open(t.Context(), schema.Request{Dataset: "d", Batch: 100, Shuffle: &schema.Shuffle{BlockRows: 50, Blocks: 2}}))
	defer j.Close()
	if m := must(e.Mixing(t.Context(), j)); m == nil || m.By != "object" || m.ChiSquare < 5 || m.Classes != 40 {
		t.Errorf("got %+v", m)
	}
}

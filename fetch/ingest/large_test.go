package ingest

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Rows with 100 KB of metadata make small pages. The pages do not depend on the division
// into calls.
func TestLargeRows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, err := schema.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n, rowBytes = 60, 100_000
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
	defer b.Release()
	ids := make([]schema.ID, n)
	for i := range ids {
		ids[i] = schema.SampleID("d", string(rune('a'+i)))
		b.Field(0).(*array.StringBuilder).Append(strings.Repeat(string(rune('a'+i%26)), rowBytes))
	}
	rec := b.NewRecord()
	defer rec.Release()
	local := openStore(t)
	commit := func(most int) (*schema.Snapshot, bool) {
		w, err := New(t.Context(), local, Options{Dataset: "d", Schema: s, Mode: Replace})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for start := 0; start < n; {
			end := min(n, start+1+random.IntN(most))
			part := rec.NewSlice(int64(start), int64(end))
			if err := w.Write(t.Context(), "", ids[start:end], part, nil); err != nil {
				t.Fatal(err)
			}
			part.Release()
			start = end
		}
		snap, changed, err := w.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snap, changed
	}
	snap, _ := commit(n)
	if again, changed := commit(7); changed || again.Number != snap.Number {
		t.Errorf("in other calls they are snapshot %d, changed %v", again.Number, changed)
	}
	pages, rows := 0, 0
	err = store.EachPage(t.Context(), snap, snap.Chunks, local.Get, func(page schema.Chunk, m *schema.Manifest) error {
		if page.Size > schema.PageBytes+rowBytes+10_000 {
			t.Errorf("page %d has %d bytes", pages, page.Size)
		}
		pages++
		rows += int(m.Rows())
		return nil
	})
	if err != nil || pages != 6 || rows != n {
		t.Errorf("%d rows in %d pages: %v", rows, pages, err)
	}
}

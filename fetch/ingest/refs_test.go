package ingest

import (
	"errors"
	"reflect"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// refsOf are the references of the rows of a snapshot, by blob column and row.
func refsOf(t *testing.T, st store.Store, snap *schema.Snapshot) [][]*schema.BlobRef {
	t.Helper()
	refs := make([][]*schema.BlobRef, len(blobFields))
	err := store.EachPage(t.Context(), snap, snap.Chunks, st.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		for c := range refs {
			for pos := range m.Rows() {
				if ref, ok := m.Blob(c, pos); ok {
					refs[c] = append(refs[c], &ref)
				} else {
					refs[c] = append(refs[c], nil)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return refs
}

// TestWriteRefs: rows whose blobs are stored already make the same snapshot, which names
// the object sets.
func TestWriteRefs(t *testing.T) {
	st := openStore(t)
	stored := mustWrite(t, st, Create, part{"train", 0, 100}, part{"val", 100, 120})
	refs := refsOf(t, st, stored)
	contentOf := map[schema.Key][]byte{}
	set := func(n byte, content string) schema.SetRef {
		contentOf[schema.RefOf([]byte(content)).Key] = []byte(content)
		return schema.SetRef{Prefix: schema.ObjectPrefix{n}, Blob: schema.RefOf([]byte(content))}
	}
	write := func(mode Mode, from, to int, sets ...schema.SetRef) (*schema.Snapshot, bool) {
		w, err := New(t.Context(), st, Options{Dataset: "e", Schema: testSchema(t), Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.Close() }()
		for at := from; at < to; {
			end := to
			split := "val"
			if at < 100 {
				end, split = min(to, 100), "train"
			}
			r := makeRows(memory.DefaultAllocator, at, end)
			part := [][]*schema.BlobRef{refs[0][at:end], refs[1][at:end]}
			err := w.WriteRefs(t.Context(), split, r.ids, r.meta, part)
			r.meta.Release()
			if err != nil {
				t.Fatal(err)
			}
			at = end
		}
		for _, s := range sets {
			if _, err := w.in.Put(t.Context(), contentOf[s.Blob.Key]); err != nil {
				t.Fatal(err)
			}
			w.KeepSet(s)
		}
		snap, changed, err := w.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snap, changed
	}
	one, two, other := set(1, "one"), set(2, "two"), set(1, "one with more units")
	snap, changed := write(Create, 0, 110, one)
	if !changed || !reflect.DeepEqual(snap.Sets, []schema.SetRef{one}) {
		t.Errorf("created: changed %v, sets %v", changed, snap.Sets)
	}
	same(t, contents(t, st, snap), want(part{"train", 0, 100}, part{"val", 100, 110}))
	if _, changed := write(Replace, 0, 110, one); changed {
		t.Error("the same rows made another snapshot")
	}
	snap, _ = write(Append, 110, 120, two, other)
	if !reflect.DeepEqual(snap.Sets, []schema.SetRef{other, two}) {
		t.Errorf("appended: sets %v, want those of before, the new one, and the later of one prefix", snap.Sets)
	}
	same(t, contents(t, st, snap), want(part{"train", 0, 100}, part{"val", 100, 120}))
	if snap, _ = write(Replace, 0, 50, two); !reflect.DeepEqual(snap.Sets, []schema.SetRef{two}) {
		t.Errorf("replaced: sets %v", snap.Sets)
	}

	// Rows that do not fit the schema are refused as before.
	w, err := New(t.Context(), st, Options{Dataset: "f", Schema: testSchema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	r := makeRows(memory.DefaultAllocator, 0, 2)
	defer r.meta.Release()
	err = w.WriteRefs(t.Context(), "train", r.ids, r.meta, [][]*schema.BlobRef{{refs[0][0], nil}, {nil, nil}})
	if !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a null in a column without nulls: %v", err)
	}
}

package resolve_test

import (
	"errors"
	"strings"
	"testing"

	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// The same positions of another snapshot are another selection. The name of the first one
// keeps its meaning.
func TestSelectionsOfTwoSnapshots(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 20)
	first, err := f.SaveSelection(t.Context(), "d", 1, []int64{1, 5})
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, "d", 40)
	second, err := f.SaveSelection(t.Context(), "d", 2, []int64{1, 5})
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.SaveSelection(t.Context(), "d", 2, []int64{5, 1})
	if err != nil || again != second || first == second {
		t.Fatalf("%s, then %s and %s, %v", first, second, again, err)
	}
	for number, name := range map[int64]string{1: first, 2: second} {
		req := schema.Request{Dataset: "d", Snapshot: number, Selection: &schema.SelectionRef{Name: name}}
		j, err := f.Open(t.Context(), req)
		if err != nil {
			t.Fatalf("the selection of snapshot %d: %v", number, err)
		}
		if n := j.Selection().Len(); n != 2 {
			t.Errorf("the selection of snapshot %d has %d rows", number, n)
		}
		j.Close()
	}
}

// A caller may have a limited number of selections of a dataset.
func TestSelectionsAreCounted(t *testing.T) {
	f := newFixture(t, resolve.Options{MaxSelections: 2}, admission.Limits{})
	f.put(t, "d", 20)
	ann := store.WithCaller(t.Context(), store.Caller{Principal: "ann"})
	for _, p := range []int64{1, 2, 1} {
		if _, err := f.SaveSelection(ann, "d", 1, []int64{p}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.SaveSelection(ann, "d", 1, []int64{3})
	if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), `"ann" has 2 selections of dataset "d"`) {
		t.Errorf("the third one: %v", err)
	}
	if _, err := f.SaveSelection(t.Context(), "d", 1, []int64{3}); err != nil {
		t.Errorf("one of another caller: %v", err)
	}
	if err := f.store.Drop(t.Context(), "d", 1); err != nil {
		t.Fatal(err)
	}
	f.put(t, "d", 20)
	if _, err := f.SaveSelection(ann, "d", 2, []int64{3}); err != nil {
		t.Errorf("when those of a dropped snapshot are gone: %v", err)
	}
}

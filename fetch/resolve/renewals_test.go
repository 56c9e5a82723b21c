package resolve_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// A list in a request is not stored, however long; one that is too long for a
// ticket is refused, and the error says what to do.
func TestReadingStoresNothing(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 2000)
	before := f.store.begun.Load()
	list := make([]int64, schema.MaxPositions)
	for i := range list {
		list[i] = int64(i)
	}
	j := f.open(t, schema.Request{Dataset: "d", Selection: &schema.SelectionRef{Positions: list}})
	if n := len(j.Request().Selection.Positions); n != len(list) || j.Selection().Len() != int64(n) {
		t.Errorf("%d positions in the request, %d selected", n, j.Selection().Len())
	}
	_, err := f.Open(t.Context(), schema.Request{Dataset: "d",
		Selection: &schema.SelectionRef{Positions: slices.Concat(list, []int64{1500})}})
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "upload a longer selection by DoPut") {
		t.Errorf("one more: %v", err)
	}
	if n := f.store.begun.Load() - before; n != 0 {
		t.Errorf("%d ingests were begun by reading", n)
	}
}

// A selection has an owner, and exists as long as it is used. A use moves its expiry, but
// not every time.
func TestSelectionsAreRenewed(t *testing.T) {
	f := newFixture(t, resolve.Options{SelectionLifetime: 10 * 24 * time.Hour}, admission.Limits{})
	f.put(t, "d", 100)
	ann := store.WithCaller(t.Context(), store.Caller{Principal: "ann"})
	name, err := f.SaveSelection(ann, "d", 1, []int64{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	use := func(name string) error {
		j, err := f.Open(t.Context(), schema.Request{Dataset: "d", Selection: &schema.SelectionRef{Name: name}})
		if err == nil {
			j.Close()
		}
		return err
	}
	days := func() float64 {
		sel, err := f.store.Selection(t.Context(), "d", name)
		if err != nil {
			t.Fatal(err)
		}
		if sel.Owner != "ann" {
			t.Errorf("it is %q's", sel.Owner)
		}
		return time.Until(sel.Expires).Hours() / 24
	}
	if err := use(name); err != nil || f.store.renewed.Load() != 0 || days() < 9.9 || days() > 10 {
		t.Errorf("new: it expires in %.1f days and was renewed %d times: %v", days(), f.store.renewed.Load(), err)
	}

	// As others find it after some days.
	later := newFixture(t, resolve.Options{SelectionLifetime: 20 * 24 * time.Hour}, admission.Limits{})
	later.put(t, "d", 100)
	f = later
	in, err := f.store.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	save := func(bits byte, expires time.Duration) string {
		bitmap := make([]byte, 16)
		bitmap[0] = bits
		ref, err := in.Put(t.Context(), bitmap)
		if err != nil {
			t.Fatal(err)
		}
		sel := schema.Selection{Dataset: "d", Snapshot: 1, Rows: 1, Bitmap: ref, Owner: "ann",
			Expires: time.Now().Add(expires)}
		if err := in.SaveSelection(t.Context(), sel); err != nil {
			t.Fatal(err)
		}
		return sel.Name()
	}
	name = save(1, time.Hour)
	for range 5 {
		if err := use(name); err != nil {
			t.Fatal(err)
		}
	}
	if f.store.renewed.Load() != 1 || days() < 19.9 {
		t.Errorf("used: it expires in %.1f days and was renewed %d times", days(), f.store.renewed.Load())
	}
	if err := use(save(2, -time.Minute)); !errors.Is(err, schema.ErrNotFound) ||
		!strings.Contains(err.Error(), "expired on") {
		t.Errorf("expired: %v", err)
	}
}

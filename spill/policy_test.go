package spill

import (
	"errors"
	"testing"
	"time"

	"bowstring/schema"
)

func TestFutureOfAJob(t *testing.T) {
	f := &Future{}
	j, err := f.Add(JobOptions{Dataset: 3, Order: ascending(100), Epochs: 2, At: 10, RowTime: time.Second}, 0)
	if err != nil {
		t.Fatal(err)
	}
	requireNext := func(position, rows int64, used bool) {
		t.Helper()
		if got, ok := j.RowsUntil(position); ok != used || ok && got != rows {
			t.Errorf("position %d is used in %d rows, %v, want %d, %v", position, got, ok, rows, used)
		}
	}
	requireNext(10, 0, true)
	requireNext(99, 89, true)
	requireNext(9, 99, true) // in the next epoch
	if at, ok := f.NextUse(Place{Dataset: 3, Position: 12}, 1e9); !ok || at != 3e9 {
		t.Errorf("the next use is at %d, %v", at, ok)
	}
	for _, elsewhere := range []Place{{Dataset: 2, Position: 12}, {Position: 12}, {Dataset: 3, Position: 100}} {
		if at, ok := f.NextUse(elsewhere, 0); ok {
			t.Errorf("%+v is used at %d", elsewhere, at)
		}
	}
	j.Advance(1, 50, 140e9)
	j.Advance(0, 70, 150e9) // overtaken
	requireNext(50, 0, true)
	requireNext(49, 0, false) // there is no third epoch
	if j.RowTime() != time.Second {
		t.Errorf("a row takes %s", j.RowTime())
	}
	// The pace follows, in the end.
	f.Remove(j)
	if _, ok := f.NextUse(Place{Dataset: 3, Position: 60}, 0); ok || f.Len() != 0 {
		t.Error("a job that was removed is there")
	}
	if j, err = f.Add(JobOptions{Dataset: 3, Order: ascending(1 << 20)}, 0); err != nil {
		t.Fatal(err)
	}
	now := Time(0)
	for i := range int64(4000) {
		now += 1e9
		j.Advance(i/1000, i%1000*1000, now)
	}
	if _, ok := j.RowsUntil(0); !ok {
		t.Error("of a job whose end is not known, another epoch is taken for granted")
	}
	for _, bad := range []JobOptions{{}, {Order: ascending(1), Epochs: -1}, {Order: ascending(1), At: 2}} {
		if _, err := f.Add(bad, 0); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestWorths(t *testing.T) {
	future := &Future{}
	if _, err := future.Add(JobOptions{Dataset: 1, Order: ascending(100), Epochs: 1, RowTime: time.Second},
		100); err != nil {
		t.Fatal(err)
	}
	at := func(position int64) Entry {
		return Entry{Place: Place{Dataset: 1, Position: position}, Size: 1000, Cost: time.Millisecond, Uses: 1,
			Added: 0, Used: 50}
	}
	change := func(e Entry, change func(*Entry)) Entry { change(&e); return e }
	unplanned := at(500)
	for name, less := range map[string]struct {
		policy Policy
		a, b   Entry // a is worth less
	}{
		"later use":           {NextUse(future), at(60), at(40)},
		"no use":              {NextUse(future), unplanned, at(99)},
		"no use, fewer uses":  {NextUse(future), unplanned, change(unplanned, func(e *Entry) { e.Uses = 2 })},
		"fewer uses":          {Score(), at(0), change(at(0), func(e *Entry) { e.Uses = 2 })},
		"larger":              {Score(), change(at(0), func(e *Entry) { e.Size = 2000 }), at(0)},
		"older":               {Score(), at(0), change(at(0), func(e *Entry) { e.Added = 50 })},
		"cheaper":             {Score(), at(0), change(at(0), func(e *Entry) { e.Cost = time.Second })},
		"used longer ago":     {LRU(), at(0), change(at(0), func(e *Entry) { e.Used = 51 })},
		"stored longer ago":   {FIFO(), at(0), change(at(0), func(e *Entry) { e.Added = 1 })},
		"of no bytes or cost": {Score(), at(0), change(at(0), func(e *Entry) { e.Size, e.Cost = 0, time.Second })},
	} {
		a, b := less.policy.Worth(&less.a, 100), less.policy.Worth(&less.b, 100)
		if !a.Less(b) || b.Less(a) {
			t.Errorf("%s: %s is not worth less than %s", name, a, b)
		}
	}
	soon, late, never := Worth{Planned: true, Value: -1}, Worth{Planned: true, Value: -2}, Worth{Value: 5}
	next := NextUse(future)
	for _, c := range []struct {
		policy           Policy
		newcomer, victim Worth
		want             bool
	}{
		{next, soon, late, true}, {next, late, soon, false}, {next, late, late, false},
		{next, soon, never, true}, {next, never, late, false}, {next, never, never, true},
		{LRU(), never, never, true}, {Static(), soon, never, false},
	} {
		if got := c.policy.Admit(c.newcomer, c.victim); got != c.want {
			t.Errorf("%s admits %s in the place of %s: %v", c.policy.Name(), c.newcomer, c.victim, got)
		}
	}
}

// entries is a table of what there is in memory.
type entries []Entry

func (e entries) Slots() int { return len(e) }

func (e entries) Entry(i int, to *Entry) bool { *to = e[i]; return e[i].Uses > 0 }

// TestChooserFindsTheLeast has as many candidates as there are slots, several times over.
func TestChooserFindsTheLeast(t *testing.T) {
	r := testRand(t)
	list := make(entries, 50)
	for i := range list {
		list[i] = Entry{Uses: 1, Used: Time(r.Int64N(1000))}
	}
	c := NewChooser(LRU(), 1000, r.Uint64())
	last := Time(-1)
	for range list {
		i, _, ok := c.Victim(list, 0)
		if !ok || list[i].Used < last {
			t.Fatalf("slot %d, last used at %d after one at %d, is evicted: %v", i, list[i].Used, last, ok)
		}
		last, list[i].Uses = list[i].Used, 0
	}
	if i, _, ok := c.Victim(list, 0); ok {
		t.Errorf("slot %d is empty and evicted", i)
	}
	if _, _, ok := NewChooser(LRU(), 1, 0).Victim(entries{}, 0); ok {
		t.Error("an empty table has a victim")
	}
}

// A page of a manifest is used with the first of its rows, whichever it is.
func TestFutureOfAPage(t *testing.T) {
	f := &Future{}
	const pages = 10
	j, err := f.Add(JobOptions{Dataset: 3, Order: ascending(pages * schema.PageRows), Epochs: 1, RowTime: time.Second},
		0)
	if err != nil {
		t.Fatal(err)
	}
	next := func(start int64) Time {
		t.Helper()
		at, ok := f.NextUse(PageAt(3, start), 0)
		if !ok {
			t.Fatalf("the page at %d is not used", start)
		}
		return at
	}
	if next(0) != 0 || next(schema.PageRows) >= next(2*schema.PageRows) {
		t.Errorf("pages are used at %d, %d and %d", next(0), next(schema.PageRows), next(2*schema.PageRows))
	}
	// Any of its rows comes before most others.
	if row, ok := f.NextUse(Place{Dataset: 3, Position: 5 * schema.PageRows}, 0); !ok ||
		next(5*schema.PageRows) > row/100 {
		t.Errorf("a page is used at %d, its first row at %d", next(5*schema.PageRows), row)
	}
	j.Advance(0, schema.PageRows, 1e9) // it has used the first one
	if at, ok := f.NextUse(PageAt(3, 0), 0); ok {
		t.Errorf("a page that was used is used at %d", at)
	}
	j.Advance(0, schema.PageRows+10, 2e9)
	next(schema.PageRows)
	for _, elsewhere := range []Place{PageAt(2, 0), PageAt(3, pages*schema.PageRows)} {
		if at, ok := f.NextUse(elsewhere, 0); ok {
			t.Errorf("%+v is used at %d", elsewhere, at)
		}
	}
}

package resolve_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/layout"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

// slowly makes the catalog of a fixture slow, and looks up the newest snapshot of d once.
func (f *fixture) slowly(t *testing.T) {
	t.Helper()
	f.store.askFirst(func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil })
	f.open(t, schema.Request{Dataset: "d"}).Close()
}

// early opens a job early, and checks that it is on that snapshot.
func (f *fixture) early(t *testing.T, req schema.Request, snapshot int64) *resolve.Job {
	t.Helper()
	j, err := f.OpenEarly(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	if got := j.Request().Snapshot; got != snapshot {
		t.Errorf("the job that was opened early is of snapshot %d, want %d", got, snapshot)
	}
	return j
}

// TestOpenEarly: a job is there before a catalog that takes long has answered, and certain when it has.
func TestOpenEarly(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 10)
	f.slowly(t)
	asked, gate := make(chan struct{}, 1), make(chan struct{})
	f.store.askFirst(func(context.Context) error { asked <- struct{}{}; <-gate; return nil })
	j := f.early(t, schema.Request{Dataset: "d"}, 1)
	<-asked
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	if err := j.Confirm(gone); !errors.Is(err, errGone) {
		t.Errorf("a caller that does not wait for the catalog got %v", err)
	}
	close(gate)
	if err := j.Confirm(t.Context()); err != nil {
		t.Errorf("the snapshot is the newest, but: %v", err)
	}
	if err := f.open(t, schema.Request{Dataset: "d"}).Confirm(gone); err != nil {
		t.Errorf("a job that was not opened early is not certain: %v", err)
	}
}

// TestOpenEarlyNumbered opens a snapshot early by its number, after the catalog's answer
// has expired.
func TestOpenEarlyNumbered(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 10)
	f.slowly(t)
	gate := make(chan struct{})
	f.store.askFirst(func(context.Context) error {
		select {
		case <-gate:
		case <-time.After(50 * time.Millisecond): // the belief may end while a job is opened, which asks then itself
		}
		return nil
	})
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	for {
		j := f.early(t, schema.Request{Dataset: "d", Snapshot: 1}, 1)
		if err := j.Confirm(gone); err == nil {
			continue // the catalog's answer is believed yet
		}
		close(gate)
		if err := j.Confirm(t.Context()); err != nil {
			t.Errorf("the snapshot is there, but: %v", err)
		}
		return
	}
}

// TestSuperseded: whatever else the catalog says, the job is the wrong one.
func TestSuperseded(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		change func(*testing.T, *fixture)
		number int64
		also   error
	}{
		"another is the newest": {change: func(t *testing.T, f *fixture) { f.put(t, "d", 20) }},
		"it was dropped": {change: func(t *testing.T, f *fixture) {
			if err := f.store.Drop(t.Context(), "d", 1); err != nil {
				t.Error(err)
			}
		}, also: schema.ErrNotFound},
		"the catalog fails": {change: func(_ *testing.T, f *fixture) {
			f.store.askFirst(func(context.Context) error { return broken })
		}, also: broken},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, resolve.Options{}, admission.Limits{})
			f.put(t, "d", 10)
			f.slowly(t)
			tt.change(t, f)
			err := f.early(t, schema.Request{Dataset: "d"}, 1).Confirm(t.Context())
			if tt.also != nil && !errors.Is(err, tt.also) || errors.Is(tt.also, broken) == errors.Is(err, resolve.ErrSuperseded) {
				t.Errorf("the job is confirmed with %v", err)
			}
		})
	}
}

// TestNotEarly: no job is opened early if the catalog answers fast, if the snapshot is in
// doubt, or if the request does not fit the snapshot that is probably meant.
func TestNotEarly(t *testing.T) {
	f := newFixture(t, resolve.Options{Worthwhile: time.Hour}, admission.Limits{})
	f.put(t, "d", 10)
	f.slowly(t)
	f.put(t, "d", 20)
	f.early(t, schema.Request{Dataset: "d"}, 2)

	f = newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 10)
	f.put(t, "d", 20)
	f.slowly(t)
	f.put(t, "d", 30)
	list := schema.SelectionRef{Positions: []int64{25}} // the one before ends at 20
	f.early(t, schema.Request{Dataset: "d", Selection: &list}, 3)

	f.put(t, "d", 40)
	f.Doubt("d")
	f.early(t, schema.Request{Dataset: "d"}, 4)
}

// TestEarlyEnds: a question ends with its job, and with all jobs.
func TestEarlyEnds(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 10)
	f.slowly(t)
	f.store.askFirst(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
	f.early(t, schema.Request{Dataset: "d"}, 1).Close()
	j := f.early(t, schema.Request{Dataset: "d"}, 1)
	f.Close() // or the test hangs
	if err := j.Confirm(t.Context()); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("a job that was open then is confirmed with %v", err)
	}
	j.Close()
	f.store.askFirst(nil)
	if _, err := f.OpenEarly(t.Context(), schema.Request{Dataset: "d"}); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("after Close a job is opened early: %v", err)
	}
}

// claims counts the layouts that were reserved, by plan.
type claims struct {
	mu   sync.Mutex
	made map[string]int
}

// Layout implements resolve.Layouts.
func (*claims) Layout(context.Context, string) (*layout.Layout, error) { return layout.Lone(), nil }

// Reserve implements resolve.Layouts.
func (c *claims) Reserve(_ context.Context, plan string, _ uint64, _ int64, _ []string) (*layout.Layout, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made[plan]++
	return layout.Lone(), nil
}

// TestEarlyClaimsNothing: no layout is claimed for a job that may be of the wrong snapshot.
func TestEarlyClaimsNothing(t *testing.T) {
	made := &claims{made: map[string]int{}}
	f := newFixture(t, resolve.Options{Layouts: made}, admission.Limits{})
	f.put(t, "d", 10)
	f.slowly(t)
	f.put(t, "d", 20)
	f.early(t, schema.Request{Dataset: "d", Assign: schema.AssignLocal, Batch: 4}, 2)
	if len(made.made) != 1 {
		t.Errorf("layouts of %d plans were claimed for one job", len(made.made))
	}
}

package resolve_test

import (
	"context"
	"testing"

	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

// Names implements store.Store.
func (c *counting) Names(ctx context.Context) (names []string, err error) {
	list, err := c.Datasets(ctx)
	for _, d := range list {
		names = append(names, d.Name)
	}
	if c.listed != nil {
		c.listed()
	}
	return names, err
}

// Snapshot counts, and asks first.
func (c *counting) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	c.asked.Add(1)
	c.mu.Lock()
	ask := c.ask
	c.mu.Unlock()
	if ask != nil {
		if err := ask(ctx); err != nil {
			return nil, err
		}
	}
	return c.Store.Snapshot(ctx, dataset, number)
}

// TestOpenRecent: the manifests of few datasets are read before anybody asks for them, and once.
func TestOpenRecent(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "a", 100)
	f.put(t, "b", 100)
	arrived, gate := make(chan schema.Key, 100), make(chan struct{})
	f.gate = func(_ context.Context, ref schema.BlobRef) error {
		arrived <- ref.Key
		<-gate
		return nil
	}
	ended := f.OpenRecent()
	lists := map[schema.Key]bool{<-arrived: true, <-arrived: true}
	select {
	case <-ended:
		t.Error("it has ended before what it opens is open")
	default:
	}
	close(gate)
	<-ended
	if n := f.OpenSnapshots(); n != 2 {
		t.Errorf("it has ended, and %d snapshots are open", n)
	}
	f.open(t, schema.Request{Dataset: "a"})
	f.open(t, schema.Request{Dataset: "b"})
	close(arrived)
	for key := range arrived {
		if lists[key] {
			t.Error("the list of pages of a chunk is read twice")
		}
	}
	if len(lists) != 2 || f.OpenSnapshots() != 2 {
		t.Errorf("%d lists of pages were read, %d snapshots are open", len(lists), f.OpenSnapshots())
	}
}

// TestOpenRecentNot: of more datasets than stay open, none is opened.
func TestOpenRecentNot(t *testing.T) {
	for idle, want := range map[int]int64{1: 0, 2: 2} {
		f := newFixture(t, resolve.Options{IdleSnapshots: idle}, admission.Limits{})
		f.put(t, "a", 10)
		f.put(t, "b", 10)
		before := f.store.asked.Load()
		listed := make(chan struct{})
		f.store.listed = func() { close(listed) }
		f.OpenRecent()
		<-listed
		f.Close() // waits
		if got := f.store.asked.Load() - before; got != want {
			t.Errorf("where %d snapshots stay open, %d of 2 datasets are asked for, want %d", idle, got, want)
		}
	}
}

// TestOpenRecentEnds: Close cancels the opening of snapshots.
func TestOpenRecentEnds(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "a", 100)
	arrived := make(chan struct{}, 100)
	f.gate = func(ctx context.Context, _ schema.BlobRef) error {
		arrived <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	ended := f.OpenRecent()
	<-arrived
	f.Close() // or the test hangs
	<-ended
}

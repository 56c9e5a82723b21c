package read

import (
	"context"
	"testing"

	"bowstring/schema"
)

// If the queue of attempts is never empty, taken attempts make room for new ones.
func TestDueDoesNotGrow(t *testing.T) {
	const waiting = 10
	var d due
	for i := range 100_000 {
		d.add(Attempt{read: &read{}, nth: i})
		if i < waiting {
			continue
		}
		if a := d.take(); a.nth != i-waiting {
			t.Fatalf("attempt %d is taken, want %d: the oldest is first", a.nth, i-waiting)
		}
	}
	if n := cap(d.list); n > 8*waiting {
		t.Errorf("there is room for %d attempts where %d wait", n, waiting)
	}
	for range waiting {
		d.take()
	}
	if a := d.take(); a.read != nil || len(d.list) != 0 {
		t.Errorf("%v is taken of an empty queue of %d", a, len(d.list))
	}
}

// A context derived from a read's ends with it, and leaves nothing behind if it ends before.
func TestContextOfRead(t *testing.T) {
	var rd readContext
	early, cancel := context.WithCancel(&rd)
	cancel()
	<-early.Done()
	if len(rd.after) > 0 {
		t.Errorf("%d calls are left of a context that has ended", len(rd.after))
	}
	with, stop := context.WithCancel(&rd)
	defer stop()
	called := make(chan struct{})
	defer context.AfterFunc(&rd, func() { close(called) })()
	if with.Err() != nil {
		t.Fatal("it has ended before the read")
	}
	rd.end()
	<-with.Done()
	<-called
	after, stop := context.WithCancel(&rd)
	defer stop()
	<-after.Done()
}

// emptyTier is a last tier without blobs.
type emptyTier struct{}

func (emptyTier) Name() string            { return "store" }
func (emptyTier) Has(schema.BlobRef) bool { return true }
func (emptyTier) Traits() Traits          { return Traits{} }
func (emptyTier) Fetch(c []Cell, a Answers) {
	Each(c, a, func(*Cell) Answer { return Answer{Err: schema.ErrNotFound} })
}

// Stats does not wait for the mutex: it returns the counters as of the last unlock.
func TestStatsWaitForNoReads(t *testing.T) {
	r, err := New([]Tier{emptyTier{}}, Options{MaxReads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for reads := range int64(3) {
		r.mu.Lock()
		r.stats.reads = reads + 1
		if got := r.Stats().Reads; got != reads {
			t.Errorf("while the mutex is taken, %d reads are counted, want the %d of before", got, reads)
		}
		r.mu.Unlock()
		if got := r.Stats().Reads; got != reads+1 {
			t.Errorf("%d reads are counted, want %d", got, reads+1)
		}
	}
}

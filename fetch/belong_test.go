package fetch_test

import (
	"testing"

	"bowstring/fetch"
	"bowstring/schema"
	"bowstring/spill"
)

// TestRanksFarApart has ranks of one job belong to it, here and at another node, though one has read an epoch before the
// other begins it; and a job that is started again be another one.
func TestRanksFarApart(t *testing.T) {
	store := newStore(t)
	put(t, store, "ds", 300)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, store, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	requireJobs := func(n int, after string) {
		t.Helper()
		if got := future.Len(); got != n {
			t.Fatalf("%d jobs after %s, want %d: %+v", got, after, n, e.Stats().Jobs)
		}
	}
	of := func(epoch uint64) schema.Request {
		r := shuffled("ds", 3, epoch)
		r.World = &schema.World{Size: 3}
		return r
	}
	elsewhere := e.Follow()
	defer elsewhere.Close()
	for epoch := range uint64(3) {
		fast := begin(t, e, of(epoch), 0, 0)
		for range batches(t, fast) {
			continue
		}
		slow := begin(t, e, of(epoch), 1, 0)
		requireJobs(1, "a rank that is far behind")
		ticket := schema.Ticket{Request: open(t, e, of(epoch)).Request(), Rank: 2}.Marshal()
		if err := elsewhere.Update(t.Context(), []fetch.Progress{{ID: epoch + 1, Ticket: ticket}}); err != nil {
			t.Fatal(err)
		}
		requireJobs(1, "one of another node that is far behind")
		fast.Close()
		for range batches(t, slow) {
			continue
		}
		slow.Close()
	}
	begin(t, e, of(0), 0, 0)
	requireJobs(2, "the job was started again")
	begin(t, e, of(0), 1, 0)
	begin(t, e, of(0), 2, 0)
	requireJobs(2, "all of its ranks")
}

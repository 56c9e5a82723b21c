package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/store"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

// twice counts how often each sample is read from the store.
type twice struct {
	store.Store
	mu    sync.Mutex
	reads map[int64]int // by position
}

func (s *twice) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if pos := (ref.Size - churnSize(0)) / 7; ref.Size == churnSize(pos) && pos < churnSamples {
		s.mu.Lock()
		s.reads[pos]++
		s.mu.Unlock()
	}
	return s.Store.Get(ctx, ref)
}

// Two halves of a cluster that do not see each other's leases have two layouts at once: that costs a second read of
// each blob, and nothing else. When they see each other again they have one.
func TestSplitBrain(t *testing.T) {
	local := newChurnStore(t)
	synctest.Test(t, func(t *testing.T) {
		counts := &twice{Store: local, reads: map[int64]int{}}
		w := &churnWorld{
			rng: rand.New(rand.NewPCG(1, 15)), shared: memshared.New(), store: farStore{counts, time.Millisecond},
			total: &churnTotal{}, noHedge: true,
			quiet: map[[2]int]bool{}, wrong: map[[2]int]bool{}, dark: map[int]bool{}, side: map[int]int{},
			heal: make(chan struct{}), layouts: map[string]*layout.Layout{},
		}
		for i := range 4 {
			w.nodes = append(w.nodes, &churnNode{world: w, index: i, id: string(rune('a' + i)), capacity: 1 << 20})
		}
		for _, n := range w.nodes {
			if err := n.begin(2, false); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			for _, n := range w.nodes {
				if err := n.end(false); err != nil {
					t.Error(err)
				}
				if err := n.cache.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		epoch := func(n *churnNode, seed uint64) {
			t.Helper()
			at := schema.Ticket{Request: schema.Request{Dataset: "d", Shuffle: &schema.Shuffle{Seed: seed}, Batch: 20,
				Assign: schema.AssignLocal}}
			seen := map[int64]int{}
			if done, err := w.readOn(t.Context(), n.lives(), w.rng, &at, func(pos int64) error {
				seen[pos]++
				return nil
			}); err != nil || !done || len(seen) != churnSamples {
				t.Errorf("node %s has served %d samples of %d, to the end %t: %v", n.id, len(seen), churnSamples, done,
					err)
			}
		}
		w.mu.Lock()
		w.side[2], w.side[3] = 1, 1
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		one, other := w.nodes[0].lives().members, w.nodes[2].lives().members
		if one.Now().Name() == other.Now().Name() || one.Now().Nodes() != 2 || other.Now().Nodes() != 2 {
			t.Fatalf("the halves go by layouts of %d and %d nodes, the same %t", one.Now().Nodes(), other.Now().Nodes(),
				one.Now().Name() == other.Now().Name())
		}
		for i, n := range []int{0, 2, 1, 3} { // the same epoch by two nodes of each half, and by all another one
			epoch(w.nodes[n], 1)
			epoch(w.nodes[n], uint64(2+i))
		}
		again := 0
		counts.mu.Lock()
		for pos, times := range counts.reads {
			if times > 2 {
				t.Errorf("position %d was read from the store %d times", pos, times)
			}
			again += times - 1
		}
		if len(counts.reads) != churnSamples || again != churnSamples {
			t.Errorf("%d of %d samples were read from the store, %d of them by both halves", len(counts.reads),
				churnSamples, again)
		}
		counts.mu.Unlock()
		w.mu.Lock()
		clear(w.side)
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		if err := w.agree(); err != nil {
			t.Error(fmt.Errorf("when they see each other again: %w", err))
		}
		epoch(w.nodes[1], 9)
	})
}

package fetch_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"bowstring/fetch"
	"bowstring/schema"
	"bowstring/spill"
)

// Streams whose order is loose serve each sample once, and move none further than it may, whatever the spill has of what
// comes, however often they are cut off and resumed.
func TestLooseOrdersFollowTheSpill(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	store := newStore(t)
	putPages(t, store, "d", 700, 7)
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	far := newCounted(store, must(store.Snapshot(t.Context(), "d", 0)))
	for range rounds / 5 {
		// It has all of it in the end.
		future := &spill.Future{}
		cache := must(spill.Open(spill.Options{Dir: filepath.Join(t.TempDir(), "spill"), Bytes: spill.MinBytes, KeepFree: 1,
			Oracle: future, Logger: quiet}))
		for range 5 {
			req := schema.Request{
				Dataset: "d", Columns: []string{"id", "label", "image"}, Batch: 1 + rng.Int64N(120),
				World: &schema.World{Size: 1 + rng.Int64N(3)}, Shuffle: &schema.Shuffle{Seed: rng.Uint64(), Epoch: rng.Uint64N(9)},
				Order:     []string{schema.OrderFree, schema.OrderFree, schema.OrderWindow, "window:1", "window:3"}[rng.IntN(5)],
				Remainder: []string{"", schema.RemainderDrop}[rng.IntN(2)],
			}
			if rng.IntN(2) == 0 {
				req.BatchBytes = 1 + rng.Int64N(40_000)
			}
			tk := ticket(req, int(rng.Int64N(req.WorldSize())))
			tk.Stride, tk.Epochs = 1+rng.Int64N(3), 1+rng.Int64N(3)
			opts := fetch.Options{Spill: cache, Future: future, Logger: quiet, WindowBytes: []int64{0, 30_000, 300_000}[rng.IntN(3)],
				MaxPrefetch: []int64{0, 300}[rng.IntN(2)]}
			if rng.IntN(2) == 0 {
				opts.Resident, opts.Memory.Manifests = -1, 20_000+rng.Int64N(100_000)
			}
			name := fmt.Sprintf("%s, window %d, ahead %d", tk.Marshal(), opts.WindowBytes, opts.MaxPrefetch)
			e := must(fetch.NewEngine(far, opts))
			j := resolve(t, e, req)
			want := expected(t, j, tk)
			check(t, name, j, tk, want, follow(t, e, j, tk, -1))
			var parts []seen
			next, story := tk, name
			for range 4 {
				part := follow(t, e, j, next, rng.IntN(5))
				j.Close()
				if parts = append(parts, part...); len(part) > 0 {
					next = must(schema.ParseTicket(part[len(part)-1].resume.Marshal()))
				}
				story += fmt.Sprintf(", cut after %d batches and resumed by %s", len(part), next.Marshal())
				j = resolve(t, e, next.Request)
			}
			check(t, story, j, tk, want, append(parts, follow(t, e, j, next, -1)...))
			j.Close()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
	}
}

package fetch_test

import (
	"testing"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// A stream that is closed while it computes its rows leaks nothing, and releases nothing that other streams hold.
func TestLocalStreamsCancelled(t *testing.T) {
	s := newStore(t)
	putPages(t, s, "d", 900, 8)
	for name, resident := range map[string]int64{"whole": 0, "lazy": -1} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, s, fetch.Options{Layouts: fixedLayouts{nodesOf(3)}, Resident: resident})
			req := schema.Request{
				Dataset: "d", Assign: schema.AssignLocal, World: &schema.World{Size: 3}, Batch: 64,
				Columns: []string{"image"}, Shuffle: &schema.Shuffle{Seed: 1},
			}
			for i := range 300 {
				req.Shuffle = &schema.Shuffle{Seed: 1, Epoch: uint64(i)}
				j := must(e.Open(t.Context(), req))
				st := must(e.Stream(t.Context(), j, ticket(j.Request(), 0)))
				st.Close()
				j.Close()
			}
			deadline := time.Now().Add(time.Minute)
			for {
				if _, err := e.GC(t.Context(), store.GCOptions{}); err != nil {
					t.Fatal(err)
				}
				n := e.Stats().Snapshots
				if n == 0 {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d snapshots stay open without a reader", n)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

package simulate

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Bytes take as long as max-min fair shares say: of three connections over a link of 10 and one of them over another of
// 2 besides, that one has 2, and the others 4 each.
func TestNetworkShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork([]resource{{capacity: 10}, {capacity: 2}, {capacity: math.Inf(1)}})
		ctx, stop := context.WithCancel(t.Context())
		var all, running sync.WaitGroup
		running.Go(func() { n.run(ctx) })
		began := time.Now()
		var took [3]time.Duration
		for i, way := range []struct {
			path  []int32
			bytes int64
		}{{[]int32{0, 1}, 20}, {[]int32{0, 2}, 40}, {[]int32{0}, 80}} {
			all.Go(func() {
				if err := n.send(ctx, int32(i), 9, func() []int32 { return way.path }, way.bytes); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(began)
			})
		}
		all.Wait()
		stop()
		running.Wait()
		// Until 10 s: 2, 4, 4. Then the third has all for its other 40.
		for i, want := range []float64{10, 10, 14} {
			if got := took[i].Seconds(); math.Abs(got-want) > 1e-6 {
				t.Errorf("transfer %d took %v s, want %v", i, got, want)
			}
		}
	})
}

// However many connections there are, no link carries more than it can, and none is idle that somebody waits for.
func TestNetworkFairness(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(nil)
		for range 20 {
			n.resources = append(n.resources, resource{capacity: 1 + 99*rng.Float64()})
		}
		for i := range 300 {
			a, b := int32(rng.IntN(20)), int32(rng.IntN(20))
			path := []int32{a, b}
			if a == b {
				path = path[:1]
			}
			c := &conn{path: path, at: -1, queue: []*transfer{{1e6, make(chan struct{}, 1)}}}
			n.conns[[2]int32{int32(i), 0}] = c
			n.beginLocked(c)
		}
		n.settleLocked(time.Now())
		used := make([]float64, len(n.resources))
		most := make([]float64, len(n.resources))
		for _, c := range n.conns {
			for _, r := range c.path {
				used[r] += c.rate
				most[r] = max(most[r], c.rate)
			}
		}
		for i, r := range n.resources {
			if used[i] > r.capacity*(1+1e-9) || math.Abs(used[i]-r.used) > 1e-6 {
				t.Errorf("resource %d of %v carries %v, by its own account %v", i, r.capacity, used[i], r.used)
			}
		}
		for _, c := range n.conns { // max-min: no connection is faster on some full link of its path
			ok := false
			for _, r := range c.path {
				ok = ok || used[r] > n.resources[r].capacity*(1-1e-9) && c.rate >= most[r]*(1-1e-9)
			}
			if !ok {
				t.Errorf("a connection over %v has %v, and could have more", c.path, c.rate)
			}
		}
	})
}

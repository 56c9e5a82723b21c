package object_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// phase is a time in which a bucket keeps its behaviour.
type phase struct {
	rate   float64       // requests a second that the bucket allows; 0: any
	share  float64       // of the requests that it refuses at any rate
	settle time.Duration // time until the results count
	counts time.Duration // time in which they count; 0: they do not
}

// TestBudgetTellsRefusalsApart: if the bucket refuses a share of the requests at any rate, the rate stays what it is
// without a limit. At a limit of the bucket, little more is refused. Both hold together, for buckets that change, and for
// many nodes. Readers wait 30 ms for an answer in the mean, and 5 ms after a refusal. So their requests without a limit
// are known.
func TestBudgetTellsRefusalsApart(t *testing.T) {
	const latency, retry = 30 * time.Millisecond, 5 * time.Millisecond
	always := func(rate, share, settle, counts float64) []phase {
		return []phase{{rate, share, time.Duration(settle * 1e9), time.Duration(counts * 1e9)}}
	}
	for _, c := range []struct {
		name    string
		phases  []phase
		nodes   int
		workers int           // of each node
		think   time.Duration // of each worker, between requests
		refused float64       // at most, besides the share that is refused at any rate
	}{
		{"0.5 % at 20 a second", always(0, 0.005, 60, 600), 1, 2, 70 * time.Millisecond, 0.005},
		{"1 % at 20 a second", always(0, 0.01, 60, 600), 1, 2, 70 * time.Millisecond, 0.01},
		{"3 % at 20 a second", always(0, 0.03, 60, 600), 1, 2, 70 * time.Millisecond, 0.01},
		{"0.5 % at 330 a second", always(0, 0.005, 20, 120), 1, 10, 0, 0.005},
		{"1 % at 330 a second", always(0, 0.01, 20, 120), 1, 10, 0, 0.005},
		{"3 % at 330 a second", always(0, 0.03, 20, 120), 1, 10, 0, 0.005},
		{"0.5 % at 3,300 a second", always(0, 0.005, 20, 40), 1, 100, 0, 0.005},
		{"1 % at 3,300 a second", always(0, 0.01, 20, 40), 1, 100, 0, 0.005},
		{"3 % at 3,300 a second", always(0, 0.03, 20, 40), 1, 100, 0, 0.005},

		{"5 allowed", always(5, 0, 60, 600), 1, 20, 0, 0.1},
		{"50 allowed", always(50, 0, 60, 300), 1, 50, 0, 0.04},
		{"1,000 allowed", always(1000, 0, 20, 60), 1, 200, 0, 0.03},
		{"50 allowed, 1 %", always(50, 0.01, 60, 300), 1, 50, 0, 0.04},
		{"50 allowed, 3 %", always(50, 0.03, 60, 300), 1, 50, 0, 0.04},
		{"500 allowed, 1 %", always(500, 0.01, 60, 120), 1, 200, 0, 0.03},
		{"500 allowed, 3 %", always(500, 0.03, 60, 120), 1, 200, 0, 0.03},

		{"allowed changes", []phase{{600, 0, 20e9, 60e9}, {200, 0, 20e9, 60e9}, {1200, 0, 60e9, 60e9}, {600, 0, 20e9, 60e9}},
			1, 200, 0, 0.04},
		{"allowed changes, 1 %", []phase{{600, .01, 20e9, 60e9}, {200, .01, 20e9, 60e9}, {1200, .01, 60e9, 60e9},
			{600, .01, 20e9, 60e9}}, 1, 200, 0, 0.04},
		{"the background comes and goes", []phase{{0, 0, 5e9, 10e9}, {0, .03, 20e9, 60e9}, {0, 0, 5e9, 30e9},
			{500, .01, 20e9, 60e9}},
			1, 40, 0, 0.03},

		{"all is refused for 3 s at first", []phase{{0, 1, 3e9, 0}, {0, 0, 25e9, 60e9}}, 1, 30, 0, 0},
		{"half is refused for 5 s at first", []phase{{0, .5, 5e9, 0}, {0, 0, 45e9, 60e9}}, 1, 30, 0, 0},
		{"all is refused for 3 s at first, then 1 %", []phase{{0, 1, 3e9, 0}, {0, .01, 40e9, 60e9}}, 1, 30, 0, 0.01},

		{"8 nodes, 1 %", always(0, 0.01, 20, 60), 8, 8, 0, 0.01},
		{"16 nodes, 1 % at 20 a second each", always(0, 0.01, 60, 120), 16, 2, 70 * time.Millisecond, 0.01},
		{"8 nodes, 500 allowed", always(500, 0, 60, 120), 8, 20, 0, 0.05},
		{"8 nodes, 500 allowed, 1 %", always(500, 0.01, 60, 120), 8, 20, 0, 0.05},
		{"8 nodes, 500 allowed, 3 %", always(500, 0.03, 60, 120), 8, 20, 0, 0.04},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &part{}
				under := newRefusing(t, p)
				s := newNodes(c.nodes, under)
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				if c.nodes > 1 {
					s.exchange(ctx, &wg)
				}
				l := &load{workers: c.workers, think: c.think}
				for i, ph := range c.phases {
					under.mu.Lock()
					p.rate, p.burst, p.at, under.share = ph.rate, max(ph.rate/4, 5), time.Now(), ph.share
					under.mu.Unlock()
					if i == 0 {
						for _, b := range s.buckets {
							l.run(ctx, &wg, b)
						}
					}
					counts := func() (made, asked, denied float64) {
						under.mu.Lock()
						defer under.mu.Unlock()
						return float64(l.made.Load()), float64(under.asked), float64(under.denied)
					}
					sleep(ctx, ph.settle)
					made, asked, denied := counts()
					if sleep(ctx, ph.counts); ph.counts == 0 {
						continue
					}
					m, a, d := counts()
					demand := float64(c.nodes*c.workers) * (1 - ph.share) / ((latency + c.think).Seconds() + ph.share*retry.Seconds())
					if ph.rate > 0 {
						demand = min(demand, ph.rate)
					}
					got, refused := (m-made)/ph.counts.Seconds(), (d-denied)/(a-asked)
					t.Logf("phase %d: %.1f a second of %.1f, %.4f refused", i, got, demand, refused)
					least := 0.9 * demand
					if ph.share >= 0.03 {
						// One refusal in 50,000 makes the limit fall by chance, so one run in ten of 3,300 a second has a
						// fall, which costs 8 % of the time that counts.
						least = 0.75 * demand
					}
					if got < least {
						t.Errorf("phase %d: %.1f a second are made, want %.1f or more", i, got, least)
					}
					if most := ph.share + c.refused; refused > most {
						t.Errorf("phase %d: %.4f of the requests are refused, want %.4f or less", i, refused, most)
					}
				}
				cancel()
				wg.Wait()
			})
		})
	}
}

package object_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// nodes are several processes that use a bucket, and send each other their shares each
// second.
type nodes struct {
	budgets []*object.Budget
	buckets []object.Bucket
}

func newNodes(n int, under object.Bucket) *nodes {
	s := &nodes{}
	for range n {
		b := object.NewBudget(object.BudgetOptions{Sharers: func() int { return n }})
		s.budgets = append(s.budgets, b)
		s.buckets = append(s.buckets, object.Budgeted(under, b))
	}
	return s
}

// exchange makes them send their shares to each other until ctx ends, each at its own
// times.
func (s *nodes) exchange(ctx context.Context, wg *sync.WaitGroup) {
	for i, b := range s.budgets {
		wg.Go(func() {
			sleep(ctx, time.Duration(i)*time.Second/time.Duration(len(s.budgets)))
			for ctx.Err() == nil {
				shares := b.Shares()
				for k, other := range s.budgets {
					if k != i {
						other.Hear(i, shares)
					}
				}
				sleep(ctx, time.Second)
			}
		})
	}
}

// TestBudgetOfManyNodes: however many nodes share a bucket, they use nearly all that it allows, are refused little, and get
// about the same, whether they read as they like or wait for each other at each step.
func TestBudgetOfManyNodes(t *testing.T) {
	for _, n := range []int{4, 16} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d nodes, in steps %t", n, together), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const rate, seconds = 500, 240
					p := &part{rate: rate, burst: rate / 4}
					under := newRefusing(t, p)
					s := newNodes(n, under)
					ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
					defer cancel()
					var wg sync.WaitGroup
					s.exchange(ctx, &wg)
					loads := make([]*load, n)
					for i := range loads {
						loads[i] = &load{workers: 2 * rate / n / 10}
						if !together {
							loads[i].workers *= 4
							loads[i].run(ctx, &wg, s.buckets[i])
						}
					}
					for ctx.Err() == nil && together { // each node has as many reads in a step
						var step sync.WaitGroup
						for i, l := range loads {
							for w := range l.workers {
								step.Go(func() {
									for k := 0; ctx.Err() == nil; k++ {
										if s.buckets[i].Range(ctx, fmt.Sprintf("%d-%d", w, k), schema.ObjectVersion{}, 0, nil) == nil {
											l.made.Add(1)
											return
										}
										sleep(ctx, 5*time.Millisecond)
									}
								})
							}
						}
						step.Wait()
					}
					wg.Wait()
					var all, least, most float64
					for i, l := range loads {
						got := float64(l.made.Load()) / seconds
						if all += got; i == 0 {
							least, most = got, got
						}
						least, most = min(least, got), max(most, got)
					}
					refused := float64(under.denied) / float64(under.asked)
					t.Logf("%.0f a second of %d, refused %.4f, nodes %.1f to %.1f", all, rate, refused, least, most)
					if all < 0.9*rate || refused > 0.05 || least < 0.8*most {
						t.Errorf("%d nodes make %.0f a second of %d, %.1f to %.1f each, and are refused %.4f", n, all, rate, least,
							most, refused)
					}
				})
			})
		}
	}
}

// TestBudgetOfNodesByPrefix: where one prefix is refused, all nodes learn a limit of it, and read the rest as they like.
func TestBudgetOfNodesByPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, rate, seconds = 6, 240, 300
		cold, rest := &part{prefix: "data/cold/", rate: rate, burst: rate / 4}, &part{}
		under := newRefusing(t, cold, rest)
		s := newNodes(n, under)
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		s.exchange(ctx, &wg)
		var colds, hots []*load
		for _, b := range s.buckets {
			c, h := &load{prefix: "data/cold/", workers: 16}, &load{prefix: "data/hot/", workers: 10}
			c.run(ctx, &wg, b)
			h.run(ctx, &wg, b)
			colds, hots = append(colds, c), append(hots, h)
		}
		sum := func(list []*load) (made float64) {
			for _, l := range list {
				made += float64(l.made.Load())
			}
			return made
		}
		sleep(ctx, seconds/2*time.Second)
		before := [2]float64{sum(colds), sum(hots)}
		wg.Wait()
		got := [2]float64{(sum(colds) - before[0]) * 2 / seconds, (sum(hots) - before[1]) * 2 / seconds}
		t.Logf("%.0f a second of %d where that is all, %.0f elsewhere", got[0], rate, got[1])
		if got[0] < 0.9*rate || got[1] < 1500 {
			t.Errorf("%.0f a second of %d where that is all, %.0f elsewhere, want 1,500 there", got[0], rate, got[1])
		}
	})
}

// TestSharesOfOthers: the shares of a node are valid until it sends others, or nothing
// for long. Rates and times that no node can have do not move a limit. A decrease of another
// node is followed once. An idle node sends no shares.
func TestSharesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newRefusing(t, &part{rate: 100, burst: 20})
		s := newNodes(2, under)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if shares := s.budgets[0].Shares(); len(shares) != 0 {
			t.Errorf("a node without requests sends %+v", shares)
		}
		var wg sync.WaitGroup
		(&load{workers: 50}).run(ctx, &wg, s.buckets[0])
		sleep(ctx, 20*time.Second)
		own := s.budgets[0].Shares()
		if len(own) != 1 || own[0].Bucket != under.URL() || own[0].Class != "reads" || own[0].Rate < 50 || own[0].Rate > 150 {
			t.Fatalf("a node that is refused sends %+v", own)
		}
		for _, wrong := range []float64{math.NaN(), math.Inf(1), -5, 0, 1e300} {
			bad := own[0]
			bad.Rate, bad.Most = wrong, wrong
			s.budgets[0].Hear("other", []object.Share{bad})
			if now := s.budgets[0].Shares(); now[0].Rate < 0.8*own[0].Rate || now[0].Rate > 1.2*own[0].Rate {
				t.Errorf("another node sends %g, and the limit goes from %g to %g", wrong, own[0].Rate, now[0].Rate)
			}
		}
		before := s.budgets[0].Shares()[0].Rate
		less := own[0]
		less.Rate, less.Most = before/3, before/3
		s.budgets[0].Hear("other", []object.Share{less})
		if now := s.budgets[0].Shares()[0].Rate; math.Abs(now/before-2.0/3) > 0.02 {
			t.Errorf("with a node that has a third, %g became %g, want the mean", before, now)
		}
		under.mu.Lock()
		under.parts[0].rate = 0 // so that the node's own last decrease is older than the other's
		under.mu.Unlock()
		sleep(ctx, 3*time.Second)
		for _, c := range []struct {
			fell  int64
			falls bool
		}{{-5, false}, {math.MaxInt64, false}, {math.MaxInt64 / int64(time.Millisecond), false}, {100, true}, {100, false}} {
			now := s.budgets[0].Shares()[0]
			same := now
			same.Fell = c.fell
			s.budgets[0].Hear("other", []object.Share{same})
			if after := s.budgets[0].Shares()[0]; (after.Rate < 0.9*now.Rate) != c.falls {
				t.Errorf("another node fell %d ms ago, and the limit goes from %g to %g", c.fell, now.Rate, after.Rate)
			}
		}
		s.budgets[0].Hear("other", nil)
		before = s.budgets[0].Shares()[0].Rate
		if now := s.budgets[0].Shares()[0].Rate; now < before {
			t.Errorf("the node is gone, and %g became %g", before, now)
		}
		cancel()
		wg.Wait()
		sleep(t.Context(), time.Minute)
		if shares := s.budgets[0].Shares(); len(shares) != 0 {
			t.Errorf("a node without requests for a minute sends %+v", shares)
		}
	})
}

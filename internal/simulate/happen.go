package simulate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// byTime are the faults in the order in which they happen.
func byTime(faults []Fault) []Fault {
	list := slices.Clone(faults)
	slices.SortStableFunc(list, func(a, b Fault) int {
		switch {
		case a.AtS < b.AtS:
			return -1
		case a.AtS > b.AtS:
			return 1
		}
		return 0
	})
	return list
}

// happen has the faults happen until ctx ends. Faults of one node, and those of the store, happen one after the other.
func (w *world) happen(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	per := map[int64][]moment{}
	for _, x := range byTime(w.file.Faults) {
		at := int64(-1)
		if x.Node != nil {
			at = *x.Node
		}
		per[at] = append(per[at], w.momentsOf(x)...)
	}
	for _, list := range per {
		slices.SortStableFunc(list, func(a, b moment) int { return a.at.Compare(b.at) })
		all.Go(func() {
			for _, m := range list {
				if sleepUntil(ctx, m.at) != nil {
					return
				}
				if err := m.do(); err != nil {
					w.mu.Lock()
					w.errs = append(w.errs, fmt.Errorf("at %.3f s: %w", w.since().Seconds(), err))
					w.mu.Unlock()
				}
			}
		})
	}
}

// moment is something that happens at a time.
type moment struct {
	at time.Time
	do func() error
}

// momentsOf are what a fault consists of: its beginning and, if it passes, its end.
func (w *world) momentsOf(x Fault) []moment {
	at, end := w.at(x.AtS), w.at(x.AtS+x.ForS)
	moments := func(begin, finish func() error) []moment {
		if x.ForS == 0 {
			return []moment{{at, begin}}
		}
		return []moment{{at, begin}, {end, finish}}
	}
	if x.Kind == StoreSlow {
		slow := func(f float64) func() error {
			return func() error {
				w.store.turns.slow(1 / f)
				w.store.latency.Store(int64(float64(w.store.latency.Load()) * f))
				w.network.scale(w.storeOut(), 1/f)
				return nil
			}
		}
		return moments(slow(x.Factor), slow(1/x.Factor))
	}
	n := w.nodes[*x.Node]
	again := func() error {
		if n.lives() != nil {
			return nil
		}
		return n.begin(x.KeepCache)
	}
	switch x.Kind {
	case Kill:
		return moments(func() error { return n.end(false) }, again)
	case Leave:
		return moments(func() error { return n.end(true) }, nil)
	case Join:
		return moments(again, nil)
	case Stop:
		return moments(func() error {
			n.frozen.Store(true)
			for _, s := range []*server{n.cores, n.reads, n.writes} {
				s.halt(end)
			}
			n.setLinks(func(_ *float64, still *bool) { *still = true })
			return nil
		}, func() error {
			n.frozen.Store(false)
			n.setLinks(func(_ *float64, still *bool) { *still = false })
			return nil
		})
	case Slow:
		return moments(
			func() error { n.setLinks(func(slow *float64, _ *bool) { *slow = x.Factor }); return nil },
			func() error { n.setLinks(func(slow *float64, _ *bool) { *slow = 1 }); return nil })
	}
	ways := func(change func(from, to *node)) func() error { // Cut
		return func() error {
			for _, other := range w.nodes {
				if x.Other == nil || other.index == int(*x.Other) {
					change(n, other)
					change(other, n)
				}
			}
			return nil
		}
	}
	return moments(ways(w.cuts.cut), ways(w.cuts.mend))
}

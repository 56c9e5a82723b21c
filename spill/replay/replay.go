package replay

import (
	"time"

	"bowstring/spill"
)

// Options tune a replay.
type Options struct {
	Capacity   int    // samples that the cache holds
	Candidates int    // compared at each eviction; 0: spill.DefaultCandidates
	Seed       uint64 // of the candidates drawn
}

// Run replays the trace with a policy. What an oracle is told are the jobs that run, each from when it begins, with its
// order and its number of epochs, and how far they are: their speeds it has to see for itself.
func (t *Trace) Run(policy string, opts Options) (Result, error) {
	future := &spill.Future{}
	p, err := spill.ParsePolicy(policy, future)
	if err != nil {
		return Result{}, err
	}
	c := &cache{
		slots:   make([]spill.Entry, 0, opts.Capacity),
		items:   make([]int32, 0, opts.Capacity),
		slotOf:  make([]int32, t.items),
		chooser: spill.NewChooser(p, opts.Candidates, opts.Seed),
	}
	for i := range c.slotOf {
		c.slotOf[i] = -1
	}
	r := Result{Uses: int64(len(t.uses)), First: int64(t.items)}
	running := make([]*spill.Job, len(t.jobs))
	served := make([]int64, len(t.jobs))
	for _, u := range t.uses {
		j := &t.jobs[u.job]
		if running[u.job] == nil {
			running[u.job], err = future.Add(spill.JobOptions{Dataset: j.Dataset, Order: j.Order, Epochs: j.Epochs},
				u.at)
			if err != nil {
				return Result{}, err
			}
		}
		rows := j.Order.Rows()
		served[u.job]++
		running[u.job].Advance(served[u.job]/rows, served[u.job]%rows, u.at)
		if served[u.job] == j.Epochs*rows {
			future.Remove(running[u.job])
		}

		if slot := c.slotOf[u.item]; slot >= 0 {
			r.Hits++
			c.slots[slot].Uses++
			c.slots[slot].Used = u.at
			continue
		}
		if opts.Capacity == 0 {
			r.Bypassed++
			continue
		}
		e := spill.Entry{Place: t.places[u.item], Size: 1, Cost: time.Millisecond, Uses: 1, Added: u.at, Used: u.at}
		slot := len(c.slots)
		if slot == opts.Capacity {
			victim, worth, _ := c.chooser.Victim(c, u.at)
			if !p.Admit(p.Worth(&e, u.at), worth) {
				r.Bypassed++
				continue
			}
			slot = victim
			c.slotOf[c.items[slot]] = -1
			r.Evicted++
		} else {
			c.slots = append(c.slots, spill.Entry{})
			c.items = append(c.items, 0)
		}
		c.slots[slot], c.items[slot], c.slotOf[u.item] = e, u.item, int32(slot)
		r.Stored++
	}
	return r, nil
}

// cache is what would be on the disk.
type cache struct {
	slots   []spill.Entry
	items   []int32 // of each slot
	slotOf  []int32 // of each item, -1 if it is not there
	chooser *spill.Chooser
}

// Slots implements spill.Table.
func (c *cache) Slots() int { return len(c.slots) }

// Entry implements spill.Table.
func (c *cache) Entry(slot int, e *spill.Entry) bool {
	*e = c.slots[slot]
	return true
}

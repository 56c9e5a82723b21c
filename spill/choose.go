package spill

import (
	"math/rand/v2"
	"slices"
)

// Table is the blobs that a [Chooser] takes its samples from. A slot holds one or none.
type Table interface {
	// Slots is the number of slots.
	Slots() int
	// Entry fills in e with what is in a slot, and reports whether there is a blob that may be evicted.
	Entry(slot int, e *Entry) bool
}

// Chooser picks what to evict: the least worthy of some tens of candidates. Half of them are drawn at random
// each time, the other half are the least worthy of those seen before, which are evaluated again. So
// each choice costs the same, and is about as good as one among several times as many: what was found to be
// of little worth, and not evicted, is not forgotten. (Redis keeps such a pool for its approximation of LRU.)
//
// It is not safe for concurrent use.
type Chooser struct {
	policy Policy
	rng    *rand.Rand
	pool   []choice // least worthy first
	keep   int      // most that are kept in pool
	fresh  int      // drawn at each choice
	entry  Entry    // scratch, so that it does not escape anew each time
}

type choice struct {
	slot  int
	worth Worth
}

// DefaultCandidates is how many candidates a [Chooser] compares unless it is told otherwise.
const DefaultCandidates = 64

// NewChooser returns a chooser that compares so many candidates each time (0: [DefaultCandidates]).
func NewChooser(policy Policy, candidates int, seed uint64) *Chooser {
	if candidates <= 0 {
		candidates = DefaultCandidates
	}
	keep := candidates / 2
	return &Chooser{
		policy: policy, rng: rand.New(rand.NewPCG(seed, 0)),
		keep: keep, fresh: candidates - keep, pool: make([]choice, 0, keep+1),
	}
}

// Victim returns the slot of what to evict next and what it is worth; false if nothing was found that may be
// evicted. It stays a candidate until the table no longer says so.
func (c *Chooser) Victim(t Table, now Time) (slot int, worth Worth, ok bool) {
	// Worths change with time and use, and slots get other blobs.
	known := c.pool
	c.pool = c.pool[:0]
	for _, old := range known {
		c.consider(t, old.slot, now)
	}
	n := t.Slots()
	// Empty slots cost a draw, but not many: a table that is mostly empty has nothing to evict.
	for drawn, tries := 0, 0; n > 0 && drawn < c.fresh && tries < 4*c.fresh; tries++ {
		if c.consider(t, c.rng.IntN(n), now) {
			drawn++
		}
	}
	if len(c.pool) == 0 {
		return 0, Worth{}, false
	}
	return c.pool[0].slot, c.pool[0].worth, true
}

// consider puts a slot's blob in its place in the pool, if it is among the least worthy, and reports whether there is
// one.
func (c *Chooser) consider(t Table, slot int, now Time) bool {
	if !t.Entry(slot, &c.entry) {
		return false
	}
	w := c.policy.Worth(&c.entry, now)
	if len(c.pool) == c.keep && c.keep > 0 && !w.Less(c.pool[len(c.pool)-1].worth) {
		return true
	}
	for _, other := range c.pool {
		if other.slot == slot {
			return true
		}
	}
	at := len(c.pool)
	for at > 0 && w.Less(c.pool[at-1].worth) {
		at--
	}
	c.pool = slices.Insert(c.pool, at, choice{slot, w})
	if len(c.pool) > max(c.keep, 1) {
		c.pool = c.pool[:len(c.pool)-1]
	}
	return true
}

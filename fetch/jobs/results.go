package jobs

import (
	"fmt"
	"sync"

	"bowstring/fetch/admission"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// maxResults is how many results are kept that nobody uses.
const maxResults = 512

// results keeps what was computed from the rows of snapshots, the matches of a
// where expression above all, so that the ranks of a job and its resumed streams
// do not each scan the rows again. Snapshots never change, so no result does.
type results struct {
	ledger *admission.Ledger

	mu    sync.Mutex
	kept  map[string]*result // by key; guarded by mu
	clock int64              // guarded by mu
}

// result is a selection, a sum, or the slots of rows. It stays in memory, and counted in the ledger,
// while somebody holds it, and longer while there is room.
type result struct {
	cache     *results
	key       string
	selection plan.Selection
	sum       int64
	slots     *slotTable
	memory    *admission.Hold // nil if it takes next to none

	refs     int   // guarded by results.mu
	lastUsed int64 // results.clock when refs last became 0; guarded by results.mu
}

func (r *result) Retain() {
	r.cache.mu.Lock()
	r.refs++
	r.cache.mu.Unlock()
}

func (r *result) Release() {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	r.refs--
	if r.refs > 0 {
		return
	}
	if c.kept[r.key] != r {
		r.memory.Release() // another one like it was kept
		return
	}
	c.clock++
	r.lastUsed = c.clock
	for c.idleLocked() > maxResults {
		c.dropLocked()
	}
}

// get returns a kept result, with a hold for the caller; nil if there is none.
func (c *results) get(key string) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.kept[key]
	if r != nil {
		r.refs++
	}
	return r
}

// add keeps a result, and returns it with a hold for the caller.
func (c *results) add(key string, r *result) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.cache, r.key, r.refs = c, key, 1
	if c.kept[key] == nil {
		c.kept[key] = r
	}
	return r
}

// reserve counts memory for a result in. It makes room by dropping results that
// nobody uses, and does not wait for those that are used: a job may run for days.
func (c *results) reserve(bytes int64) (*admission.Hold, error) {
	for {
		if h, ok := c.ledger.Try(admission.Evaluation, bytes); ok {
			return h, nil
		}
		c.mu.Lock()
		dropped := c.dropLocked()
		c.mu.Unlock()
		if !dropped {
			a := c.ledger.Accounts()[admission.Evaluation]
			return nil, fmt.Errorf("%w: %d bytes would be needed for the selection; of the %d that all selections together may take, running jobs have %d",
				schema.ErrLimit, bytes, a.Limit, a.Used)
		}
	}
}

// within computes a selection of so many bytes, which takes some more meanwhile.
func (c *results) within(bytes, meanwhile int64, compute func() (plan.Selection, error)) (*result, error) {
	memory, err := c.reserve(bytes + meanwhile)
	if err != nil {
		return nil, err
	}
	r := &result{memory: memory}
	defer func() {
		if r.selection == nil { // it failed, or panicked
			memory.Release()
		}
	}()
	selection, err := compute()
	if err != nil {
		return nil, err
	}
	memory.Shrink(meanwhile)
	r.selection = selection
	return r, nil
}

func (c *results) idleLocked() (n int) {
	for _, r := range c.kept {
		if r.refs == 0 {
			n++
		}
	}
	return n
}

// dropLocked drops the result that nobody has used for the longest time, false if
// all are used.
func (c *results) dropLocked() bool {
	var oldest *result
	for _, r := range c.kept {
		if r.refs == 0 && (oldest == nil || r.lastUsed < oldest.lastUsed) {
			oldest = r
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.kept, oldest.key)
	oldest.memory.Release()
	return true
}

// close drops all results that nobody uses.
func (c *results) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.dropLocked() {
	}
}

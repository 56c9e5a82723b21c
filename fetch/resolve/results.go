package resolve

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
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

// result is a selection, a sum, or the slots or the lengths of rows. It stays in memory, and counted in the ledger,
// while somebody holds it, and longer while there is room.
type result struct {
	cache     *results
	key       string
	selection plan.Selection
	sum       int64
	slots     *slotTable
	lengths   plan.Lengths
	memory    *admission.Hold // nil if it takes next to none
	tenant    string          // on whose account: that of who asked first

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
		c.dropLocked(anybodys)
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

// selectionDelay is about when it is worth trying again to have a selection that there
// was no room for: jobs end seldom.
const selectionDelay = 10 * time.Second

// reserve counts memory for a result in, on a tenant's account. It makes room by dropping
// results that nobody uses, and does not wait for those that are used: a job may run for
// days. Where it is the tenant's own ceiling that is in the way, only its own results go.
func (c *results) reserve(tenant string, bytes int64) (*admission.Hold, error) {
	for {
		if h, ok := c.ledger.TryFor(admission.Evaluation, tenant, bytes); ok {
			return h, nil
		}
		own, all := c.ledger.Left(admission.Evaluation, tenant)
		c.mu.Lock()
		dropped := c.dropLocked(func(r *result) bool { return r.tenant == tenant || bytes > all })
		c.mu.Unlock()
		if dropped {
			continue
		}
		if own < bytes && all >= bytes {
			most := c.ledger.MostFor(admission.Evaluation, tenant)
			e := &schema.LimitError{Limit: admission.LimitEvaluation, Message: fmt.Sprintf(
				"%d bytes would be needed for the selection; tenant %s may have %d at most, %d of them beside what it "+
					"and others have for running jobs",
				bytes, schema.Quote(cmp.Or(tenant, "(none)")), most, max(own, 0))}
			if bytes <= most {
				e.After = schema.Jittered(selectionDelay)
			}
			return nil, e
		}
		a := c.ledger.Accounts()[admission.Evaluation]
		return nil, fmt.Errorf("%w: %d bytes would be needed for the selection; of the %d that all selections "+
			"together may take, running jobs have %d",
			schema.ErrLimit, bytes, a.Limit, a.Used)
	}
}

// within computes a selection of so many bytes, which takes some more meanwhile, on the
// account of the caller that ctx carries.
func (c *results) within(ctx context.Context, bytes, meanwhile int64,
	compute func() (plan.Selection, error)) (*result, error) {
	tenant := store.CallerFrom(ctx).Tenant
	memory, err := c.reserve(tenant, bytes+meanwhile)
	if err != nil {
		return nil, err
	}
	r := &result{memory: memory, tenant: tenant}
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

func anybodys(*result) bool { return true }

// dropLocked drops the result, of those that match, that nobody has used for the longest
// time; false if all are used.
func (c *results) dropLocked(match func(*result) bool) bool {
	var oldest *result
	for _, r := range c.kept {
		if r.refs == 0 && match(r) && (oldest == nil || r.lastUsed < oldest.lastUsed) {
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
	for c.dropLocked(anybodys) {
	}
}

package spill

import (
	"sync/atomic"
	"time"
)

// payers are the tenants with blobs in the cache, by number; [0] is no tenant. Cache.mu guards them.
//
// A blob is on the account of the tenant whose read brought it, as long as it is cached; other tenants use it for
// free. If blobs were charged to all tenants that use them, a tenant would be pushed over its share by blobs that
// others begin to use. If the blob's tenant is over its share, or unknown after a restart, the next tenant that uses
// the blob takes it over, if that keeps this tenant within its share.
type payers struct {
	list    []*payer
	numbers map[string]uint16
	share   func(tenant string) float64 // nil: there are no shares
}

// payer is one tenant.
type payer struct {
	name    string
	share   float64 // of the budget; 0: all of it
	bytes   int64   // what its blobs take of the budget, including those being written
	chooser *Chooser
}

// maxPayers is how many tenants have numbers. A file of tenants names at most 10,000; other nodes may know others.
const maxPayers = 16384

// Tenant returns the number of a tenant for places. It stays the same until the cache is closed. It is 0 if there are
// too many tenants. It is also 0 if there are no shares, because then callers may name any number of tenants, and no
// blob needs an account.
func (c *Cache) Tenant(name string) uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.payers
	if n, ok := p.numbers[name]; ok || name == "" || p.share == nil {
		return n
	}
	if p.numbers == nil {
		p.numbers, p.list = map[string]uint16{}, []*payer{{}}
	}
	if len(p.list) > maxPayers {
		return 0
	}
	n := uint16(len(p.list))
	p.list = append(p.list, &payer{name: name, share: p.share(name),
		chooser: NewChooser(c.opts.Policy, c.opts.Candidates, c.opts.Seed+uint64(n))})
	p.numbers[name] = n
	return n
}

// SetShares sets which share of the budget, from 0 to 1, a tenant's blobs may take; 0 is all of it, as is a nil
// function. A tenant above its share evicts its own blobs before a new one of it is stored.
func (c *Cache) SetShares(share func(tenant string) float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.payers.share = share
	for _, p := range c.payers.list {
		if p.share = 0; share != nil && p.name != "" {
			p.share = share(p.name)
		}
	}
}

// TenantBytes is what the blobs of a tenant take of the budget.
func (c *Cache) TenantBytes(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.payers.numbers[name]; n != 0 {
		return c.payers.list[n].bytes
	}
	return 0
}

// limited returns a tenant with a share, nil if it has none.
func (p *payers) limited(tenant uint16) *payer {
	if int(tenant) >= len(p.list) || p.list[tenant].share <= 0 {
		return nil
	}
	return p.list[tenant]
}

// count changes the bytes of a tenant; tenants without a number are not counted.
func (p *payers) count(tenant uint16, n int64) {
	if int(tenant) < len(p.list) {
		p.list[tenant].bytes += n
	}
}

// ceiling is the tenant's share of the budget in bytes.
func (p *payer) ceiling(c *Cache) int64 { return int64(p.share * float64(c.space.budget.Load())) }

// footprint is what a blob of n bytes takes of the budget.
func (c *Cache) footprint(n int64) int64 { return c.space.set.Footprint(n) + overhead }

// adopt moves a blob to the account of a tenant that uses it, if its present tenant is unknown or above its share.
// c.mu is held.
func (c *Cache) adopt(s *slot, tenant uint16) {
	if tenant == 0 || int(tenant) >= len(c.payers.list) {
		return
	}
	if from := c.payers.limited(s.tenant); s.tenant != 0 && (from == nil || from.bytes <= from.ceiling(c)) {
		return
	}
	n := c.footprint(int64(s.length))
	if to := c.payers.limited(tenant); to != nil && to.bytes+n > to.ceiling(c) {
		return
	}
	c.payers.count(s.tenant, -n)
	s.tenant = tenant
	c.payers.count(tenant, n)
}

// ownTable is the blobs of one tenant.
type ownTable struct {
	*table
	tenant uint16
}

// Entry implements Table.
func (t *ownTable) Entry(i int, e *Entry) bool {
	return t.at(uint32(i)).tenant == t.tenant && t.table.Entry(i, e)
}

// ownTries is how often candidates are drawn for one tenant: if it has few of all blobs, most draws hit blobs of
// other tenants.
const ownTries = 8

// makeOwnRoom evicts blobs of a new blob's tenant until the tenant is within its share with the new blob, which is
// counted already, and reports whether it is. The policy has to admit the new blob in place of each.
func (c *Cache) makeOwnRoom(e *Entry) bool {
	if e == nil {
		return true
	}
	for range ownTries {
		c.mu.Lock()
		p := c.payers.limited(e.Place.Tenant)
		if p == nil || p.bytes <= p.ceiling(c) {
			c.mu.Unlock()
			return true
		}
		if c.footprint(e.Size) > p.ceiling(c) {
			c.mu.Unlock()
			return false
		}
		victims, _ := c.pick(p.chooser, &ownTable{&c.table, e.Place.Tenant}, 0, p.bytes-p.ceiling(c), e)
		c.mu.Unlock()
		c.releaseAll(victims)
	}
	return false
}

// MaxDatasets is how many datasets and snapshots have numbers at once.
const MaxDatasets = 1 << 16

const (
	// unusedFor is how long a number must be unused before another name gets it. Short uses of a place, as by a read
	// of a page, are over by then.
	unusedFor = Time(time.Minute)
	// pauseFull is how long no number is searched after a search has failed.
	pauseFull = Time(time.Second)
)

// numbering assigns numbers to names of datasets, for entries, places and jobs. Cache.mu guards it, except inUse and
// unnamed.
type numbering struct {
	sets    []*dataset // by number; [0] is no dataset
	numbers map[string]uint32
	from    int  // where the search for a reusable number continues
	full    Time // no search before this time

	inUse   atomic.Pointer[func() map[string]bool] // nil: no name is in use
	unnamed atomic.Int64                           // times that a name got no number
}

// newNumbering returns a numbering without names.
func newNumbering() numbering {
	return numbering{sets: []*dataset{{}}, numbers: map[string]uint32{}, from: 1}
}

// SetInUse sets the function that returns the names in use: their numbers are not given to other names. It is called
// without a lock of the cache.
func (c *Cache) SetInUse(inUse func() map[string]bool) { c.named.inUse.Store(&inUse) }

// Dataset returns the number of a dataset or snapshot for places. It stays the same while a blob of it is in the
// cache, while it is in use (see [Cache.SetInUse]), and for a minute after each call. It is 0 if there is no free
// number: blobs of that dataset are not cached.
func (c *Cache) Dataset(name string) uint32 { return c.DatasetWithin(name, MaxDatasets) }

// DatasetWithin is Dataset, but a new name gets a number only below most.
func (c *Cache) DatasetWithin(name string, most int) uint32 {
	c.life.RLock()
	defer c.life.RUnlock()
	now := c.opts.Clock()
	c.mu.Lock()
	n, known := c.named.find(name, now)
	closed := c.closed.Load()
	if !known && name != "" && !closed && len(c.named.sets) < most {
		n = uint32(len(c.named.sets))
		c.named.sets = append(c.named.sets, nil)
		c.named.give(n, name, now)
	}
	c.mu.Unlock()
	if known || name == "" || closed {
		return n
	}
	if n == 0 {
		if n, known = c.reuse(name, most, now); known {
			return n
		}
	}
	if n == 0 {
		c.named.unnamed.Add(1)
		c.trouble.full(name, most)
		return 0
	}
	c.index.note(change{number: n, name: name})
	return n
}

// find returns the number of a name, and records the request.
func (x *numbering) find(name string, now Time) (n uint32, ok bool) {
	if n, ok = x.numbers[name]; ok {
		x.sets[n].asked = now
	}
	return n, ok
}

// give gives a number to a name. Earlier counters of the number are added to those of no dataset.
func (x *numbering) give(n uint32, name string, now Time) {
	if before := x.sets[n]; before != nil {
		delete(x.numbers, before.name)
		x.sets[0].take(before)
	}
	x.sets[n] = &dataset{name: name, asked: now}
	x.numbers[name] = n
}

// reuse gives a name the number of another one that has no blobs in the cache and is not in use; 0 if there is none.
// known reports that the name has a number already.
func (c *Cache) reuse(name string, most int, now Time) (n uint32, known bool) {
	var inUse map[string]bool
	for tried := false; ; tried = true {
		c.mu.Lock()
		if n, known = c.named.find(name, now); known || now < c.named.full {
			c.mu.Unlock()
			return n, known
		}
		n = c.named.unused(most, now, inUse)
		if n != 0 && tried {
			c.named.give(n, name, now)
			c.mu.Unlock()
			return n, false
		}
		if n == 0 {
			c.named.full = now + pauseFull
			c.mu.Unlock()
			return 0, false
		}
		c.mu.Unlock()
		if f := c.named.inUse.Load(); f != nil {
			inUse = (*f)()
		}
	}
}

// unused returns a number below most without blobs in the cache, whose name was not requested recently and is not in
// use; 0 if there is none.
func (x *numbering) unused(most int, now Time, inUse map[string]bool) uint32 {
	count := min(most, len(x.sets)) - 1
	for range count {
		if x.from > count {
			x.from = 1
		}
		n := x.from
		if d := x.sets[n]; d.entries.Load() == 0 && d.claims.Load() == 0 && now-d.asked >= unusedFor && !inUse[d.name] {
			return uint32(n) // the next search begins here too, in case this number is not taken
		}
		x.from++
	}
	return 0
}

// DatasetName returns the name of the dataset or snapshot with a number; "" if there is none.
func (c *Cache) DatasetName(number uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number == 0 || int(number) >= len(c.named.sets) {
		return ""
	}
	return c.named.sets[number].name
}

// set returns the counters of a dataset by number. c.mu is held.
func (c *Cache) set(number uint32) *dataset {
	if int(number) < len(c.named.sets) {
		return c.named.sets[number]
	}
	return c.named.sets[0]
}

// recovered adds a name from the index.
func (x *numbering) recovered(number uint32, name string) {
	if number >= MaxDatasets {
		return
	}
	for int(number) >= len(x.sets) {
		x.sets = append(x.sets, &dataset{})
	}
	x.sets[number].name = name
	x.numbers[name] = number
}

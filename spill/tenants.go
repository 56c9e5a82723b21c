package spill

import (
	"sync/atomic"
	"time"
)

// payers are the tenants that the cache keeps blobs for, by number; [0] is nobody. They are guarded by Cache.mu.
//
// A blob is on the account of the tenant whose read brought it, for as long as it is kept: what others find there
// costs them nothing. Were it split between those who use it, each would be pushed out of its share by what others
// begin to use. Where the tenant that it is on is over its share, or is not known any more after a restart, the next
// tenant that uses the blob takes it over, if that leaves it within its own.
type payers struct {
	list    []*payer
	numbers map[string]uint16
	share   func(tenant string) float64 // nil: there are no shares
}

// payer is one tenant.
type payer struct {
	name    string
	share   float64 // of the budget; 0: all of it
	bytes   int64   // what its blobs take of the budget, those that are being written included
	chooser *Chooser
}

// maxPayers is how many tenants have numbers. A file of tenants names 10,000 at most; other nodes may know others.
const maxPayers = 16384

// Tenant returns the number by which places name a tenant, which stays the same until the cache is closed. It is 0
// where there are too many, and where there are no shares: then callers may name any number of tenants, and no blob
// need be on the account of one.
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

// SetShares says which share of the budget, of 1, the blobs of a tenant may take; 0 stands for all of it, and so
// does a nil function. Who is over its share evicts its own before anything of it is stored.
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

// limited returns a tenant that has a share, nil if it has none.
func (p *payers) limited(tenant uint16) *payer {
	if int(tenant) >= len(p.list) || p.list[tenant].share <= 0 {
		return nil
	}
	return p.list[tenant]
}

func (p *payers) count(tenant uint16, n int64) {
	if int(tenant) < len(p.list) {
		p.list[tenant].bytes += n
	}
}

func (p *payer) ceiling(c *Cache) int64 { return int64(p.share * float64(c.space.budget.Load())) }

// footprint is what a blob of n bytes takes of the budget.
func (c *Cache) footprint(n int64) int64 { return c.space.set.Footprint(n) + overhead }

// adopt has a blob be on the account of a tenant that uses it, if the one it is on has no claim to it, or more than
// its share. c.mu is held.
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

// ownTries is how often candidates are drawn among the blobs of one tenant: where it has few of all there are, most
// draws are of others' blobs.
const ownTries = 8

// makeOwnRoom evicts blobs of a new blob's tenant until that is within its share with the new one, which is counted
// already, and reports whether it is. The policy has to admit the new blob in the place of each.
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

// MaxDatasets is how many datasets and snapshots a cache knows by a number at once.
const MaxDatasets = 1 << 16

const (
	// unusedFor is how long nothing may have asked for a number before another name gets it: what works with a place for
	// a moment, as a read of a page does, has done with it by then.
	unusedFor = Time(time.Minute)
	// pauseFull is for how long no number is looked for once there was none.
	pauseFull = Time(time.Second)
)

// numbering gives names of datasets numbers that entries, places and jobs have in their stead. It is guarded by
// Cache.mu, but for inUse and unnamed.
type numbering struct {
	sets    []*dataset // by number; [0] is that of no dataset
	numbers map[string]uint32
	from    int  // where a number is looked for next that can be given to another name
	full    Time // none is looked for before then

	inUse   atomic.Pointer[func() map[string]bool] // nil: none is
	unnamed atomic.Int64                           // times that a name got no number
}

func newNumbering() numbering {
	return numbering{sets: []*dataset{{}}, numbers: map[string]uint32{}, from: 1}
}

// SetInUse says which names are in use: their numbers are not given to others. It is called while no lock of the cache
// is held.
func (c *Cache) SetInUse(inUse func() map[string]bool) { c.named.inUse.Store(&inUse) }

// Dataset returns the number by which places name a dataset or snapshot. It stays the same while a blob of it is in the
// cache, while it is in use (see [Cache.SetInUse]) and for a minute after it was asked for. 0, of none, is that of
// the ones for which there is no number: they are not kept.
func (c *Cache) Dataset(name string) uint32 { return c.DatasetWithin(name, MaxDatasets) }

// DatasetWithin is Dataset where a name that is new gets a number only below so many.
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

// find returns the number of a name, which it is asked for now.
func (x *numbering) find(name string, now Time) (n uint32, ok bool) {
	if n, ok = x.numbers[name]; ok {
		x.sets[n].asked = now
	}
	return n, ok
}

// give has a name have a number. What was counted under the number counts for no dataset from then on.
func (x *numbering) give(n uint32, name string, now Time) {
	if before := x.sets[n]; before != nil {
		delete(x.numbers, before.name)
		x.sets[0].take(before)
	}
	x.sets[n] = &dataset{name: name, asked: now}
	x.numbers[name] = n
}

// reuse gives a name the number of another one, of which there is nothing in the cache and which is not in use. It
// is 0 if there is none. known says that the name has one already.
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

// unused is a number below most of which nothing is in the cache, and whose name nothing asked for of late or uses; 0
// if there is none.
func (x *numbering) unused(most int, now Time, inUse map[string]bool) uint32 {
	count := min(most, len(x.sets)) - 1
	for range count {
		if x.from > count {
			x.from = 1
		}
		n := x.from
		if d := x.sets[n]; d.entries.Load() == 0 && d.claims.Load() == 0 && now-d.asked >= unusedFor && !inUse[d.name] {
			return uint32(n) // where the next one is looked for, too, in case this one is not given away
		}
		x.from++
	}
	return 0
}

// DatasetName returns the name of the dataset or snapshot that has a number; nothing if none has.
func (c *Cache) DatasetName(number uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number == 0 || int(number) >= len(c.named.sets) {
		return ""
	}
	return c.named.sets[number].name
}

// set returns the counters of a place's dataset. c.mu is held.
func (c *Cache) set(number uint32) *dataset {
	if int(number) < len(c.named.sets) {
		return c.named.sets[number]
	}
	return c.named.sets[0]
}

// recovered notes a name that the index has.
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

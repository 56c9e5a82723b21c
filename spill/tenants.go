package spill

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

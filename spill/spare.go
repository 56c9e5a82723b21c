package spill

import "bowstring/schema"

// SetSpare says of which blobs another node near owns a copy, and keeps it: those that are not spare are kept before
// those that are, as losing one costs a read of the store. is must not block or allocate. It is asked whenever a blob
// is stored or found; what is known of those that lie in the cache is what it said then.
func (c *Cache) SetSpare(is func(schema.Key) bool) { c.spare.Store(&is) }

func (c *Cache) isSpare(key schema.Key) bool {
	is := c.spare.Load()
	return is != nil && (*is)(key)
}

// Wants reports whether a blob at a place would be stored now: because there is room, or in the place of another. What
// some job is going to use is displaced only if displace says so.
func (c *Cache) Wants(at Place, size int64, displace bool) bool {
	return c.wants(&Entry{Place: at, Size: size, Uses: 1}, displace)
}

// WantsBlob is Wants of a blob that may be a spare one: see [Cache.SetSpare].
func (c *Cache) WantsBlob(ref schema.BlobRef, at Place, displace bool) bool {
	return c.wants(&Entry{Place: at, Size: ref.Size, Uses: 1, Spare: c.isSpare(ref.Key)}, displace)
}

func (c *Cache) wants(e *Entry, displace bool) bool {
	at, size := e.Place, e.Size
	c.life.RLock()
	defer c.life.RUnlock()
	now := c.opts.Clock()
	need := c.footprint(size)
	room := c.space.room()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed.Load(), size > maxLength, need > c.space.budget.Load()/4, now < c.quiet:
		return false
	}
	chooser, table := c.chooser, Table(&c.table)
	if p := c.payers.limited(at.Tenant); p != nil && p.bytes+need > p.ceiling(c) {
		if need > p.ceiling(c) {
			return false
		}
		chooser, table = p.chooser, &ownTable{&c.table, at.Tenant}
	} else if room >= need {
		return true
	}
	_, worth, found := chooser.Victim(table, now)
	if !found || worth.Planned && !displace && (e.Spare || !worth.Spare) {
		return false
	}
	e.Added, e.Used = now, now
	return c.opts.Policy.Admit(c.opts.Policy.Worth(e, now), worth)
}

package spill

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// Put stores a blob, if the policy admits it, and reports whether it did. at is where the reference was found, cost
// what it took to get it from the store. data, which must be what ref names, is copied once, to the disk.
func (c *Cache) Put(ref schema.BlobRef, at Place, cost time.Duration, data []byte) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	return c.put(ref, at, cost, data)
}

func (c *Cache) put(ref schema.BlobRef, at Place, cost time.Duration, data []byte) bool {
	p, ok := c.begin(ref, at, cost, int64(len(data)))
	if !ok {
		return false
	}
	err := p.space.Write(ref.Key, ref.Sum, data)
	c.finish(&p, err)
	return err == nil
}

// pending is a blob that is being stored.
type pending struct {
	index uint32
	slot  *slot
	set   *dataset
	space segment.Reservation
}

// begin takes a slot and space for a blob of n bytes, if the policy admits it and it is not there. What is begun has to
// be written and finished.
func (c *Cache) begin(ref schema.BlobRef, at Place, cost time.Duration, n int64) (p pending, ok bool) {
	need := c.footprint(n)
	now := c.opts.Clock()
	isSpare := c.isSpare(ref.Key)
	c.mu.Lock()
	ds := c.set(at.Dataset)
	if _, s := c.table.find(&ref.Key); s != nil || n != ref.Size || c.closed.Load() {
		c.mu.Unlock()
		return p, false
	}
	if n > maxLength || need > c.space.budget.Load()/4 || now < c.quiet {
		c.mu.Unlock()
		ds.bypassed.Add(1)
		return p, false
	}
	i, s := c.table.add(&ref.Key, writing)
	ds.claims.Add(1)
	s.sum, s.dataset, s.tenant, s.position, s.length = ref.Sum, at.Dataset, at.Tenant, at.Position, uint32(n)
	c.payers.count(s.tenant, need)
	s.mark(spare, isSpare)
	s.cost, s.uses, s.added, s.used = float32(cost.Seconds()), 1, stampOf(now), stampOf(now)
	c.mu.Unlock()

	p = pending{index: i, slot: s, set: ds}
	var err error
	if p.space, err = c.take(n, &Entry{Place: at, Size: n, Cost: cost, Uses: 1, Added: now, Used: now,
		Spare: isSpare}); err != nil {
		c.abandon(p, err)
		return p, false
	}
	return p, true
}

// finish ends the storing of a blob that was written, or not: err says why.
func (c *Cache) finish(p *pending, err error) {
	loc := p.space.Location()
	if err != nil {
		c.giveBack(loc)
		c.abandon(*p, err)
		return
	}
	s, n := p.slot, loc.Length
	c.mu.Lock()
	s.setLocation(loc)
	c.mu.Unlock()
	c.index.note(setOf(s))
	c.mu.Lock()
	s.state = live
	c.set(s.dataset).enter(s)
	p.set.claims.Add(-1)
	c.backoff = 0
	c.mu.Unlock()
	p.set.stored.Add(1)
	p.set.storedBytes.Add(n)
	c.count.written.Add(c.space.set.Footprint(n))
	c.checkSegments()
}

// errBypassed says that there is no room that the policy grants.
var errBypassed = errors.New("there is no room")

// take takes space for a blob of n bytes, for which it evicts as reclaim does.
func (c *Cache) take(n int64, e *Entry) (segment.Reservation, error) {
	need := c.footprint(n)
	if !c.makeOwnRoom(e) || !c.reclaim(c.space.room(), need, e) {
		return segment.Reservation{}, errBypassed
	}
	r, err := c.space.reserve(n)
	// What was evicted may have lain in blocks that others share, or its space be taken by others.
	for try := 0; try < 8 && errors.Is(err, schema.ErrLimit); try++ {
		// At least one more has to go.
		if !c.reclaim(min(c.space.room(), 0), need, e) {
			return r, errBypassed
		}
		r, err = c.space.reserve(n)
	}
	return r, err
}

// write takes space for a blob and fills it in.
func (c *Cache) write(key schema.Key, sum schema.Sum, data []byte, e *Entry) (segment.Location, error) {
	r, err := c.take(int64(len(data)), e)
	if err != nil {
		return segment.Location{}, err
	}
	if err := r.Write(key, sum, data); err != nil {
		c.giveBack(r.Location())
		return segment.Location{}, err
	}
	return r.Location(), nil
}

// How long nothing is stored after a failure, doubling while it goes on.
const (
	firstQuiet = Time(100e6)
	lastQuiet  = Time(10e9)
)

// abandon takes back a blob that could not be stored.
func (c *Cache) abandon(p pending, err error) {
	p.set.bypassed.Add(1)
	p.set.claims.Add(-1)
	failed := !errors.Is(err, errBypassed) && (!errors.Is(err, schema.ErrLimit) || errors.Is(err, unix.ENOSPC))
	c.mu.Lock()
	c.payers.count(p.slot.tenant, -c.footprint(int64(p.slot.length)))
	c.table.take(p.slot)
	c.table.free(p.index)
	if now := c.opts.Clock(); failed && now >= c.quiet { // blobs that were written together fail together
		c.backoff = min(max(2*c.backoff, firstQuiet), lastQuiet)
		c.quiet = now + c.backoff
	}
	c.mu.Unlock()
	if failed {
		if errors.Is(err, unix.ENOSPC) {
			c.count.diskFull.Add(1)
		} else {
			c.count.writeErrors.Add(1)
		}
		c.report("a blob cannot be stored", err)
	}
}

package spill

import (
	"bowstring/schema"
	"bowstring/spill/segment"
)

// evict takes a blob off the table. Its space is released by whoever finds it without pins: the caller, who looks, or
// the reaper. c.mu is held.
func (c *Cache) evict(s *slot) (unpinned bool) {
	c.set(s.dataset).leave(s)
	c.payers.count(s.tenant, -c.footprint(int64(s.length)))
	c.table.take(s)
	return s.pins.Add(dying) == dying
}

// release gives back the space of a blob that is gone and not pinned.
func (c *Cache) release(i uint32) {
	c.mu.Lock()
	loc := c.table.at(i).location()
	c.mu.Unlock()
	c.giveBack(loc)
	c.mu.Lock()
	c.table.free(i)
	c.mu.Unlock()
}

// giveBack releases the space of a record.
func (c *Cache) giveBack(l segment.Location) {
	if err := c.space.release(l); err != nil {
		c.notGivenBack(err)
	}
}

func (c *Cache) notGivenBack(err error) {
	c.count.writeErrors.Add(1)
	c.report("space cannot be given back", err)
}

// Trim evicts until the cache is within its budget and the disk has the free space that is to be left. Storing does
// that too.
func (c *Cache) Trim() {
	c.life.RLock()
	defer c.life.RUnlock()
	if !c.closed.Load() {
		c.trim()
	}
}

func (c *Cache) trim() {
	for left := c.space.left(); left < 0; left = c.space.left() {
		evicted := c.count.evicted.Load()
		c.reclaim(left, 0, nil)
		if c.count.evicted.Load() == evicted {
			return // the rest is pinned, or not the cache's
		}
	}
}

// Resize changes the budget, and evicts what is beyond it before it returns. The least is MinBytes.
func (c *Cache) Resize(bytes int64) {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.closed.Load() {
		return
	}
	c.space.budget.Store(max(bytes, MinBytes))
	c.trim()
}

// victim is a blob that is evicted.
type victim struct {
	index uint32
	key   schema.Key
}

// maxVictims bounds how much is evicted for one blob.
const maxVictims = 256

// reclaim evicts until about need bytes can be taken where room is now, and reports whether they can. If that is for a
// new blob (not nil), the policy has to admit it in the place of each; otherwise nothing is evicted.
func (c *Cache) reclaim(room, need int64, e *Entry) bool {
	if room >= need {
		return true
	}
	if c.space.wholeOnly.Load() {
		return c.reclaimSegment(need-room, e)
	}
	c.mu.Lock()
	victims, ok := c.pick(c.chooser, &c.table, room, need, e)
	c.mu.Unlock()
	c.releaseAll(victims)
	return ok
}

// pick takes blobs of a table, which is the cache's or a part of it, off it until there is room for need bytes. c.mu is
// held.
func (c *Cache) pick(chooser *Chooser, of Table, room, need int64, e *Entry) (victims []victim, ok bool) {
	now := c.opts.Clock()
	var newcomer Worth
	if e != nil {
		newcomer = c.opts.Policy.Worth(e, now)
	}
	var picked []uint32
	for room < need && len(picked) < maxVictims {
		i, worth, found := chooser.Victim(of, now)
		if !found || e != nil && !c.opts.Policy.Admit(newcomer, worth) {
			break
		}
		s := c.table.at(uint32(i))
		s.state = writing // no candidate any more
		picked = append(picked, uint32(i))
		room += c.footprint(int64(s.length))
	}
	ok = room >= need
	for _, i := range picked {
		s := c.table.at(i)
		s.state = live
		if ok || e == nil {
			victims = append(victims, victim{i, s.key})
			c.evicted(s)
			c.evict(s) // it has no pins, or it would not have been a candidate
		}
	}
	return victims, ok
}

// reclaimSegment evicts all of a segment, where the file system cannot give back parts of it: of the sealed one with
// the fewest blobs. It does so if the policy would admit the new blob in the place of a candidate.
func (c *Cache) reclaimSegment(need int64, e *Entry) bool {
	if e != nil {
		now := c.opts.Clock()
		c.mu.Lock()
		_, worth, found := c.chooser.Victim(&c.table, now)
		c.mu.Unlock()
		if !found || !c.opts.Policy.Admit(c.opts.Policy.Worth(e, now), worth) {
			return false
		}
	}
	id, _ := c.space.sparsest()
	if id == noSegment {
		if err := c.space.roll(); err != nil {
			c.notGivenBack(err)
		}
		if id, _ = c.space.sparsest(); id == noSegment {
			return false
		}
	}
	var victims []victim
	var pinned []schema.Key
	c.mu.Lock()
	for i := range c.table.slots {
		if s := c.table.at(uint32(i)); s.state == live && s.segment == id {
			key := s.key
			c.evicted(s)
			need -= c.footprint(int64(s.length))
			if c.evict(s) {
				victims = append(victims, victim{uint32(i), key})
			} else {
				pinned = append(pinned, key)
			}
		}
	}
	c.mu.Unlock()
	for _, key := range pinned {
		c.index.remove(key)
	}
	c.releaseAll(victims)
	return need <= 0 || len(victims) > 0
}

// evicted counts an eviction. c.mu is held.
func (c *Cache) evicted(s *slot) {
	c.count.evicted.Add(1)
	c.set(s.dataset).evicted.Add(1)
}

// releaseAll finishes the eviction of blobs without pins.
func (c *Cache) releaseAll(victims []victim) {
	for _, v := range victims {
		c.index.remove(v.key)
		c.release(v.index)
	}
}

package spill

import (
	"errors"
	"sync"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// reaper does what nobody should wait for: it gives back the space of what was taken out while it was pinned, and moves
// what is left in segments that are nearly empty.
type reaper struct {
	wake chan struct{} // has room for one

	mu      sync.Mutex
	slots   []uint32 // gone, and not pinned any more
	tidy    bool
	stopped bool
}

func (r *reaper) add(i uint32) {
	r.mu.Lock()
	r.slots = append(r.slots, i)
	r.mu.Unlock()
	r.signal()
}

func (r *reaper) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// stop has the reaper end after what there is to do.
func (r *reaper) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.signal()
}

// take returns what there is to do.
func (r *reaper) take() (slots []uint32, tidy, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slots, tidy = r.slots, r.tidy
	r.slots, r.tidy = nil, false
	return slots, tidy, r.stopped
}

func (c *Cache) reap() {
	for range c.reaper.wake {
		slots, tidy, stopped := c.reaper.take()
		for _, i := range slots {
			c.release(i)
		}
		switch {
		case stopped:
			return
		case tidy:
			c.tidySegments()
		}
	}
}

// maxSegments is how many segment files there may be: twice as many as hold the budget, and some. Each that has but few
// blobs left costs an open file, a mapping, and a byte of memory for each of its blocks.
func (c *Cache) maxSegments() int { return int(2*c.space.budget.Load()/c.opts.SegmentBytes) + 8 }

// checkSegments has the reaper tidy up if there are too many segments.
func (c *Cache) checkSegments() {
	if int(c.space.files.Load()) <= c.maxSegments() {
		return
	}
	c.reaper.mu.Lock()
	c.reaper.tidy = true
	c.reaper.mu.Unlock()
	c.reaper.signal()
}

// tidySegments empties the segments with the fewest blobs until there are few enough segments.
func (c *Cache) tidySegments() {
	for {
		id, n := c.space.sparsest()
		if id == noSegment || n <= c.maxSegments() {
			return
		}
		var left []uint32
		c.mu.Lock()
		for i := range c.table.slots {
			if s := c.table.at(uint32(i)); s.state == live && s.segment == id {
				left = append(left, uint32(i))
			}
		}
		c.mu.Unlock()
		for _, i := range left {
			c.rehome(i, id)
		}
		if next, _ := c.space.sparsest(); next == id {
			return // what is pinned stays; the next round finds it
		}
	}
}

// movedShare is how much may be rewritten, of what was stored.
const movedShare = 0.1

// rehome moves a blob from a segment to the one that is appended to, or evicts it where enough was moved already.
func (c *Cache) rehome(i, id uint32) {
	c.mu.Lock()
	s := c.table.at(i)
	if s.state != live || s.segment != id {
		c.mu.Unlock()
		return
	}
	size, key := c.space.set.Footprint(int64(s.length)), s.key
	if float64(c.count.moved.Load()+size) > movedShare*float64(c.count.written.Load()) {
		c.drop(i, s) // unlocks
		return
	}
	s.pins.Add(1)
	from := s.location()
	c.mu.Unlock()

	to, err := c.copyOf(from, key, s.sum)
	c.mu.Lock()
	switch {
	case err != nil && s.state == live && !errors.Is(err, schema.ErrDataLoss):
		s.pins.Add(-1)
		c.drop(i, s) // unlocks; there is no room
		return
	case err != nil || s.state != live || s.pins.Load() != 1:
		c.mu.Unlock() // damaged, taken out, or being read where it is
		if err == nil {
			c.giveBack(to)
		} else {
			c.lost(i, s, key, err)
		}
		c.unpin(i, s)
		return
	}
	s.setLocation(to)
	change := setOf(s)
	s.pins.Add(-1)
	c.mu.Unlock()
	c.index.note(change)
	c.giveBack(from)
	c.count.moved.Add(size)
}

// drop evicts a blob. c.mu is held, and unlocked.
func (c *Cache) drop(i uint32, s *slot) {
	key := s.key
	c.evicted(s)
	unpinned := c.evict(s)
	c.mu.Unlock()
	c.index.remove(key)
	if unpinned {
		c.release(i)
	}
}

// copyOf writes a blob, which is pinned, once more.
func (c *Cache) copyOf(from segment.Location, key schema.Key, sum schema.Sum) (to segment.Location, err error) {
	b, err := c.space.set.Get(from)
	if err != nil {
		return to, err
	}
	defer b.Release()
	if err := (schema.BlobRef{Key: key, Size: from.Length, Sum: sum}).Check(b.Bytes()); err != nil {
		return to, err
	}
	err = schema.Guard(func() (err error) {
		to, err = c.write(key, sum, b.Bytes(), nil)
		return err
	})
	return to, err
}

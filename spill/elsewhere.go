package spill

import (
	"sync/atomic"
	"time"

	"bowstring/spill/segment"
)

// elsewhere are the segments that clients of an earlier process have mapped still: it has handed them over by
// descriptors (schema.Extent), and has ended. Nobody knows which blobs they read, so all are pinned, and nothing is
// given back, until the last of them has let go.
type elsewhere struct {
	segments map[*segment.Segment][]uint32 // the slots that are pinned for that
	bytes    atomic.Int64                  // of blobs in those
	end      chan struct{}                 // closed by Close
	over     chan struct{}                 // closed when nobody looks any more
	// unswept says that blocks in which no blob lies were left as they were: the next start looks for them.
	unswept bool
	pause   time.Duration // between two looks
}

// pinElsewhere pins what a segment has. It is called before anybody else uses the cache.
func (c *Cache) pinElsewhere(g *segment.Segment, slots []uint64) {
	var pinned []uint32
	for _, k := range slots {
		i := uint32(k)
		if s := c.table.at(i); s.state == live && s.segment == g.ID() {
			s.pins.Add(1)
			c.elsewhere.bytes.Add(int64(s.length))
			pinned = append(pinned, i)
		}
	}
	if c.elsewhere.segments == nil {
		c.elsewhere.segments = map[*segment.Segment][]uint32{}
	}
	c.elsewhere.segments[g] = pinned
}

// watchElsewhere looks who has let go. It ends when all have, or with the cache.
func (c *Cache) watchElsewhere() {
	defer close(c.elsewhere.over)
	tick := time.NewTicker(c.elsewhere.pause)
	defer tick.Stop()
	for len(c.elsewhere.segments) > 0 {
		select {
		case <-c.elsewhere.end:
			return
		case <-tick.C:
		}
		for g, slots := range c.elsewhere.segments {
			if g.Elsewhere() {
				continue
			}
			delete(c.elsewhere.segments, g)
			for _, i := range slots {
				c.mu.Lock()
				s := c.table.at(i)
				length := int64(s.length)
				c.mu.Unlock()
				c.elsewhere.bytes.Add(-length)
				c.unpin(i, s)
			}
		}
	}
}

package spill

import (
	"sync/atomic"
	"time"
)

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

package spill

import (
	"context"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// Verification is what Verify has found.
type Verification struct {
	Blobs   int64 `json:"blobs"` // that were read
	Bytes   int64 `json:"bytes"`
	Damaged int64 `json:"damaged"` // of them, which are taken out
}

// Verify reads every blob in the cache and compares it with its checksum. One that
// is damaged is taken out, as a reader would take it. It ends with ctx.
func (c *Cache) Verify(ctx context.Context) Verification {
	c.life.RLock()
	defer c.life.RUnlock()
	var v Verification
	for i := uint32(0); ctx.Err() == nil && !c.closed.Load(); i++ {
		c.mu.Lock()
		if int(i) >= c.table.Slots() {
			c.mu.Unlock()
			break
		}
		s := c.table.at(i)
		if s.state != live {
			c.mu.Unlock()
			continue
		}
		s.pins.Add(1)
		loc, sum, key := s.location(), s.sum, s.key
		c.mu.Unlock()

		err := c.intact(loc, sum)
		if err != nil {
			c.lost(i, s, key, err)
			v.Damaged++
		}
		c.unpin(i, s)
		v.Blobs++
		v.Bytes += loc.Length
	}
	return v
}

func (c *Cache) intact(loc segment.Location, sum schema.Sum) error {
	b, err := c.space.set.Get(loc)
	if err != nil {
		return err
	}
	defer b.Release()
	return schema.BlobRef{Size: loc.Length, Sum: sum}.Check(b.Bytes())
}

package spill

import "bowstring/schema"

// Get returns a blob that is in the cache. Its bytes point into a mapped file: they have been compared with the
// reference's checksum, and stay in place until the blob is released, whatever is evicted or closed meanwhile. at is
// where the caller found the reference. A page that is not in memory is waited for.
func (c *Cache) Get(ref schema.BlobRef, at Place) (schema.Blob, bool) {
	b, _, ok := c.get(ref, at, true)
	return b, ok
}

// GetUnchecked is Get for who compares the bytes with the reference himself, as he copies them. unchecked says that he
// has to. Where they are wrong, or cannot be read (schema.Guard), Get finds that out, too, and forgets the blob.
func (c *Cache) GetUnchecked(ref schema.BlobRef, at Place) (b schema.Blob, unchecked, ok bool) {
	return c.get(ref, at, false)
}

func (c *Cache) get(ref schema.BlobRef, at Place, check bool) (_ schema.Blob, unchecked, ok bool) {
	c.life.RLock()
	defer c.life.RUnlock()
	isSpare := c.isSpare(ref.Key)
	now := c.opts.Clock()
	c.mu.Lock()
	ds := c.set(at.Dataset)
	if o := c.offered[ref.Key]; o != nil && o.ref == ref { // it was right when it was offered, and is in memory
		o.holds.Add(1)
		c.mu.Unlock()
		ds.hits.Add(1)
		ds.hitBytes.Add(ref.Size)
		return schema.NewBlob(o.blob.Bytes(), o), false, true
	}
	i, s := c.table.find(&ref.Key)
	if s == nil || c.closed.Load() || s.state != live || int64(s.length) != ref.Size || s.sum != ref.Sum {
		c.mu.Unlock()
		ds.misses.Add(1)
		ds.missBytes.Add(ref.Size)
		return schema.Blob{}, false, false
	}
	s.pins.Add(1)
	s.uses++
	s.used = stampOf(now)
	if at.Dataset != 0 && (s.dataset != at.Dataset || s.position != at.Position) {
		c.move(s, at)
	}
	if at.Tenant != s.tenant {
		c.adopt(s, at.Tenant)
	}
	s.mark(changed, true)
	s.mark(spare, isSpare)
	loc := s.location()
	c.mu.Unlock()

	b, err := c.space.set.Get(loc)
	if err == nil && check {
		// A page that cannot be read is a miss, too.
		if err = ref.Check(b.Bytes()); err != nil {
			b.Release()
		}
	}
	if err != nil {
		c.lost(i, s, ref.Key, err)
		c.unpin(i, s)
		ds.misses.Add(1)
		ds.missBytes.Add(ref.Size)
		return schema.Blob{}, false, false
	}
	ds.hits.Add(1)
	ds.hitBytes.Add(ref.Size)
	if ref.Size == 0 {
		b.Release()
		c.unpin(i, s)
		return schema.Blob{}, false, true
	}
	return schema.NewBlob(b.Bytes(), &pin{c, i, s, b}), !check, true
}

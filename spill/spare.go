package spill

import "bowstring/schema"

// SetSpare says of which blobs another node near owns a copy, and keeps it: those that are not spare are kept before
// those that are, as losing one costs a read of the store. is must not block or allocate. It is asked whenever a blob is stored or
// found; what is known of those that lie in the cache is what it said then.
func (c *Cache) SetSpare(is func(schema.Key) bool) { c.spare.Store(&is) }

func (c *Cache) isSpare(key schema.Key) bool {
	is := c.spare.Load()
	return is != nil && (*is)(key)
}

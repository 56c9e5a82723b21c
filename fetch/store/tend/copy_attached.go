package tend

import (
	"context"
	"fmt"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// attach finds out what of the snapshots is attached, and has the target know the tables if these are
// to be referred to.
func (c *copier) attach(ctx context.Context, snaps []*schema.Snapshot) (err error) {
	scope := Scope{Source: c.from, Snapshots: snaps}
	if c.attached, err = scope.attached(ctx); err != nil {
		return err
	}
	if len(c.attached.tables) == 0 || c.opts.Attached != ByReference {
		return nil
	}
	to, ok := c.to.(store.Referrer)
	if !ok {
		return fmt.Errorf("%w: the blobs are cells of table %s, which the target cannot reach: copy them by value",
			schema.ErrInvalid, c.attached.tables[0])
	}
	return to.Refer(ctx, c.attached.tables)
}

// note remembers which chunks of a snapshot in the target are which of the source's.
func (c *copier) note(made, from *schema.Snapshot) {
	for i, chunk := range from.Chunks {
		if c.attached.chunks[chunk.Key] {
			c.made[chunk.Key] = made.Chunks[i]
		}
	}
}

// put sees to it that the target has all blobs of a snapshot, and returns the snapshot as it is there. What
// is attached and was copied with a snapshot before is not read from its tables again, but made this ingest's own
// where it lies: the snapshot before may be dropped at any time.
func (c *copier) put(ctx context.Context, in store.Ingest, snap *schema.Snapshot) (*schema.Snapshot, error) {
	known, rest := *snap, *snap
	known.Chunks, rest.Chunks = nil, nil
	for _, chunk := range snap.Chunks {
		if made, ok := c.made[chunk.Key]; ok {
			known.Chunks = append(known.Chunks, made)
		} else {
			rest.Chunks = append(rest.Chunks, chunk)
		}
	}
	if len(known.Chunks) > 0 {
		there := Scope{Source: c.to, Snapshots: []*schema.Snapshot{&known}, Memory: c.opts.Memory}
		if _, err := c.blobs(ctx, in, there); err != nil {
			return nil, err
		}
	}
	put, err := c.blobs(ctx, in, Scope{Source: c.from, Snapshots: []*schema.Snapshot{&rest}, Memory: c.opts.Memory})
	if err != nil {
		return nil, err
	}
	next := *snap
	next.Chunks = slices.Clone(snap.Chunks)
	at := 0
	for i, chunk := range snap.Chunks {
		if made, ok := c.made[chunk.Key]; ok {
			next.Chunks[i] = made
			continue
		}
		next.Chunks[i] = put[0].Chunks[at]
		at++
	}
	c.note(&next, snap)
	return &next, nil
}

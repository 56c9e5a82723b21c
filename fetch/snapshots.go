package fetch

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"bowstring/schema"
)

// openSnapshot is a snapshot whose manifest is open, shared by all jobs on it.
type openSnapshot struct {
	key      snapshotKey
	manifest *schema.Manifest
	cache    *snapshotCache
	derived  derivedCache // selections and sums computed from the manifest

	refs     int   // jobs, streams and batches that use it; guarded by cache.mu
	lastUsed int64 // cache.clock when refs last became 0; guarded by cache.mu
}

type snapshotKey struct {
	dataset string
	number  int64
}

func (k snapshotKey) String() string { return fmt.Sprintf("%s@%d", k.dataset, k.number) }

// retain adds a hold to one that the caller has.
func (s *openSnapshot) retain() {
	s.cache.mu.Lock()
	s.refs++
	s.cache.mu.Unlock()
}

// release gives up a hold.
func (s *openSnapshot) release() { s.cache.release(s) }

// snapshotCache keeps manifests open while somebody uses them, and a few more.
type snapshotCache struct {
	store   Store
	maxIdle int
	reads   int // chunks read at once
	opening singleflight.Group

	mu     sync.Mutex
	byKey  map[snapshotKey]*openSnapshot // guarded by mu
	clock  int64                         // guarded by mu
	closed bool                          // guarded by mu: idle snapshots are not kept any more
}

func (c *snapshotCache) init(store Store, maxIdle, reads int) {
	c.store, c.maxIdle, c.reads = store, maxIdle, reads
	c.byKey = map[snapshotKey]*openSnapshot{}
}

// get opens a snapshot, or shares the open one; number 0 is the newest. The
// store is asked each time, so that a dropped snapshot is not found, however
// many streams still read it.
func (c *snapshotCache) get(ctx context.Context, dataset string, number int64) (*openSnapshot, error) {
	snap, err := c.store.Snapshot(ctx, dataset, number)
	if err != nil {
		return nil, err
	}
	key := snapshotKey{snap.Dataset, snap.Number}
	if s := c.shared(key); s != nil {
		return s, nil
	}
	// Callers that come together open it once. Each then takes a hold of its
	// own; should the snapshot have been closed in between, it opens again.
	for {
		ch := c.opening.DoChan(key.String(), func() (any, error) {
			// Not ended by the first caller's context: others wait for it too.
			return nil, c.add(context.WithoutCancel(ctx), key, snap)
		})
		select {
		case r := <-ch:
			if r.Err != nil {
				// It may have been dropped and collected since it was looked up.
				if _, err := c.store.Snapshot(ctx, key.dataset, key.number); err != nil {
					return nil, err
				}
				return nil, fmt.Errorf("opening snapshot %s: %w", key, r.Err)
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if s := c.shared(key); s != nil {
			return s, nil
		}
	}
}

// shared takes a hold of an open snapshot, nil if it is not open.
func (c *snapshotCache) shared(key snapshotKey) *openSnapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byKey[key]
	if s != nil {
		s.refs++
	}
	return s
}

// add opens a snapshot and leaves it in the cache, idle.
func (c *snapshotCache) add(ctx context.Context, key snapshotKey, snap *schema.Snapshot) error {
	m, err := openManifest(ctx, c.store, snap, c.reads)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		m.Close()
		return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable)
	}
	if c.byKey[key] != nil {
		m.Close()
		return nil
	}
	c.clock++
	s := &openSnapshot{key: key, manifest: m, cache: c, lastUsed: c.clock}
	s.derived.init()
	c.byKey[key] = s
	return nil
}

// openManifest reads all chunks of a snapshot; OpenManifest checks them.
func openManifest(ctx context.Context, store Store, snap *schema.Snapshot, reads int) (*schema.Manifest, error) {
	chunks := make([]schema.Blob, len(snap.Chunks))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(reads)
	for i, ref := range snap.Chunks {
		g.Go(func() error {
			b, err := store.Get(ctx, ref.BlobRef)
			if err != nil {
				return fmt.Errorf("reading manifest chunk %d: %w", i, absenceIsLoss(err))
			}
			chunks[i] = b
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		for i := range chunks {
			chunks[i].Release()
		}
		return nil, err
	}
	return schema.OpenManifest(snap, chunks)
}

func (c *snapshotCache) release(s *openSnapshot) {
	c.mu.Lock()
	s.refs--
	if s.refs == 0 {
		c.clock++
		s.lastUsed = c.clock
	}
	idle := c.takeIdle(c.maxIdle)
	c.mu.Unlock()
	closeAll(idle)
}

// takeIdle removes the idle snapshots but for the keep last used; mu is held.
func (c *snapshotCache) takeIdle(keep int) []*openSnapshot {
	if c.closed {
		keep = 0
	}
	var taken []*openSnapshot
	for {
		var oldest *openSnapshot
		idle := 0
		for _, s := range c.byKey {
			if s.refs == 0 {
				idle++
				if oldest == nil || s.lastUsed < oldest.lastUsed {
					oldest = s
				}
			}
		}
		if idle <= keep {
			return taken
		}
		delete(c.byKey, oldest.key)
		taken = append(taken, oldest)
	}
}

func closeAll(list []*openSnapshot) {
	for _, s := range list {
		s.manifest.Close()
	}
}

// closeIdle closes every snapshot that nobody uses.
func (c *snapshotCache) closeIdle() {
	c.mu.Lock()
	idle := c.takeIdle(0)
	c.mu.Unlock()
	closeAll(idle)
}

// close closes idle snapshots, now and whenever one becomes idle.
func (c *snapshotCache) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.closeIdle()
}

// inUse lists the snapshots that somebody uses.
func (c *snapshotCache) inUse() []*schema.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*schema.Snapshot
	for _, s := range c.byKey {
		if s.refs > 0 {
			list = append(list, s.manifest.Snapshot())
		}
	}
	return list
}

func (c *snapshotCache) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byKey)
}

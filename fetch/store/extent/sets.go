package extent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"bowstring/schema"
)

// sets are the object sets that snapshots name, as far as they were seen, and those of
// them that are in memory. Readers of known take no lock, as each read of a blob asks it.
type sets struct {
	s *Store
	// known are blobs by prefix. The map and its lists are never changed, but replaced.
	// If two sets have the same prefix, one may have more units than the other. An empty
	// list is a set of the store below.
	known atomic.Pointer[map[schema.ObjectPrefix][]schema.BlobRef]

	// loads lets concurrent reads of a set that is not in memory load it once.
	loads flights[schema.Key, struct{}]

	mu      sync.Mutex
	learned chan struct{}             // closed when more are known
	checked map[schema.Key]bool       // was read whole once, and fits the format
	open    lru[schema.Key, *openSet] // by the keys of their blobs
}

// openSet is a set in memory. The cache is one holder, and each call that uses it is
// another; the last one releases its memory. So an evicted set stays valid for calls that
// use it.
type openSet struct {
	*schema.ObjectIndex
	blob    schema.Blob
	holders atomic.Int32
}

func (o *openSet) release() {
	if o.holders.Add(-1) == 0 {
		o.blob.Release()
	}
}

func (t *sets) init(s *Store, bytes int64) {
	t.s = s
	t.loads.s = s
	t.known.Store(&map[schema.ObjectPrefix][]schema.BlobRef{})
	t.learned = make(chan struct{})
	t.checked = map[schema.Key]bool{}
	t.open.limit, t.open.gone = bytes, (*openSet).release
}

// owner says where the blobs of a set are read.
type owner int

const (
	unknown owner = iota // there may be no such set
	belows               // from the store below
	ours                 // from their bucket
)

// whose returns where the blobs of a set are read; unknown if no snapshot that was seen
// names it.
func (t *sets) whose(prefix schema.ObjectPrefix) owner {
	known := *t.known.Load()
	if len(known) == 0 {
		return unknown
	}
	blobs, ok := known[prefix]
	switch {
	case !ok:
		return unknown
	case len(blobs) == 0:
		return belows
	}
	return ours
}

// any reports whether a set is known whose blobs are read here.
func (t *sets) any() bool {
	for _, blobs := range *t.known.Load() {
		if len(blobs) > 0 {
			return true
		}
	}
	return false
}

// learn adds the sets that a snapshot names. Nearly all calls bring nothing new, and take
// no lock.
func (t *sets) learn(refs []schema.SetRef) {
	isNew := func(known map[schema.ObjectPrefix][]schema.BlobRef, ref schema.SetRef) bool {
		blobs, ok := known[ref.Prefix]
		return !ok || ref.Blob != (schema.BlobRef{}) && !slices.Contains(blobs, ref.Blob)
	}
	news := func(ref schema.SetRef) bool { return isNew(*t.known.Load(), ref) }
	if !slices.ContainsFunc(refs, news) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known := maps.Clone(*t.known.Load())
	for _, ref := range refs {
		if !isNew(known, ref) {
			continue
		}
		var blobs []schema.BlobRef
		if ref.Blob != (schema.BlobRef{}) {
			blobs = append(blobs, ref.Blob) // the newest first
		}
		known[ref.Prefix] = append(blobs, known[ref.Prefix]...)
	}
	t.known.Store(&known)
	close(t.learned)
	t.learned = make(chan struct{})
}

// more returns a channel that is closed when more sets are known than now.
func (t *sets) more() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.learned
}

// place returns where an address is, by the sets with its prefix. If they lack it, place
// scans the catalog once, since a newer snapshot may name another set of the same
// objects.
func (t *sets) place(ctx context.Context, a schema.ObjectAddress) (place, error) {
	tried := (*t.known.Load())[a.Prefix]
	p, err := t.placeIn(ctx, a, tried)
	if err == nil || !errors.Is(err, schema.ErrDataLoss) {
		return p, err
	}
	// A newer snapshot may name another set of the same objects.
	if failed := t.s.scans.again(ctx); failed != nil {
		return place{}, errors.Join(err, failed)
	}
	if blobs := (*t.known.Load())[a.Prefix]; len(blobs) > len(tried) {
		return t.placeIn(ctx, a, blobs)
	}
	return place{}, err
}

func (t *sets) placeIn(ctx context.Context, a schema.ObjectAddress, blobs []schema.BlobRef) (place, error) {
	err := fmt.Errorf("%w: no object set %s", schema.ErrNotFound, a.Prefix)
	for _, ref := range blobs {
		var p place
		if p, err = t.placeInOne(ctx, a, ref); err == nil || !errors.Is(err, schema.ErrDataLoss) {
			return p, err
		}
	}
	return place{}, err
}

func (t *sets) placeInOne(ctx context.Context, a schema.ObjectAddress, ref schema.BlobRef) (place, error) {
	set, err := t.hold(ctx, a.Prefix, ref)
	if err != nil {
		return place{}, err
	}
	defer set.release()
	p := place{prefix: a.Prefix, number: a.Object, url: set.Bucket(), offset: a.Offset}
	if !a.Packed {
		p.object, err = set.Object(a.Object)
		return p, err
	}
	p.unit = &schema.Unit{}
	p.object, *p.unit, err = set.Unit(a.Object, a.Unit)
	return p, err
}

// hold returns a set, which the caller releases. A set may be evicted between its load
// and its use; then it is loaded again.
func (t *sets) hold(ctx context.Context, prefix schema.ObjectPrefix, ref schema.BlobRef) (*openSet, error) {
	for {
		t.mu.Lock()
		set, ok := t.open.get(ref.Key)
		if ok {
			set.holders.Add(1)
		}
		t.mu.Unlock()
		if ok {
			return set, nil
		}
		_, err := t.loads.do(ctx, ref.Key, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, t.load(ctx, prefix, ref)
		})
		if err != nil {
			return nil, fmt.Errorf("object set %s: %w", prefix, err)
		}
	}
}

// load reads a set into memory. Its format is checked whole the first time only: a large
// set takes seconds, and its checksum is compared each time.
func (t *sets) load(ctx context.Context, prefix schema.ObjectPrefix, ref schema.BlobRef) error {
	blob, err := t.s.Store.Get(ctx, ref)
	if errors.Is(err, schema.ErrNotFound) {
		gone := err.Error() // what is missing here is lost, not absent
		return fmt.Errorf("%w: %s", schema.ErrDataLoss, gone)
	} else if err != nil {
		return err
	}
	set := &openSet{blob: blob}
	set.holders.Store(1)
	t.mu.Lock()
	checked := t.checked[ref.Key]
	t.mu.Unlock()
	open := schema.OpenObjectSet
	if checked {
		open = schema.ReopenObjectSet
	}
	if err = ref.Check(blob.Bytes()); err == nil {
		set.ObjectIndex, err = open(blob.Bytes())
	}
	if err == nil && set.Prefix() != prefix {
		err = fmt.Errorf("%w: blob %s has the prefix %s", schema.ErrDataLoss, ref.Key, set.Prefix())
	}
	if err != nil {
		set.release()
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checked[ref.Key] = true
	if _, ok := t.open.get(ref.Key); ok {
		set.release()
		return nil
	}
	t.open.add(ref.Key, set, ref.Size)
	return nil
}

// close releases all sets of the cache.
func (t *sets) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open.clear()
}

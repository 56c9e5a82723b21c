package protocol

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"golang.org/x/time/rate"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// deleteTries is how often the deletion of a blob is tried before the collection fails.
// With the pauses between the tries that is about a second.
const deleteTries = 6

// passes marks and sweeps the store, as often as it takes for the marks of one pass to
// fit into MarkBytes. Blobs to which several rows refer are counted for each, so there
// may be more passes than needed.
func (c *collection) passes(ctx context.Context) error {
	var chunks []chunkOf
	if c.s.segments == nil { // else the records say all
		chunks = c.roots.chunks()
	}
	refs := int64(len(c.roots.keys))
	for _, of := range chunks {
		chunk := &of.snap.Chunks[of.index]
		refs += 1 + int64(chunk.Pages) + chunk.Rows*int64(len(schema.BlobFields(of.snap.Schema)))
	}
	passes := int(max(1, (refs*8+c.s.options.MarkBytes-1)/c.s.options.MarkBytes))
	for pass := range passes {
		m := &marks{pass: pass, passes: passes}
		if err := c.mark(ctx, m, chunks); err != nil {
			return err
		}
		// A deletion must not be durable before the state that justifies it is.
		if err := c.s.db.Sync(ctx); err != nil {
			return err
		}
		if err := c.sweep(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// sweep visits all blobs, counts them, and removes the dead ones of this pass. Deletions
// run in groups, in parallel, because each takes a round trip.
func (c *collection) sweep(ctx context.Context, m *marks) error {
	s := c.s
	const atOnce = 1024
	var mu sync.Mutex
	var dead []BlobRow
	remove := func(ctx context.Context, rows []BlobRow) error {
		return each(ctx, s.env, s.options.Parallel, len(rows), func(ctx context.Context, i int) error {
			return c.remove(ctx, rows[i])
		})
	}
	err := s.db.Scan(ctx, func(ctx context.Context, row BlobRow) error {
		prefix := keyPrefix(row.Key)
		if !m.covers(prefix) || !c.judge(row, m.has(prefix)) {
			return nil
		}
		mu.Lock()
		dead = append(dead, row)
		var full []BlobRow
		if len(dead) >= atOnce {
			full, dead = dead, nil
		}
		mu.Unlock()
		return remove(ctx, full)
	})
	if err != nil {
		return err
	}
	return remove(ctx, dead)
}

// judge counts a blob, and reports whether it is to be removed. marked says that a root
// refers to it. Rows without a size are not counted.
func (c *collection) judge(row BlobRow, marked bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	dead := !marked && row.Touched < c.keep && (row.Size >= 0 || !c.s.planted(bugUnfinishedKept)) &&
		(row.Touched >= c.keep-1 || !c.s.planted(bugLateKept))
	if !marked && !dead && row.Stored < c.before {
		// Neither removed nor stored again: an older deletion may still meet it.
		c.leftover = true
	}
	switch {
	case row.Size < 0:
	case dead:
		c.report.DeadBlobs++
		c.report.DeadBytes += row.Size
	default:
		c.report.LiveBlobs++
		c.report.LiveBytes += row.Size
	}
	return dead && !c.opts.DryRun
}

// remove deletes what was written of a blob before this collection. A deletion with an
// unknown outcome is repeated: if it arrived after the end of the collection, it could
// remove bytes that puts rely on.
func (c *collection) remove(ctx context.Context, row BlobRow) error {
	s := c.s
	if err := c.superseded(); err != nil {
		return err
	}
	if err := c.pace.remove(ctx, max(row.Size, 0)); err != nil {
		return err
	}
	before := c.epoch
	switch {
	case s.planted(bugDeleteTooMuch):
		before++
	case s.planted(bugOwnLaterEpoch):
		before = s.member.epoch()
	}
	for try := 0; ; try++ {
		err := s.db.Delete(ctx, row, before)
		if err == nil || s.planted(bugDeleteOnce) {
			break
		}
		if try+1 == deleteTries {
			return err
		}
		if err := s.backoff(ctx, try+4); err != nil {
			return err
		}
	}
	if row.Size < 0 {
		return nil
	}
	c.mu.Lock()
	c.report.FreedBytes += row.Size
	c.mu.Unlock()
	if s.options.Stored != nil {
		s.options.Stored(-1, -row.Size)
	}
	return nil
}

// pace limits the rate of a collection's reads and deletions. It is safe for concurrent
// use.
type pace struct {
	env          Env
	bytes, blobs *rate.Limiter // per second; nil for no limit
}

// newPace returns the limits of opts. A burst is what one second allows.
func newPace(env Env, opts store.GCOptions) *pace {
	limiter := func(perSecond float64) *rate.Limiter {
		if perSecond <= 0 {
			return nil
		}
		return rate.NewLimiter(rate.Limit(perSecond), int(max(1, perSecond)))
	}
	return &pace{env, limiter(opts.BytesPerSecond), limiter(opts.BlobsPerSecond)}
}

// read waits until that many bytes may be read.
func (p *pace) read(ctx context.Context, bytes int64) error { return p.take(ctx, p.bytes, bytes) }

// remove waits until one blob of that size may be deleted.
func (p *pace) remove(ctx context.Context, bytes int64) error {
	if err := p.take(ctx, p.blobs, 1); err != nil {
		return err
	}
	return p.take(ctx, p.bytes, bytes)
}

// take waits until n may be used. n may exceed the burst: it is then taken in portions.
func (p *pace) take(ctx context.Context, l *rate.Limiter, n int64) error {
	for l != nil && n > 0 {
		portion := min(n, int64(l.Burst()))
		n -= portion
		now := p.env.Now()
		if d := l.ReserveN(now, int(portion)).DelayFrom(now); d > 0 {
			if err := p.env.Wait(ctx, nil, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// marks is the set of blobs that the roots refer to, as sorted prefixes of their keys:
// eight bytes per blob, instead of 32. If two keys share a prefix, a dead blob may stay,
// and no live one is removed. In one of several passes it has only a slice of all keys.
// add is safe for concurrent use; has is called after the last settle.
type marks struct {
	pass, passes int

	mu       sync.Mutex
	prefixes []uint64
	sorted   int // the first sorted ones are sorted and distinct
}

// covers reports whether a key belongs to this pass. Keys begin with random bytes, so the
// slices are about equally large.
func (m *marks) covers(prefix uint64) bool {
	slice, _ := bits.Mul64(prefix, uint64(m.passes))
	return int(slice) == m.pass
}

// add marks a key, if it belongs to this pass.
func (m *marks) add(k schema.Key) {
	p := keyPrefix(k)
	if !m.covers(p) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prefixes = append(m.prefixes, p)
	// Snapshots of a dataset share most of their blobs, so duplicates are removed early.
	if len(m.prefixes) > 2*m.sorted+1<<16 {
		m.settle()
	}
}

// settle sorts the prefixes and removes duplicates. The caller holds mu, or is alone.
func (m *marks) settle() {
	slices.Sort(m.prefixes)
	m.prefixes = slices.Compact(m.prefixes)
	m.sorted = len(m.prefixes)
}

// has reports whether a key with the prefix is marked. It is called when all marks are
// made.
func (m *marks) has(prefix uint64) bool {
	_, ok := slices.BinarySearch(m.prefixes, prefix)
	return ok
}

// keyPrefix is the part of a key that marks keep.
func keyPrefix(k schema.Key) uint64 { return binary.BigEndian.Uint64(k[:]) }

// chunkOf is a manifest chunk, with a snapshot that has it.
type chunkOf struct {
	snap  rooted
	index int
}

// chunks lists the manifest chunks of the roots, each once. A chunk that a live snapshot
// has is listed with a live one, because it must not be missing.
func (r *roots) chunks() []chunkOf {
	var list []chunkOf
	seen := map[schema.Key]bool{}
	for _, live := range []bool{true, false} { // live snapshots first
		for _, snap := range r.snapshots {
			if snap.live != live {
				continue
			}
			for i, chunk := range snap.Chunks {
				if !seen[chunk.Key] {
					seen[chunk.Key] = true
					list = append(list, chunkOf{snap, i})
				}
			}
		}
	}
	return list
}

// mark marks what the roots refer to. If a chunk of a live snapshot cannot be read, it
// returns an error, because nothing may be freed then.
func (c *collection) mark(ctx context.Context, m *marks, chunks []chunkOf) error {
	s := c.s
	for _, key := range c.roots.keys {
		m.add(key)
	}
	err := each(ctx, s.env, s.options.Parallel, len(chunks), func(ctx context.Context, i int) error {
		snap, chunk := chunks[i].snap, chunks[i].snap.Chunks[chunks[i].index]
		if err := c.superseded(); err != nil {
			return err
		}
		if err := c.pace.read(ctx, chunk.Size); err != nil {
			return err
		}
		err := c.markChunk(ctx, m, snap.Snapshot, chunk)
		if errors.Is(err, schema.ErrDataLoss) && !snap.live {
			s.log.WarnContext(ctx, "a dropped snapshot that is being read has lost blobs", "error", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("the references of %s, chunk %d, cannot be read, so nothing may be freed: %w",
				snapshotName(snap.Dataset, snap.Number), chunks[i].index, err)
		}
		return nil
	})
	m.settle()
	return err
}

// markChunk marks a chunk, the pages that it lists, and the blobs that their rows refer
// to.
func (c *collection) markChunk(ctx context.Context, m *marks, snap *schema.Snapshot, chunk schema.Chunk) error {
	blob, err := c.s.db.Read(ctx, chunk.BlobRef)
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %v", schema.ErrDataLoss, err) //nolint:errorlint // a blob that is missing here is lost, not absent
	} else if err != nil {
		return err
	}
	m.add(chunk.Key)
	if chunk.Pages == 0 {
		return c.s.options.References(snap, chunk, blob, m.add)
	}
	pages, err := chunk.OpenIndex(blob.Bytes())
	blob.Release()
	if err != nil {
		return err
	}
	for i, page := range pages {
		if err := c.pace.read(ctx, page.Size); err != nil {
			return err
		}
		if err := c.markChunk(ctx, m, snap, page); err != nil {
			return fmt.Errorf("page %d: %w", i, err)
		}
	}
	return nil
}

// references visits the blobs that the rows of a chunk refer to. It releases blob.
func references(snap *schema.Snapshot, chunk schema.Chunk, blob schema.Blob, visit func(schema.Key)) error {
	// One chunk at a time: a manifest of all chunks would keep all of them in memory.
	part := &schema.Snapshot{Dataset: snap.Dataset, Number: snap.Number, Schema: snap.Schema,
		Chunks: []schema.Chunk{chunk}}
	man, err := schema.OpenManifest(part, []schema.Blob{blob})
	if err != nil {
		return err
	}
	defer man.Close()
	for col := range schema.BlobFields(snap.Schema) {
		for pos := range man.Rows() {
			if ref, ok := man.Blob(col, pos); ok {
				visit(ref.Key)
			}
		}
	}
	return nil
}

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

// deleteTries is how often a blob's deletion is tried, after which the
// collection fails.
const deleteTries = 6

// passes goes over the store, as often as it takes for the marks of one pass to
// fit into memory. Blobs that several rows share are counted for each, so it
// may be more often than needed.
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
		// Nothing may be deleted on the word of what a crash could undo.
		if err := c.s.db.Sync(ctx); err != nil {
			return err
		}
		if err := c.sweep(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// sweep counts, and removes what is dead.
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

// judge counts a blob, and says whether it is to be removed.
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

// remove deletes a blob as it was before this collection. A deletion whose
// outcome is not known is repeated: one that is still on its way when the
// collection has ended could meet what others rely upon.
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

// pace bounds how fast a collection goes.
type pace struct {
	env          Env
	bytes, blobs *rate.Limiter // nil for no bound
}

func newPace(env Env, opts store.GCOptions) *pace {
	limiter := func(perSecond float64) *rate.Limiter {
		if perSecond <= 0 {
			return nil
		}
		return rate.NewLimiter(rate.Limit(perSecond), int(max(1, perSecond)))
	}
	return &pace{env, limiter(opts.BytesPerSecond), limiter(opts.BlobsPerSecond)}
}

func (p *pace) read(ctx context.Context, bytes int64) error { return p.take(ctx, p.bytes, bytes) }

func (p *pace) remove(ctx context.Context, bytes int64) error {
	if err := p.take(ctx, p.blobs, 1); err != nil {
		return err
	}
	return p.take(ctx, p.bytes, bytes)
}

// take waits for n. More than a second's worth is taken in portions.
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

// marks is the set of blobs that are referred to, as sorted prefixes of their
// keys: eight bytes a blob. Two keys that share a prefix only make a dead blob
// stay. In one of several passes it has only a slice of all keys.
type marks struct {
	pass, passes int

	mu       sync.Mutex
	prefixes []uint64
	sorted   int // the first sorted ones are sorted and distinct
}

// covers says whether the key is one of this pass.
func (m *marks) covers(prefix uint64) bool {
	slice, _ := bits.Mul64(prefix, uint64(m.passes))
	return int(slice) == m.pass
}

func (m *marks) add(k schema.Key) {
	p := keyPrefix(k)
	if !m.covers(p) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prefixes = append(m.prefixes, p)
	// Snapshots of a dataset share most of their blobs.
	if len(m.prefixes) > 2*m.sorted+1<<16 {
		m.settle()
	}
}

func (m *marks) settle() {
	slices.Sort(m.prefixes)
	m.prefixes = slices.Compact(m.prefixes)
	m.sorted = len(m.prefixes)
}

// has is asked when all marks are made.
func (m *marks) has(prefix uint64) bool {
	_, ok := slices.BinarySearch(m.prefixes, prefix)
	return ok
}

func keyPrefix(k schema.Key) uint64 { return binary.BigEndian.Uint64(k[:]) }

// chunkOf is a manifest chunk, and a snapshot that has it.
type chunkOf struct {
	snap  rooted
	index int
}

// chunks lists the manifest chunks of the roots, each once.
func (r *roots) chunks() []chunkOf {
	var list []chunkOf
	seen := map[schema.Key]bool{}
	for _, live := range []bool{true, false} { // what must be there first
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

// mark fills m with what the roots refer to.
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

// references visits what the rows of a chunk refer to. It releases the blob.
func references(snap *schema.Snapshot, chunk schema.Chunk, blob schema.Blob, visit func(schema.Key)) error {
	// One chunk at a time: a manifest of the whole would pin it all.
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

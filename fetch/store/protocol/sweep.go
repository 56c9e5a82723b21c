package protocol

import (
	"context"
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
	chunks := c.roots.chunks()
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
	dead := !marked && row.Touched < c.keep && (row.Size >= 0 || !c.s.planted(bugUnfinishedKept))
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

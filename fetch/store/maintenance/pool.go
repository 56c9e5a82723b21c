package maintenance

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"bowstring/schema"
)

const (
	// defaultWorkers is how many blobs are under way at once.
	defaultWorkers = 32
	// inFlightBytes is how many bytes they may have together; one that is larger goes alone.
	inFlightBytes = 256 << 20
)

// pool visits lists of blobs with several goroutines.
type pool struct {
	workers int
	bytes   *semaphore.Weighted
}

func newPool(workers int) *pool {
	if workers <= 0 {
		workers = defaultWorkers
	}
	return &pool{workers, semaphore.NewWeighted(inFlightBytes)}
}

// each visits refs[from:] in about their order, until one visit fails. reached, if not
// nil, gets the index up to which all have been visited; it is not called twice at once.
func (c *pool) each(
	ctx context.Context, refs []schema.BlobRef, from int,
	visit func(context.Context, schema.BlobRef) error, reached func(int),
) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(c.workers)
	mark := watermark{low: from, beyond: map[int]struct{}{}}
	for i := from; i < len(refs); i++ {
		ref := refs[i]
		weight := min(max(ref.Size, 1), inFlightBytes)
		if c.bytes.Acquire(gctx, weight) != nil {
			break // the group's error, or the context's, says why
		}
		g.Go(func() error {
			defer c.bytes.Release(weight)
			if err := visit(gctx, ref); err != nil {
				return err
			}
			mark.done(i, reached)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// watermark is up to where all is done.
type watermark struct {
	mu     sync.Mutex
	low    int
	beyond map[int]struct{} // done beyond low
}

func (w *watermark) done(i int, reached func(int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beyond[i] = struct{}{}
	for {
		if _, ok := w.beyond[w.low]; !ok {
			break
		}
		delete(w.beyond, w.low)
		w.low++
	}
	if reached != nil {
		reached(w.low)
	}
}

// pace keeps to a rate of bytes.
type pace struct{ limiter *rate.Limiter }

// newPace limits reads to this many bytes a second; 0 is no limit.
func newPace(bytes int64) pace {
	if bytes <= 0 {
		return pace{}
	}
	// At once goes what a tenth of a second has room for; larger blobs wait in pieces.
	return pace{rate.NewLimiter(rate.Limit(bytes), int(max(bytes/10, 1)))}
}

func (p pace) wait(ctx context.Context, n int64) error {
	if p.limiter == nil {
		return nil
	}
	for n > 0 {
		piece := min(n, int64(p.limiter.Burst()))
		if err := p.limiter.WaitN(ctx, int(piece)); err != nil {
			return err
		}
		n -= piece
	}
	return nil
}

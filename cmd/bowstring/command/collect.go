package command

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// collect collects garbage now and then while a server serves, if it is told to.
func (c *ServeCmd) collect(ctx context.Context, app *App, engine *fetch.Engine, count *metrics.Collections) {
	if c.GCEvery == 0 {
		return
	}
	opts := store.GCOptions{BytesPerSecond: float64(c.GCRate)}
	nowAndThen(ctx, c.GCEvery, func(ctx context.Context) {
		start := time.Now()
		report, err := engine.GC(ctx, opts)
		switch {
		case ctx.Err() != nil:
		// another server collects, or the store is away: the next time, then
		case errors.Is(err, schema.ErrUnavailable):
			count.Elsewhere()
			app.Log.InfoContext(ctx, "no collection", "reason", err)
		case err != nil:
			count.Failed()
			app.Log.ErrorContext(ctx, "a collection failed; the next one tries again", "error", err)
		default:
			count.Done()
			app.Log.InfoContext(ctx, "collected", "seconds", time.Since(start).Seconds(), "live_blobs",
				report.LiveBlobs,
				"dead_blobs", report.DeadBlobs, "dead_bytes", report.DeadBytes, "freed_bytes", report.FreedBytes)
		}
	})
}

// nowAndThen calls do about once in every period until ctx ends. When in a period
// is left to chance, for the servers of a store are often started together.
func nowAndThen(ctx context.Context, every time.Duration, do func(context.Context)) {
	for {
		at := rand.N(every)
		if !sleep(ctx, at) {
			return
		}
		do(ctx)
		if !sleep(ctx, every-at) {
			return
		}
	}
}

// sleep reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

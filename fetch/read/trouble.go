package read

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"bowstring/schema"
)

// troublePeriod is how often reads that fail are told of.
const troublePeriod = 5 * time.Second

// trouble tells operators of reads that fail, and not of each: a store that is
// down fails thousands a second.
type trouble struct {
	mu     sync.Mutex
	told   time.Time // guarded by mu
	untold int       // guarded by mu
}

// report logs that the n-th attempt at a read failed, unless another did
// shortly before. A read that was given up is no trouble.
func (t *trouble) report(log *slog.Logger, ref schema.BlobRef, n int, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	t.mu.Lock()
	now := time.Now()
	if !t.told.IsZero() && now.Sub(t.told) < troublePeriod {
		t.untold++
		t.mu.Unlock()
		return
	}
	more := t.untold
	t.told, t.untold = now, 0
	t.mu.Unlock()
	log.Warn("a read failed", "blob", ref.Key, "attempt", n, "error", err, "more_since_last", more)
}

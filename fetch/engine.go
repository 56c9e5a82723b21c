package fetch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"bowstring/schema"
)

// Options tunes an Engine. The zero value of each field stands for its default.
type Options struct {
	// WindowBytes is what all streams together may hold ahead of their
	// consumers, in bytes. Each live stream gets an even share; a stream may
	// exceed its share by one record batch, without which it could not go on.
	// Default 512 MiB.
	WindowBytes int64
	// MaxReads caps the reads in flight to the store over all streams.
	// Default 512.
	MaxReads int
	// StreamReads caps the reads in flight of one stream. Default 128.
	StreamReads int
	// IdleSnapshots is how many snapshots nobody reads stay open, so that the
	// next stream need not open them again. Default 8.
	IdleSnapshots int
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.WindowBytes == 0 {
		o.WindowBytes = 512 << 20
	}
	if o.MaxReads == 0 {
		o.MaxReads = 512
	}
	if o.StreamReads == 0 {
		o.StreamReads = 128
	}
	if o.IdleSnapshots == 0 {
		o.IdleSnapshots = 8
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Engine serves plans from a store. It is safe for concurrent use.
type Engine struct {
	store     Store
	opts      Options
	reads     *semaphore.Weighted // one unit per read in flight to the store
	snapshots snapshotCache
	stats     counters

	mu      sync.Mutex
	streams map[*Stream]struct{} // guarded by mu
	closed  bool                 // guarded by mu
	running sync.WaitGroup       // one for each stream
}

// NewEngine returns an engine over store, which stays the caller's to close,
// after the engine.
func NewEngine(store Store, opts Options) *Engine {
	opts.EnsureDefaults()
	e := &Engine{
		store:   store,
		opts:    opts,
		reads:   semaphore.NewWeighted(int64(opts.MaxReads)),
		streams: map[*Stream]struct{}{},
	}
	e.snapshots.init(store, opts.IdleSnapshots, opts.StreamReads)
	if w, ok := store.(UseWatcher); ok {
		w.SetInUse(e.snapshots.inUse)
	}
	return e
}

// Store returns the store that the engine reads.
func (e *Engine) Store() Store { return e.store }

// Close ends all streams, waits until none of their goroutines runs, and
// closes the snapshots that no batch still points into.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	for s := range e.streams {
		s.cancel(fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable))
	}
	e.mu.Unlock()
	e.running.Wait()
	e.snapshots.close()
	return nil
}

// register counts a stream in, and gives every live stream its new share.
func (e *Engine) register(s *Stream) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable)
	}
	e.streams[s] = struct{}{}
	e.running.Add(1)
	e.stats.streams.Add(1)
	e.share()
	return nil
}

// unregister counts a stream out. Its goroutines have ended.
func (e *Engine) unregister(s *Stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.streams, s)
	e.share()
	e.running.Done()
}

// share divides the window memory; e.mu is held.
func (e *Engine) share() {
	if len(e.streams) == 0 {
		return
	}
	limit := e.opts.WindowBytes / int64(len(e.streams))
	for s := range e.streams {
		s.window.setLimit(limit)
	}
}

// GC collects the store's garbage, keeping what live streams read.
func (e *Engine) GC(ctx context.Context, opts GCOptions) (GCReport, error) {
	// Snapshots that are open but idle need not be kept; closing them also
	// lets go of the chunks of those that were dropped.
	e.snapshots.closeIdle()
	return e.store.GC(ctx, opts, e.snapshots.inUse)
}

// read gets one blob, checked.
func (e *Engine) read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := e.reads.Acquire(ctx, 1); err != nil {
		return schema.Blob{}, context.Cause(ctx)
	}
	start := time.Now()
	b, err := e.store.Get(ctx, ref)
	e.reads.Release(1)
	if err != nil {
		e.stats.failedReads.Add(1)
		return schema.Blob{}, absenceIsLoss(err)
	}
	e.stats.reads.Add(1)
	e.stats.readBytes.Add(ref.Size)
	e.stats.readNanos.Add(int64(time.Since(start)))
	if err := ref.Check(b.Bytes()); err != nil {
		b.Release()
		e.stats.failedReads.Add(1)
		return schema.Blob{}, err
	}
	return b, nil
}

// absenceIsLoss makes an ErrDataLoss of a blob's ErrNotFound: a manifest names
// the blob, so that it is not there is not the client's mistake.
func absenceIsLoss(err error) error {
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
	}
	return err
}

package fetch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/jobs"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// Options tunes an Engine. The zero value of each field stands for its default.
// None has to be set: what may be in flight is found out by measuring.
type Options struct {
	// WindowBytes is what all streams together may hold ahead of their
	// consumers, in bytes. Each live stream gets an even share; a stream may
	// exceed its share by one record batch, without which it could not go on.
	// Default 512 MiB.
	WindowBytes int64
	// MaxReads caps the reads in flight to the store over all streams, whatever
	// is measured. Default 4096.
	MaxReads int
	// ReadTimeout is for how long a sample is tried, where the store is
	// unavailable, before it counts as one that cannot be read. Default 30 s.
	ReadTimeout time.Duration
	// NoHedge leaves slow reads alone. Otherwise one that takes longer than
	// nearly all of late is made a second time, which costs 5 % more reads at most.
	NoHedge bool
	// IdleSnapshots is how many snapshots nobody reads stay open, so that the
	// next stream need not open them again. Default 8.
	IdleSnapshots int
	// Spill is the node's cache of blobs, between the store and the streams; nil
	// if there is none. It stays the caller's to close, after the engine.
	Spill *spill.Cache
	// Future is told which jobs run, for Spill to evict by. Default: one of the
	// engine's own.
	Future *spill.Future
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.WindowBytes == 0 {
		o.WindowBytes = 512 << 20
	}
	if o.MaxReads == 0 {
		o.MaxReads = 4096
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.IdleSnapshots == 0 {
		o.IdleSnapshots = 8
	}
	if o.Future == nil {
		o.Future = &spill.Future{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Engine serves plans from a store. It is safe for concurrent use.
type Engine struct {
	scheduler
	opts      Options
	snapshots *jobs.Jobs

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	filling   sync.WaitGroup // Warm and the goroutine that looks ahead
}

// NewEngine returns an engine over s, which stays the caller's to close,
// after the engine.
func NewEngine(s store.Store, opts Options) *Engine {
	opts.EnsureDefaults()
	e := &Engine{opts: opts, closing: make(chan struct{})}
	e.scheduler.init(s, &e.opts)
	var limits admission.Limits
	limits.EnsureDefaults()
	ledger, work := admission.NewLedger(limits), admission.NewWork(0)
	var err error
	if e.snapshots, err = jobs.New(s, e.read, ledger, work, jobs.Options{IdleSnapshots: opts.IdleSnapshots}); err != nil {
		panic(err) // a mistake of the program that embeds the engine
	}
	if w, ok := s.(store.UseWatcher); ok {
		w.SetInUse(e.snapshots.InUse)
	}
	if e.opts.Spill != nil {
		e.filling.Go(e.fill)
	}
	return e
}

// Store returns the store that the engine reads.
func (e *Engine) Store() store.Store { return e.store }

// Close ends all streams, waits until each is closed and none of the engine's
// goroutines runs, and closes the snapshots that no batch still points into.
func (e *Engine) Close() error {
	e.scheduler.close()
	e.closeOnce.Do(func() { close(e.closing) })
	e.filling.Wait()
	e.live.Wait()
	e.endJobs()
	e.snapshots.Close()
	return nil
}

// Drop removes a snapshot, or with number 0 the whole dataset; streams that have
// it open read on.
func (e *Engine) Drop(ctx context.Context, dataset string, number int64) error {
	defer e.snapshots.Doubt(dataset)
	return e.store.Drop(ctx, dataset, number)
}

// GC collects the store's garbage, keeping what live streams read.
func (e *Engine) GC(ctx context.Context, opts store.GCOptions) (store.GCReport, error) {
	// Snapshots that are open but idle need not be kept; closing them also
	// lets go of the chunks of those that were dropped.
	e.snapshots.CloseIdle()
	return e.store.GC(ctx, opts, e.snapshots.InUse)
}

// Job is a request resolved against a snapshot: see [jobs.Job].
type Job = jobs.Job

// Open resolves a request. Errors wrap schema.ErrInvalid or ErrNotFound where
// the request is at fault. The caller closes the job.
func (e *Engine) Open(ctx context.Context, req schema.Request) (*Job, error) {
	return e.snapshots.Open(ctx, req)
}

// TotalBytes is the size of everything that the plan serves: see [jobs.Jobs.TotalBytes].
func (e *Engine) TotalBytes(ctx context.Context, j *Job) (int64, error) {
	return e.snapshots.TotalBytes(ctx, j)
}

// SaveSelection stores a set of positions of a snapshot under the hash of its
// content, which it returns: the name by which requests select it.
func (e *Engine) SaveSelection(ctx context.Context, dataset string, snapshot int64, positions []int64) (name string, err error) {
	return e.snapshots.SaveSelection(ctx, dataset, snapshot, positions)
}

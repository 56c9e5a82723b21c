package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"go.opentelemetry.io/otel/attribute"

	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/manifest"
	"bowstring/fetch/object"
	"bowstring/fetch/operators"
	"bowstring/fetch/peers"
	"bowstring/fetch/prefetch"
	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/fetch/spans"
	"bowstring/fetch/store"
	"bowstring/fetch/upcoming"
	"bowstring/schema"
	"bowstring/spill"
)

// Options tunes an Engine. The zero value of each field stands for its default.
// None has to be set: what may be in flight is found out by measuring.
type Options struct {
	// WindowBytes is what all streams together may hold, in bytes: reads under way,
	// samples that wait for their consumers, batches that were not released. It is a
	// bound that holds: what does not fit waits. Each stream gets an even share, and
	// beyond it what its next batch needs. Default 512 MiB.
	WindowBytes int64
	// Memory says what requests may take beside; its Windows are WindowBytes.
	Memory admission.Limits
	// MaxReads caps the reads in flight to the store over all streams, whatever
	// is measured. Default 4096.
	MaxReads int
	// ReadTimeout is how long a blob is tried, whatever the store does, before its stream ends as unavailable. A
	// second is added for each mebibyte of the blob. Default 30 s.
	ReadTimeout time.Duration
	// NoHedge turns off hedged reads. Otherwise a read that takes longer than nearly all
	// recent ones is started a second time, which costs 5 % more reads at most.
	NoHedge bool
	// MaxPrefetch is how many rows a stream may read after one that has not arrived
	// yet. Default, and most: as many as a resume ticket has bits.
	MaxPrefetch int64
	// IdleSnapshots is how many snapshots without a reader stay open, so that the next
	// stream need not open them again. Default 72: those of the largest mixture, and 8.
	IdleSnapshots int
	// Resident is up to how many bytes a manifest may have to be read whole when its
	// snapshot is opened, and stay in memory; negative for none. Default 16 MiB.
	Resident int64
	// MaxSelections is how many selections of a dataset one caller may have that have not expired; negative for any
	// number. Default 10,000.
	MaxSelections int
	// Terms say what a tenant gets of all that is here: see [Engine.SetTerms]. Default:
	// all get the same, without ceilings.
	Terms func(tenant string) Terms
	// Spill is the node's cache of blobs, between the store and the streams; nil
	// if there is none. It stays the caller's to close, after the engine.
	Spill *spill.Cache
	// Future has the running jobs, by which Spill evicts. Default: one of the engine's own.
	Future *spill.Future
	// Peers are the other nodes of a cluster, asked between the spill and the store
	// for what they own; nil if there are none. It stays the caller's to close, after
	// the engine.
	Peers *peers.Tier
	// Requests says what requests to buckets cost, and shares their budget with other nodes; nil: no price is known, and
	// nothing is shared. It is what the store's buckets are counted and paced by.
	Requests *object.Requests
	// Lineage records what streams hand out; nil for nowhere. It stays the caller's to close,
	// after the engine.
	Lineage *lineage.Log
	// Operators bounds what operators take. Its Ledger, Logger and Cache are the engine's.
	Operators operators.Options
	// Kinds compiles the operators of requests, by kind of samples. Default: [OperatorKinds].
	Kinds operators.Kinds
	// Layouts says which node of a cluster owns what. Default: this server is in none.
	Layouts Layouts
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.WindowBytes == 0 {
		o.WindowBytes = 512 << 20
	}
	o.Memory.Windows = o.WindowBytes
	o.Memory.EnsureDefaults()
	if o.ReadTimeout == 0 {
		o.ReadTimeout = read.DefaultReadTimeout
	}
	if o.Future == nil {
		o.Future = &spill.Future{}
	}
	if o.Kinds == nil {
		o.Kinds = OperatorKinds()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
// The parts of the engine check what they are given of the rest.
func (o *Options) Validate() error {
	if o.WindowBytes < 1 {
		return fmt.Errorf("%w: WindowBytes is %d; want a positive number of bytes", schema.ErrInvalid, o.WindowBytes)
	}
	return o.Memory.Validate()
}

// ErrSteered is [resolve.ErrSteered].
var ErrSteered = resolve.ErrSteered

// Types that the engine returns.
type (
	// Job is a request resolved against a snapshot.
	Job = resolve.Job
	// Layouts says which node owns what.
	Layouts = resolve.Layouts
	// Sampling is what a job's sample comes to.
	Sampling = resolve.Sampling
	// Packing is what becomes of the documents of a job whose rows are sequences.
	Packing = resolve.Packing
	// Bucketing says what becomes of samples that go together by length.
	Bucketing = resolve.Bucketing
	// Resolved is a request resolved with its snapshot's record, without the manifest.
	Resolved = resolve.Resolved
	// Stream serves a ticket.
	Stream = prefetch.Stream
	// Batch is one record batch of a stream.
	Batch = prefetch.Batch
	// Wait says where the time of a batch went.
	Wait = prefetch.Wait
	// Fault is a sample that could not be read.
	Fault = prefetch.Fault
	// WarmProgress is how far a Warm is.
	WarmProgress = upcoming.WarmProgress
	// Caller is on whose behalf something is done.
	Caller = store.Caller
	// Terms are what a tenant gets.
	Terms = admission.Terms
)

// WithCaller returns a context that carries the caller, down to the store.
func WithCaller(ctx context.Context, c Caller) context.Context { return store.WithCaller(ctx, c) }

// CallerFrom returns the caller that ctx carries.
func CallerFrom(ctx context.Context) Caller { return store.CallerFrom(ctx) }

// Engine serves plans from a store. It is safe for concurrent use.
type Engine struct {
	opts     Options
	store    store.Store
	ledger   *admission.Ledger
	work     *admission.Work
	spans    *spans.Tier
	reader   *read.Reader
	jobs     *resolve.Resolver
	upcoming *upcoming.Jobs // nil without a spill
	stage    *operators.Stage
	set      *prefetch.Set

	calibrated calibrated
}

// NewEngine returns an engine over s, which stays the caller's to close, after
// the engine.
func NewEngine(s store.Store, opts Options) (*Engine, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	catalog := store.Patient(s, opts.ReadTimeout)
	e := &Engine{opts: opts, store: catalog, ledger: admission.NewLedger(opts.Memory), work: admission.NewWork(0)}
	var list []read.Tier
	if opts.Spill != nil {
		list = append(list, read.Spill(opts.Spill))
	}
	// A lone node has all blobs, asks no other, and shares nothing.
	var owns, notOwner, spare func(schema.BlobRef) bool
	var forward func(schema.BlobRef, bool) bool
	var sendProgress func([]peers.Progress)
	sharers := func() int { return 1 }
	if opts.Peers != nil {
		list, owns, forward, notOwner = append(list, opts.Peers), opts.Peers.Owns, opts.Peers.Forward, opts.Peers.NotOwner
		sendProgress = shareProgress(opts.Requests, opts.Peers.SendProgress)
		sharers = func() int { return 1 + opts.Peers.Nodes() }
		if spare = opts.Peers.Spare; opts.Spill != nil {
			opts.Spill.SetSpare(spare)
		}
	}
	var price func(bucket string) (request, each float64, ok bool)
	if opts.Requests != nil {
		price = opts.Requests.Price
	}
	var errs [6]error
	e.spans, errs[5] = spans.New(spans.Options{
		Store: s, Cache: opts.Spill, Future: opts.Future, Sharers: sharers, Memory: opts.WindowBytes / 2,
		// There is what looks ahead before anything is read.
		Neighbours: func(at spill.Place, after bool) iter.Seq2[schema.BlobRef, spill.Place] {
			return e.upcoming.Neighbours(at, after)
		},
		Near:  func(ctx context.Context, dataset uint32, positions []int64) { e.upcoming.Near(ctx, dataset, positions) },
		Bytes: func(dataset uint32) int64 { return e.upcoming.Bytes(dataset) / int64(sharers()) },
		Waits: func() bool { return e.upcoming.Waits() }, Price: price,
	})
	if errs[5] != nil {
		return nil, errs[5]
	}
	e.reader, errs[0] = read.New(append(list, e.spans), read.Options{
		MaxReads: opts.MaxReads, ReadTimeout: opts.ReadTimeout, NoHedge: opts.NoHedge, Keeps: owns, Sharers: sharers,
		Prover: store.ProverOf(s), Logger: opts.Logger,
	})
	if errs[0] != nil {
		return nil, errs[0]
	}
	e.jobs = resolve.New(catalog, e.readPage, e.ledger, e.work, resolve.Options{
		IdleSnapshots: opts.IdleSnapshots, Resident: opts.Resident, Layouts: opts.Layouts, Kinds: opts.Kinds,
		Logger: opts.Logger, MaxSelections: opts.MaxSelections,
	})
	if opts.Spill != nil {
		opts.Operators.Cache = opts.Spill
	}
	opts.Operators.Ledger, opts.Operators.Logger = e.ledger, opts.Logger
	if e.stage, errs[4] = operators.NewStage(opts.Operators); errs[4] != nil {
		return nil, errs[4]
	}
	if opts.Spill != nil {
		e.upcoming, errs[2] = upcoming.New(upcoming.Options{
			Cache: opts.Spill, Future: opts.Future, Reader: e.reader, Owns: owns, Spare: spare,
		})
	}
	var early prefetch.There
	if e.upcoming != nil {
		early = there{e}
	}
	e.set, errs[3] = prefetch.NewSet(prefetch.Options{
		WindowBytes: opts.WindowBytes, Ledger: e.ledger, Reader: e.reader, Stage: e.stage, Upcoming: e.upcoming,
		MaxPrefetch: opts.MaxPrefetch, There: early,
		SendProgress: sendProgress, Forward: forward, NotOwner: notOwner, Lineage: opts.Lineage,
	})
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if opts.Terms != nil {
		e.SetTerms(opts.Terms)
	}
	if e.upcoming != nil {
		e.reader.WakeIdle(e.upcoming)
	}
	e.upcoming.Start(e.set)
	s.SetInUse(e.jobs.InUse)
	if opts.Spill != nil {
		opts.Spill.SetInUse(e.jobs.NamesInUse)
	}
	return e, nil
}

// there is what streams may begin before its turn: see [prefetch.There].
type there struct{ engine *Engine }

// Is implements prefetch.There.
func (t there) Is(ref schema.BlobRef) bool {
	return t.engine.upcoming.Holds(t.engine.reader.Known(ref)) || t.engine.spans.Coming(ref)
}

// News implements prefetch.There.
func (t there) News() int64 { return t.engine.opts.Spill.Written() + t.engine.spans.Begun() }

// readPage reads a page of a manifest. The spill caches pages that are used again. A page
// from the spill is copied, because pages stay in memory as long as there is room, and
// would pin as much of the spill.
func (e *Engine) readPage(ctx context.Context, ref schema.BlobRef, at manifest.Place) (schema.Blob, error) {
	if e.opts.Spill == nil || at.Snapshot == "" {
		return e.reader.Get(ctx, ref)
	}
	blob, err := e.reader.GetAt(ctx, ref, spill.PageAt(e.opts.Spill.Dataset(at.Snapshot), at.Start))
	if err != nil {
		return blob, err
	}
	defer blob.Release()
	var page []byte
	err = schema.Guard(func() error {
		page = bytes.Clone(blob.Bytes())
		return nil
	})
	return schema.NewBlob(page, nil), err
}

// SetTerms has tenants get what terms says, those included that have something now; nil
// has all get the same. It is called again whenever terms says something else than
// before. terms must not block: it is called with locks held.
func (e *Engine) SetTerms(terms func(tenant string) Terms) {
	e.ledger.SetTerms(terms)
	e.work.SetTerms(terms)
	if e.opts.Spill != nil {
		var share func(string) float64
		if terms != nil {
			share = func(tenant string) float64 { return terms(tenant).Spill }
		}
		e.opts.Spill.SetShares(share)
	}
	e.stage.SetTerms(terms)
	e.set.SetTerms(terms)
}

// Store returns the store that the engine reads. Looks into its catalog take ReadTimeout at most.
func (e *Engine) Store() store.Store { return e.store }

// Ledger returns the account of the memory that requests take.
func (e *Engine) Ledger() *admission.Ledger { return e.ledger }

// Work returns the turns that long work of the processors takes, so that streams
// go on beside it.
func (e *Engine) Work() *admission.Work { return e.work }

// Close ends all streams, waits until each is closed and none of the engine's
// goroutines runs, and closes the snapshots that no batch still points into.
func (e *Engine) Close() error {
	e.set.Close()
	e.reader.Close()
	e.upcoming.Stop()
	e.set.Wait()
	e.stage.Close()
	e.upcoming.Close()
	e.jobs.Close()
	e.spans.Close()
	return nil
}

// Open resolves a request. Errors wrap schema.ErrInvalid or ErrNotFound where
// the request is at fault. The caller closes the job.
func (e *Engine) Open(ctx context.Context, req schema.Request) (*Job, error) {
	ctx, span := begin(ctx, "plan", attribute.String("bowstring.dataset", req.Names()))
	j, err := e.jobs.Open(ctx, req)
	end(span, err)
	return j, err
}

// OpenEarly opens a job about which the caller gets no information before its Confirm: see
// [resolve.Resolver.OpenEarly].
func (e *Engine) OpenEarly(ctx context.Context, req schema.Request) (*Job, error) {
	ctx, span := begin(ctx, "plan", attribute.String("bowstring.dataset", req.Names()))
	j, err := e.jobs.OpenEarly(ctx, req)
	end(span, err)
	return j, err
}

// OpenRecent opens datasets that will probably be asked for: see [resolve.Resolver.OpenRecent].
func (e *Engine) OpenRecent() <-chan struct{} { return e.jobs.OpenRecent() }

// Pin puts the number of a snapshot in the place of its tag: see [resolve.Resolver.Pin].
func (e *Engine) Pin(ctx context.Context, req schema.Request) (schema.Request, error) {
	return e.jobs.Pin(ctx, req)
}

// Steer changes the weights of a run from outside: see [resolve.Resolver.Steer].
func (e *Engine) Steer(ctx context.Context, dataset, run string, c schema.MixtureChange,
	from *int64) (*store.Run, int64, error) {
	return e.jobs.Steer(ctx, dataset, run, c, from)
}

// PlanID is what Job.ID would be of a request: see [resolve.Resolver.ID].
func (e *Engine) PlanID(ctx context.Context, req schema.Request) (string, error) {
	return e.jobs.ID(ctx, req)
}

// Resolve resolves a request without opening a manifest: see [resolve.Resolver.Resolve].
func (e *Engine) Resolve(ctx context.Context, snap *schema.Snapshot, req schema.Request) (*Resolved, error) {
	return e.jobs.Resolve(ctx, snap, req)
}

// Schema is what batches of a request look like, of a snapshot whose manifest need not be open.
func (e *Engine) Schema(ctx context.Context, snap *schema.Snapshot, req schema.Request) (*arrow.Schema, error) {
	return e.jobs.Schema(ctx, snap, req)
}

// MixtureSchema is what batches of a request for a mixture look like: see [resolve.Resolver.MixtureSchema].
func (e *Engine) MixtureSchema(ctx context.Context, snaps []*schema.Snapshot, req schema.Request) (*arrow.Schema, error) {
	return e.jobs.MixtureSchema(ctx, snaps, req)
}

// KnownBytes is what TotalBytes would be of an outline, if that is known: see
// [resolve.Resolver.KnownBytes].
func (e *Engine) KnownBytes(o *Resolved) (int64, bool) { return e.jobs.KnownBytes(o) }

// Stream starts to serve a ticket of the job. The stream ends with ctx.
func (e *Engine) Stream(ctx context.Context, j *Job, t schema.Ticket) (*Stream, error) {
	return e.set.Open(ctx, j, t, Serving{})
}

// Serving says how a stream is served: see [prefetch.Serving].
type Serving = prefetch.Serving

// Serve starts to serve a ticket of the job as how says. The stream ends with ctx.
func (e *Engine) Serve(ctx context.Context, j *Job, t schema.Ticket, how Serving) (*Stream, error) {
	return e.set.Open(ctx, j, t, how)
}

// Take starts to serve the samples at the given positions: see [prefetch.Set.Take].
func (e *Engine) Take(ctx context.Context, j *Job, positions []int64) (*Stream, error) {
	return e.set.Take(ctx, j, positions)
}

// Types for the blobs that other nodes read from this one.
type (
	// PeerRead is a blob that another node wants.
	PeerRead = prefetch.PeerRead
	// Answer is what became of a peer read.
	Answer = prefetch.Answer
	// Requester is another node.
	Requester = prefetch.Requester
)

// NewRequester makes a requester: see [prefetch.Set.NewRequester].
func (e *Engine) NewRequester(answer func(Answer)) *Requester { return e.set.NewRequester(answer) }

// Warm fills the spill with what a job will use: see [upcoming.Jobs.Warm].
func (e *Engine) Warm(ctx context.Context, j *Job, progress func(WarmProgress)) error {
	return e.upcoming.Warm(ctx, j, store.CallerFrom(ctx).Tenant, progress)
}

// TotalBytes is the size of everything that the plan serves: see [resolve.Resolver.TotalBytes].
func (e *Engine) TotalBytes(ctx context.Context, j *Job) (int64, error) {
	ctx, span := begin(ctx, "count bytes")
	n, err := e.jobs.TotalBytes(ctx, j)
	end(span, err)
	return n, err
}

// SaveSelection stores a set of positions of a snapshot under a hash of both, which it returns: the name by which
// requests select it.
func (e *Engine) SaveSelection(ctx context.Context, dataset string, snapshot int64,
	positions []int64) (name string, err error) {
	return e.jobs.SaveSelection(ctx, dataset, snapshot, positions)
}

// Drop removes a snapshot, or with number 0 the whole dataset; streams that have
// it open read on.
func (e *Engine) Drop(ctx context.Context, dataset string, number int64) error {
	defer e.jobs.Doubt(dataset)
	return e.store.Drop(ctx, dataset, number)
}

// GC collects the store's garbage, keeping what live streams read.
func (e *Engine) GC(ctx context.Context, opts store.GCOptions) (store.GCReport, error) {
	// Idle open snapshots need not be kept. Closing them also releases the chunks of
	// dropped snapshots.
	e.jobs.CloseIdle()
	return e.store.GC(ctx, opts, e.jobs.InUse)
}

// Demand says what streams have asked for, and how long their consumers waited,
// since the engine was made.
func (e *Engine) Demand() spill.Demand { return e.set.Demand() }

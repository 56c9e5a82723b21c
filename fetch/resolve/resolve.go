package resolve

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/manifest"
	"bowstring/fetch/operators"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// DefaultMaxSelections is the default of Options.MaxSelections.
const DefaultMaxSelections = 10_000

// Options tunes a Resolver. The zero value of each field stands for its default.
type Options struct {
	// IdleSnapshots is how many snapshots nobody reads stay open, so that the
	// next job need not open them again. Default 8.
	IdleSnapshots int
	// SelectionLifetime is for how long an uploaded selection is kept after it was
	// used last, to a day. Default 30 days.
	SelectionLifetime time.Duration
	// MaxSelections is how many selections of a dataset one caller may have uploaded that have not expired; negative for
	// any number. Default 10,000.
	MaxSelections int
	// Resident is up to how many bytes a manifest may have to be read whole when it is
	// opened, and stay in memory; negative for none. Default 16 MiB.
	Resident int64
	// ReadPage reads a blob of a manifest, which may be kept for its place. Default is what reads other blobs.
	ReadPage manifest.ReadFunc
	// Worthwhile is how long the catalog has to take for an answer that OpenEarly does not wait for. One that answers
	// sooner costs less than reading what nobody wants would, where the answer is another one. Default 5 ms.
	Worthwhile time.Duration
	// Layouts says which node owns what. Default: those of a server that is in no cluster.
	Layouts Layouts
	// Kinds compiles the operators of requests. Default: there are none.
	Kinds operators.Kinds
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.IdleSnapshots == 0 {
		o.IdleSnapshots = 8
	}
	if o.SelectionLifetime == 0 {
		o.SelectionLifetime = 30 * 24 * time.Hour
	}
	if o.MaxSelections == 0 {
		o.MaxSelections = DefaultMaxSelections
	}
	if o.Worthwhile == 0 {
		o.Worthwhile = 5 * time.Millisecond
	}
	if o.Layouts == nil {
		o.Layouts = lone{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	if o.IdleSnapshots < 0 {
		return fmt.Errorf("%w: IdleSnapshots is %d; want how many may stay open, or 0 for the default",
			schema.ErrInvalid, o.IdleSnapshots)
	}
	if o.SelectionLifetime < 0 {
		return fmt.Errorf("%w: SelectionLifetime is %s; want a time, or 0 for the default", schema.ErrInvalid,
			o.SelectionLifetime)
	}
	if o.Worthwhile < 0 {
		return fmt.Errorf("%w: Worthwhile is %s; want a time, or 0 for the default", schema.ErrInvalid, o.Worthwhile)
	}
	return nil
}

// ReadFunc reads a blob of a snapshot's manifest or of a selection, with what
// retries there are. Its user releases the blob.
type ReadFunc func(context.Context, schema.BlobRef) (schema.Blob, error)

// Resolver opens jobs over the snapshots of a store. It is safe for concurrent use.
type Resolver struct {
	store     store.Store
	read      ReadFunc
	work      *admission.Work
	logger    *slog.Logger
	snapshots snapshotCache
	results   results
	computing computations[*result]
	renewals  renewals
	layouts   Layouts
	kinds     operators.Kinds
	assigning computations[*stepShare]
	ahead     ahead

	sharingsMu sync.Mutex
	sharings   map[string]*sharing // by what is the same in all epochs
}

// New returns a Resolver over a store, which stays the caller's. read reads blobs;
// memory is counted in the ledger, and long work done by turns. The error is of
// opts.Validate.
func New(s store.Store, read func(context.Context, schema.BlobRef) (schema.Blob, error), ledger *admission.Ledger,
	work *admission.Work, opts Options) (*Resolver, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	j := &Resolver{
		store: s, read: read, work: work, logger: opts.Logger,
		results:   results{ledger: ledger, kept: map[string]*result{}},
		computing: computations[*result]{logger: opts.Logger},
		assigning: computations[*stepShare]{logger: opts.Logger},
		layouts:   opts.Layouts, kinds: opts.Kinds, sharings: map[string]*sharing{},
		renewals: renewals{store: s, logger: opts.Logger, lifetime: opts.SelectionLifetime,
			most: max(opts.MaxSelections, 0),
			due:  map[string]time.Time{}},
	}
	if opts.ReadPage == nil {
		opts.ReadPage = func(ctx context.Context, ref schema.BlobRef, _ manifest.Place) (schema.Blob, error) {
			return read(ctx, ref)
		}
	}
	pages, err := manifest.NewCache(opts.ReadPage, ledger,
		manifest.Options{Resident: opts.Resident, Logger: opts.Logger})
	if err != nil {
		return nil, err
	}
	j.snapshots.init(s, pages, opts)
	j.ahead.init()
	return j, nil
}

// InUse lists the snapshots that somebody uses.
func (rv *Resolver) InUse() []*schema.Snapshot { return rv.snapshots.inUse() }

// NamesInUse are the names of the snapshots that somebody uses, as of SnapshotName.
func (rv *Resolver) NamesInUse() map[string]bool {
	names := map[string]bool{}
	for _, s := range rv.InUse() {
		names[snapshotKey{s.Dataset, s.Number}.String()] = true
	}
	return names
}

// OpenSnapshots is how many snapshots are open, used or not.
func (rv *Resolver) OpenSnapshots() int { return rv.snapshots.open() }

// CloseIdle closes every snapshot that nobody uses.
func (rv *Resolver) CloseIdle() { rv.snapshots.closeIdle() }

// Doubt has the catalog asked about the snapshots of a dataset, before one is
// used again.
func (rv *Resolver) Doubt(dataset string) { rv.snapshots.doubt(dataset) }

// Close ends what is being computed, waits for it, and closes the snapshots that
// nobody uses, now and whenever one is used no more. No job can be opened
// afterwards.
func (rv *Resolver) Close() {
	rv.ahead.end()
	rv.computing.close()
	rv.assigning.close()
	rv.snapshots.close()
	rv.results.close()
}

// derive returns a result over a snapshot, with a hold for the caller: the one
// that is kept under what, or else computed. The caller has a hold of reads.
// compute returns the result with nothing but its value and memory set.
func (rv *Resolver) derive(ctx context.Context, key snapshotKey, what string, reads held,
	compute func(context.Context) (*result, error)) (*result, error) {
	name := resultKey(key, what)
	if r := rv.results.get(name); r != nil {
		return r, nil
	}
	return rv.computing.do(ctx, name, reads, func(ctx context.Context) (*result, error) {
		if r := rv.results.get(name); r != nil {
			return r, nil // it was added since it was looked for
		}
		r, err := compute(ctx)
		if err != nil {
			return nil, err
		}
		return rv.results.add(name, r), nil
	})
}

// resultKey names a result over a snapshot. Expressions are long, and so hashed.
func resultKey(key snapshotKey, what string) string {
	sum := sha256.Sum256([]byte(what))
	return key.String() + "\x00" + string(sum[:])
}

// turn runs a short piece of long work when it is the caller's turn. A panic in
// it, in whatever goroutine, is an error.
func (rv *Resolver) turn(ctx context.Context, piece func() error) error {
	return rv.work.Do(ctx, store.CallerFrom(ctx).Tenant, func() (err error) {
		defer recovered(ctx, rv.logger, &err)
		return piece()
	})
}

// Package resolve turns a request into a [Job]: it opens snapshots, computes selections,
// and adds up sizes.
//
// It knows nothing of streams, tiers or transports: its caller supplies the function that
// reads a blob. It keeps manifests open while jobs, streams and batches use them. It
// caches the results that were computed from their rows.
//
// Begin reading with [Resolver.Open] and the type [Job].
package resolve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/admission"
	"bowstring/fetch/manifest"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/tokens"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// Options configures a Resolver. Fields that are zero have defaults.
type Options struct {
	// IdleSnapshots is how many unused snapshots stay open, so that the next job need not
	// open them again. Default 72: those of the largest mixture, and 8.
	IdleSnapshots int
	// SelectionLifetime is how long an uploaded selection is kept after its last use, to
	// the day. Default: 30 days.
	SelectionLifetime time.Duration
	// MaxSelections is how many unexpired selections one caller may have uploaded for a
	// dataset; negative for no limit. Default: 10,000.
	MaxSelections int
	// Resident is the size in bytes up to which a manifest is read whole when it is
	// opened, and stays in memory; negative for none. Default: 16 MiB.
	Resident int64
	// Worthwhile is the least time that the catalog must take to answer for OpenEarly not to
	// wait for it. If the catalog answers sooner, waiting costs less than reading rows of a
	// snapshot that proves to be the wrong one. Default 5 ms.
	Worthwhile time.Duration
	// Layouts finds the layouts of the cluster. Default: that of a server outside a
	// cluster.
	Layouts Layouts
	// Kinds compiles the operators of requests. Default: none exist.
	Kinds operators.Kinds
	// Logger receives messages for operators. Default: slog.Default().
	Logger *slog.Logger
}

// Resolver opens jobs over the snapshots of a store. It is safe for concurrent use.
type Resolver struct {
	store     store.Store
	read      manifest.ReadFunc
	work      *admission.Work
	logger    *slog.Logger
	snapshots snapshotCache
	results   results
	computing computations[*result]
	renewals  renewals
	layouts   Layouts
	kinds     operators.Kinds
	assigning computations[*stepShare]
	opening   opening

	sharingsMu sync.Mutex
	sharings   map[string]*sharing // by the digest of a request without its epoch; guarded by sharingsMu
}

// New returns a Resolver over a store, which the caller closes after the Resolver. read
// reads blobs with retries: those of manifests, and, with a zero place, those of
// selections. The blobs belong to the Resolver, which releases them. The ledger accounts
// for memory. Long computations take turns of work.
func New(s store.Store, read manifest.ReadFunc, ledger *admission.Ledger, work *admission.Work, opts Options) *Resolver {
	opts.IdleSnapshots = cmp.Or(opts.IdleSnapshots, schema.MaxSources+8)
	opts.Worthwhile = cmp.Or(opts.Worthwhile, 5*time.Millisecond)
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	rv := &Resolver{
		store: s, read: read, work: work, logger: opts.Logger,
		results:   results{ledger: ledger, kept: map[string]*result{}},
		computing: computations[*result]{logger: opts.Logger},
		assigning: computations[*stepShare]{logger: opts.Logger},
		layouts:   cmp.Or[Layouts](opts.Layouts, lone{}), kinds: opts.Kinds, sharings: map[string]*sharing{},
		renewals: renewals{store: s, logger: opts.Logger, lifetime: cmp.Or(opts.SelectionLifetime, 30*24*time.Hour),
			most: max(cmp.Or(opts.MaxSelections, 10_000), 0), due: map[string]time.Time{}},
	}
	rv.snapshots.init(s, manifest.NewCache(read, ledger, opts.Resident, opts.Logger), opts)
	rv.opening.init()
	return rv
}

// InUse lists the snapshots that jobs, streams or batches use.
func (rv *Resolver) InUse() []*schema.Snapshot { return rv.snapshots.inUse() }

// NamesInUse returns the names of the snapshots in use, in the form of SnapshotName.
func (rv *Resolver) NamesInUse() map[string]bool {
	names := map[string]bool{}
	for _, s := range rv.InUse() {
		names[snapshotKey{s.Dataset, s.Number}.String()] = true
	}
	return names
}

// OpenSnapshots is the number of open snapshots, used or not.
func (rv *Resolver) OpenSnapshots() int { return rv.snapshots.open() }

// CloseIdle closes all unused snapshots.
func (rv *Resolver) CloseIdle() { rv.snapshots.closeIdle() }

// Doubt makes the Resolver ask the catalog about the snapshots of a dataset before it
// uses one again. It is called after a drop.
func (rv *Resolver) Doubt(dataset string) { rv.snapshots.doubt(dataset) }

// Close cancels running computations, waits for them, and closes unused snapshots; others
// are closed when they are released. No job can be opened afterwards.
func (rv *Resolver) Close() {
	rv.opening.end()
	rv.computing.close()
	rv.assigning.close()
	rv.snapshots.close()
	rv.results.close()
}

// derive returns a result over a snapshot, with a hold for the caller: the cached one
// with the name what, or a computed one. The caller has a hold of reads. compute sets
// only the value and the memory of the result.
func (rv *Resolver) derive(ctx context.Context, key snapshotKey, what string, reads held,
	compute func(context.Context) (*result, error)) (*result, error) {
	name := resultKey(key, what)
	if r := rv.results.get(name); r != nil {
		return r, nil
	}
	return rv.computing.do(ctx, name, reads, func(ctx context.Context) (*result, error) {
		if r := rv.results.get(name); r != nil {
			return r, nil // another call has just added it
		}
		r, err := compute(ctx)
		if err != nil {
			return nil, err
		}
		return rv.results.add(name, r), nil
	})
}

// resultKey names a result over a snapshot. what may contain a long expression, so it is
// hashed.
func resultKey(key snapshotKey, what string) string {
	sum := sha256.Sum256([]byte(what))
	return key.String() + "\x00" + string(sum[:])
}

// turn runs a short piece of a long computation when it is the caller's turn. A panic in
// the piece is an error.
func (rv *Resolver) turn(ctx context.Context, piece func() error) error {
	return rv.work.Do(ctx, store.CallerFrom(ctx).Tenant, func() (err error) {
		defer recovered(ctx, rv.logger, &err)
		return piece()
	})
}

// Resolved is a request as far as the record of its snapshot determines it: everything
// except the rows. It is immutable.
type Resolved struct {
	Request    schema.Request // with the snapshot's number, never a tag, and the defaults filled in
	ID         string         // as of Job.ID
	Plan       *plan.Plan     // if no rows were read, it has no buckets; these change neither counts nor sizes
	Projection *schema.Projection
	Operators  *operators.Set   // nil if there are none
	own        []*operators.Set // by source of a mixture; nil if sources have none of their own
	makers     []maker          // of Projection.Computed
	local      *local           // only of a job
	samples    []int64          // selected samples, by source
}

// Resolve resolves a request against a snapshot without opening its manifest. A request
// with where, a selection, a sample, a mixture, a pack or hidden rows is a
// schema.ErrInvalid, because it depends on the rows.
func (rv *Resolver) Resolve(ctx context.Context, snap *schema.Snapshot, req schema.Request) (*Resolved, error) {
	if req.Where != "" || req.Selection != nil || req.Sample != nil || req.Within.HidesRows() || req.Mixture != nil ||
		req.Pack != nil {
		return nil, fmt.Errorf("%w: a resolved request of where, a selection, a sample, a mixture or a pack", schema.ErrInvalid)
	}
	req, shown, err := rv.fill(ctx, snap, req)
	if err != nil {
		return nil, err
	}
	selection, err := splitSelection(snap, req.Split)
	if err != nil {
		return nil, err
	}
	return newResolved(req, shown, []source{{selection: selection}}, nil, &holdings{})
}

// ID returns the Job.ID of a request, which depends on no row. If the request names
// snapshot and batch, as those of resolved jobs do, ID looks nothing up, and the snapshot
// may have been dropped.
func (rv *Resolver) ID(ctx context.Context, req schema.Request) (string, error) {
	if err := req.Check(); err != nil {
		return "", err
	}
	req, err := rv.Pin(ctx, req)
	if err != nil {
		return "", err
	}
	if req.Mixture != nil {
		return rv.mixtureID(ctx, req)
	}
	// The request is completed only if something is missing. Otherwise its digest is the
	// id.
	if req.Snapshot == 0 || req.Batch == 0 || req.BucketByLength != nil && req.BucketByLength.Window == 0 ||
		!req.Operators.Resolved() || req.Pack != nil && !packFilled(req.Pack) || req.Assign == schema.AssignLocal && req.Owners == "" {
		snap, err := rv.store.Snapshot(ctx, req.Dataset, req.Snapshot)
		if err != nil {
			return "", err
		}
		if req, _, err = rv.fill(ctx, snap, req); err != nil {
			return "", err
		}
		if req, _, err = rv.localize(ctx, snap, req); err != nil {
			return "", err
		}
	}
	return digest(req), nil
}

// Schema returns the schema of a request's batches.
func (rv *Resolver) Schema(ctx context.Context, snap *schema.Snapshot, req schema.Request) (*arrow.Schema, error) {
	_, s, err := rv.fill(ctx, snap, req)
	if err != nil {
		return nil, err
	}
	return s.projection.Schema, nil
}

// shown is what a request serves of samples: the columns, and the operators that make
// them.
type shown struct {
	projection *schema.Projection
	operators  *operators.Set
	own        []*operators.Set // by source of a mixture; nil if sources have none of their own
	makers     []maker          // for the columns in projection.Computed
}

// fill completes a request: with the snapshot's number, the defaults that depend on its
// columns, and operators in canonical form. Equal jobs then have equal requests, and
// equal ids. fill reads no rows. Its order matters: operators decide which columns exist,
// columns decide the default batch, and the batch decides the default window.
func (rv *Resolver) fill(ctx context.Context, snap *schema.Snapshot, req schema.Request) (schema.Request, shown, error) {
	req.Snapshot, req.Tag = snap.Number, ""
	var s shown
	var err error
	if own := req.Mixture.Operated(); own || req.Operators != nil {
		if own {
			if req, s, err = rv.compileSources(snap, req); err != nil {
				return req, s, err
			}
		} else if s.operators, err = operators.CompileSet(rv.kinds, snap.Schema, req.Within, req.Operators); err != nil {
			return req, s, err
		}
		if req.Operators != nil {
			req.Operators = s.operators.Canonical()
		}
		if err := s.compile(ctx, rv.turn, snap, req); err != nil {
			return req, s, err
		}
		if len(s.operators.Forms()) == 0 {
			s.operators = nil // no blob is changed
		}
		if req.Place != schema.PlaceClient {
			req.Place = ""
		}
		if err := req.Check(); err != nil { // in canonical form they are longer
			return req, s, err
		}
	}
	if req.Place == schema.PlaceClient {
		// They are checked here, and the client runs them.
		if err := checkElsewhere(snap, req, s.operators); err != nil {
			return req, s, err
		}
		s.operators = nil
	}
	columns := req.Columns
	if req.Pack != nil {
		columns = schema.PackedColumns(snap, req.Within, columns, s.fields())
	}
	if s.projection, err = schema.NewProjectionWithin(snap, req.Within, columns, req.Layout,
		s.operators.Forms(), s.fields()); err != nil {
		return req, s, err
	}
	// A packed request serves sequences. Their columns are made from those of documents,
	// so the projection of the documents comes first.
	if req.Pack != nil {
		if s.projection, err = s.projection.Packed(snap, req.Within, req.Columns, req.Pack); err != nil {
			return req, s, err
		}
		if req.Pack, err = fillPack(snap, req); err != nil {
			return req, s, err
		}
	}
	if req.Slices != nil {
		if s.projection, err = s.projection.Sliced(snap, req.Within, req.Slices, req.World); err != nil {
			return req, s, err
		}
	}
	s.order()
	if req.Place == schema.PlaceClient {
		s.projection = s.projection.WithOperators(req.Operators)
	}
	if err := checkShown(snap, req, s.projection); err != nil {
		return req, s, err
	}
	if req.Batch == 0 {
		req.Batch = schema.DefaultBatch
		if len(s.projection.BlobColumns()) == 0 && req.BucketByLength == nil && req.Pack == nil {
			req.Batch = schema.DefaultMetaBatch
		}
	}
	if err := checkSample(snap, req); err != nil {
		return req, s, err
	}
	if err := rv.checkCost(ctx, snap, req); err != nil {
		return req, s, err
	}
	// These defaults depend on the batch.
	req.Shuffle = fillBlocks(snap, req)
	req, err = fillBuckets(snap, req)
	return req, s, err
}

// checkElsewhere returns an error if a request whose operators run at the client has a
// column that describes what they made.
func checkElsewhere(snap *schema.Snapshot, req schema.Request, set *operators.Set) error {
	for i, name := range req.Columns {
		if _, _, ok := schema.MadePart(snap.Schema, set.Forms(), name); ok {
			return &schema.FieldError{Field: fmt.Sprintf("columns[%d]", i), Got: schema.Quote(name) + ` with place "client"`,
				Want: "it left out: it describes what operators made, and they run at the client"}
		}
	}
	return nil
}

// checkShown returns an error if a column with operators is not served: its name may be a
// typing error.
func checkShown(snap *schema.Snapshot, req schema.Request, p *schema.Projection) error {
	read := map[string]bool{}
	blobs := schema.BlobFields(snap.Schema)
	for _, ordinal := range p.BlobColumns() {
		read[blobs[ordinal].Name] = true
	}
	for _, f := range p.Computed() {
		read[f.Name] = true
	}
	for _, name := range slices.Concat(req.Operators.Columns(), req.Operators.Computed()) {
		if !read[name] {
			return notShown(name)
		}
	}
	if !req.Mixture.Operated() {
		return nil
	}
	for i, leaf := range req.Mixture.Leaves() {
		for _, name := range leaf.Operators.Columns() {
			if !read[name] {
				return &SourceError{i, leaf.Called(), notShown(name)}
			}
		}
	}
	return nil
}

// notShown is the error for operators of a column that is not served.
func notShown(name string) error {
	return &schema.FieldError{Field: "operators." + schema.Shown(name), Got: "a column that columns does not name",
		Want: "it left out, or the column to be shown"}
}

// newResolved makes the plan of a completed request.
func newResolved(req schema.Request, s shown, sources []source, buckets *plan.Buckets, has *holdings) (*Resolved, error) {
	cfg, err := planConfig(req, sources, buckets, has)
	if err != nil {
		return nil, err
	}
	p, err := plan.New(cfg)
	if err != nil {
		return nil, err
	}
	o := &Resolved{Request: req, ID: digest(req), Plan: p, Projection: s.projection, Operators: s.operators, own: s.own, makers: s.makers}
	for i := range sources {
		o.samples = append(o.samples, sources[i].selection.Len())
	}
	return o, nil
}

// planConfig returns the configuration of a request's plan.
func planConfig(req schema.Request, sources []source, buckets *plan.Buckets, has *holdings) (cfg plan.Config, err error) {
	cfg = plan.Config{Batch: req.Batch, World: int(req.DataRanks()), Buckets: buckets}
	if sample := has.sample; sample != nil {
		cfg.Weights, cfg.Replacement, cfg.Balance = sample.weights, req.Sample.Replaces(), sample.balance
		cfg.EpochRows = cmp.Or(req.Sample.EpochSize, sources[0].selection.Len())
	}
	if has.pack != nil {
		cfg.Pack = has.pack.pack
	}
	if cfg.Remainder, err = plan.ParseRemainder(req.Remainder); err != nil {
		return cfg, err
	}
	if req.Shuffle != nil {
		cfg.Shuffle, cfg.Seed, cfg.Epoch = true, req.Shuffle.Seed, req.Shuffle.Epoch
	}
	if req.Mixture != nil {
		cfg.Mix, err = mix(&req, sources, cfg.Remainder)
		return cfg, err
	}
	cfg.Selection = sources[0].selection
	if req.Shuffle != nil {
		cfg.BlockRows, cfg.ClusterBlocks = req.Shuffle.BlockRows, req.Shuffle.Blocks
	}
	return cfg, nil
}

// Pin replaces the tag of a request by the number of its snapshot, so that the request
// keeps its meaning if the tag moves. A request without a tag is returned as it is. A
// schema.ErrNotFound lists the tags that exist.
func (rv *Resolver) Pin(ctx context.Context, req schema.Request) (schema.Request, error) {
	if req.Mixture != nil {
		return rv.pinMixture(ctx, req)
	}
	if req.Tag == "" {
		return req, nil
	}
	number, err := rv.store.Tagged(ctx, req.Dataset, req.Tag)
	if err != nil {
		return req, err
	}
	req.Snapshot, req.Tag = number, ""
	return req, nil
}

// maker makes a column of metadata, from an expression or from operators on lists of
// tokens.
type maker interface {
	Field() arrow.Field
	// RowBytes bounds the mean size of the column in a row, given the mean size of a
	// row's metadata.
	RowBytes(metadata int64) int64
	// Bytes bounds the memory of the maker itself.
	Bytes() int64
	// Make makes values, as [where.Maker] does.
	Make(ctx context.Context, f *schema.Form, positions []int64, rows []schema.Row,
		turn where.Turn) (schema.Vector, []where.RowFault, error)
}

// compile compiles the expressions and operators that make new columns of a request, from
// the columns that its caller may see. It writes the completed definitions, with the
// contract, into the request. Expressions are compiled in turns.
func (s *shown) compile(ctx context.Context, turn where.Turn, snap *schema.Snapshot, req schema.Request) error {
	visible := req.Within.Visible(snap.Schema)
	for _, name := range req.Operators.Computed() {
		p, at := req.Operators[name], "operators."+schema.Shown(name)
		contract := where.ColumnContract
		if p.Tokens != nil {
			contract = tokens.Contract
		}
		if p.Contract != "" && p.Contract != contract {
			return &schema.FieldError{Field: at + ".contract", Got: schema.Quote(p.Contract),
				Want: strconv.Quote(contract) + ", the version of what runs here: others make other values"}
		}
		p.Contract = contract
		_, _, part := schema.MadePart(visible, s.operators.Forms(), name)
		if _, _, _, ok := schema.BlobPart(visible, name); ok || part || visible.HasField(name) {
			what := "an expression"
			if p.Tokens != nil {
				what = "tokens"
			}
			return &schema.FieldError{Field: at, Got: what + " for a column that there is", Want: "the name of a new column"}
		}
		if p.Tokens != nil {
			m, err := tokens.Compile(name, at, p, visible, req.OnError)
			if err != nil {
				return err
			}
			p.Steps = m.Steps()
			req.Operators[name] = p
			s.makers = append(s.makers, m)
			continue
		}
		m, err := where.CompileColumn(ctx, name, at+".expression", p.Expression, visible, req.OnError, turn)
		if err != nil {
			return err
		}
		for _, used := range m.Columns() { // as checkHidden does
			if req.Within.Hides(snap.Schema, used) {
				return &where.Error{Line: 1, Column: 1, Field: at + ".expression",
					Message: fmt.Sprintf("no column %q", used)}
			}
		}
		req.Operators[name] = p
		s.makers = append(s.makers, m)
	}
	return nil
}

// littleMade is how much memory the makers of a job may take without being counted: that
// of some short expressions. Most requests then need no entry in the ledger.
const littleMade = 64 << 10

// keep reserves memory for the job's expressions, for the tenant of the caller in ctx;
// nil if they take little.
func (s *shown) keep(ctx context.Context, results *results) (*admission.Hold, error) {
	var n int64
	for _, m := range s.makers {
		n += m.Bytes()
	}
	if n <= littleMade {
		return nil, nil //nolint:nilnil // a Hold may be nil
	}
	h, err := results.reserve(store.CallerFrom(ctx).Tenant, n)
	if err != nil {
		return nil, fmt.Errorf("columns that are made of metadata: %w", err)
	}
	return h, nil
}

// fields are the columns that are made from metadata.
func (s *shown) fields() []arrow.Field {
	fields := make([]arrow.Field, len(s.makers))
	for i, m := range s.makers {
		fields[i] = m.Field()
	}
	return fields
}

// order puts the makers in the order of the projection's columns, and drops those of
// columns that are not served.
func (s *shown) order() {
	all := s.makers
	s.makers = nil
	for _, f := range s.projection.Computed() {
		i := slices.IndexFunc(all, func(m maker) bool { return m.Field().Name == f.Name })
		s.makers = append(s.makers, all[i])
	}
}

// ComputedFault is a row for which a column that Projection().Computed names cannot be made.
type ComputedFault struct {
	Row    int
	Column string
	Err    error
}

// Computed makes the columns that Projection().Computed names, for rows that are open. It
// takes turns if that takes long. Rows that cannot be computed are faults, and null; if
// the request's on_error is fail, there is one fault and no column.
func (j *Job) Computed(ctx context.Context, positions []int64, rows []schema.Row) ([]schema.Vector, []ComputedFault,
	error) {
	var out []schema.Vector
	var faults []ComputedFault
	for _, m := range j.resolved.makers {
		v, wrong, err := m.Make(ctx, j.Manifest().Form(), positions, rows, j.turn)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range wrong {
			faults = append(faults, ComputedFault{f.Row, m.Field().Name, f.Err})
		}
		if len(faults) > 0 && !j.Tolerant() {
			return nil, faults, nil
		}
		out = append(out, v)
	}
	return out, faults, nil
}

// ComputedBytes bounds the mean bytes of a row of those columns, given the mean bytes of its metadata.
func (j *Job) ComputedBytes(metadata int64) (n int64) {
	for _, m := range j.resolved.makers {
		n += m.RowBytes(metadata)
	}
	return n
}

package resolve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"

	"bowstring/fetch/admission"
	"bowstring/fetch/manifest"
	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// Job is a request resolved against one or more snapshots: its rows, their order, their
// assignment to ranks, and their columns. It is immutable and safe for concurrent use. It
// keeps the snapshots open until Close. Streams and batches keep them open with Retain.
type Job struct {
	resolved *Resolved
	group    string   // names what is the same in all epochs; streams of a group share the store's throughput
	sources  []source // one, except for a mixture
	rows     manifest.Reader
	turn     where.Turn
	holdings
	run       *run         // nil if weights do not change from outside
	sharing   *sharing     // nil if ranks get the rows that the plan gives them
	asked     *question    // nil if the job was not opened early
	holds     atomic.Int64 // one until Close, and one for each Retain
	closeOnce sync.Once
}

// source is a snapshot from which a job serves samples. The job owns it.
type source struct {
	name      string // in the request; "" if there is only one
	snapshot  *openSnapshot
	asks      schema.Request // selects its samples, and restricts what the caller may see of it
	base      int64          // the job's position of its first sample
	sees      *result        // bitmap of the samples that the caller may see; nil if all
	selection plan.Selection // positions in the snapshot
	result    *result        // that has the selection; nil if the selection takes next to no memory
	mean      *big.Rat       // mean of mixture.by over the selected samples; nil if weights count samples
}

// release releases the snapshot and the computed results.
func (s *source) release() {
	for _, r := range []*result{s.result, s.sees} {
		if r != nil {
			r.Release()
		}
	}
	if s.snapshot != nil {
		s.snapshot.Release()
	}
}

// end is the job's position after its last sample.
func (s *source) end() int64 { return s.base + s.snapshot.manifest.Rows() }

// holdings are the results and memory that a job holds in addition to its sources. Each
// may be nil. They are released with the job.
type holdings struct {
	lengths *result         // lengths of samples, if batches go by length or samples are packed
	costs   *result         // costs of samples, if the ranks of a step are balanced
	pack    *result         // assigns documents to sequences
	windows *admission.Hold // memory of the windows of buckets
	sample  *result         // weights or classes by which samples are drawn
	makers  *admission.Hold // memory of compiled expressions
}

// release releases everything. A nil Hold releases nothing.
func (h *holdings) release() {
	for _, r := range []*result{h.lengths, h.costs, h.pack, h.sample} {
		if r != nil {
			r.Release()
		}
	}
	h.windows.Release()
	h.makers.Release()
}

// Open resolves a request. If the request is at fault, the error wraps schema.ErrInvalid
// or ErrNotFound. The caller closes the job.
func (rv *Resolver) Open(ctx context.Context, req schema.Request) (*Job, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	req, err := rv.Pin(ctx, req)
	if err != nil {
		return nil, err
	}
	return rv.open(ctx, req)
}

// open resolves a request that was checked and names no tag.
func (rv *Resolver) open(ctx context.Context, req schema.Request) (*Job, error) {
	if req.Mixture != nil {
		return rv.openMixture(ctx, req)
	}
	snap, err := rv.snapshots.get(ctx, req.Dataset, req.Snapshot)
	if err != nil {
		return nil, err
	}
	return rv.openOn(ctx, snap, req)
}

// openOn resolves a request for one snapshot. It takes over the caller's hold of the
// snapshot, even if it fails.
func (rv *Resolver) openOn(ctx context.Context, snap *openSnapshot, req schema.Request) (*Job, error) {
	return rv.openJob(ctx, snap.manifest, []source{{snapshot: snap, asks: req}}, req)
}

// openJob resolves a request for samples of sources, whose rows are rows. It takes over
// the holds of their snapshots, even if it fails.
func (rv *Resolver) openJob(ctx context.Context, rows manifest.Reader, sources []source,
	req schema.Request) (_ *Job, err error) {
	var has holdings
	defer func() {
		if err != nil {
			has.release()
			for i := range sources {
				sources[i].release()
			}
		}
	}()
	// The restriction comes first: everything after it is computed from visible rows
	// only.
	if err := each(ctx, sources, func(ctx context.Context, s *source) (err error) {
		s.sees, err = rv.visible(ctx, s.snapshot, s.asks.Within)
		return err
	}); err != nil {
		return nil, err
	}
	// Completing the request depends on the record of the snapshot alone, and reads no
	// rows.
	snap := rows.Snapshot()
	req, shown, err := rv.fill(ctx, snap, req)
	if err != nil {
		return nil, err
	}
	// From here on the request has its defaults, which the layout's name and the run
	// depend on.
	req, local, err := rv.localize(ctx, snap, req)
	if err != nil {
		return nil, err
	}
	req, run, err := rv.joinRun(ctx, req)
	if err != nil {
		return nil, err
	}
	if has.makers, err = shown.keep(ctx, &rv.results); err != nil {
		return nil, err
	}
	if err := each(ctx, sources, func(ctx context.Context, s *source) (err error) {
		s.selection, s.result, err = rv.selection(ctx, s.snapshot, s.asks, s.sees.bitmapIn())
		return err
	}); err != nil {
		return nil, err
	}
	// From here on rows are read: lengths, costs, weights and sums of the selected ones.
	// Each is a cached result, shared with the other ranks and epochs of the job.
	var buckets *plan.Buckets
	if buckets, err = rv.buckets(ctx, sources[0].snapshot, req, sources[0].selection, &has); err != nil {
		return nil, err
	}
	if req.Mixture == nil {
		if has.sample, err = rv.sample(ctx, sources[0].snapshot, req, sources[0].selection); err != nil {
			return nil, err
		}
	}
	// The weights of a mixture may refer to sums over the selected samples.
	if err := rv.means(ctx, sources, req); err != nil {
		return nil, err
	}
	if req.Pack != nil {
		if has.pack, has.lengths, err = rv.packed(ctx, sources[0].snapshot, req, sources[0].selection); err != nil {
			return nil, err
		}
		if err := rv.prepare(ctx, req, sources, &has); err != nil {
			return nil, err
		}
	}
	var o *Resolved
	planned := func() (err error) {
		o, err = newResolved(req, shown, sources, buckets, &has)
		return err
	}
	if req.Mixture != nil { // a mixture with many changes of weights takes some time
		err = rv.turn(ctx, planned)
	} else {
		err = planned()
	}
	if err != nil {
		return nil, err
	}
	// The assignment to ranks comes last, because it depends on the plan.
	o.local = local
	var shared *sharing
	if o.local != nil {
		if shared, err = rv.share(ctx, sources[0].snapshot, o); err != nil {
			return nil, err
		}
	}
	j := &Job{sharing: shared, resolved: o, group: groupOf(o.Request), run: run, sources: sources, rows: rows,
		turn: rv.turn, holdings: has}
	j.holds.Store(1)
	return j, nil
}

// groupOf names what is the same in all epochs of a job. Changes of weights from outside
// count, because they change the later steps.
func groupOf(r schema.Request) string {
	r = withEpoch(r, 0)
	if r.Mixture == nil || r.Mixture.Steered == nil {
		return digest(r)
	}
	steered, err := json.Marshal(r.Mixture.Steered)
	if err != nil {
		panic(err) // they are numbers and names
	}
	sum := sha256.Sum256(append(steered, digest(r)...))
	return hex.EncodeToString(sum[:8])
}

// digest names a request together with its restriction: the same request of two callers
// who may see different rows is not the same job. Changes of weights from outside are
// left out, because no job serves a step that they can still change.
func digest(r schema.Request) string {
	r.Mixture = r.Mixture.Unsteered()
	sum := sha256.Sum256(within(r, string(r.Marshal())))
	return hex.EncodeToString(sum[:8])
}

// within returns the name of a result of a request. It contains the restriction, so that
// no result is shared by callers who may see different rows.
func within(r schema.Request, what string) []byte {
	if key := r.WithinKey(); key != "" {
		return []byte(what + "\x00within\x00" + key)
	}
	return []byte(what)
}

// withEpoch returns r for another epoch. It does not change r's Shuffle in place.
func withEpoch(r schema.Request, epoch uint64) schema.Request {
	if r.Shuffle != nil {
		shuffle := *r.Shuffle
		shuffle.Epoch = epoch
		r.Shuffle = &shuffle
	}
	return r
}

// PlanOf returns the plan of an epoch, counted from the job's own. After the last
// possible epoch it returns the plan of that one.
func (j *Job) PlanOf(offset int64) *plan.Plan {
	cfg := j.resolved.Plan.Config()
	if offset == 0 || !cfg.Shuffle {
		return j.resolved.Plan
	}
	cfg.Epoch = min(cfg.Epoch+uint64(offset), j.resolved.Plan.LastEpoch())
	p, err := plan.New(cfg)
	if err != nil {
		panic(err) // all but the epoch was checked, and any epoch will do
	}
	return p
}

// Close releases the job. Streams and batches that retain it can still use it. Further
// calls do nothing.
func (j *Job) Close() {
	j.closeOnce.Do(func() {
		if j.asked != nil {
			j.asked.cancel()
		}
		j.Release()
	})
}

// Resolved returns the resolved request, which holds no snapshot.
func (j *Job) Resolved() *Resolved { return j.resolved }

// Request returns the request with the snapshot's number and the defaults
// filled in.
func (j *Job) Request() schema.Request { return j.resolved.Request }

// ID names the plan. Equal requests for the same snapshot have equal ids.
func (j *Job) ID() string { return j.resolved.ID }

// Manifest returns the rows to which the job's positions refer. It is valid until the job
// is released.
func (j *Job) Manifest() manifest.Reader { return j.rows }

// Alone returns the manifest of a job on one snapshot, and nil for a mixture. It is valid
// until the job is released.
func (j *Job) Alone() *manifest.Manifest {
	if len(j.sources) > 1 || j.resolved.Request.Mixture != nil {
		return nil
	}
	return j.sources[0].snapshot.manifest
}

// Plan returns the order of the epoch and its assignment to ranks.
func (j *Job) Plan() *plan.Plan { return j.resolved.Plan }

// Projection returns the columns that are served.
func (j *Job) Projection() *schema.Projection { return j.resolved.Projection }

// Operators returns the operators that blobs pass before they are served; nil if there
// are none.
func (j *Job) Operators() *operators.Set { return j.resolved.Operators }

// Selection returns the positions from which the epochs of a job on one snapshot are
// made.
func (j *Job) Selection() plan.Selection { return j.sources[0].selection }

// OperatorsOf returns the operators for a source's blobs; nil if there are none.
func (j *Job) OperatorsOf(source int) *operators.Set {
	if own := j.resolved.own; own != nil {
		return own[source]
	}
	return j.resolved.Operators
}

// Group names what is the same in all epochs of the job. The jobs of a group share one
// part of the store's throughput.
func (j *Job) Group() string { return j.group }

// Course names the samples of the job's steps and nothing else. It is the same in all
// epochs, and does not depend on the world, on the order of delivery, or on which rank
// gets which samples. A job that continues with other ranks keeps it.
func (j *Job) Course() string {
	r := withEpoch(j.resolved.Request, 0)
	r.World, r.Order, r.Assign, r.Owners, r.Ranks, r.Digest, r.Slices = nil, "", "", "", nil, false, nil
	return digest(r)
}

// Sequence names the samples of each rank and their order, and not what is served of
// them. It is the same in all epochs, and for ranks that request other columns.
func (j *Job) Sequence() string {
	r := withEpoch(j.resolved.Request, 0)
	r.Columns, r.Operators, r.Place, r.Layout, r.BatchBytes, r.OnError, r.Digest = nil, nil, "", "", 0, "", false
	r.Slices = nil
	return digest(r)
}

// shownSources is how many sources of a mixture SnapshotName lists.
const shownSources = 3

// SnapshotName is the snapshot for messages: dataset@number. The names of a mixture are
// joined by +.
func (j *Job) SnapshotName() string {
	if len(j.sources) == 1 {
		return j.sources[0].snapshot.key.String()
	}
	var names []string
	for i := range j.sources[:min(len(j.sources), shownSources)] {
		names = append(names, j.sources[i].snapshot.key.String())
	}
	if more := len(j.sources) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, "+")
}

// Retain adds a hold for a stream or a batch, which keeps the job usable after Close. The
// caller has a hold already: the job is not closed, or the caller has retained it.
func (j *Job) Retain() { j.holds.Add(1) }

// Release ends a hold that Retain took. The last one releases the job's snapshots and the
// memory of its results.
func (j *Job) Release() {
	if j.holds.Add(-1) > 0 {
		return
	}
	j.holdings.release()
	if j.sharing != nil {
		j.sharing.release()
	}
	for i := range j.sources {
		j.sources[i].release()
	}
}

// Tolerant reports whether a stream continues after a sample that cannot be read.
func (j *Job) Tolerant() bool {
	return j.resolved.Request.OnError == schema.OnErrorNull || j.resolved.Request.OnError == schema.OnErrorSkip
}

// EpochNumber is the number of the job's epoch, 0 if nothing is shuffled.
func (j *Job) EpochNumber() uint64 {
	if j.resolved.Request.Shuffle == nil {
		return 0
	}
	return j.resolved.Request.Shuffle.Epoch
}

// MeanBytes is the mean size of the blobs that the job reads for a row. For each snapshot
// it is the mean over all of its rows, because the sizes of the selected ones are not
// known without reading them.
func (j *Job) MeanBytes() (mean int64) {
	if j.Alone() != nil {
		return meanBytes(j.rows.Snapshot().Chunks, j.resolved.Projection)
	}
	var sum float64
	for i := range j.sources {
		sum += float64(j.SourceRows(i)) * float64(j.SourceBytes(i))
	}
	return int64(sum / float64(max(j.resolved.Plan.Rows(), 1)))
}

// meanBytes is the mean size of the shown blobs of a row, over some chunks.
func meanBytes(chunks []schema.Chunk, shown *schema.Projection) int64 {
	var bytes, rows int64
	for i := range chunks {
		rows += chunks[i].Rows
		for _, c := range shown.BlobColumns() {
			if c < len(chunks[i].BlobBytes) { // a broken chunk is reported to the reader of its rows
				bytes += chunks[i].BlobBytes[c]
			}
		}
	}
	return bytes / max(rows, 1)
}

// RestrictionError says that the rows and columns that a caller may see of a snapshot
// cannot be determined, because the restriction's own expression does not fit the
// snapshot. The caller may then see nothing of it. The caller is not at fault, so the
// error is no schema.ErrInvalid.
type RestrictionError struct {
	Snapshot string
	Cause    *where.Error
}

// Error is one line, for logs. The message of an expression may have several.
func (e *RestrictionError) Error() string {
	return fmt.Sprintf("the rule's where does not fit snapshot %s: %s", e.Snapshot,
		strings.ReplaceAll(e.Cause.Error(), "\n", " "))
}

// visible computes the samples that a restriction shows, with a hold for the caller. It
// returns nil if the restriction shows all.
func (rv *Resolver) visible(ctx context.Context, snap *openSnapshot, within *schema.Restriction) (*result, error) {
	if !within.HidesRows() {
		return nil, nil //nolint:nilnil // all rows need no bitmap
	}
	r, err := rv.matches(ctx, snap, nil, nil, within.Where)
	if fault, ok := errors.AsType[*where.Error](err); ok {
		return nil, &RestrictionError{snap.key.String(), fault}
	}
	return r, err
}

// checkHidden returns an error if a compiled expression names a column that the
// restriction hides. Compile does not notice it if a hidden column has the same name as a
// part of a visible blob column.
func checkHidden(expr *where.Expr, snap *schema.Snapshot, within *schema.Restriction) error {
	for _, name := range expr.Columns() {
		if within.Hides(snap.Schema, name) {
			return &where.Error{Line: 1, Column: 1, Message: fmt.Sprintf("no column %q", name)}
		}
	}
	return nil
}

// checkSplit returns an error if a split does not exist for a caller who sees these
// samples. A split without a sample that the caller sees does not exist.
func checkSplit(snap *schema.Snapshot, name string, seen *plan.Bitmap) error {
	if name == "" {
		return nil
	}
	var have []string
	for _, s := range SeenSplits(snap, seen) {
		if s.Name == name {
			return nil
		}
		have = append(have, s.Name)
	}
	return noSplit(snap, name, have)
}

// noSplit is the error for a split that does not exist. It lists those that do.
func noSplit(snap *schema.Snapshot, name string, have []string) error {
	return fmt.Errorf("%w: dataset %s@%d has no split %q; it has %s", schema.ErrNotFound, snap.Dataset, snap.Number,
		name, cmp.Or(schema.ShownList(have), "none"))
}

// SeenSplit is a split with the number of its samples that the caller may see.
type SeenSplit struct {
	schema.Split
	Seen int64
}

// SeenSplits lists the splits that have samples in seen; all splits if seen is nil.
func SeenSplits(snap *schema.Snapshot, seen *plan.Bitmap) []SeenSplit {
	var list []SeenSplit
	for _, s := range snap.Splits {
		if seen == nil {
			list = append(list, SeenSplit{s, s.Rows()})
			continue
		}
		var n int64
		for _, r := range s.Ranges {
			n += seen.CountIn(r.Start, r.End)
		}
		if n > 0 {
			list = append(list, SeenSplit{s, n})
		}
	}
	return list
}

// bitmapIn returns the bitmap of a result; nil for a nil result.
func (r *result) bitmapIn() *plan.Bitmap {
	if r == nil {
		return nil
	}
	return r.selection.(*plan.Bitmap)
}

// Sees reports whether the job's caller may see the sample at a position.
func (j *Job) Sees(position int64) bool {
	if position < 0 || position >= j.rows.Rows() {
		return false
	}
	source, at := j.Locate(position)
	sees := j.sources[source].sees
	return sees == nil || sees.bitmapIn().Has(at)
}

// Seen is the number of samples of the job's snapshots that its caller may see.
func (j *Job) Seen() (n int64) {
	for i := range j.sources {
		if s := &j.sources[i]; s.sees == nil {
			n += s.snapshot.manifest.Rows()
		} else {
			n += s.sees.selection.Len()
		}
	}
	return n
}

// Splits lists the splits that exist for the caller of a job on one snapshot.
func (j *Job) Splits() []SeenSplit {
	return SeenSplits(j.sources[0].snapshot.manifest.Snapshot(), j.sources[0].sees.bitmapIn())
}

// Hides reports whether a column is hidden from the job's caller.
func (j *Job) Hides(column string) bool {
	return j.resolved.Request.Within.Hides(j.Manifest().Snapshot().Schema, column)
}

// ShownID is a sample's id as text, "" if ids are hidden from the job's caller.
func (j *Job) ShownID(id schema.ID) string {
	if j.Hides(schema.IDColumn) {
		return ""
	}
	return schema.FormatID(id)
}

// CheckPosition returns an error unless the job's caller may see a sample at a position.
// The error is the same for a hidden position and for one that does not exist, so that it
// does not reveal which positions exist.
func (j *Job) CheckPosition(field string, position int64) error {
	if j.Sees(position) {
		return nil
	}
	for i := range j.sources {
		if j.sources[i].sees != nil {
			return schema.NoPosition(field, j.SnapshotName(), position)
		}
	}
	return &schema.FieldError{Field: field, Got: fmt.Sprint(position),
		Want: fmt.Sprintf("0 to %d, the positions of the snapshot", j.Manifest().Rows()-1)}
}

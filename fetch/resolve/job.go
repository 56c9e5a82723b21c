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

// Job is a request resolved against a snapshot, or several: which rows, in which order,
// shared out how, showing which columns. It is immutable and safe for
// concurrent use. It keeps the snapshots open until Close; streams keep them open
// for themselves.
type Job struct {
	resolved *Resolved
	group    string   // what is the same in all epochs: streams of it share what the store has to give
	sources  []source // one, except for a mixture
	rows     manifest.Reader
	turn     where.Turn
	holdings
	run       *run      // nil if weights do not change from outside
	sharing   *sharing  // nil where ranks get what the plan gives them
	asked     *question // nil if it was not opened early
	holds     atomic.Int64
	closeOnce sync.Once
}

// source is a snapshot that samples of a job are of.
type source struct {
	name      string // in the request; "" of the only one
	snapshot  *openSnapshot
	asks      schema.Request // what selects its samples, and what of it the caller may see
	base      int64          // the job's position of its first sample
	sees      *result        // those that the caller may see, a bitmap; nil if all
	selection plan.Selection // positions in the snapshot
	result    *result        // that the selection is of; nil if it takes next to nothing
	mean      *big.Rat       // of what the mixture's weights are by, of those selected; nil if that is samples
}

// release releases the snapshot and computed results.
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

// end is the job's position behind its last sample.
func (s *source) end() int64 { return s.base + s.snapshot.manifest.Rows() }

// holdings are what a job holds of results beside its sources, each of which may be nil.
type holdings struct {
	lengths *result         // of samples, where these are served by length, or packed
	costs   *result         // of samples, where the ranks of a step are to cost the same
	pack    *result         // what packs them
	windows *admission.Hold // the memory of windows then
	sample  *result         // what samples are drawn by
	makers  *admission.Hold // that of compiled expressions
}

func (h *holdings) release() {
	for _, r := range []*result{h.lengths, h.costs, h.pack, h.sample} {
		if r != nil {
			r.Release()
		}
	}
	h.windows.Release()
	h.makers.Release()
}

// Open resolves a request. Errors wrap schema.ErrInvalid or ErrNotFound where
// the request is at fault.
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

// openOn resolves a request for one snapshot, of which the job has the hold from now on, also if it fails.
func (rv *Resolver) openOn(ctx context.Context, snap *openSnapshot, req schema.Request) (*Job, error) {
	return rv.openJob(ctx, snap.manifest, []source{{snapshot: snap, asks: req}}, req)
}

// openJob resolves a request for samples of sources, of whose snapshots the job has the holds from now on, also if it
// fails. rows are theirs.
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
	if err := each(ctx, sources, func(ctx context.Context, s *source) (err error) {
		s.sees, err = rv.visible(ctx, s.snapshot, s.asks.Within)
		return err
	}); err != nil {
		return nil, err
	}
	snap := rows.Snapshot()
	req, shown, err := rv.fill(ctx, snap, req)
	if err != nil {
		return nil, err
	}
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
	var buckets *plan.Buckets
	if buckets, err = rv.buckets(ctx, sources[0].snapshot, req, sources[0].selection, &has); err != nil {
		return nil, err
	}
	if req.Mixture == nil {
		if has.sample, err = rv.sample(ctx, sources[0].snapshot, req, sources[0].selection); err != nil {
			return nil, err
		}
	}
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
	if req.Mixture != nil { // one of many changes takes some time
		err = rv.turn(ctx, planned)
	} else {
		err = planned()
	}
	if err != nil {
		return nil, err
	}
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

// groupOf names what is the same in all epochs of a job. Once weights were changed from outside, steps to come are
// others.
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

// digest names a request, and what its caller may see: the same request of two who see different things is not the
// same job. Changes of weights from outside are left out: no job serves steps that they may still change.
func digest(r schema.Request) string {
	r.Mixture = r.Mixture.Unsteered()
	sum := sha256.Sum256(within(r, string(r.Marshal())))
	return hex.EncodeToString(sum[:8])
}

// within is what names a result of a request, with what its caller may see.
func within(r schema.Request, what string) []byte {
	if key := r.WithinKey(); key != "" {
		return []byte(what + "\x00within\x00" + key)
	}
	return []byte(what)
}

// withEpoch is r for another epoch.
func withEpoch(r schema.Request, epoch uint64) schema.Request {
	if r.Shuffle != nil {
		shuffle := *r.Shuffle
		shuffle.Epoch = epoch
		r.Shuffle = &shuffle
	}
	return r
}

// PlanOf returns the plan of an epoch, counted from the job's own. After the last epoch it is that of the last.
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

// Close releases the job. Further calls do nothing.
func (j *Job) Close() {
	j.closeOnce.Do(func() {
		if j.asked != nil {
			j.asked.cancel()
		}
		j.Release()
	})
}

// Resolved is the job without what it holds.
func (j *Job) Resolved() *Resolved { return j.resolved }

// Request returns the request with the snapshot's number and the defaults
// filled in.
func (j *Job) Request() schema.Request { return j.resolved.Request }

// ID names the plan: equal requests on the same snapshot have equal ids.
func (j *Job) ID() string { return j.resolved.ID }

// Manifest returns the rows that the job's positions are of, valid until Close.
func (j *Job) Manifest() manifest.Reader { return j.rows }

// Alone returns the manifest of the one snapshot that the job is of; nil of a mixture. It is valid until Close.
func (j *Job) Alone() *manifest.Manifest {
	if len(j.sources) > 1 || j.resolved.Request.Mixture != nil {
		return nil
	}
	return j.sources[0].snapshot.manifest
}

// Plan returns the order and sharing of the epoch.
func (j *Job) Plan() *plan.Plan { return j.resolved.Plan }

// Projection returns the columns served.
func (j *Job) Projection() *schema.Projection { return j.resolved.Projection }

// Operators returns what becomes of blobs before they are served; nil for nothing.
func (j *Job) Operators() *operators.Set { return j.resolved.Operators }

// Selection returns the positions that the epochs of a job on one snapshot are made of.
func (j *Job) Selection() plan.Selection { return j.sources[0].selection }

// OperatorsOf returns what becomes of a source's blobs; nil for nothing.
func (j *Job) OperatorsOf(source int) *operators.Set {
	if own := j.resolved.own; own != nil {
		return own[source]
	}
	return j.resolved.Operators
}

// Group names what is the same in all epochs of the job: jobs of one group share
// what the store has to give.
func (j *Job) Group() string { return j.group }

// Course names what the steps of the job hold and nothing else: it is the same in all epochs, whatever the
// world, the order, and who gets which samples of a step. A job that goes on with other ranks keeps it.
func (j *Job) Course() string {
	r := withEpoch(j.resolved.Request, 0)
	r.World, r.Order, r.Assign, r.Owners, r.Ranks, r.Digest, r.Slices = nil, "", "", "", nil, false, nil
	return digest(r)
}

// Sequence names which samples each rank gets in which order, and nothing of what is served of them: it is the same in
// all epochs, and for ranks that ask for other columns.
func (j *Job) Sequence() string {
	r := withEpoch(j.resolved.Request, 0)
	r.Columns, r.Operators, r.Place, r.Layout, r.BatchBytes, r.OnError, r.Digest = nil, nil, "", "", 0, "", false
	r.Slices = nil
	return digest(r)
}

// shownSources is how many sources of a mixture are named.
const shownSources = 3

// SnapshotName is the snapshot as people write it: dataset@number. Those of a mixture are joined by +.
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

// Retain holds the job for a stream or a batch, beyond its Close. The caller has
// a hold of it: the job is not closed, or was retained before.
func (j *Job) Retain() { j.holds.Add(1) }

// Release ends a hold that Retain took. The last one releases the job's snapshot and its
// selection's memory.
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

// Tolerant reports whether a sample that cannot be read leaves a stream alive.
func (j *Job) Tolerant() bool {
	return j.resolved.Request.OnError == schema.OnErrorNull || j.resolved.Request.OnError == schema.OnErrorSkip
}

// EpochNumber is the number of the job's epoch, 0 where nothing is shuffled.
func (j *Job) EpochNumber() uint64 {
	if j.resolved.Request.Shuffle == nil {
		return 0
	}
	return j.resolved.Request.Shuffle.Epoch
}

// MeanBytes is how many bytes of blobs the rows have on average that the job reads: of each snapshot, by the mean of all
// of its rows.
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

// meanBytes is how many bytes of the blobs that are shown rows of some chunks have on average.
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
// snapshot. The caller may then see nothing of it. The error is not the caller's: it is
// no schema.ErrInvalid.
type RestrictionError struct {
	Snapshot string
	Cause    *where.Error
}

// Error is one line: the message of an expression has several, and this one goes into logs.
func (e *RestrictionError) Error() string {
	return fmt.Sprintf("the rule's where does not fit snapshot %s: %s", e.Snapshot,
		strings.ReplaceAll(e.Cause.Error(), "\n", " "))
}

// visible computes which samples a restriction shows. The result, of which the caller
// gets a hold, is nil if it shows all.
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

// checkHidden fails if a compiled expression names a column that does not exist under a
// restriction. Compile does not see it where a hidden column has the name of a part of a
// blob column that is not.
func checkHidden(expr *where.Expr, snap *schema.Snapshot, within *schema.Restriction) error {
	for _, name := range expr.Columns() {
		if within.Hides(snap.Schema, name) {
			return &where.Error{Line: 1, Column: 1, Message: fmt.Sprintf("no column %q", name)}
		}
	}
	return nil
}

// checkSplit fails if a split does not exist, as far as those samples show. One of
// which nothing can be seen does not.
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

func noSplit(snap *schema.Snapshot, name string, have []string) error {
	return fmt.Errorf("%w: dataset %s@%d has no split %q; it has %s", schema.ErrNotFound, snap.Dataset, snap.Number,
		name, cmp.Or(schema.ShownList(have), "none"))
}

// SeenSplit is a split, and how many of its samples can be seen.
type SeenSplit struct {
	schema.Split
	Seen int64
}

// SeenSplits lists the splits of a snapshot of which some of the samples can be seen;
// all of them, if seen is nil.
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

// bitmapIn is the bitmap of a result; nil if there is no result.
func (r *result) bitmapIn() *plan.Bitmap {
	if r == nil {
		return nil
	}
	return r.selection.(*plan.Bitmap)
}

// Sees reports whether a position is that of a sample which the job's caller may see.
func (j *Job) Sees(position int64) bool {
	if position < 0 || position >= j.rows.Rows() {
		return false
	}
	source, at := j.Locate(position)
	sees := j.sources[source].sees
	return sees == nil || sees.bitmapIn().Has(at)
}

// Seen is how many samples of the job's snapshots its caller may see.
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

// Hides reports whether a column does not exist for the job's caller.
func (j *Job) Hides(column string) bool {
	return j.resolved.Request.Within.Hides(j.Manifest().Snapshot().Schema, column)
}

// ShownID is a sample's id in text, "" if the job's caller may not see ids.
func (j *Job) ShownID(id schema.ID) string {
	if j.Hides(schema.IDColumn) {
		return ""
	}
	return schema.FormatID(id)
}

// CheckPosition fails if no sample that the job's caller may see is at a position. He
// learns the same of one that he may not see and of one that there is not.
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

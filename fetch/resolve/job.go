package resolve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"sync/atomic"

	"bowstring/fetch/admission"
	"bowstring/fetch/manifest"
	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// Job is a request resolved against a snapshot: which rows, in which order,
// shared out how, showing which columns. It is immutable and safe for
// concurrent use. It keeps the snapshot open until Close; streams keep it open
// for themselves.
type Job struct {
	request    schema.Request
	id         string
	group      string // what is the same in all epochs: streams of it share what the store has to give
	snapshot   *openSnapshot
	selection  plan.Selection
	plan       *plan.Plan
	projection *schema.Projection
	operators  *operators.Set // nil if there are none
	makers     []*where.Maker // of projection.Computed
	turn       where.Turn
	holdings
	local     *local // nil where ranks get what the plan gives them, and so is sharing
	sharing   *sharing
	asked     *question // nil if it was not opened early
	holds     atomic.Int64
	closeOnce sync.Once
}

// holdings are what a job holds of results, each of which may be nil.
type holdings struct {
	result  *result         // that the selection is of
	sees    *result         // what the caller may see, a bitmap; nil if all
	lengths *result         // of samples, where these are served by length
	windows *admission.Hold // the memory of windows then
	makers  *admission.Hold // that of compiled expressions
}

func (h *holdings) release() {
	for _, r := range []*result{h.result, h.sees, h.lengths} {
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
	snap, err := rv.snapshots.get(ctx, req.Dataset, req.Snapshot)
	if err != nil {
		return nil, err
	}
	j, err := rv.openOn(ctx, snap, req)
	if err != nil {
		snap.Release()
		return nil, err
	}
	return j, nil
}

func (rv *Resolver) openOn(ctx context.Context, snap *openSnapshot, req schema.Request) (*Job, error) {
	sees, err := rv.visible(ctx, snap, req.Within)
	if err != nil {
		return nil, err
	}
	o, has, err := rv.resolved(ctx, snap, req, sees)
	if err != nil {
		if sees != nil {
			sees.Release()
		}
		return nil, err
	}
	has.sees = sees
	var shared *sharing
	if o.local != nil {
		if shared, err = rv.share(ctx, snap, o); err != nil {
			has.release()
			return nil, err
		}
	}
	j := &Job{
		local: o.local, sharing: shared, request: o.Request, id: o.ID, group: digest(withEpoch(o.Request, 0)),
		snapshot: snap, selection: o.Plan.Config().Selection, plan: o.Plan, projection: o.Projection,
		operators: o.Operators, makers: o.makers, turn: rv.turn, holdings: has,
	}
	j.holds.Store(1)
	return j, nil
}

func (rv *Resolver) resolved(ctx context.Context, snap *openSnapshot, req schema.Request,
	sees *result) (o *Resolved, has holdings, err error) {
	req, s, err := rv.fill(ctx, snap.manifest.Snapshot(), req)
	if err != nil {
		return nil, has, err
	}
	req, local, err := rv.localize(ctx, snap.manifest.Snapshot(), req)
	if err != nil {
		return nil, has, err
	}
	defer func() {
		if err != nil {
			has.release()
		}
	}()
	if has.makers, err = s.keep(ctx, &rv.results); err != nil {
		return nil, has, err
	}
	var selection plan.Selection
	if selection, has.result, err = rv.selection(ctx, snap, req, sees.bitmapIn()); err != nil {
		return nil, has, err
	}
	var buckets *plan.Buckets
	if buckets, has.lengths, has.windows, err = rv.buckets(ctx, snap, req); err != nil {
		return nil, has, err
	}
	if o, err = newResolved(req, s, selection, buckets); err != nil {
		return nil, has, err
	}
	o.local = local
	return o, has, nil
}

// digest names a request, and what its caller may see: the same request of two who
// see different things is not the same job.
func digest(r schema.Request) string {
	sum := sha256.Sum256(within(r, string(r.Marshal())))
	return hex.EncodeToString(sum[:8])
}

// within is what names a result of a request, with what its caller may see.
func within(r schema.Request, what string) []byte {
	if key := r.Within.Key(); key != "" {
		return []byte(what + "\x00within\x00" + key)
	}
	return []byte(what)
}

// withEpoch is r for another epoch.
func withEpoch(r schema.Request, epoch uint64) schema.Request {
	if r.Shuffle != nil {
		r.Shuffle = &schema.Shuffle{Seed: r.Shuffle.Seed, Epoch: epoch}
	}
	return r
}

// PlanOf returns the plan of the epoch that comes so many after the job's own.
func (j *Job) PlanOf(offset int64) *plan.Plan {
	cfg := j.plan.Config()
	if offset == 0 || !cfg.Shuffle {
		return j.plan
	}
	cfg.Epoch += uint64(offset)
	p, err := plan.New(cfg)
	if err != nil {
		panic(err) // all but the epoch was checked, and any epoch will do
	}
	return p
}

// Close lets go of the job. Further calls do nothing.
func (j *Job) Close() {
	j.closeOnce.Do(func() {
		if j.asked != nil {
			j.asked.cancel()
		}
		j.Release()
	})
}

// Request returns the request with the snapshot's number and the defaults
// filled in.
func (j *Job) Request() schema.Request { return j.request }

// ID names the plan: equal requests on the same snapshot have equal ids.
func (j *Job) ID() string { return j.id }

// Manifest returns the snapshot's manifest, valid until Close.
func (j *Job) Manifest() *manifest.Manifest { return j.snapshot.manifest }

// Plan returns the order and sharing of the epoch.
func (j *Job) Plan() *plan.Plan { return j.plan }

// Projection returns the columns served.
func (j *Job) Projection() *schema.Projection { return j.projection }

// Operators returns what becomes of blobs before they are served; nil for nothing.
func (j *Job) Operators() *operators.Set { return j.operators }

// Selection returns the positions that the epochs of the job are made of.
func (j *Job) Selection() plan.Selection { return j.selection }

// Group names what is the same in all epochs of the job: jobs of one group share
// what the store has to give.
func (j *Job) Group() string { return j.group }

// Course names what the steps of the job hold and nothing else: it is the same in all epochs, whatever the
// world, the order, and who gets which samples of a step. A job that goes on with other ranks keeps it.
func (j *Job) Course() string {
	r := withEpoch(j.request, 0)
	r.World, r.Order, r.Assign, r.Owners, r.Ranks = nil, "", "", "", nil
	return digest(r)
}

// SnapshotName is the snapshot as people write it: dataset@number.
func (j *Job) SnapshotName() string { return j.snapshot.key.String() }

// Retain holds the job for a stream or a batch, beyond its Close. The caller has
// a hold of it: the job is not closed, or was retained before.
func (j *Job) Retain() { j.holds.Add(1) }

// Release gives up a hold that Retain took. With the last one, the job lets go of
// its snapshot and of its selection's memory.
func (j *Job) Release() {
	if j.holds.Add(-1) > 0 {
		return
	}
	j.holdings.release()
	if j.sharing != nil {
		j.sharing.release()
	}
	j.snapshot.Release()
}

// Tolerant reports whether a sample that cannot be read leaves a stream alive.
func (j *Job) Tolerant() bool {
	return j.request.OnError == schema.OnErrorNull || j.request.OnError == schema.OnErrorSkip
}

// EpochNumber is the number of the job's epoch, 0 where nothing is shuffled.
func (j *Job) EpochNumber() uint64 {
	if j.request.Shuffle == nil {
		return 0
	}
	return j.request.Shuffle.Epoch
}

// MeanBytes is how many bytes of blobs the rows of the snapshot have on average.
func (j *Job) MeanBytes() (mean int64) {
	snap := j.Manifest().Snapshot()
	for _, chunk := range snap.Chunks {
		for _, c := range j.projection.BlobColumns() {
			if c < len(chunk.BlobBytes) { // what is broken, who reads the rows is told
				mean += chunk.BlobBytes[c]
			}
		}
	}
	return mean / max(snap.Rows(), 1)
}

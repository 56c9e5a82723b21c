package lookahead

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/schema"
	"bowstring/spill"
)

// warmPeriod is how often a Warm says how far it is.
const warmPeriod = 200 * time.Millisecond

// WarmProgress is how far a Warm is. A blob that several samples have counts for
// each, as there once it is.
type WarmProgress struct {
	Job    string `json:"job"`    // as in JobStats
	Rows   int64  `json:"rows"`   // of the epoch
	Seen   int64  `json:"seen"`   // rows looked at
	There  int64  `json:"there"`  // blobs that were in the spill, or on their way to it
	Stored int64  `json:"stored"` // blobs that were fetched and are there
	Bytes  int64  `json:"bytes"`  // of those
	Failed int64  `json:"failed"` // blobs that could not be read
	Full   bool   `json:"full"`   // it ended because the spill would keep no more
	Done   bool   `json:"done"`   // it has ended
}

// Warm fills the spill with the samples of a job's epoch, in the order in which
// they will be used, until all are there or the spill would keep no more of them.
// What it brings is on the tenant's account. It takes no bandwidth from streams that wait. The job is expected to begin
// within the hour, and what was brought to be of use to it.
//
// progress, if not nil, is called a few times a second and at the end, by the
// caller's goroutine. Samples that cannot be read are counted and logged, and are
// no error.
func (a *Ahead) Warm(ctx context.Context, j *resolve.Job, tenant string, progress func(WarmProgress)) error {
	w, err := a.newWarmer(j, a.Tenant(tenant))
	if err != nil {
		return err
	}
	defer a.filling.Done()
	defer w.close()
	if progress == nil {
		progress = func(WarmProgress) {}
	}
	tick := time.NewTicker(warmPeriod)
	defer tick.Stop()
	for next := w.next(ctx); next != nil || len(w.filler.places) > 0; {
		if next != nil {
			switch w.filler.try(next) {
			case read.UnderWay:
				w.There++
				fallthrough
			case read.Begun:
				next = w.next(ctx)
				continue
			case read.NoRoom:
			}
		}
		select {
		case o := <-w.filler.results:
			w.keep(o)
		case <-w.filler.wake:
		case <-tick.C:
			progress(w.WarmProgress)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.closing:
			return read.ErrClosing()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.Done = true
	progress(w.WarmProgress)
	return nil
}

// warmer is a Warm under way.
type warmer struct {
	WarmProgress
	ahead   *Ahead
	job     *resolve.Job
	dataset uint32
	tenant  uint16
	filler  *filler
	live    *running // nil if there are no rows, or too many jobs
	column  int
	rows    []schema.Row // those from row first on; nil where they cannot be looked up
	first   int64
	known   int64 // rows that were looked up
}

// warmRows is how many rows are looked up in the manifest at once.
const warmRows = 1024

// lookUp looks up the row to look at next, and those after it; false if it cannot.
func (w *warmer) lookUp(ctx context.Context) bool {
	if w.Seen < w.known {
		return w.rows != nil
	}
	positions := make([]int64, min(warmRows, w.Rows-w.Seen))
	for i := range positions {
		positions[i] = w.job.Plan().Position(w.Seen + int64(i))
	}
	w.first, w.known = w.Seen, w.Seen+int64(len(positions))
	var err error
	if w.rows, err = w.job.Manifest().At(ctx, positions); err != nil {
		w.rows = nil
	}
	return err == nil
}

// newWarmer has the spill know of the job, as if it ran.
func (a *Ahead) newWarmer(j *resolve.Job, tenant uint16) (*warmer, error) {
	if a == nil {
		return nil, fmt.Errorf("%w: this server has no spill that could be warmed: serve --spill gives it one",
			schema.ErrInvalid)
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, read.ErrClosing()
	}
	a.filling.Add(1)
	a.mu.Unlock()
	w := &warmer{
		WarmProgress: WarmProgress{Job: j.Group(), Rows: j.Plan().Rows()},
		ahead:        a, job: j, dataset: a.Dataset(j), tenant: tenant, filler: a.newFiller(),
	}
	if w.Rows > 0 {
		l, _, ended := a.join(j, w.dataset, allRanks, 0, 0, func(l *running, _ int64) {
			if l.streams+l.elsewhere == 0 && l.warming == 0 {
				l.order.serveAllLocked(int(j.Request().WorldSize())) // whichever will be served here
			}
			l.warming++
			l.tenant = cmp.Or(l.tenant, tenant)
		})
		release(ended)
		w.live = l
	}
	return w, nil
}

// close gives up what is under way. The job has some time to begin.
func (w *warmer) close() {
	w.filler.close()
	if w.live != nil {
		w.ahead.mu.Lock()
		defer w.ahead.mu.Unlock()
		w.live.warming--
		w.live.until = time.Now().Add(warmGrace)
	}
}

// next returns the next blob that is not there, nil if there is none that the
// spill would keep, or ctx has ended: many rows may have to be looked at.
func (w *warmer) next(ctx context.Context) *candidate {
	columns := w.job.Projection().BlobColumns()
	for ; w.Seen < w.Rows && !w.Full && ctx.Err() == nil; w.Seen, w.column = w.Seen+1, 0 {
		pos := w.job.Plan().Position(w.Seen)
		if !w.lookUp(ctx) { // what is lost, the job's streams will tell
			w.Failed += int64(len(columns))
			continue
		}
		for w.column < len(columns) {
			ref, ok, err := w.rows[w.Seen-w.first].TryBlob(columns[w.column])
			w.column++
			at := spill.Place{Dataset: w.dataset, Tenant: w.tenant, Position: pos}
			switch {
			case err != nil || !ok: // what is lost, the job's streams will tell
			case w.ahead.opts.Cache.Has(ref):
				w.There++
			case !w.ahead.opts.Mine(ref.Key): // another node's to bring, and to keep
			case !w.ahead.opts.Cache.WantsBlob(ref, at, true):
				if w.ahead.opts.Spare(ref.Key) {
					continue // there may be room yet for what this node owns
				}
				w.Full = true
				return nil
			default:
				return &candidate{ref: ref, at: at}
			}
		}
	}
	return nil
}

// keep counts a blob that has come.
func (w *warmer) keep(o read.Outcome) {
	switch {
	case w.filler.keep(o):
		w.Stored++
		w.Bytes += o.Ref.Size
	case o.Err == nil && w.ahead.opts.Spare(o.Ref.Key): // there may be room yet for what this node owns
	case o.Err == nil:
		w.Full = true // what is there is worth more
	default:
		w.Failed++
	}
}

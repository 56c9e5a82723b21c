package fetch

import (
	"context"
	"fmt"
	"time"

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
// It takes no bandwidth from streams that wait. The job is expected to begin
// within the hour, and what was brought to be of use to it.
//
// progress, if not nil, is called a few times a second and at the end, by the
// caller's goroutine. Samples that cannot be read are counted and logged, and are
// no error.
func (e *Engine) Warm(ctx context.Context, j *Job, progress func(WarmProgress)) error {
	w, err := e.newWarmer(j)
	if err != nil {
		return err
	}
	defer e.filling.Done()
	defer w.close()
	if progress == nil {
		progress = func(WarmProgress) {}
	}
	tick := time.NewTicker(warmPeriod)
	defer tick.Stop()
	for next := w.next(ctx); next != nil || len(w.filler.places) > 0; {
		if next != nil {
			switch w.filler.try(next) {
			case underWay:
				w.There++
				fallthrough
			case begun:
				next = w.next(ctx)
				continue
			case noRoom:
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
		case <-e.closing:
			return errClosing()
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
	engine  *Engine
	job     *Job
	dataset uint32
	filler  *filler
	live    *liveJob // nil if there are no rows
	column  int
}

// newWarmer has the spill know of the job, as if it ran.
func (e *Engine) newWarmer(j *Job) (*warmer, error) {
	if e.opts.Spill == nil {
		return nil, fmt.Errorf("%w: this server has no spill that could be warmed: serve --spill gives it one", schema.ErrInvalid)
	}
	dataset := e.opts.Spill.Dataset(j.SnapshotName())
	now := time.Now()
	var ended []*liveJob
	defer func() { release(ended) }() // without the lock
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errClosing()
	}
	e.filling.Add(1)
	ended = e.forgetJobs(now)
	w := &warmer{
		WarmProgress: WarmProgress{Job: j.Group(), Rows: j.Plan().Rows()},
		engine:       e, job: j, dataset: dataset,
	}
	if w.Rows > 0 {
		l := e.jobOf(j, 0)
		if l == nil {
			l = e.begin(j, dataset, 0, 0)
			for rank := range int(j.Request().WorldSize()) {
				l.order.serve(rank) // whichever will be served here
			}
		}
		l.warming++
		w.live = l
	}
	e.mu.Unlock()
	w.filler = e.newFiller()
	return w, nil
}

// close gives up what is under way. The job has some time to begin.
func (w *warmer) close() {
	w.filler.close()
	if w.live != nil {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
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
		for w.column < len(columns) {
			ref, ok := w.job.Manifest().Blob(columns[w.column], pos)
			w.column++
			at := spill.Place{Dataset: w.dataset, Position: pos}
			switch {
			case !ok:
			case w.engine.opts.Spill.Has(ref):
				w.There++
			case !w.engine.opts.Spill.Wants(at, ref.Size, true):
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
func (w *warmer) keep(o outcome) {
	switch {
	case w.filler.keep(o):
		w.Stored++
		w.Bytes += o.ref.Size
	case o.err == nil:
		w.Full = true // what is there is worth more
	default:
		w.Failed++
	}
}

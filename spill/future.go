package spill

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Order is the order in which a job uses the samples of a dataset, epoch by epoch: a permutation that knows its
// inverse. It is safe for concurrent use, allocates nothing, and its methods take constant time.
type Order interface {
	// Rows is the number of indices of an epoch, the same for each.
	Rows() int64
	// Index returns where in an epoch, counted from the job's first as 0, the sample at a position is used;
	// false if it is not.
	Index(epoch, position int64) (index int64, ok bool)
}

// Future is the jobs that run. It knows when a sample is used next by any of them: the place of the
// sample in the remaining part of the job's epoch, or else in its next epoch, at the pace that the job is
// seen to keep. So it keeps no list, and an answer costs one or two inverses for each job on the dataset.
//
// It is an [Oracle], and safe for concurrent use.
type Future struct {
	mu   sync.Mutex             // held to change jobs
	jobs atomic.Pointer[[]*Job] // replaced, never changed
}

// JobOptions describe a job to a [Future].
type JobOptions struct {
	// Dataset is what the job's positions are positions in, as in [Place].
	Dataset uint32
	// Order is the order of its epochs.
	Order Order
	// Epochs is how many there are; 0 if that is not known. Then it is taken for granted that another one follows.
	Epochs int64
	// At is the index, in its first epoch, at which the job begins.
	At int64
	// RowTime is the time that a sample is supposed to take the job until its pace is seen. Default: 1 ms.
	RowTime time.Duration
	// RowBytes is how many bytes of blobs a sample of the job has, in the mean; 0 if that is not known.
	RowBytes int64
	// Positions is how many the dataset has: all that Order knows are below it. Default: the rows of an epoch.
	Positions int64
}

// Job is a job that runs.
type Job struct {
	opts JobOptions
	rows int64 // of an epoch
	end  int64 // served where the job ends

	served  atomic.Int64 // rows, from the beginning of the first epoch on
	rowTime atomic.Int64 // nanoseconds

	pace pace
}

// Add adds a job that begins now. The error, a [schema.FieldError], says what is wrong with the options.
func (f *Future) Add(opts JobOptions, now Time) (*Job, error) {
	if opts.Order == nil {
		return nil, &schema.FieldError{Field: "order", Got: "none", Want: "the order of the job's epochs"}
	}
	rows := opts.Order.Rows()
	if rows < 0 || opts.Epochs < 0 || opts.At < 0 || opts.At > rows {
		return nil, &schema.FieldError{
			Field: "job", Want: "rows, epochs and a beginning of 0 or more, the beginning within the first epoch",
			Got: strconv.FormatInt(rows, 10) + " rows, " + strconv.FormatInt(opts.Epochs, 10) +
				" epochs, beginning at " + strconv.FormatInt(opts.At, 10),
		}
	}
	if opts.RowTime <= 0 {
		opts.RowTime = time.Millisecond
	}
	opts.RowBytes, opts.Positions = max(opts.RowBytes, 0), max(opts.Positions, rows)
	j := &Job{opts: opts, rows: rows, end: opts.Epochs * rows}
	if opts.Epochs == 0 || rows > 0 && j.end/rows != opts.Epochs {
		j.end = 1<<63 - 1
	}
	j.served.Store(opts.At)
	j.rowTime.Store(int64(opts.RowTime))
	j.pace.begin(opts.At, now, max(rows/4, minHorizon))
	f.mu.Lock()
	defer f.mu.Unlock()
	jobs := append(slices.Clone(f.list()), j)
	f.jobs.Store(&jobs)
	return j, nil
}

// Remove forgets a job, which has ended.
func (f *Future) Remove(j *Job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	jobs := slices.DeleteFunc(slices.Clone(f.list()), func(other *Job) bool { return other == j })
	f.jobs.Store(&jobs)
}

func (f *Future) list() []*Job {
	if p := f.jobs.Load(); p != nil {
		return *p
	}
	return nil
}

// Len is the number of jobs that run.
func (f *Future) Len() int { return len(f.list()) }

// JobState is where a job stands.
type JobState struct {
	Job       *Job          `json:"-"`
	Order     Order         `json:"-"` // of its epochs
	Dataset   uint32        `json:"dataset"`
	Positions int64         `json:"positions"` // of the dataset
	Rows      int64         `json:"rows"`      // of an epoch
	Served    int64         `json:"served"`    // rows, from the beginning of the first epoch on
	Left      int64         `json:"left"`      // rows until the job ends, -1 if that is not known
	RowTime   time.Duration `json:"row_time_ns"`
	RowBytes  int64         `json:"row_bytes"` // 0 if not known
}

// Jobs returns where the jobs stand that run, in the order in which they were added.
func (f *Future) Jobs() []JobState {
	jobs := f.list()
	states := make([]JobState, len(jobs))
	for i, j := range jobs {
		served := j.served.Load()
		left := int64(-1)
		if j.end != 1<<63-1 {
			left = max(j.end-served, 0)
		}
		states[i] = JobState{
			Job: j, Order: j.opts.Order, Dataset: j.opts.Dataset, Positions: j.opts.Positions,
			Rows: j.rows, Served: served, Left: left, RowTime: j.RowTime(), RowBytes: j.opts.RowBytes,
		}
	}
	return states
}

// NextUse implements [Oracle].
func (f *Future) NextUse(at Place, now Time) (next Time, ok bool) {
	for _, j := range f.list() {
		if j.opts.Dataset != at.Dataset {
			continue
		}
		if rows, used := j.rowsUntil(at); used {
			// Far beyond any use in practice; rather late than negative.
			t := now + Time(min(float64(rows)*float64(j.rowTime.Load()), 1<<61))
			if !ok || t < next {
				next, ok = t, true
			}
		}
	}
	return next, ok
}

// pageSamples is at how many of a page's rows it is looked when they are used.
const pageSamples = 4

// rowsUntil is how many rows the job uses before it uses what is at a place. Of a page that is the first of some of its
// rows; as they are few of them, in an order that is random it comes so much sooner as there are more.
func (j *Job) rowsUntil(at Place) (first int64, used bool) {
	start, page := at.page()
	if !page {
		return j.RowsUntil(at.Position)
	}
	for i := range int64(pageSamples) {
		if rows, ok := j.RowsUntil(start + i*schema.PageRows/pageSamples); ok && (!used || rows < first) {
			first, used = rows, true
		}
	}
	return first * (pageSamples + 1) / (schema.PageRows + 1), used
}

// Advance says how far the job is: the next row it uses is the one at an index of an epoch, counted from its first as
// 0. It should be called for each batch at least. A call that would move the job back is ignored, as calls may overtake
// each other.
func (j *Job) Advance(epoch, index int64, now Time) {
	served := epoch*j.rows + index
	for {
		old := j.served.Load()
		if served <= old {
			return
		}
		if j.served.CompareAndSwap(old, served) {
			break
		}
	}
	if t := j.pace.observe(served, now); t > 0 {
		j.rowTime.Store(t)
	}
}

// RowsUntil returns how many rows the job uses before it uses the sample at a position; false if it will not, as
// far as is known.
func (j *Job) RowsUntil(position int64) (int64, bool) {
	if j.rows == 0 {
		return 0, false
	}
	served := j.served.Load()
	if served >= j.end {
		return 0, false
	}
	epoch := served / j.rows
	start := epoch * j.rows
	if i, ok := j.opts.Order.Index(epoch, position); ok && start+i >= served {
		return start + i - served, true
	}
	if start+j.rows >= j.end {
		return 0, false
	}
	if i, ok := j.opts.Order.Index(epoch+1, position); ok {
		return start + j.rows + i - served, true
	}
	return 0, false
}

// Served is how many rows it has used, counted from the beginning of its first epoch.
func (j *Job) Served() int64 { return j.served.Load() }

// End is how many it will have used when it ends, the greatest number there is if that is not known.
func (j *Job) End() int64 { return j.end }

// RowTime is the time a row takes, as seen of late.
func (j *Job) RowTime() time.Duration { return time.Duration(j.rowTime.Load()) }

// minHorizon is the least number of rows over which a pace is averaged, so that it does not follow what a read ahead
// does.
const minHorizon = 1024

// pace averages the time that a row takes over the last rows, older ones counting for less and less.
type pace struct {
	mu      sync.Mutex
	at      int64 // rows
	when    Time
	rows    float64
	time    float64
	horizon float64
}

func (p *pace) begin(at int64, now Time, horizon int64) {
	p.at, p.when, p.horizon = at, now, float64(horizon)
}

// observe returns the time of a row in nanoseconds, 0 if it is not known yet.
func (p *pace) observe(at int64, now Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at > p.at && now > p.when {
		p.rows += float64(at - p.at)
		p.time += float64(now - p.when)
		p.at, p.when = at, now
		if p.rows > 2*p.horizon {
			shrink := p.horizon / p.rows
			p.rows, p.time = p.rows*shrink, p.time*shrink
		}
	}
	if p.rows == 0 {
		return 0
	}
	return max(1, int64(p.time/p.rows))
}

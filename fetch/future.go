package fetch

import (
	"slices"
	"sync/atomic"
	"time"

	"bowstring/fetch/plan"
	"bowstring/spill"
)

const (
	// grace is how long a job without a stream is taken to go on: a client may ask
	// for one epoch at a time, and evaluate in between.
	grace = 10 * time.Minute
	// warmGrace is how long what was brought for a job waits for it to begin.
	warmGrace = time.Hour
	// sameJob is how far from where a job is, as a part of an epoch, a stream of the
	// same plan may begin and belong to it. Another one is a job of its own: the
	// same, started again.
	sameJob = 1.0 / 8
)

// liveJob is a job that runs, as the spill sees it: all streams of one plan that
// are about as far, of whatever ranks, epoch after epoch. All fields but order
// and future are guarded by scheduler.mu.
type liveJob struct {
	group   string
	dataset string
	number  uint32 // the spill's of the snapshot
	base    uint64 // the epoch that is the order's 0
	order   *epochOrder
	future  *spill.Job
	ahead   lookAhead // the filler's

	warming int // Warms that bring it, which nobody else needs to do
	streams int
	until   time.Time // when it is forgotten, if it has no stream

	spillReads, spillBytes, storeReads, storeBytes int64
}

// epochOrder is the order of a job's epochs, for the ranks that are served here.
// It keeps the plans of two epochs. It is safe for concurrent use.
type epochOrder struct {
	job   *Job // whose snapshot the live job keeps open
	plans [2]atomic.Pointer[lapPlan]
	ranks atomic.Pointer[[]bool] // by rank; replaced, never changed
}

// lapPlan is the plan of the epoch that comes so many after the job's first.
type lapPlan struct {
	lap int64
	*plan.Plan
}

func newEpochOrder(j *Job) *epochOrder {
	o := &epochOrder{job: j}
	o.ranks.Store(&[]bool{})
	return o
}

// plan returns the plan of an epoch.
func (o *epochOrder) plan(epoch int64) *plan.Plan {
	kept := &o.plans[epoch%2]
	if p := kept.Load(); p != nil && p.lap == epoch {
		return p.Plan
	}
	p := &lapPlan{epoch, o.job.PlanOf(epoch)}
	kept.Store(p)
	return p.Plan
}

// Rows implements spill.Order.
func (o *epochOrder) Rows() int64 { return o.job.Plan().Rows() }

// Index implements spill.Order.
func (o *epochOrder) Index(epoch, position int64) (int64, bool) {
	p := o.plan(epoch)
	i, ok := p.Index(position)
	return i, ok && o.serves(p, i)
}

// serves reports whether an index is in the share of a rank that is served here.
func (o *epochOrder) serves(p *plan.Plan, index int64) bool {
	if p.Config().World == 1 {
		return true
	}
	ranks, r := *o.ranks.Load(), p.Rank(index)
	return r < len(ranks) && ranks[r]
}

// at returns the position of the sample at an index, and whether it is served here.
func (o *epochOrder) at(p *plan.Plan, index int64) (position int64, here bool) {
	if !o.serves(p, index) {
		return 0, false
	}
	return p.Position(index), true
}

// serve adds a rank to those served here.
func (o *epochOrder) serve(rank int) {
	old := *o.ranks.Load()
	if rank < len(old) && old[rank] {
		return
	}
	ranks := make([]bool, max(len(old), rank+1))
	copy(ranks, old)
	ranks[rank] = true
	o.ranks.Store(&ranks)
}

// spillTime is the spill's clock.
func spillTime(t time.Time) spill.Time { return spill.Time(t.UnixNano()) }

// follow has a stream belong to a job that runs, which begins with it if it
// must. It returns jobs that have ended, to be released without the lock.
func (s *scheduler) follow(st *Stream) (ended []*liveJob) {
	if st.dataset == 0 || st.slot.list != nil || st.job.Plan().Rows() == 0 {
		return nil
	}
	ended = s.forgetJobs(time.Now())
	l := s.jobOf(st.job, st.slot.at)
	if l == nil {
		l = s.begin(st.job, st.dataset, st.slot.at, st.ticket.Epochs)
	}
	l.order.serve(st.ticket.Rank)
	l.streams++
	st.live = l
	return ended
}

// jobOf returns the running job that a stream which begins at an index of its
// epoch belongs to, nil if there is none.
func (s *scheduler) jobOf(j *Job, index int64) *liveJob {
	for _, l := range s.jobs {
		if l.group != j.Group() {
			continue
		}
		rows := l.order.Rows()
		at := float64(int64(j.EpochNumber()-l.base))*float64(rows) + float64(index)
		served := float64(l.future.Served())
		if near := max(sameJob*float64(rows), float64(4*j.Request().Batch)); at >= served-near && at <= served+near {
			return l
		}
	}
	return nil
}

// begin makes a job of a stream, or of what will be one, and tells the spill.
func (s *scheduler) begin(j *Job, dataset uint32, index, epochs int64) *liveJob {
	l := &liveJob{
		group: j.Group(), dataset: j.SnapshotName(), number: dataset, base: j.EpochNumber(), order: newEpochOrder(j),
		ahead: lookAhead{fullAt: -1},
	}
	// A client that shuffles and does not say for how many epochs has another one
	// follow. One that does not shuffle looks through the data once.
	if epochs == 0 && j.Request().Shuffle == nil {
		epochs = 1
	}
	var err error
	j.Retain()
	l.future, err = s.opts.Future.Add(spill.JobOptions{
		Dataset: dataset, Order: l.order, Epochs: epochs, At: index,
		Positions: j.Manifest().Rows(), RowBytes: j.MeanBytes(),
	}, spillTime(time.Now()))
	if err != nil {
		panic(err) // a job was checked
	}
	s.jobs = append(s.jobs, l)
	return l
}

// unfollow takes a stream out of its job. Where that has come to its end, the
// job has too. It returns jobs that have ended, to be released without the lock.
func (s *scheduler) unfollow(st *Stream) []*liveJob {
	l := st.live
	if l == nil {
		return nil
	}
	st.live = nil
	if l.streams--; l.streams > 0 {
		return nil
	}
	now := time.Now()
	l.until = now.Add(grace)
	if l.future.Served() >= l.future.End() {
		l.until = now
	}
	return s.forgetJobs(now)
}

// forgetJobs takes out the jobs that will not go on.
func (s *scheduler) forgetJobs(now time.Time) (ended []*liveJob) {
	s.jobs = slices.DeleteFunc(s.jobs, func(l *liveJob) bool {
		if l.streams > 0 || l.warming > 0 || now.Before(l.until) {
			return false
		}
		s.opts.Future.Remove(l.future)
		ended = append(ended, l)
		return true
	})
	return ended
}

// endJobs ends all jobs; there is no stream any more.
func (s *scheduler) endJobs() {
	s.mu.Lock()
	for _, l := range s.jobs {
		l.until = time.Time{}
	}
	ended := s.forgetJobs(time.Now())
	s.mu.Unlock()
	release(ended)
}

// release lets go of the snapshots of jobs that have ended.
func release(ended []*liveJob) {
	for _, l := range ended {
		l.order.job.Release()
	}
}

// count counts a blob that came, or did not.
func (l *liveJob) count(bytes int64, spilled bool, err error) {
	switch {
	case l == nil || err != nil:
	case spilled:
		l.spillReads++
		l.spillBytes += bytes
	default:
		l.storeReads++
		l.storeBytes += bytes
	}
}

// progress tells the spill how far a stream has read: what is in its window, it
// need not find there again.
func (s *scheduler) progress(st *Stream) {
	if l := st.live; l != nil {
		lap, index := st.reads()
		l.future.Advance(int64(st.epochOf(lap)-l.base), index, spillTime(time.Now()))
		s.moved = true
		s.wakeFillers()
	}
}

// reads is where in the order of which epoch the stream reads next.
func (s *Stream) reads() (lap, index int64) {
	a := &s.ahead
	if a.reading < len(a.runs) {
		r := a.runs[a.reading]
		return r.lap, r.index + int64(r.next/len(s.columns))
	}
	return a.walk.lap, a.walk.at
}

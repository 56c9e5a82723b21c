package lookahead

import (
	"slices"
	"time"

	"bowstring/fetch/resolve"
	"bowstring/spill"
)

// sameJob is how far from where a job is, as a part of an epoch, a stream of the same plan may begin and belong to it
// whatever else is known of its rank.
const sameJob = 1.0 / 8

// allRanks stands for no rank in particular.
const allRanks = -1

// findLocked returns the running job that a stream of a rank which begins at an index of its epoch belongs to, nil if
// there is none, and which of the job's epochs that is: the job that is near there, or the one in which that epoch is
// the rank's turn. Where nothing is shuffled, one epoch is like the other, and it is the nearest.
func (a *Ahead) findLocked(j *resolve.Job, rank int, index int64) (found *running, epoch int64) {
	for _, l := range a.jobs {
		if l.group != j.Group() {
			continue
		}
		rows, served := l.order.Rows(), l.future.Served()
		e := int64(j.EpochNumber() - l.base)
		shuffled := j.Request().Shuffle != nil
		if !shuffled {
			e = max(0, (served-index+rows/2)/rows)
		}
		at := float64(e)*float64(rows) + float64(index)
		near := max(sameJob*float64(rows), float64(4*j.Request().Batch))
		if at >= float64(served)-near && at <= float64(served)+near {
			return l, e
		}
		if found == nil && shuffled && rank != allRanks && l.turnLocked(rank, e) {
			found, epoch = l, e
		}
	}
	return found, epoch
}

// turnLocked reports whether a rank goes on with an epoch in this job, however far the others are: windows may hold
// much of an epoch, and what other nodes tell comes late. Each rank goes through each epoch once: one that begins where
// it has been is another job, the same, started again.
func (l *running) turnLocked(rank int, epoch int64) bool {
	served, rows := l.future.Served(), l.order.Rows()
	lap := max(served-1, 0) / rows
	now := epoch == lap || epoch == served/rows
	last, known := l.begun[rank]
	if !known { // who begins late, beside others
		return now && l.streams+l.elsewhere > 0
	}
	return last == epoch-1 && (now || epoch == lap-1)
}

// noteLocked notes that a stream of a rank has begun one of the job's epochs.
func (l *running) noteLocked(rank int, epoch int64) {
	if last, known := l.begun[rank]; !known || epoch > last {
		l.begun[rank] = epoch
	}
}

// beginLocked makes a job of a stream, or of what will be one, and tells the
// spill; nil if there are too many.
func (a *Ahead) beginLocked(j *resolve.Job, number uint32, mean, index, epochs int64, now time.Time) *running {
	if len(a.jobs) >= maxJobs {
		return nil
	}
	l := &running{
		group: j.Group(), dataset: j.SnapshotName(), number: number, mean: mean, base: j.EpochNumber(),
		order: newEpochOrder(j),
		ahead: scan{fullAt: -1}, begun: map[int]int64{},
	}
	// A client that shuffles and does not say for how many epochs has another one
	// follow. One that does not shuffle looks through the data once.
	if epochs == 0 && j.Request().Shuffle == nil {
		epochs = 1
	}
	var err error
	j.Retain()
	l.future, err = a.opts.Future.Add(spill.JobOptions{
		Dataset: number, Order: l.order, Epochs: epochs, At: index,
		Positions: j.Manifest().Rows(), RowBytes: mean,
	}, spillTime(now))
	if err != nil {
		panic(err) // a job was checked
	}
	a.jobs = append(a.jobs, l)
	return l
}

// forgetLocked takes out the jobs that will not go on, and as many more of those
// without a stream as there have to be for another one. It returns them, to be
// released without the lock.
func (a *Ahead) forgetLocked(now time.Time) (ended []*running) {
	idle := func(l *running) bool { return l.streams+l.elsewhere == 0 && l.warming == 0 }
	drop := func(gone func(*running) bool) {
		a.jobs = slices.DeleteFunc(a.jobs, func(l *running) bool {
			if !gone(l) {
				return false
			}
			a.opts.Future.Remove(l.future)
			ended = append(ended, l)
			return true
		})
	}
	drop(func(l *running) bool { return idle(l) && !now.Before(l.until) })
	for len(a.jobs) >= maxJobs {
		var first *running
		for _, l := range a.jobs {
			if idle(l) && (first == nil || l.until.Before(first.until)) {
				first = l
			}
		}
		if first == nil {
			break
		}
		drop(func(l *running) bool { return l == first })
	}
	return ended
}

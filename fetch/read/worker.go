package read

import (
	"slices"
	"sync/atomic"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	// maxIdle is how many goroutines wait when there is nothing to read. A new goroutine has a small stack, and
	// growing it costs more than most of a read that hits.
	maxIdle = 256
	// runLength is how many reads of a tier that answers at once a worker takes together,
	// and runBytes about how many bytes. They are small, so that the first outcome is not
	// delivered much later than it came.
	runLength = 16
	runBytes  = 1 << 20
	// gatherBytes is about how many bytes a worker requests together from a tier that serves cells together.
	gatherBytes = 16 << 20
	// quickRead is the mean time of a read below which a tier counts as one that answers at once.
	quickRead = 50 * time.Microsecond
)

// Attempt is an attempt at a read. The zero Attempt is none.
type Attempt struct {
	read  *read
	nth   int
	lane  *lane
	why   Reason      // Hedge or Retry, for an attempt at the last tier that is not the first; else Own
	pause *time.Timer // to wait for first, if not nil
}

// worker is a goroutine that reads. A waiting worker is in Reader.idle. An ended one is in Reader.spent, for reuse,
// because a burst starts as many as there may be reads in flight.
type worker struct {
	reader  *Reader
	loop    func()
	wake    chan bool // false when the reader closes
	notices notices   // what it delivers next

	// The current run, written with Reader.mu held.
	run     []Attempt
	quick   bool // likely to take no time
	gathers bool // the tier serves all together
	began   time.Time

	cells [runLength]Cell
	came  [runLength]came
	// claimed is how many reads of the run the worker has begun, plus one when all are done; or robbed. The goroutine
	// that sets robbed, or the plus one, owns the results of all reads before the current one.
	claimed atomic.Int32
}

// robbed is the value of worker.claimed after another goroutine has taken over the reads that the worker had not
// begun, and the results.
const robbed = -1

// came is the result of an attempt.
type came struct {
	answer      Answer
	began, when time.Time
}

// add adds an attempt to the run.
func (w *worker) add(a Attempt) {
	if len(w.run) == 0 {
		w.gathers = a.lane.gathers(a.read.ref)
		w.quick = !w.gathers && a.lane.quick()
	}
	w.run = append(w.run, a)
}

// fits reports whether an attempt may be added to the run.
func (w *worker) fits(a *Attempt) bool {
	switch first := w.run[0].lane; {
	case w.gathers:
		return a.lane == first && first.gathers(a.read.ref)
	case a.lane.gathers(a.read.ref):
		return false
	default:
		return a.lane == first || w.quick && a.lane.quick()
	}
}

// full reports whether the run, with that many bytes, is complete.
func (w *worker) full(bytes int64) bool {
	switch l := w.run[0].lane; {
	case w.gathers:
		return len(w.run) >= l.traits.Together || bytes >= gatherBytes
	case l.quick():
		return len(w.run) >= runLength || bytes >= runBytes
	}
	return true
}

// wakeLocked wakes a waiting worker, or starts one. The first worker that is free makes the read. If all CPUs are
// busy, running workers go from read to read, and a woken one waits for a CPU. If the read were assigned to the woken
// worker it would wait too, and a consumer may be waiting for its blob.
func (r *Reader) wakeLocked() {
	if last := len(r.idle) - 1; last >= 0 {
		w := r.idle[last]
		r.idle = r.idle[:last]
		w.wake <- true // does not block: the worker waits
		return
	}
	var w *worker
	if last := len(r.spent) - 1; last >= 0 {
		w, r.spent = r.spent[last], r.spent[:last]
	} else {
		w = &worker{reader: r, wake: make(chan bool, 1)}
		w.loop = func() { r.work(w) }
	}
	w.wake <- true
	r.running.Add(1)
	go w.loop()
}

// dueLocked queues an attempt before the requests that wait for their turn.
func (r *Reader) dueLocked(a Attempt) {
	r.due.add(a)
	r.wakeLocked()
}

// work makes reads and delivers outcomes, until there is nothing to read and enough other workers wait.
func (r *Reader) work(w *worker) {
	defer r.running.Done()
	for <-w.wake {
		r.mu.Lock()
		r.takeLocked(w)
		for len(w.run) > 0 {
			r.mu.Unlock()
			w.notices.send()
			last := w.make()
			r.mu.Lock()
			r.cameLocked(w, last)
			r.takeLocked(w)
		}
		over := r.closed || len(r.idle) >= maxIdle
		if over {
			r.mu.Unlock()
			w.notices.send()
			r.mu.Lock()
			r.spent = append(r.spent, w)
			r.mu.Unlock()
			return
		}
		r.idle = append(r.idle, w)
		r.mu.Unlock()
		w.notices.send()
	}
}

// dismissLocked ends the waiting workers. The reader is closed, so no worker waits later.
func (r *Reader) dismissLocked() {
	for _, w := range r.idle {
		w.wake <- false
	}
	r.idle, r.due = nil, due{}
}

// make makes the attempts of the run. It returns whole, or, if the worker was robbed, the index of the last attempt
// it made, or a negative number if that result is not its own.
func (w *worker) make() (last int) {
	if pause := w.run[0].pause; pause != nil {
		select {
		case <-pause.C:
		case <-w.run[0].read.Done():
			pause.Stop()
		}
	}
	if w.gathers {
		return w.gather()
	}
	when := time.Now()
	for i := range w.run {
		if !w.claimed.CompareAndSwap(int32(i), int32(i+1)) {
			return i - 1
		}
		c := &w.came[i]
		c.began = when
		c.answer = w.reader.get(w, i)
		when = time.Now()
		c.when = when
	}
	if n := int32(len(w.run)); !w.claimed.CompareAndSwap(n, n+1) {
		return len(w.run) - 1
	}
	return whole
}

// whole is what make returns if the worker was not robbed.
const whole = -1 << 30

// cameLocked processes the results of a run.
func (r *Reader) cameLocked(w *worker, last int) {
	if w.quick {
		r.runs = slices.DeleteFunc(r.runs, func(o *worker) bool { return o == w })
	}
	switch {
	case w.gathers:
	case last == whole:
		r.cameOfLocked(w, 0, len(w.run), &w.notices)
	case last >= 0:
		r.cameOfLocked(w, last, last+1, &w.notices)
	}
	clear(w.run)
}

// cameOfLocked processes the results of the attempts from index from to to.
func (r *Reader) cameOfLocked(w *worker, from, to int, notices *notices) {
	for i := from; i < to; i++ {
		c := &w.came[i]
		r.endedLocked(w.run[i], c, notices)
		*c = came{}
		w.cells[i] = Cell{}
	}
}

// robLocked takes over, from workers whose runs take long after all, the reads that they
// have not begun and the results that they have. Otherwise up to runLength-1 reads would
// wait behind one that the worker's tier does not answer.
func (r *Reader) robLocked(now time.Time, notices *notices) {
	r.runs = slices.DeleteFunc(r.runs, func(w *worker) bool {
		if now.Sub(w.began) < watchPeriod {
			return false
		}
		n := w.claimed.Load()
		if n == robbed || int(n) > len(w.run) || !w.claimed.CompareAndSwap(n, robbed) {
			return n == robbed
		}
		r.cameOfLocked(w, 0, int(max(n-1, 0)), notices)
		if n > 0 {
			w.run[n-1].lane.pace = watchPeriod
		}
		for _, a := range w.run[n:] {
			r.dueLocked(a)
		}
		return true
	})
}

// get reads a blob once, and verifies it, unless that is left to the waiters.
func (r *Reader) get(w *worker, i int) Answer {
	a := &w.run[i]
	if n := r.stuck.Load(); n >= maxStuck {
		return Answer{Err: stuckError(n)}
	}
	r.cell(a, &w.cells[i])
	a.lane.tier.Fetch(w.cells[i:i+1], (*single)(&w.came[i]))
	return r.check(a, w.came[i].answer)
}

// cell fills in the cell of an attempt. For the first attempt of a read it counts a miss
// of the tiers above that cache such blobs, so that their hit rate is that of streams and
// not that of retries.
func (r *Reader) cell(a *Attempt, c *Cell) {
	rd, l := a.read, a.lane
	if a.nth == 0 && l.index == rd.entry && r.keeps(rd) {
		for i := range r.lanes[:l.index] {
			if k := r.lanes[i].caching; k != nil {
				k.Missed(rd.place, rd.ref.Size)
			}
		}
	}
	*c = Cell{Context: store.WithAttempt(rd, a.nth), Ref: r.Known(rd.ref), At: rd.place, Use: rd.use,
		Late: rd.late && l.index == rd.entry}
}

// check verifies an answer by the reference, if neither the tier nor the waiters do.
func (r *Reader) check(a *Attempt, c Answer) Answer {
	rd, l := a.read, a.lane
	if c.Err == nil && !c.Unchecked && !l.traits.Checked {
		if rd.ref.Unproven() {
			_, c.Err = r.opts.Prover.Prove(rd, rd.ref, c.Blob.Bytes())
		} else {
			c.Err = rd.ref.Check(c.Blob.Bytes())
		}
		if c.Err != nil {
			c.Blob.Release()
			c.Blob = schema.Blob{}
		}
	}
	if c.Err != nil && l == r.last {
		r.trouble.report(r.opts.Logger, rd.ref, a.nth, c.Err)
	}
	return c
}

// single receives the answer to one cell.
type single came

// Answer implements Answers.
func (s *single) Answer(_ int, a Answer) { s.answer = a }

// gathered receives the answers to cells that a tier serves together.
type gathered struct {
	worker *worker
	began  time.Time
}

// Answer implements Answers. Each outcome is delivered when it comes.
func (g *gathered) Answer(n int, a Answer) {
	w := g.worker
	r, at := w.reader, &w.run[n]
	c := came{answer: r.check(at, a), began: g.began, when: time.Now()}
	var notices notices
	r.mu.Lock()
	r.endedLocked(*at, &c, &notices)
	r.mu.Unlock()
	notices.send()
}

// gather makes a run that the tier serves together. Its answers are processed as they
// come, so the whole run is never robbed.
func (w *worker) gather() int {
	r := w.reader
	g := &gathered{w, time.Now()}
	if n := r.stuck.Load(); n >= maxStuck {
		for i := range w.run {
			g.Answer(i, Answer{Err: stuckError(n)})
		}
		return whole
	}
	cells := make([]Cell, len(w.run))
	for i := range w.run {
		r.cell(&w.run[i], &cells[i])
	}
	w.run[0].lane.tier.Fetch(cells, g)
	return whole
}

// due is the queue of attempts to make, oldest first. Reader.mu guards it.
type due struct {
	list []Attempt
	at   int // the oldest attempt
}

// add appends an attempt. The room of attempts already taken is reused, so that a queue that is never empty does not
// grow.
func (d *due) add(a Attempt) {
	if len(d.list) == cap(d.list) && d.at > len(d.list)/2 {
		n := copy(d.list, d.list[d.at:])
		clear(d.list[n:])
		d.list, d.at = d.list[:n], 0
	}
	d.list = append(d.list, a)
}

// len returns the number of attempts in the queue.
func (d *due) len() int { return len(d.list) - d.at }

// take returns the oldest attempt; the zero Attempt if there is none.
func (d *due) take() (a Attempt) {
	if d.at < len(d.list) {
		a, d.list[d.at] = d.list[d.at], Attempt{}
		d.at++
	}
	if d.at == len(d.list) {
		d.list, d.at = d.list[:0], 0
	}
	return a
}

package fetch

import (
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

const (
	// maxFills is how many blobs a filler has on their way at most, fewFills where
	// there is no room for them yet.
	maxFills = 256
	fewFills = 8
	// scanRows is how many rows are looked at before others have their turn.
	scanRows = 1024
	// fullRows is how many rows of a job, as a part of an epoch, are used before
	// the spill, which would not keep more of what comes, is asked again.
	fullRows = 1.0 / 256
	// waitShare is the part of their time that consumers wait for the store, lately,
	// from which on the path to the store is what holds them up.
	waitShare = 0.02
	// waitPeriod is over how long that is measured at least.
	waitPeriod = 10 * time.Second
)

// filler brings blobs into the spill while no stream has a use for the path to
// the store. It belongs to one goroutine, which alone changes places, with
// scheduler.mu locked.
type filler struct {
	s       *scheduler
	wake    chan struct{}                  // told when the path may have room
	results chan outcome                   // of reads under way
	places  map[schema.BlobRef]spill.Place // of what is under way, or came and is being kept
	bytes   int64                          // of those
	blocked bool                           // it has something to read, and no room; guarded by scheduler.mu
}

func (s *scheduler) newFiller() *filler {
	f := &filler{s: s, wake: make(chan struct{}, 1), results: make(chan outcome, maxFills), places: map[schema.BlobRef]spill.Place{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillers[f] = struct{}{}
	return f
}

// close gives up the reads under way.
func (f *filler) close() {
	f.s.mu.Lock()
	f.s.leave(func(w *waiter) bool { return w.result == f.results })
	delete(f.s.fillers, f)
	f.s.mu.Unlock()
	for {
		select {
		case o := <-f.results:
			o.blob.Release()
		default:
			return
		}
	}
}

// wakeFillers tells the fillers that the path may have room: those that have use
// for it or, if jobs have gone on, all. s.mu is held.
func (s *scheduler) wakeFillers() {
	if len(s.fillers) == 0 || !s.idle() {
		return
	}
	all := s.moved
	s.moved = false
	for f := range s.fillers {
		if !all && !f.blocked {
			continue
		}
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// idle reports whether no stream has a use for the path to the store: none waits,
// and each has read ahead all it may. s.mu is held.
func (s *scheduler) idle() bool { return !s.closed && len(s.queued) == 0 && s.waiting == 0 }

// spare reports whether the path has room for a read that no stream waits for.
// While there are streams it is half full at most, so that what they want next
// does not wait for long. s.mu is held.
func (s *scheduler) spare(n int64) bool {
	return s.idle() && s.flow.admitsFill(n, len(s.streams) > 0)
}

// tried is what came of filler.try.
type tried int

const (
	noRoom tried = iota // for it on the path, or in what may be under way
	begun
	underWay // for somebody else, who has the spill keep it
)

// try begins to read a blob.
func (f *filler) try(c *candidate) tried {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reads[c.ref] != nil || s.coming(c.ref) || s.spilled(c.ref) { // since it was looked for
		return underWay
	}
	if f.blocked = len(f.places) >= f.most(c.ref.Size) || !s.spare(c.ref.Size); f.blocked {
		return noRoom
	}
	r := s.join(c.ref, waiter{result: f.results})
	s.fromStore(r)
	s.stats.fills++
	s.spawn(r, 0)
	f.places[c.ref] = c.at
	f.bytes += c.ref.Size
	return begun
}

// most is how many blobs may be under way, with one of n bytes: few where each
// has to displace another, which may turn out to be worth more.
func (f *filler) most(n int64) int {
	if f.s.opts.Spill.Room() < f.bytes+n {
		return fewFills
	}
	return maxFills
}

// coming reports whether a filler has a blob on its way, or about to be kept.
// s.mu is held.
func (s *scheduler) coming(ref schema.BlobRef) bool {
	for f := range s.fillers {
		if _, ok := f.places[ref]; ok {
			return true
		}
	}
	return false
}

// keep puts a blob that has come into the spill. kept says whether it is there
// now.
func (f *filler) keep(o outcome) (kept bool) {
	at := f.places[o.ref]
	defer func() {
		f.s.mu.Lock()
		defer f.s.mu.Unlock()
		delete(f.places, o.ref)
		f.bytes -= o.ref.Size
	}()
	if o.err != nil {
		return false
	}
	kept = f.s.opts.Spill.Put(o.ref, at, o.took, o.blob.Bytes()) || f.s.opts.Spill.Has(o.ref)
	o.blob.Release()
	return kept
}

// lookAhead is how far what a job will use has been looked for in the spill.
type lookAhead struct {
	at     int64 // the row to look at next, counted from the job's first epoch
	column int
	fullAt int64 // where the job was when the spill would keep no more of it; -1: it would
}

// candidate is a blob that will be used and is not there.
type candidate struct {
	ref  schema.BlobRef
	at   spill.Place
	from *lookAhead
}

// fill has the spill hold what the jobs that run use soonest, until the engine
// closes.
func (e *Engine) fill() {
	f := e.newFiller()
	defer f.close()
	var next *candidate
	more := false // there are rows that were not looked at
	for {
		select {
		case o := <-f.results:
			f.keep(o)
			continue
		case <-e.closing:
			return
		default:
		}
		if next == nil {
			next, more = e.nextFill()
		}
		if next != nil && f.try(next) != noRoom {
			next.from.column++
			next = nil
			continue
		}
		if next == nil && more {
			continue
		}
		select {
		case o := <-f.results:
			f.keep(o)
		case <-f.wake:
			next = nil // what is soonest may be something else now
		case <-e.closing:
		}
	}
}

// nextFill returns what is used soonest of what is not in the spill and would be
// kept, nil if there is nothing as far as was looked; more says that it was not
// looked at all.
func (e *Engine) nextFill() (best *candidate, more bool) {
	e.mu.Lock()
	var jobs []*liveJob
	for _, l := range e.jobs {
		if l.warming == 0 {
			l.order.job.Retain() // the job may end meanwhile
			jobs = append(jobs, l)
		}
	}
	displace := e.waitsLately(time.Now())
	e.mu.Unlock()
	defer release(jobs)
	var soonest float64
	for _, l := range jobs {
		c, rows, left := e.missing(l, displace)
		more = more || left
		if c == nil {
			continue
		}
		if when := float64(rows) * float64(l.future.RowTime()); best == nil || when < soonest {
			best, soonest = c, when
		}
	}
	return best, more
}

// missing looks for the next blob that a job uses and the spill has not, and
// returns it and how many rows are used before it; more says that there are rows
// left to look at.
func (e *Engine) missing(l *liveJob, displace bool) (c *candidate, before int64, more bool) {
	a, rows, served := &l.ahead, l.order.Rows(), l.future.Served()
	if a.fullAt >= 0 && float64(served-a.fullAt) < fullRows*float64(rows) {
		return nil, 0, false
	}
	a.fullAt = -1
	if a.at < served {
		a.at, a.column = served, 0
	}
	m := l.order.job.Manifest()
	columns := l.order.job.Projection().BlobColumns()
	end := min(served+rows, l.future.End())
	for scanned := 0; a.at < end && scanned < scanRows; scanned++ {
		p := l.order.plan(a.at / rows)
		for pos, here := l.order.at(p, a.at%rows); here && a.column < len(columns); a.column++ {
			ref, ok := m.Blob(columns[a.column], pos)
			if !ok || e.opts.Spill.Has(ref) {
				continue
			}
			at := spill.Place{Dataset: l.number, Position: pos}
			if !e.opts.Spill.Wants(at, ref.Size, displace) {
				a.fullAt = served
				return nil, 0, false
			}
			return &candidate{ref, at, a}, a.at - served, true
		}
		a.at, a.column = a.at+1, 0
	}
	return nil, 0, a.at < end
}

// Demand says what streams have asked for, and how long their consumers waited,
// since the engine was made.
func (e *Engine) Demand() spill.Demand {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.demand(time.Now())
}

// demand is Demand; s.mu is held.
func (s *scheduler) demand(now time.Time) spill.Demand {
	d := spill.Demand{Waited: s.stats.waited, Streamed: s.stats.streamed, StoreBytes: s.stats.readBytes, SpillBytes: s.stats.spillBytes}
	for st := range s.streams {
		d.Streamed += now.Sub(st.opened)
	}
	return d
}

// waitsLately reports whether consumers have waited for the store of late, as
// far as there were any. s.mu is held.
func (s *scheduler) waitsLately(now time.Time) bool {
	d := s.demand(now)
	if streamed := d.Streamed - s.measured.Streamed; streamed >= waitPeriod {
		s.waits = float64(d.Waited-s.measured.Waited) > waitShare*float64(streamed)
		s.measured = d
	}
	return s.waits
}

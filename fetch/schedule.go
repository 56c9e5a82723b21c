package fetch

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	// hedgeShare is how many reads more are made for the sake of slow ones.
	hedgeShare = 0.05
	// maxHedges is how many hedges may be saved up for a bad moment.
	maxHedges = 32
	// hedgeLeast and hedgeFactor say when a read is slow: after that many times
	// the 95th percentile of late. Below hedgeLeast nothing could be gained.
	hedgeLeast  = 20 * time.Millisecond
	hedgeFactor = 1.5
	// A read that is silent for silenceFactor times the 95th percentile, but
	// silenceLeast at least, is attempted again whatever hedges are left, and
	// after twice that once more: its server may be gone without a word.
	silenceFactor = 8
	silenceLeast  = time.Second
	maxAttempts   = 3 // under way at once
	// watchPeriod is how often slow reads are looked for.
	watchPeriod = 10 * time.Millisecond
)

// scheduler decides which blob is read next, and reads it.
//
// Streams say what they want; whenever the path to the store has room, the
// scheduler takes the next cell of one of them. Between jobs it is fair by
// bytes: start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing",
// SIGCOMM 1996), with a job's streams taking turns. A blob that is being read
// already is not read again.
//
// What the spill has is read from there, and is no part of what is shared out
// and measured: the path to the store. If that is full, blobs which the spill has
// are read all the same. What the store brings, the spill is offered.
//
// A goroutine reads one blob at a time and takes the next one by itself, so
// that there are as many as reads in flight. Slow reads are looked for by a
// timer that runs while there are any.
//
// One mutex guards all that the scheduler and its streams know; it is held for
// well under a microsecond a blob, and never while bytes are touched.
type scheduler struct {
	store store.Store
	opts  *Options

	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
	groups  map[string]*group
	queued  []*group // those with a stream that wants something
	virtual int64    // the start tag of the read begun last

	reads          map[schema.BlobRef]*read // under way
	oldest, newest *read                    // of those, in the order they began
	flow           flow
	latency        latencies
	slow           time.Duration // how long a slow read takes, brought up to date by the timer
	hedges         float64       // that may be made now
	watch          *time.Timer
	watching       bool
	stats          counters

	workers    []*worker // that have ended
	spillReads int       // reads of the spill under way
	waiting    int       // streams whose consumer waits for a read
	jobs       []*liveJob
	fillers    map[*filler]struct{}
	moved      bool         // jobs have gone on since the fillers were told
	measured   spill.Demand // when waits was last found out
	waits      bool         // consumers wait for the store

	trouble trouble

	live    sync.WaitGroup // streams that are not closed; grows under mu only while not closed
	running sync.WaitGroup // goroutines that read, and the timer's; grows under mu only while not closed
}

// group is the live streams of one job, whatever their epochs and ranks.
type group struct {
	id      string
	streams int
	tag     int64     // start tag of its next read: bytes that it was given, in virtual time
	turns   []*Stream // those that want something
	queued  bool
}

func (s *scheduler) init(store store.Store, opts *Options) {
	s.store, s.opts = store, opts
	s.streams = map[*Stream]struct{}{}
	s.groups = map[string]*group{}
	s.reads = map[schema.BlobRef]*read{}
	s.fillers = map[*filler]struct{}{}
	s.flow.init(opts.MaxReads)
	s.hedges = 2
}

func errClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// add counts a stream in, and gives every live stream its new share of the memory.
func (s *scheduler) add(st *Stream) error {
	var ended []*liveJob
	defer func() { release(ended) }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosing()
	}
	ended = s.follow(st)
	g := s.groups[st.job.Group()]
	if g == nil {
		g = &group{id: st.job.Group()}
		s.groups[g.id] = g
	}
	s.live.Add(1)
	g.streams++
	st.group = g
	st.window.init(time.Now(), s.flow.latency, s.flow.limit)
	s.streams[st] = struct{}{}
	s.stats.streams++
	s.share()
	s.want(st)
	// What others are reading now is not to be read again when its turn comes.
	for ref, ok := st.peek(); ok && s.reads[ref] != nil; ref, ok = st.peek() {
		s.join(ref, st.takeCell(ref))
		s.stats.sharedReads++
	}
	s.dispatch()
	return nil
}

// remove counts a stream out, and gives up the reads that only it wanted.
func (s *scheduler) remove(st *Stream) {
	var ended []*liveJob
	defer func() { release(ended) }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	st.gone = true
	delete(s.streams, st)
	s.progress(st)
	ended = s.unfollow(st)
	s.stats.streamed += time.Since(st.opened)
	s.leave(func(w *waiter) bool { return w.stream == st })
	if i := slices.Index(st.group.turns, st); i >= 0 {
		st.group.turns = slices.Delete(st.group.turns, i, i+1)
	}
	if st.group.streams--; st.group.streams == 0 {
		delete(s.groups, st.group.id)
	}
	s.share()
	s.dispatch()
}

// free gives back bytes of a stream's window.
func (s *scheduler) free(st *Stream, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.window.used -= n
	s.want(st)
	s.dispatch()
}

// share divides the window memory evenly.
func (s *scheduler) share() {
	for st := range s.streams {
		st.window.setLimit(s.opts.WindowBytes / int64(len(s.streams)))
		s.want(st)
	}
}

// close ends all streams and reads, and waits for the goroutines.
func (s *scheduler) close() {
	s.mu.Lock()
	s.closed = true
	for st := range s.streams {
		st.cancel(errClosing())
	}
	for s.oldest != nil {
		r := s.oldest
		s.forget(r)
		r.deliver(time.Time{}, schema.Blob{}, errClosing(), false)
	}
	if s.watching && s.watch.Stop() {
		s.running.Done()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// want notes that a stream may have something to read; dispatch finds out.
func (s *scheduler) want(st *Stream) {
	if st.queued || st.gone || len(st.columns) == 0 {
		return
	}
	st.queued = true
	st.roomAgain()
	g := st.group
	g.turns = append(g.turns, st)
	if !g.queued {
		g.queued = true
		g.tag = max(g.tag, s.virtual)
		s.queued = append(s.queued, g)
	}
}

// dispatch begins as many reads as the path has room for.
func (s *scheduler) dispatch() {
	for r := s.nextLocked(); r != nil; r = s.nextLocked() {
		s.spawn(r, 0)
	}
}

// nextLocked begins the next read, whose first attempt is the caller's to make;
// nil if nothing is wanted or the path is full. Then others may have a use for it.
func (s *scheduler) nextLocked() *read {
	if s.closed {
		return nil
	}
	if r := s.nextWanted(); r != nil {
		return r
	}
	s.wakeFillers()
	return nil
}

// nextWanted begins the next read that a stream wants.
func (s *scheduler) nextWanted() *read {
	// The first so many groups cannot go on: what they want next has no room.
	blocked := 0
	for blocked < len(s.queued) {
		at := blocked
		for i, g := range s.queued[blocked:] {
			if g.tag < s.queued[at].tag {
				at = blocked + i
			}
		}
		g := s.queued[at]
		if len(g.turns) == 0 {
			g.queued = false
			s.queued = slices.Delete(s.queued, at, at+1)
			continue
		}
		st := g.turns[0]
		ref, ok := st.peek()
		if !ok {
			st.queued = false
			g.turns = slices.Delete(g.turns, 0, 1)
			continue
		}
		spilled := s.spilled(ref)
		if s.reads[ref] == nil && !s.admits(ref, spilled) {
			if s.opts.Spill == nil {
				return nil
			}
			s.queued[at], s.queued[blocked] = s.queued[blocked], g
			blocked++
			continue
		}
		w := st.takeCell(ref)
		if len(g.turns) > 1 {
			copy(g.turns, g.turns[1:])
			g.turns[len(g.turns)-1] = st
		}
		if !spilled {
			s.virtual = g.tag
			g.tag += ref.Size + readOverhead
		}
		if r := s.join(ref, w); r != nil {
			s.from(r, spilled)
			return r
		}
		s.stats.sharedReads++
	}
	return nil
}

// join has w wait for the read of ref that is under way, or begins one and
// returns it; where it reads is yet to be said, and its first attempt to be made.
func (s *scheduler) join(ref schema.BlobRef, w waiter) *read {
	if r := s.reads[ref]; r != nil {
		r.others = append(r.others, w)
		return nil
	}
	r := &read{ref: ref, start: time.Now(), first: w, older: s.newest}
	r.attempt(r.start)
	if s.newest != nil {
		s.newest.newer = r
	} else {
		s.oldest = r
	}
	s.newest = r
	s.reads[ref] = r
	s.keepWatch()
	return r
}

// leave has those who match wait no longer; reads that nobody wants are ended.
func (s *scheduler) leave(match func(*waiter) bool) {
	for r := s.oldest; r != nil; {
		newer := r.newer
		r.others = slices.DeleteFunc(r.others, func(w waiter) bool { return match(&w) })
		if match(&r.first) {
			if n := len(r.others); n > 0 {
				r.first, r.others = r.others[n-1], r.others[:n-1]
			} else {
				s.forget(r)
			}
		}
		r = newer
	}
}

// worker is what a goroutine that reads begins with. It is used again by others
// afterwards: there may be one for every read.
type worker struct {
	run  func()
	read *read
	nth  int
}

// spawn makes the n-th attempt at r in a goroutine of its own. s.mu is held.
func (s *scheduler) spawn(r *read, n int) {
	s.running.Add(1)
	var w *worker
	if last := len(s.workers) - 1; last >= 0 {
		w, s.workers = s.workers[last], s.workers[:last]
	} else {
		w = &worker{}
		w.run = func() { s.work(w) }
	}
	w.read, w.nth = r, n
	go w.run()
}

// keepWatch has slow reads looked for.
func (s *scheduler) keepWatch() {
	if s.watching || s.closed || s.oldest == nil {
		return
	}
	s.watching = true
	s.running.Add(1)
	if s.watch == nil {
		s.watch = time.AfterFunc(watchPeriod, s.lookForSlow)
		return
	}
	s.watch.Reset(watchPeriod)
}

// lookForSlow begins another attempt at the reads that are slow.
func (s *scheduler) lookForSlow() {
	defer s.running.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = false
	defer s.keepWatch()
	hedgeAfter, silentAfter, hedging := s.patience()
	p95, _ := s.latency.quantile(0.95)
	p99, _ := s.latency.quantile(0.99)
	s.slow = max(p99, 3*p95) // a hedge and what went before it
	now := time.Now()
	for r := s.oldest; r != nil; r = r.newer {
		age := now.Sub(r.start)
		if age < hedgeAfter && age < silentAfter {
			return
		}
		switch {
		case r.running >= maxAttempts:
			continue
		case now.Sub(r.latest) >= silentAfter<<(r.running-1):
			s.stats.retries++
		case hedging && r.failed == 0 && now.Sub(r.latest) >= hedgeAfter && s.hedges >= 1:
			s.hedges--
			s.stats.hedges++
			r.hedged = true
		default:
			continue
		}
		r.attempt(now)
		s.fromStore(r)
		s.spawn(r, r.attempts-1)
	}
}

// patience says after which time a read is slow, and after which it is silent.
func (s *scheduler) patience() (hedge, silent time.Duration, hedging bool) {
	p95, known := s.latency.quantile(0.95)
	if !known {
		return silenceLeast, 2 * silenceLeast, false
	}
	return max(hedgeLeast, time.Duration(hedgeFactor*float64(p95))), max(silenceLeast, silenceFactor*p95), !s.opts.NoHedge
}

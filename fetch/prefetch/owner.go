package prefetch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/read"
	"bowstring/schema"
)

// owner is the state of a stream's goroutine: what is planned, being read, and held for
// the consumer. No other goroutine accesses it; they post messages: see mail.
type owner struct {
	*Stream
	window   window
	hold     *admission.Hold // the window's memory in the ledger
	path     read.Path       // as of the consumer's last request
	attached bool            // blobs of its snapshot are in buckets
	reach    int64           // how many rows before its turn a cached row may be read; 0: none
	pipeline pipeline
	slot     walk // the next row to deliver
	sizer    sizer
	gone     bool // the stream is closed
	saidBack spot // the last backTo that its group knows
	settling settling

	asked   bool      // the consumer waits for a batch
	left    time.Time // when it got the last batch, or the stream was opened
	counted time.Time // its waiting until then is in wait
	wait    Wait      // for the current batch, so far
	waiting bool      // the rows that it waits for are being read
	wanted  wanted    // those rows
	woken   bool      // they have arrived
	check   bool      // serve has another reason to check for a batch
	again   bool      // run continues without waiting for a message
	more    bool      // refill may have room; not set when data was freed for other streams

	from      read.From     // the source of the last cell that arrived
	making    time.Duration // the time of its operators
	processor time.Duration // CPU time of operators since the last batch
	fullSince time.Time     // since when reading is stopped because the window is full; zero if it is not
	fullFor   time.Duration // how long it was stopped since the last batch
	fullOnce  time.Duration // and before that batch

	ending  bool           // Close was called
	helpers sync.WaitGroup // goroutines that wait for memory or for settled steps
}

// handed is the answer to Next: a batch to assemble, or an error.
type handed struct {
	part      *part
	wait      Wait
	processor time.Duration
	err       error
}

// run is the stream's goroutine. Until the stream is closed it takes messages, requests
// blobs while the window has room, and delivers batches that the consumer asks for.
func (s *owner) run() {
	var in letters
	s.refill()
	s.catchUp()
	for !s.ending {
		s.publish()
		if !s.again {
			<-s.mail.wake
		}
		s.more, s.again = s.again, false
		s.mail.take(&in)
		s.takeIn(&in)
		in.clear()
		s.sayBack()
		if s.more {
			s.refill()
			s.catchUp()
		}
		s.serve()
	}
	s.end()
}

// takeIn processes messages. Answers come first, so that functions see arrived blobs.
func (s *owner) takeIn(in *letters) {
	for i := range in.answers {
		s.receive(&in.answers[i])
	}
	s.window.used -= in.freed
	s.check = s.check || in.freed > 0 || in.recheck
	s.more = s.more || len(in.answers) > 0 || in.freed > 0 || in.recheck
	for _, f := range in.todo {
		f(s)
	}
}

// come notes that the consumer asks for a batch. It ends the stream's idleness.
func (s *owner) come() {
	if s.gone {
		s.next <- handed{err: context.Cause(s.context())}
		return
	}
	s.asked, s.check, s.counted, s.wait = true, true, time.Now(), Wait{}
	s.path = s.set.opts.Reader.Path(s.attached)
	if s.idle.Swap(false) {
		s.set.shareAgain()
	}
}

// reply answers the waiting consumer.
func (s *owner) reply(h handed) {
	s.setWaiting(false)
	s.asked, s.left = false, time.Now()
	s.next <- h // does not block: the channel is empty while the consumer waits
}

// setWaiting keeps the set's number of waiting consumers up to date.
func (s *owner) setWaiting(waiting bool) {
	if s.waiting != waiting {
		s.waiting = waiting
		n := int64(1)
		if !waiting {
			n = -1
		}
		s.set.waiting.Add(n)
	}
}

// serve delivers the next batch if the consumer waits and its rows have arrived. It
// returns early unless there is a reason to check, because a check walks over the runs.
func (s *owner) serve() {
	if !s.asked || !s.woken && !s.check && s.context().Err() == nil {
		return
	}
	s.countWait()
	s.check = false
	switch {
	case s.context().Err() != nil:
		s.reply(handed{err: context.Cause(s.context())})
	case len(s.columns) == 0:
		s.serveUnread()
	case !s.nextShare():
		s.serveEnd()
	default:
		if p := s.gather(); p != nil {
			s.hand(p)
		} else {
			s.await()
		}
	}
}

// nextShare moves to the share of the next batch; false if no share with rows is left,
// or none is settled yet.
func (s *owner) nextShare() bool {
	if s.slot.left() > 0 {
		return true
	}
	if !s.slot.settle() {
		return false
	}
	s.pipeline.promote(s)
	return true
}

// countWait adds the consumer's waiting time since the last call to the source of the
// last cell that arrived: time of operators first, then time of the read.
func (s *owner) countWait() {
	now := time.Now()
	took := now.Sub(s.counted)
	s.counted = now
	if !s.waiting {
		return
	}
	made := min(took, s.making)
	s.wait.Operators, s.making = s.wait.Operators+made, 0
	switch took -= made; s.from {
	case read.FromSpill:
		s.wait.Spill += took
	case read.FromPeer:
		s.wait.Peer += took
	default:
		s.wait.Store += took
	}
}

// hand delivers a batch. It splits the batch's memory off the hold, lets the group keep
// the blobs for other ranks, and requests what the window has room for now.
func (s *owner) hand(p *part) {
	if !s.fullSince.IsZero() {
		s.roomAgain()
		s.noRoom()
	}
	s.wait.Window, s.fullFor, s.fullOnce = s.fullFor, 0, s.fullOnce+s.fullFor
	s.finishPart(p)
	s.shareOut(p)
	p.hold = s.hold.Split(p.reserved)
	s.slot.settle() // rows of the next share may exceed the window, so reserve must know it
	s.pipeline.promote(s)
	processor := s.processor
	s.processor = 0
	s.publish()
	s.reply(handed{part: p, wait: s.wait, processor: processor})
	s.refill()
	s.part.Advance(s.reads())
}

// await makes sure that the rows which the consumer waits for are being read, even if
// they exceed the window. If the stream has nothing and the next row has no memory, it
// reclaims memory of other streams. The stream fails if a sample never fits the memory.
func (s *owner) await() {
	pl := &s.pipeline
	before := pl.news
	s.refill()
	need := pl.needs()
	switch {
	case pl.reserving:
	case len(pl.blocked) > 0 && pl.onlyBlocked():
		s.awaitRoom()
	case need > 0: // not even the next sample has room: other streams hold all memory
		s.obtain(need, func() { pl.granted += need }, func(err error) error {
			return errNoMemory(err, fmt.Sprintf("reading the next sample of %s", s.job.SnapshotName()))
		})
	default:
		if s.window.size == s.window.limit || !s.fullSince.IsZero() {
			s.set.cramped()
		}
		if pl.paused || pl.news != before || pl.onlyBlocked() && !pl.loading() {
			s.check, s.again = true, true // planning continues, or something has arrived
			return
		}
	}
	s.woken = false
	s.setWaiting(true)
}

// obtain reserves memory without which the stream cannot continue. A helper goroutine
// waits for it, so that the stream's goroutine stays responsive; then and failed run on
// the stream's goroutine. Until then refill reserves nothing (reserving): otherwise
// freed memory would go to prefetched rows, and the consumer would wait for longer.
func (s *owner) obtain(need int64, then func(), failed func(error) error) {
	s.pipeline.reserving = true
	more := s.hold.Sibling()
	s.helpers.Go(func() {
		err := s.set.reserve(s.context(), s.Stream, more, need)
		if !s.do(func(s *owner) {
			s.pipeline.reserving, s.check, s.more = false, true, true
			switch {
			case s.gone:
				more.Release() // end has released only s.hold
			case err == nil:
				s.hold.Take(more)
				then()
			case s.context().Err() == nil:
				s.fail(failed(err))
			}
		}) {
			more.Release()
		}
	})
}

// end cancels the stream's reads, releases what was not delivered, and unregisters the
// stream. It is the last call of run.
func (s *owner) end() {
	left := s.mail.close()
	s.catchUp()
	s.gone = true
	s.takeIn(&left)
	s.helpers.Wait()
	if s.asked {
		s.reply(handed{err: context.Cause(s.context())})
	}
	offset, index := s.reads()
	if s.place != nil {
		s.place.Close()
		s.closeStage()
		s.part.Advance(offset, index)
	}
	s.releaseAll()
	s.hold.Release()
	s.publish()
	rest := s.slot
	s.served.Store(!rest.settle())
	s.part.Leave()
	s.set.remove(s.Stream)
	s.job.Release()
	s.set.live.Done()
	close(s.done)
}

// maxUnreadFaults bounds the faults of a batch that has no blobs.
const maxUnreadFaults = 4096

// serveUnread delivers a batch without blobs: metadata, or only positions. Nothing is
// read for it before the consumer asks.
func (s *owner) serveUnread() {
	if s.pipeline.reserving {
		return
	}
	s.settleMore(&s.slot)
	if !s.slot.settle() {
		s.serveEnd()
		return
	}
	rows := min(s.slot.left(), schema.DefaultMetaBatch)
	if most := min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant)); s.sizer.rowBytes > 0 {
		rows = min(rows, max(most/s.sizer.rowBytes, 1))
	}
	if s.job.Tolerant() && len(s.job.Projection().Computed()) > 0 {
		rows = min(rows, maxUnreadFaults) // each row may be a fault
	}
	reserved := rows * s.sizer.rowBytes
	if s.hold.TryGrow(reserved) {
		s.handUnread(rows, reserved)
		return
	}
	s.obtain(reserved, func() { s.handUnread(rows, reserved) }, func(err error) error {
		return errNoMemory(err, fmt.Sprintf("reading the next row of %s", s.job.SnapshotName()))
	})
}

// handUnread delivers rows whose memory is reserved. It starts to load the manifest
// pages of the rows after them.
func (s *owner) handUnread(rows, reserved int64) {
	s.window.used += reserved
	p := &part{walk: s.slot, pieces: s.pipeline.nextUnread(rows), reserved: reserved, hold: s.hold.Split(reserved)}
	s.slot.at += rows
	s.finishPart(p)
	if m := s.job.Manifest(); !m.Resident() {
		m.Prefetch(s.context(), s.pipeline.soonUnread(min(rows, maxDrafted)))
	}
	s.reply(handed{part: p})
}

// finishPart sets the fields of p that depend on the stream's position after p.
func (s *owner) finishPart(p *part) {
	p.last = s.slot.left() == 0
	if s.slot.list != nil {
		return
	}
	p.resume = s.goOn()
}

// goOn is the ticket that continues after the delivered rows.
func (s *owner) goOn() schema.Ticket {
	if !s.order.loose {
		return s.slot.ticket(s.ticket)
	}
	t := s.pipeline.first.ticket(s.ticket)
	t.Served = s.pipeline.served.from(s.pipeline.firstRow)
	return t
}

// mail is the mailbox of a stream's goroutine. Any goroutine may post; posting never
// waits. Its size is bounded by the stream's reads in flight, its batches, and the
// callers that wait for their function.
type mail struct {
	wake chan struct{} // has room for one; signalled after each post

	mu     sync.Mutex
	closed bool // the goroutine has ended
	in     letters
}

// letters are messages, sorted by kind.
type letters struct {
	answers []read.Outcome // of reads; takeIn takes over their blobs
	freed   int64          // bytes of batches that were released
	todo    []func(*owner) // functions to run
	recheck bool           // there may be a batch or room
}

// post adds a message with add, and returns false if the goroutine has ended.
func (m *mail) post(add func(*letters)) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	add(&m.in)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// take swaps the posted messages for l, which is empty, so that both buffers are reused.
func (m *mail) take(l *letters) {
	m.mu.Lock()
	*l, m.in = m.in, *l
	m.mu.Unlock()
}

// close makes later posts fail, and returns the messages that were not taken.
func (m *mail) close() letters {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	l := m.in
	m.in = letters{}
	return l
}

// clear empties letters and keeps their buffers.
func (l *letters) clear() {
	clear(l.answers)
	clear(l.todo)
	l.answers, l.todo, l.freed, l.recheck = l.answers[:0], l.todo[:0], 0, false
}

// publish stores the stream's state for stats and progress.
func (s *owner) publish() {
	t := &s.published
	set(&t.epochOffset, s.slot.epochOffset)
	set(&t.step, s.slot.step)
	at := s.slot.at
	if s.slot.list == nil && s.job.Layout() != nil {
		at = s.slot.step * s.job.Request().Batch // the rank's rows may be anywhere in the step
	}
	set(&t.at, at)
	set(&t.limit, s.window.size)
	set(&t.used, s.window.used)
	set(&t.inFlight, int64(s.pipeline.inFlight))
	set(&t.ready, int64(s.pipeline.ready))
	set(&t.full, int64(s.fullOnce+s.fullFor))
	var since int64
	if !s.fullSince.IsZero() {
		since = max(1, int64(s.fullSince.Sub(s.opened)))
	}
	set(&t.fullSinceOpened, since)
}

// set stores v if it has changed: an atomic store costs ten times a load.
func set(to *atomic.Int64, v int64) {
	if to.Load() != v {
		to.Store(v)
	}
}

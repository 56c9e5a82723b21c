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

// owner is what a stream's goroutine has: what is planned, read, and held for the consumer. No other goroutine touches
// it; what comes to it are messages: see mail.
type owner struct {
	*Stream
	window   window
	hold     *admission.Hold // what the window has of the ledger
	path     read.Path       // as it was when the consumer last came
	attached bool            // blobs of its snapshot lie in buckets
	reach    int64           // how many rows before its turn one may be begun that is there; 0: none
	pipeline pipeline
	slot     walk // how far was handed out
	sizer    sizer
	gone     bool // the stream is closed
	saidBack spot // to its group
	settling settling

	asked   bool      // the consumer waits for a batch
	left    time.Time // when it got the one before, or the stream was opened
	counted time.Time // until when its waiting is counted
	wait    Wait      // so far
	waiting bool      // what it waits for is under way
	wanted  wanted    // what that is
	woken   bool      // it is there
	check   bool      // there is another reason to see whether a batch is there
	again   bool      // there is more to do, whatever comes
	more    bool      // there may be room for more: not after others have had it given back

	from      read.From     // where what came back last came from
	making    time.Duration // what operators took for it
	processor time.Duration // of operators, since the last batch
	fullSince time.Time     // since when reading stands still for want of room, zero if it does not
	fullFor   time.Duration // how long it did since the last batch
	fullOnce  time.Duration // and before

	ending  bool
	helpers sync.WaitGroup // that wait for memory
}

// handed is what the consumer gets: a batch to be put together, or an error.
type handed struct {
	part      *part
	wait      Wait
	processor time.Duration
	err       error
}

// run plans, asks, takes what comes, and hands out, until the stream is closed.
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

// takeIn takes in what has come.
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

// come notes that the consumer asks for a batch.
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

// reply gives the consumer what it came for.
func (s *owner) reply(h handed) {
	s.setWaiting(false)
	s.asked, s.left = false, time.Now()
	s.next <- h // there is room: it waits
}

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

// serve hands out the next batch, if the consumer has come for it and its rows are there.
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

// nextShare has the next batch be of a share that has a row left; false if there is none yet, or none at all.
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

// countWait says for what the consumer has waited since that was last said.
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

// hand hands a batch out.
func (s *owner) hand(p *part) {
	if !s.fullSince.IsZero() {
		s.roomAgain()
		s.noRoom()
	}
	s.wait.Window, s.fullFor, s.fullOnce = s.fullFor, 0, s.fullOnce+s.fullFor
	s.finishPart(p)
	s.shareOut(p)
	p.hold = s.hold.Split(p.reserved)
	s.slot.settle() // the share that comes next may be read whatever the window
	s.pipeline.promote(s)
	processor := s.processor
	s.processor = 0
	s.publish()
	s.reply(handed{part: p, wait: s.wait, processor: processor})
	s.refill()
	s.part.Advance(s.reads())
}

// await has what the consumer needs next read, whatever the window. The stream fails where a sample is too large for all
// memory.
func (s *owner) await() {
	pl := &s.pipeline
	before := pl.news
	s.refill()
	need := pl.needs()
	switch {
	case pl.reserving:
	case len(pl.blocked) > 0 && pl.idle():
		s.awaitRoom()
	case need > 0: // not even the next sample has room: others have it all
		s.obtain(need, func() { pl.granted += need }, func(err error) error {
			return errNoMemory(err, fmt.Sprintf("reading the next sample of %s", s.job.SnapshotName()))
		})
	default:
		if s.window.size == s.window.limit || !s.fullSince.IsZero() {
			s.set.cramped()
		}
		if pl.paused || pl.news != before || pl.idle() && !pl.loading() {
			s.check, s.again = true, true // planning goes on, or something has come meanwhile
			return
		}
	}
	s.woken = false
	s.setWaiting(true)
}

// obtain waits for memory that the stream needs to go on at all, beside its goroutine. What others, or
// the stream's own batches, give back goes to this reservation: read ahead by it, the consumer would wait for more.
func (s *owner) obtain(need int64, then func(), failed func(error) error) {
	s.pipeline.reserving = true
	more := s.hold.Sibling()
	s.helpers.Go(func() {
		err := s.set.reserve(s.context(), s.Stream, more, need)
		if !s.do(func(s *owner) {
			s.pipeline.reserving, s.check, s.more = false, true, true
			switch {
			case s.gone:
				more.Release() // nobody else would
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

// end gives up what the stream reads, and releases what was not handed out.
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

// serveUnread hands out a batch that has no blobs: metadata, or nothing at all.
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
		rows = min(rows, maxUnreadFaults) // each may be a fault
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

// handUnread hands out rows for which the memory is there.
func (s *owner) handUnread(rows, reserved int64) {
	s.window.used += reserved
	p := &part{walk: s.slot, pieces: s.pipeline.nextUnread(rows), reserved: reserved, hold: s.hold.Split(reserved)}
	s.slot.at += rows
	s.finishPart(p)
	if m := s.job.Manifest(); !m.Resident() {
		m.Ahead(s.context(), s.pipeline.soonUnread(min(rows, maxDrafted)))
	}
	s.reply(handed{part: p})
}

// finishPart says how the stream stands after p.
func (s *owner) finishPart(p *part) {
	p.last = s.slot.left() == 0
	if s.slot.list != nil {
		return
	}
	p.resume = s.goOn()
}

// goOn is the ticket that goes on after what was handed out.
func (s *owner) goOn() schema.Ticket {
	if !s.order.loose {
		return s.slot.ticket(s.ticket)
	}
	t := s.pipeline.first.ticket(s.ticket)
	t.Served = s.pipeline.served.from(s.pipeline.firstRow)
	return t
}

// mail is what comes to a stream's goroutine. Any goroutine may post; posting never waits.
type mail struct {
	wake chan struct{} // has room for one: there is something

	mu     sync.Mutex
	closed bool // nobody reads it any more
	in     letters
}

// letters are messages in the order of their kinds.
type letters struct {
	answers []read.Outcome // of reads
	freed   int64          // bytes of batches that were released
	todo    []func(*owner) // whatever else is to be done
	recheck bool           // there is reason to look at all again
}

// post adds to what comes, and reports whether it will be read.
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

// take swaps what has come for the letters given, which are empty.
func (m *mail) take(l *letters) {
	m.mu.Lock()
	*l, m.in = m.in, *l
	m.mu.Unlock()
}

// close has nothing more come, and returns what was not taken.
func (m *mail) close() letters {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	l := m.in
	m.in = letters{}
	return l
}

// clear empties letters, whose room is used again.
func (l *letters) clear() {
	clear(l.answers)
	clear(l.todo)
	l.answers, l.todo, l.freed, l.recheck = l.answers[:0], l.todo[:0], 0, false
}

// tell says how the stream stands, for those who only look.
func (s *owner) publish() {
	t := &s.published
	set(&t.epochOffset, s.slot.epochOffset)
	set(&t.step, s.slot.step)
	at := s.slot.at
	if s.slot.list == nil && s.job.Layout() != nil {
		at = s.slot.step * s.job.Request().Batch // its rows lie anywhere in the step
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

// tell stores what has changed: a store costs ten times a look.
func set(to *atomic.Int64, v int64) {
	if to.Load() != v {
		to.Store(v)
	}
}

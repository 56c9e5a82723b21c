package prefetch

import (
	"context"
	"fmt"
	"io"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/read"
	"bowstring/schema"
)

// Next returns the next batch, io.EOF after the last. The error of a stream
// that failed is returned again by every further call.
func (s *Stream) Next() (*Batch, error) {
	p, wait, err := s.head()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var faults []Fault
	var computed []schema.Vector
	if p.pieces != nil {
		if p.positions, err = s.positionsOf(p.pieces); err == nil {
			p.rows, err = s.job.Manifest().At(s.context(), p.positions)
		}
		wait.Store += time.Since(start)
	}
	if err == nil {
		err = schema.Guard(func() (err error) {
			if faults, err = s.mend(p); err == nil {
				computed, faults, err = s.compute(p, faults)
			}
			return err
		})
	}
	if err != nil {
		p.release()
		s.free(p.reserved)
		s.fail(err)
		return nil, err
	}
	start = time.Now()
	assembled, err := s.job.Projection().AssembleRows(s.job.Manifest().Form(), p.positions, p.rows, p.blobs, computed)
	if err != nil {
		s.free(p.reserved)
		err = fmt.Errorf("putting step %d of %s together: %w", p.walk.step, s.job.SnapshotName(), err)
		s.fail(err)
		return nil, err
	}
	// The batch points into the manifest, and fills the window, until it is
	// released like its blobs.
	s.job.Retain()
	s.set.transit.Add(p.reserved)
	s.tenant.transit.Add(p.reserved)
	wait.Encode = time.Since(start)
	s.record.Batch(lineageOf(p, faults))
	processor := s.delivered(len(p.positions), wait)
	b := &Batch{
		Batch: assembled, Rank: s.ticket.Rank, Epoch: s.epochOf(p.walk.lap), Step: p.walk.step, Row: p.walk.row(),
		Last:      p.last,
		Positions: p.positions, Resume: p.resume, Faults: faults, Wait: wait, hold: batchHold{s, p.reserved},
		Processor: processor, rows: p.rows,
	}
	b.held[0] = schema.NewBlob(nil, &b.hold)
	assembled.Blobs = append(assembled.Blobs, b.held[:])
	return b, nil
}

// Ready reports whether Next would return a whole batch at once, as far as is known without looking at other streams.
// It is false where it does not matter: of a stream without blobs, out of order, or at its end. And it is where memory
// is scarce: a batch that was taken is never given back to streams that have nothing, as what is read ahead is.
func (s *Stream) Ready() bool {
	if len(s.columns) == 0 || s.order.loose {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slot.left() == 0 || s.context().Err() != nil {
		return false
	}
	s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
	return s.prefixLocked(false) && s.set.roomy(s.tenant, s.sizer.bytes)
}

// epochOf is the epoch's number, 0 where nothing is shuffled.
func (s *Stream) epochOf(lap int64) uint64 {
	if s.ticket.Shuffle == nil {
		return 0
	}
	return s.ticket.Shuffle.Epoch + uint64(lap)
}

// delivered counts a batch, and returns the processor time that operators took meanwhile.
func (s *Stream) delivered(rows int, w Wait) (processor time.Duration) {
	s.endFirst()
	c := &s.set.count
	c.batches.Add(1)
	c.rows.Add(int64(rows))
	c.waited.Add(int64(w.Store))
	s.mu.Lock()
	s.waited.Store += w.Store
	s.waited.Spill += w.Spill
	s.waited.Peer += w.Peer
	s.waited.Window += w.Window
	s.waited.Operators += w.Operators
	s.waited.Encode += w.Encode
	lap, index := s.readsLocked()
	processor, s.processor = s.processor, 0
	s.mu.Unlock()
	s.part.Advance(lap, index)
	return processor
}

// endFirst ends the span of the first batch. It may be called again.
func (s *Stream) endFirst() {
	if s.first != nil {
		s.first.End()
	}
}

// head waits until the next batch's rows are there and takes them.
func (s *Stream) head() (*part, Wait, error) {
	if len(s.columns) == 0 {
		return s.unread()
	}
	path := s.set.opts.Reader.Path()
	s.mu.Lock()
	s.comeLocked()
	defer func() {
		s.leaveLocked()
		s.mu.Unlock()
	}()
	s.path = path
	if s.context().Err() != nil {
		return nil, Wait{}, context.Cause(s.context())
	}
	if s.slot.left() == 0 {
		return nil, Wait{}, io.EOF
	}
	var wait Wait
	p := s.gatherLocked()
	for p == nil {
		start := time.Now()
		if err := s.awaitLocked(); err != nil {
			return nil, wait, err
		}
		took := time.Since(start)
		made := min(took, s.making)
		wait.Operators, s.making = wait.Operators+made, 0
		switch took -= made; s.from {
		case read.FromSpill:
			wait.Spill += took
		case read.FromPeer:
			wait.Peer += took
		default:
			wait.Store += took
		}
		p = s.gatherLocked()
	}
	if !s.fullSince.IsZero() {
		s.roomAgainLocked()
		s.noRoomLocked()
	}
	wait.Window, s.fullFor = s.fullFor, 0
	s.finishPartLocked(p)
	s.slot.settle() // the share that comes next may be read whatever the window
	s.ahead.promote(s)
	s.refillLocked()
	return p, wait, nil
}

// awaitLocked has what the consumer needs next read, whatever the window, and
// waits until s.wanted is there, or more of it can be asked for. It fails where
// the stream has ended, or a sample is too large for all memory.
func (s *Stream) awaitLocked() error {
	before := s.ahead.news
	s.refillLocked()
	if len(s.ahead.hungry) > 0 && s.ahead.idle() {
		return s.starvedLocked()
	}
	if need := s.ahead.needs(); need > 0 {
		// Not even the next sample has room: others have it all.
		more, err := s.obtainLocked(need)
		if err != nil {
			if s.context().Err() != nil {
				return context.Cause(s.context())
			}
			err = errNoMemory(err, fmt.Sprintf("reading the next sample of %s", s.job.SnapshotName()))
			s.fail(err)
			return err
		}
		if s.gone { // nobody would give it back
			more.Release()
			return context.Cause(s.context())
		}
		s.hold.Take(more)
		s.ahead.granted += need
		return nil
	}
	if s.window.size == s.window.limit || !s.fullSince.IsZero() {
		s.mu.Unlock()
		s.set.cramped()
		s.mu.Lock()
	}
	if s.context().Err() != nil {
		return context.Cause(s.context())
	}
	if s.ahead.paused || s.ahead.news != before || s.ahead.idle() && !s.ahead.loading() {
		return nil // planning goes on, or something has come meanwhile
	}
	s.waiting, s.woken = true, false
	s.set.waiting.Add(1)
	s.cond.Wait()
	s.waiting = false
	s.set.waiting.Add(-1)
	if s.context().Err() != nil {
		return context.Cause(s.context())
	}
	return nil
}

// obtainLocked waits for memory that the stream needs to go on at all, and gives up the lock meanwhile. What others, or
// the stream's own batches, give back goes to this reservation: read ahead by it, Next would wait for more.
func (s *Stream) obtainLocked(need int64) (*admission.Hold, error) {
	s.ahead.reserving = true
	s.mu.Unlock()
	more, err := s.set.reserve(s.context(), s, need)
	s.mu.Lock()
	s.ahead.reserving = false
	return more, err
}

// maxUnreadFaults bounds the faults of a batch that has no blobs.
const maxUnreadFaults = 4096

// unread makes a batch that has no blobs: metadata, or nothing at all.
func (s *Stream) unread() (*part, Wait, error) {
	if s.context().Err() != nil {
		return nil, Wait{}, context.Cause(s.context())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.slot.settle() {
		return nil, Wait{}, io.EOF
	}
	rows := min(s.slot.left(), schema.DefaultMetaBatch)
	if most := min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant)); s.sizer.rowBytes > 0 {
		rows = min(rows, max(most/s.sizer.rowBytes, 1))
	}
	if s.job.Tolerant() && len(s.job.Projection().Computed()) > 0 {
		rows = min(rows, maxUnreadFaults) // each may be a fault
	}
	reserved := rows * s.sizer.rowBytes
	s.mu.Unlock()
	more, err := s.set.reserve(s.context(), s, reserved)
	s.mu.Lock()
	if err != nil {
		if s.context().Err() != nil {
			return nil, Wait{}, context.Cause(s.context())
		}
		return nil, Wait{}, errNoMemory(err, fmt.Sprintf("reading the next row of %s", s.job.SnapshotName()))
	}
	if s.gone { // nobody would give it back
		more.Release()
		return nil, Wait{}, context.Cause(s.context())
	}
	s.hold.Take(more)
	s.window.used += reserved
	p := &part{walk: s.slot, pieces: s.ahead.nextUnread(rows), reserved: reserved}
	s.slot.at += rows
	s.finishPartLocked(p)
	if m := s.job.Manifest(); !m.Resident() {
		m.Ahead(s.context(), s.ahead.soonUnread(min(rows, maxDrafted)))
	}
	return p, Wait{}, nil
}

// finishPartLocked says how the stream stands after p.
func (s *Stream) finishPartLocked(p *part) {
	p.last = s.slot.left() == 0
	if s.slot.list != nil {
		return
	}
	if !s.order.loose {
		p.resume = s.slot.ticket(s.ticket)
		return
	}
	p.resume = s.ahead.first.ticket(s.ticket)
	p.resume.Served = s.ahead.served.from(s.ahead.firstRow)
}

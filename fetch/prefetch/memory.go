package prefetch

import (
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	// maxQueue is how many cells of a stream wait for their turn at most.
	maxQueue = 64
	// maxSlice is how many cells are gone through before the lock is given up: rows
	// of nulls need no read, and there may be any number of them.
	maxSlice = 1024
	// leastRow is what a row read ahead is of the window at least, in bytes: a window
	// of rows of nothing would be planned for seconds, and no path carries so many
	// reads.
	leastRow = 4 << 10
)

// refill asks for what the window has room for, as far as one slice goes.
func (s *owner) refill() {
	a := &s.ahead
	cols := len(s.columns)
	a.paused = false
	s.feed()
	if s.gone || s.still.Load() || cols == 0 || s.context().Err() != nil {
		return
	}
	s.window.setLimit(s.tenant.share.Load())
	s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
	room := maxQueue - s.place.Waiting()
	if room > 0 {
		s.roomAgain()
	}
	now := time.Now()
	for cells := 0; len(a.wants) < room; cells++ {
		if cells == maxSlice {
			a.paused = true
			break
		}
		if a.reading == len(a.runs) && !s.plan() {
			break
		}
		r := a.runs[a.reading]
		if r.next == len(r.cells) {
			a.reading++
			continue
		}
		row, column := r.next/cols, r.next%cols
		if r.state[row].taken {
			r.next += cols
			continue
		}
		pos := r.positions[row]
		ref, ok, err := r.rows[row].TryBlob(s.columns[column].ordinal)
		if err != nil {
			s.manifestLost(err)
			break
		}
		if column == 0 && !s.reserve(r, row) {
			s.noRoom()
			break
		}
		cell := r.next
		s.begin(r, row, column)
		if !ok {
			s.back(r, row) // a null
			continue
		}
		a.inFlight++
		r.inFlight++
		a.wants = append(a.wants, read.Want{
			Ref: ref, At: spill.Place{Dataset: s.dataset, Tenant: s.payer, Position: pos}, Context: s.context(),
			Since: now, Account: &s.account, Trace: s.trace,
			Token: read.Token{Of: r, N: cell}, Late: s.late && s.columns[column].made == nil,
			Use: r.seq + int64(row) - a.runs[0].seq,
		})
	}
	if len(a.wants) > 0 {
		s.place.Ask(a.wants...)
		clear(a.wants)
		a.wants = a.wants[:0]
	}
}

// reserve counts a row in, if the window and the ledger have room for it.
// What the batch needs that the consumer could have next is beyond the window, or
// one smaller than that would stop the stream for good; it is never beyond the ledger.
func (s *owner) reserve(r *run, row int) bool {
	a, n := &s.ahead, s.rowSize(r, row)
	a.starving = 0
	next := int64(a.rows) < s.slot.left() && a.bytes+r.state[row].size <= s.sizer.maxBytes // the batch needs it
	full := s.window.used+n > s.window.size || int64(a.rows)*leastRow > max(s.window.size, s.window.least)
	if full && a.rows > 0 && !next || len(a.hungry) > 0 || a.reserving {
		return false
	}
	if a.granted >= n {
		s.hold.Shrink(a.granted - n)
		a.granted = 0
		return true
	}
	if s.hold.TryGrow(n) {
		return true
	}
	if a.rows == 0 {
		a.starving = n - a.granted
	}
	return false
}

// needs is how many bytes the next row needs that are not to be had, where
// the stream holds nothing that it could go on with; 0 if it can go on.
func (a *ahead) needs() int64 {
	if a.rows > 0 || a.inFlight > 0 {
		return 0
	}
	return a.starving
}

// free gives back the memory of a batch. Any goroutine may call it, and none of them plans: the stream's own does.
func (s *Stream) free(h *admission.Hold) {
	n := h.Bytes()
	h.Release()
	s.mail.post(func(l *letters) { l.freed += n })
}

// giveBack has the stream drop what it has read ahead last, as far as it holds more than
// so many bytes: it is planned and read again when there is room. Where its rows lie stays known.
// What the consumer is about to take stays.
func (s *Stream) giveBack(most int64) {
	s.ask(func(s *owner) {
		if !s.gone && !s.asked {
			s.drop(most, 0)
		}
	})
}

// drop drops what was read ahead last, but for so many runs at the front.
func (s *owner) drop(most int64, but int) {
	a := &s.ahead
	asked := 0 // cells
	for s.window.used > most && len(a.runs) > but {
		r := a.runs[len(a.runs)-1]
		r.dropped = true
		asked += r.inFlight
		s.unplan(r)
	}
	if asked == 0 {
		return
	}
	// What waits and what is read is gone through once, whatever the number of runs.
	s.place.Leave(func(t read.Token) bool { return t.Of.(*run).dropped })
	s.unmake()
}

// unplan takes the last run out.
func (s *owner) unplan(r *run) {
	a, cols := &s.ahead, len(s.columns)
	var bytes int64
	for row := range r.positions {
		if r.state[row].taken {
			continue
		}
		if row*cols < r.next {
			a.rows--
			a.bytes -= r.state[row].size
			bytes += s.rowSize(r, row)
		}
		if r.state[row].pending == 0 {
			a.back.remove(r.seq + int64(row))
			if r.near {
				a.ready--
				a.readySize -= r.state[row].size
			}
		}
	}
	a.inFlight -= r.inFlight
	r.release()
	s.window.used -= bytes
	s.hold.Shrink(bytes)
	a.runs = a.runs[:len(a.runs)-1]
	delivered := 0 // at the front: they are not planned again
	for len(a.runs) == 0 && r.state[delivered].taken {
		delivered++
	}
	s.redraft(r, delivered)
	a.seq, a.ended, a.far = r.seq+int64(delivered), false, false
	a.reading, a.near = min(a.reading, len(a.runs)), min(a.near, len(a.runs))
}

// release gives the blobs of a run back.
func (r *run) release() {
	for i := range r.cells {
		r.cells[i].Release()
		r.cells[i] = schema.Blob{}
	}
}

// releaseAll gives back what was not delivered.
func (s *owner) releaseAll() {
	a := &s.ahead
	for _, r := range a.runs {
		for row := range r.positions {
			if !r.state[row].taken && row*len(s.columns) < r.next {
				s.window.used -= s.rowSize(r, row)
				s.hold.Shrink(s.rowSize(r, row))
			}
		}
		r.release()
	}
	a.undraft()
	s.hold.Shrink(a.granted)
	a.granted, a.runs = 0, nil
	a.rows, a.bytes, a.inFlight = 0, 0, 0
}

// noRoom begins to count the time that reading stands still, though nothing
// waits for its turn.
func (s *owner) noRoom() {
	if s.fullSince.IsZero() && s.place.Waiting() == 0 && len(s.ahead.wants) == 0 {
		s.fullSince = time.Now()
	}
}

// roomAgain ends it.
func (s *owner) roomAgain() {
	if !s.fullSince.IsZero() {
		s.fullFor += time.Since(s.fullSince)
		s.fullSince = time.Time{}
	}
}

package prefetch

import (
	"math"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// part is a record batch in the making.
type part struct {
	walk      walk    // where the stream stands before it
	pieces    []piece // of a stream that reads nothing: the rows, which are then to be looked up
	positions []int64
	// of the rows in the stream, where the order is loose; nil if they are the first that are left
	seqs     []int64
	rows     []schema.Row    // where they lie
	blobs    [][]schema.Blob // by blob column, by row
	reserved int64           // bytes of the window
	hold     admission.Hold  // of the ledger for it, once it is handed out
	faults   []fault
	last     bool          // the share ends with it
	resume   schema.Ticket // what goes on after it
}

func (p *part) release() {
	for _, column := range p.blobs {
		for i := range column {
			column[i].Release()
		}
	}
}

// order says which rows may go into a batch.
//
// Batches have the sizes that the plan gives them, in every order: each is the
// share of a step, or a piece of it where batches are bounded. What differs is
// which rows fill it. Strictly they are the share's own. Otherwise they are
// those that are back, the earliest in the plan first, of any step of the epoch,
// or of those within reach: then a row whose last step has come is waited for.
type order struct {
	loose bool
	reach int64 // steps by which a row may move; -1: any number
}

func orderOf(r schema.Request) order {
	switch mode, steps := r.OrderOf(); mode {
	case schema.OrderWindow:
		return order{true, steps}
	case schema.OrderFree:
		return order{true, -1}
	}
	return order{}
}

// wanted is what Next waits for: the rows below seq that are missing, or else
// that many rows to be ready, or bytes.
type wanted struct {
	seq     int64
	missing int
	ready   int
	bytes   int64
}

// wakes says whether the row seq, which has come back, is worth another look.
func (s *owner) wakes(seq int64) bool {
	w, a := &s.wanted, &s.ahead
	if a.idle() {
		return true
	}
	if w.missing > 0 {
		if seq < w.seq {
			w.missing--
		}
		return w.missing == 0
	}
	return s.order.loose && (a.ready >= w.ready || a.readySize >= w.bytes)
}

// gather takes the rows of the next batch if they are there; otherwise it
// says in s.wanted what to wait for.
func (s *owner) gather() *part {
	s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
	if s.order.loose {
		if !s.enough() {
			return nil
		}
	} else if !s.prefix(true) {
		return nil
	}
	a := &s.ahead
	// and what the batch itself holds
	p := &part{walk: s.slot, blobs: make([][]schema.Blob, len(s.columns), len(s.columns)+1)}
	n := int(min(s.slot.left(), int64(max(a.rows, 1))))
	p.positions, p.rows = make([]int64, 0, n), make([]schema.Row, 0, n)
	cells := make([]schema.Blob, n*len(s.columns))
	for c := range p.blobs {
		p.blobs[c] = cells[c*n : c*n : (c+1)*n]
	}
	s.sizer.reset()
	if s.order.loose {
		s.fillLoose(p)
	} else {
		s.fill(p)
	}
	a.trim()
	return p
}

// fill takes the rows that come first in the plan, as far as they are back.
func (s *owner) fill(p *part) {
	for _, r := range s.ahead.runs {
		for row := range r.positions {
			if r.state[row].taken {
				continue
			}
			if s.slot.left() == 0 || r.state[row].pending > 0 || !s.sizer.fits(r.state[row].size) {
				return
			}
			s.takeRow(r, row, p)
			s.slot.at++
		}
	}
}

// fillLoose takes the earliest rows that are back, of those that may go
// into the batch.
func (s *owner) fillLoose(p *part) {
	a := &s.ahead
	for seq := a.back.nextIn(a.firstRow); seq >= 0 && s.slot.left() > 0; seq = a.back.nextIn(seq + 1) {
		r, row := a.runOf(seq)
		if !r.near || seq >= a.stop || !s.sizer.fits(r.state[row].size) {
			return
		}
		s.takeRow(r, row, p)
		s.slot.at++
	}
}

// prefix reports whether the rows of the next batch are there, in strict
// order; or some of them, where few says that they do and memory has no room for more.
func (s *owner) prefix(few bool) bool {
	s.wanted = wanted{}
	s.sizer.reset()
	a := &s.ahead
	stuck := few && a.idle() && (len(a.hungry) > 0 || !s.fullSince.IsZero())
	left := s.slot.left()
	for i := 0; left > 0 && (i < len(a.runs) || s.plan()); i++ {
		r := a.runs[i]
		for row := range r.positions {
			switch {
			case r.state[row].taken:
				continue
			case left == 0 || !s.sizer.fits(r.state[row].size):
				return s.wanted.missing == 0
			case r.state[row].pending > 0:
				s.wanted.missing++
			case stuck && s.wanted.missing == 0:
				return true // of what comes after it, as much as is there
			}
			left--
			s.wanted.seq = r.seq + int64(row) + 1
		}
	}
	if left > 0 && a.loading() {
		return false // there may be more rows for it
	}
	return s.wanted.missing == 0
}

// enough reports whether a batch can be filled out of order. Of the rows
// whose last step has come it waits for those that this batch takes: the window
// may have no room for more.
func (s *owner) enough() bool {
	s.wanted = wanted{}
	a := &s.ahead
	need := int(min(s.slot.left(), schema.DefaultMetaBatch))
	a.stop = math.MaxInt64
	full := s.order.reach >= 0 && s.due(need)
	// Where nothing more can come, what is there makes a batch.
	stuck := a.idle() && (len(a.hungry) > 0 || a.far || a.ended || !s.fullSince.IsZero())
	if s.wanted.missing > 0 {
		return stuck && a.ready > 0
	}
	bytes := a.readySize + int64(a.ready)*s.sizer.rowBytes
	if a.ready > 0 && (full || a.ready >= need || bytes >= s.sizer.maxBytes || stuck) {
		return true
	}
	s.wanted.ready = need
	s.wanted.bytes = s.sizer.maxBytes
	return false
}

// due counts the rows whose last step has come, and that are missing, of
// those that the next batch of so many rows takes. full says that they fill it:
// then no row goes into it from the first due one on that does not fit.
func (s *owner) due(rows int) (full bool) {
	s.sizer.reset()
	last := s.slot.ordinal() - s.order.reach
	for _, r := range s.ahead.runs {
		if r.lap != s.slot.lap || r.ordinal > last {
			return false
		}
		if r.left == 0 {
			continue
		}
		for row := range r.positions {
			switch {
			case r.state[row].taken:
				continue
			case rows == 0 || !s.sizer.fits(r.state[row].size):
				s.ahead.stop = r.seq + int64(row)
				return true
			case r.state[row].pending > 0:
				s.wanted.seq = r.seq + int64(row) + 1
				s.wanted.missing++
			}
			rows--
		}
	}
	return false
}

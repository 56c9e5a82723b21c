package fetch

import "bowstring/schema"

// part is a record batch in the making.
type part struct {
	walk      walk // where the stream stands before it
	positions []int64
	blobs     [][]schema.Blob // by blob column, by row
	reserved  int64           // bytes of the window
	faults    []fault
	last      bool          // the share ends with it
	resume    schema.Ticket // what goes on after it
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
func (s *Stream) wakes(seq int64) bool {
	w := &s.wanted
	if w.missing > 0 {
		if seq < w.seq {
			w.missing--
		}
		return w.missing == 0
	}
	return s.ahead.ready >= w.ready || s.ahead.readySize >= w.bytes || s.ahead.inFlight == 0
}

// gather takes the rows of the next batch if they are there; otherwise it says
// in s.wanted what to wait for.
func (s *Stream) gather() *part {
	if s.order.loose {
		if !s.enough() {
			return nil
		}
	} else if !s.prefix() {
		return nil
	}
	p := &part{walk: s.slot, blobs: make([][]schema.Blob, len(s.columns))}
	n := int(min(s.slot.left(), int64(max(s.ahead.ready, 1))))
	p.positions = make([]int64, 0, n)
	cells := make([]schema.Blob, n*len(s.columns))
	for c := range p.blobs {
		p.blobs[c] = cells[c*n : c*n : (c+1)*n]
	}
	s.sizer.reset()
	s.each(func(r *run, row int) bool {
		if r.pending[row] > 0 {
			return s.order.loose // pass over it
		}
		if !s.sizer.fits(r.sizes[row]) {
			return false
		}
		s.take(r, row, p)
		s.slot.at++
		return s.slot.left() > 0
	})
	s.trim()
	return p
}

// each visits the rows that may go into the next batch, in the plan's order,
// until visit says false. Runs are planned as they are needed if the order is strict.
func (s *Stream) each(visit func(r *run, row int) bool) {
	for i := 0; ; i++ {
		if i == len(s.ahead.runs) && (s.order.loose || !s.planRun()) {
			return
		}
		r := s.ahead.runs[i]
		if r.lap != s.slot.lap || s.order.reach >= 0 && s.order.loose && r.ordinal > s.slot.ordinal()+s.order.reach {
			return
		}
		if r.left == 0 {
			continue
		}
		for row := range r.positions {
			if !r.taken[row] && !visit(r, row) {
				return
			}
		}
	}
}

// prefix reports whether the rows of the next batch are there, in strict order.
func (s *Stream) prefix() bool {
	s.wanted = wanted{}
	s.sizer.reset()
	left := s.slot.left()
	s.each(func(r *run, row int) bool {
		if left == 0 || !s.sizer.fits(r.sizes[row]) {
			return false
		}
		left--
		s.wanted.seq = r.seq + int64(row) + 1
		if r.pending[row] > 0 {
			s.wanted.missing++
		}
		return true
	})
	return s.wanted.missing == 0
}

// enough reports whether a batch can be filled out of order. Of the rows whose
// last step has come it waits for those that this batch takes: the window may
// have no room for more.
func (s *Stream) enough() bool {
	s.wanted = wanted{}
	s.sizer.reset()
	var ready, bytes int64
	var full bool
	need, now := min(s.slot.left(), schema.DefaultMetaBatch), s.slot.ordinal()
	s.each(func(r *run, row int) bool {
		due := s.order.reach >= 0 && r.ordinal <= now-s.order.reach
		if full = due && !s.sizer.fits(r.sizes[row]); full {
			return false
		}
		if r.pending[row] == 0 {
			ready++
			bytes += r.sizes[row] + s.sizer.rowBytes
		} else if due {
			s.wanted.seq = r.seq + int64(row) + 1
			s.wanted.missing++
		}
		return ready < need && bytes < s.sizer.maxBytes
	})
	if s.wanted.missing > 0 {
		return false
	}
	// Where nothing more can come, what is there makes a batch.
	stuck := s.ahead.inFlight == 0 && (s.ahead.far || !s.fullSince.IsZero())
	if ready > 0 && (full || ready >= need || bytes >= s.sizer.maxBytes || stuck) {
		return true
	}
	s.wanted.ready = s.ahead.ready + int(need-ready)
	s.wanted.bytes = s.sizer.maxBytes
	return false
}

// servedAhead is the bitmap of the rows that were delivered before others that
// come first in the plan, from the first row that was not, and where that is.
//
// What the stream was resumed with counts as far as it is not planned yet, too:
// a row that far ahead would come again otherwise. The bitmap stays as short as a
// ticket allows: of the rows from the first one on, as many are planned at most
// as it has bits, and what came with a ticket lies within its bits of an earlier row.
func (s *Stream) servedAhead() (served []byte, from walk, ok bool) {
	if !s.order.loose {
		return nil, walk{}, false
	}
	a := &s.ahead
	first := int64(-1)
	mark := func(seq int64) {
		if need := int((seq-first)>>3) + 1; need > len(served) {
			served = append(served, make([]byte, need-len(served))...)
		}
		served[(seq-first)>>3] |= 1 << ((seq - first) & 7)
	}
	for _, r := range a.runs {
		if r.lap != s.slot.lap {
			break
		}
		for row := range r.positions {
			seq := r.seq + int64(row)
			switch {
			case !r.taken[row] && first < 0:
				first, from = seq, s.slot
				from.step = r.step
				from.share()
				from.at = from.lo + r.row + int64(row)
			case r.taken[row] && first >= 0:
				mark(seq)
			}
		}
	}
	if first < 0 { // all that is planned was delivered
		first, from = a.seq, a.walk
		from.settle()
	}
	for seq := a.seq; seq < 8*int64(len(a.served)); seq++ {
		if bit(a.served, seq) {
			mark(seq)
		}
	}
	return served, from, len(served) > 0
}

package prefetch

import (
	"math"
	"slices"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
)

// There reports which blobs are cached: in the spill, or in a span of a bucket that is
// being read. Its methods are called by many goroutines, and must not block.
type There interface {
	// Is reports whether a blob is cached.
	Is(ref schema.BlobRef) bool
	// News changes whenever more blobs may be cached.
	News() int64
}

// A stream with a loose order reads and delivers cached rows first: rows whose blobs are
// all cached (see There). It searches for them among the rows that may go into the next
// batch, up to upcoming.Reach of them. Meanwhile the other rows are read in the plan's
// order.

const (
	// The search is bounded, so that it takes a small part of the goroutine's time. Its
	// budget is seekRows rows at most. It grows by seekOften rows with each refill, and by
	// seekEach rows with each delivered row.
	seekRows  = 256
	seekOften = 32
	seekEach  = 4
	// earlyShare is the share of the window for rows that are begun before their turn.
	// turnShare is the least share for the other rows.
	earlyShare = 0.75
	turnShare  = 1 - earlyShare
	// foundShare is the weight of one row in the moving average sought.found.
	foundShare = 1.0 / 256
)

// sought is the state of the search for cached rows. It belongs to the stream's
// goroutine.
type sought struct {
	run, row int     // the next row to check: the run's index in pipeline.runs, the row's in the run
	bytes    int64   // of rows that were cached when they were begun, and are not delivered
	found    float64 // the share of such rows among all begun rows, as a moving average
	news     int64   // There.News when the current pass over the runs began
	vain     bool    // the current pass has found nothing
	left     int     // rows that may be checked now
}

// more adds rows to the budget of the search.
func (f *sought) more(rows int) { f.left = min(f.left+rows, seekRows) }

// trim adjusts the search after n runs were removed at the front.
func (f *sought) trim(n int) {
	if f.run -= n; f.run < 0 {
		f.run, f.row = 0, 0
	}
}

// cut adjusts the search after runs were removed at the end, so that runs are left.
func (f *sought) cut(runs int) {
	if f.run >= runs {
		f.run, f.row = runs, 0
	}
}

// seeks reports whether rows may be begun before their turn now. They may not in the
// middle of another row, and not while a due row waits.
func (s *owner) seeks() bool {
	pl := &s.pipeline
	if s.reach == 0 || len(pl.runs) == 0 {
		return false
	}
	if pl.reading == len(pl.runs) {
		return true
	}
	r := pl.runs[pl.reading]
	return r.next%len(s.columns) == 0 && (r.next == len(r.cells) || !s.isDue(r))
}

// isDue reports whether the current step is the last one in which rows of a run may be
// delivered.
func (s *owner) isDue(r *run) bool {
	return s.reach > 0 && s.order.reach >= 0 && r.epochOffset == s.slot.epochOffset && r.ordinal <= s.slot.ordinal()-s.order.reach
}

// sharesWindow reports whether a row of n bytes leaves rows of the other kind (early, or
// in turn) their share of the window. If many rows are cached, few are read in their
// turn, because their neighbours in the same chunk may be cached soon.
func (s *owner) sharesWindow(n int64, early bool) bool {
	f := &s.pipeline.sought
	if early {
		return float64(f.bytes+n) <= earlyShare*float64(s.window.size)
	}
	share := max(1-f.found, turnShare)
	return float64(s.pipeline.bytes-f.bytes+n) <= share*float64(s.window.size)
}

// beginEarly begins a cached row before its turn; false if none is found, or there is no
// room.
func (s *owner) beginEarly(now time.Time) bool {
	if s.window.used >= s.window.size || !s.sharesWindow(1, true) {
		return false
	}
	r, row := s.seek()
	if r == nil || !s.reserve(r, row, !s.sharesWindow(s.rowSize(r, row), true)) {
		return false
	}
	s.noteEarly(r, row)
	for column := range s.columns {
		if !s.want(r, row, column, now) {
			break
		}
	}
	return true
}

// beginTurn reserves the memory of a row whose turn has come; false if there is no room.
func (s *owner) beginTurn(r *run, row int) bool {
	if s.reach == 0 {
		return s.reserve(r, row, false)
	}
	there := s.isThere(r, row)
	if !s.reserve(r, row, !there && !s.sharesWindow(s.rowSize(r, row), false)) {
		return false
	}
	if there {
		s.noteEarly(r, row)
	} else {
		s.pipeline.sought.noteBegun(0)
	}
	return true
}

// noteEarly notes that a cached row is begun.
func (s *owner) noteEarly(r *run, row int) {
	f, st := &s.pipeline.sought, &r.state[row]
	f.noteBegun(1)
	st.early = max(st.size, 1)
	f.bytes += st.early
}

// noteBegun adds a begun row to the average: 1 if it is cached, 0 if not.
func (f *sought) noteBegun(early float64) { f.found += (early - f.found) * foundShare }

// seek returns the next cached row that was not begun; nil if the budget ends first. The
// search stays at that row, so a row without room is found again.
func (s *owner) seek() (r *run, row int) {
	pl, f := &s.pipeline, &s.pipeline.sought
	for ; f.left > 0; f.left-- {
		if f.run >= pl.near && !s.seekOn() {
			return nil, 0
		}
		r := pl.runs[f.run]
		if f.row == len(r.positions) {
			f.run, f.row = f.run+1, 0
			continue
		}
		if st := &r.state[f.row]; !st.taken && !st.begun && s.isThere(r, f.row) {
			f.vain = false
			return r, f.row
		}
		f.row++
	}
	return nil, 0
}

// seekOn plans more rows to check, or starts another pass if more blobs may be cached
// since the last one. It reports whether there is a row to check.
func (s *owner) seekOn() bool {
	pl, f := &s.pipeline, &s.pipeline.sought
	if pl.near == len(pl.runs) && pl.seq-pl.firstRow < s.reach && s.plan() && f.run < pl.near {
		return true
	}
	news := s.set.opts.There.News()
	if f.vain && f.news == news || pl.near == 0 {
		return false
	}
	f.run, f.row, f.news, f.vain = 0, 0, news, true
	return true
}

// isThere reports whether all blobs of a row are cached.
func (s *owner) isThere(r *run, row int) bool {
	for i := range s.columns {
		ref, ok, err := r.rows[row].TryBlob(s.columns[i].ordinal)
		if err != nil || ok && !s.set.opts.There.Is(ref) {
			return false // an unreadable row is reported in its turn
		}
	}
	return true
}

// fillSought fills a batch: with due rows, then with rows that were cached when they were
// begun, then with others. The batch has them in the plan's order.
func (s *owner) fillSought(p *part) {
	pl := &s.pipeline
	var seqs []int64
	left := s.slot.left()
	for _, kind := range []int{due, early, other} {
		for seq := pl.back.nextIn(pl.firstRow); seq >= 0 && left > 0; seq = pl.back.nextIn(seq + 1) {
			r, row := pl.runOf(seq)
			if !r.near {
				break
			}
			if st := &r.state[row]; s.kindOf(r, st) != kind {
				continue
			} else if !s.sizer.fits(st.size) {
				left = 0
				break
			}
			seqs = append(seqs, seq)
			left--
		}
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		r, row := pl.runOf(seq)
		s.takeRow(r, row, p)
		s.slot.at++
	}
}

// Kinds of rows, in the order in which fillSought takes them.
const (
	due = iota
	early
	other
)

func (s *owner) kindOf(r *run, st *rowState) int {
	switch {
	case s.isDue(r):
		return due
	case st.early > 0:
		return early
	}
	return other
}

// makeWay frees rows that were begun early, after a due run for which there is no room;
// false if there are none.
func (s *owner) makeWay(r *run) bool {
	pl := &s.pipeline
	if pl.sought.bytes == 0 || !s.isDue(r) {
		return false
	}
	before := len(pl.runs)
	s.drop(math.MinInt64, slices.Index(pl.runs, r)+1)
	pl.wants = slices.DeleteFunc(pl.wants, func(w read.Want) bool { return w.Token.Of.(*run).dropped })
	return len(pl.runs) < before
}

package prefetch

import (
	"math"
	"slices"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
)

// There says which blobs are there: in the spill, or in what is under way from a bucket. It must not block.
type There interface {
	// Is reports whether a blob is there.
	Is(ref schema.BlobRef) bool
	// News changes whenever more may be there.
	News() int64
}

// A stream whose order is loose begins, and hands out, rows first that are there: their blobs lie in the spill, or in a
// span of a bucket that is under way. It looks for them among the rows that may go into the next batch, up to
// upcoming.Reach of them; the others have their turns in the plan's order meanwhile.

const (
	// seekRows is how many rows are looked at before other work has its turn: as many more as seekOften each time that there
	// may be room, and seekEach for each row that is handed out.
	seekRows  = 256
	seekOften = 32
	seekEach  = 4
	// earlyShare is which part of the window rows may have that are begun before their turn, and turnShare which part the
	// others have at least, however many of the former there are.
	earlyShare = 0.75
	turnShare  = 1 - earlyShare
	// foundShare is the part that a row has in the average of how many rows are begun before their turn.
	foundShare = 1.0 / 256
)

// sought is how far rows were looked for that are there.
type sought struct {
	run, row int     // the row to look at next: the run by its index in runs
	bytes    int64   // of rows that were there when they were begun, and are not handed out
	found    float64 // which part of the rows that are begun these are, as a moving average
	news     int64   // what There.News was when the look began that came to the last run
	vain     bool    // nothing was found since
	left     int     // rows to look at in this turn
}

// more lets that many more rows be looked at.
func (f *sought) more(rows int) { f.left = min(f.left+rows, seekRows) }

// trim follows runs that are taken out at the front, cut those at the end.
func (f *sought) trim(n int) {
	if f.run -= n; f.run < 0 {
		f.run, f.row = 0, 0
	}
}

func (f *sought) cut(runs int) {
	if f.run >= runs {
		f.run, f.row = runs, 0
	}
}

// seeks reports whether rows are to be begun before their turn now: not in the midst of one, and not while one waits
// whose last step has come.
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

// isDue reports whether the last step has come in which rows of a run may be handed out.
func (s *owner) isDue(r *run) bool {
	return s.reach > 0 && s.order.reach >= 0 && r.epochOffset == s.slot.epochOffset && r.ordinal <= s.slot.ordinal()-s.order.reach
}

// sharesWindow reports whether a row of n bytes leaves the others their part of the window. If many rows are there, few are
// read in their turn: what lies beside these may be there soon.
func (s *owner) sharesWindow(n int64, early bool) bool {
	f := &s.pipeline.sought
	if early {
		return float64(f.bytes+n) <= earlyShare*float64(s.window.size)
	}
	share := max(1-f.found, turnShare)
	return float64(s.pipeline.bytes-f.bytes+n) <= share*float64(s.window.size)
}

// beginEarly begins a row that is there before its turn; false if none is found, or there is no room.
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

// beginTurn has room be reserved for a row whose turn has come; false if there is none.
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

// noteEarly notes that a row is begun that is there.
func (s *owner) noteEarly(r *run, row int) {
	f, st := &s.pipeline.sought, &r.state[row]
	f.noteBegun(1)
	st.early = max(st.size, 1)
	f.bytes += st.early
}

// noteBegun notes that a row was begun: one that is there (1), or not (0).
func (f *sought) noteBegun(early float64) { f.found += (early - f.found) * foundShare }

// seek looks for the next row that is there and was not begun. It is looked at again as long as it is there.
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

// seekOn has more rows to look at be planned, or begins at the first one again, where something may be there since. It
// reports whether there is a row to look at.
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

// isThere reports whether all blobs of a row are there.
func (s *owner) isThere(r *run, row int) bool {
	for i := range s.columns {
		ref, ok, err := r.rows[row].TryBlob(s.columns[i].ordinal)
		if err != nil || ok && !s.set.opts.There.Is(ref) {
			return false // what cannot be read is found in its turn
		}
	}
	return true
}

// fillSought takes rows into a batch: those whose last step has come, then those that were there when they were begun, and
// as many others as it takes beside, all in the plan's order.
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

// Kinds of rows, the one first that goes into a batch first.
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

// makeWay gives back what was begun before its turn behind a run whose last step has come, and for which there is no room;
// false if there is none of it.
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

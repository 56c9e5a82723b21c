package prefetch

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"bowstring/fetch/plan"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

// walk iterates over the rows that a stream serves, in the plan's order: share after
// share of its rank, and epoch after epoch if the ticket asks for several. A stream has
// several walks: where it plans and where it delivers. A walk is a plain value, and a
// copy is independent.
type walk struct {
	job  *resolve.Job
	list []int64 // the positions to serve instead of a plan, if not nil

	plan   *plan.Plan
	rank   int   // the data rank whose shares are served
	first  int64 // the step that every later epoch begins with
	stop   int64 // first step not served
	stride int64 // steps from one served step to the next
	epochs int64 // epochs to serve

	epochOffset int64 // epochs of the ticket before the current one
	step        int64
	lo, at, hi  int64 // the share of step among the rows of the epoch, and the next row in it
	needs       int64 // the steps that have to be settled before it continues (resolve.Job.Settle); 0 if it may continue
}

// newWalk checks a ticket against the plan, and returns a walk that begins at the
// ticket's row. Errors are schema.FieldErrors.
func newWalk(j *resolve.Job, t schema.Ticket) (walk, error) {
	steps := j.Plan().Steps()
	if t.Rank < 0 || int64(t.Rank) >= j.Request().WorldSize() {
		return walk{}, &schema.FieldError{Field: "rank", Got: fmt.Sprint(t.Rank),
			Want: fmt.Sprintf("0 to %d, as world.size is %d", j.Request().WorldSize()-1, j.Request().WorldSize())}
	}
	if t.Step < 0 || t.Step > steps && max(t.Stride, 1) == 1 {
		return walk{}, &schema.FieldError{Field: "step", Got: fmt.Sprint(t.Step),
			Want: fmt.Sprintf("0 to %d, as the epoch has %d steps", steps, steps)}
	}
	w := walk{
		job: j, plan: j.Plan(), rank: j.Request().DataRank(t.Rank), stop: steps,
		step: t.Step, stride: max(t.Stride, 1), epochs: max(t.Epochs, 1),
	}
	// A stream would serve the last epoch again: see resolve.Job.PlanOf.
	if more := w.plan.LastEpoch() - w.plan.Config().Epoch; w.plan.Config().Shuffle && uint64(w.epochs-1) > more {
		return walk{}, &schema.FieldError{Field: "epochs", Got: fmt.Sprint(w.epochs),
			Want: fmt.Sprintf("1 to %d, as the mixture has no more from this one on", more+1)}
	}
	w.first = w.step % w.stride
	if t.Stop != nil {
		w.stop = min(w.stop, *t.Stop)
	}
	if w.plan.RowsFrom(w.first, w.rank, w.stride, w.stop) == 0 {
		w.epochs = 1 // no epoch has a row for the rank
	}
	w.share()
	if t.Row < 0 || t.Row > w.hi-w.lo {
		return walk{}, &schema.FieldError{Field: "row", Got: fmt.Sprint(t.Row),
			Want: fmt.Sprintf("0 to %d, the rows of rank %d in step %d", w.hi-w.lo, t.Rank, t.Step)}
	}
	w.at = w.lo + t.Row
	return w, nil
}

// share moves to the beginning of the step's share, which is empty from stop on.
func (w *walk) share() {
	w.lo, w.hi = 0, 0
	if w.step < w.stop {
		w.lo, w.hi = w.plan.ShareSequences(w.step, w.rank)
	}
	w.at = w.lo
}

// settle moves to the next share that has a row left. It returns false at the end, and
// if more steps have to be settled first, which needs says then.
func (w *walk) settle() bool {
	w.needs = 0
	for w.at == w.hi {
		switch {
		case w.list != nil:
			return false
		case w.nextStep():
		case w.needs > 0:
			return false
		case w.epochOffset+1 < w.epochs: // every epoch has a row: newWalk has checked
			next := w.job.PlanOf(w.epochOffset + 1)
			if !w.settled(next, w.first) {
				return false
			}
			w.epochOffset++
			w.plan = next
			w.step = w.first
			w.share()
			if w.plan.Rows() == 0 { // no source of a mixture is left, nor will be
				return false
			}
		default:
			return false
		}
	}
	return true
}

// nextStep moves to the next step of the epoch in which the rank has rows; false if
// there is none. The step is computed, not searched for: if the rank's share of one
// whole step is empty, because there are more ranks than rows, its shares of all whole
// steps are. Only the last step may be shorter and have a row for this rank.
func (w *walk) nextStep() bool {
	next := w.step + w.stride
	if next >= w.stop || next < 0 {
		return false
	}
	last := w.plan.Steps() - 1
	if next < last {
		if lo, hi := w.plan.ShareSequences(next, w.rank); lo < hi {
			if !w.settled(w.plan, next) {
				return false
			}
			w.step = next
			w.share()
			return true
		}
		next += (last - next) / w.stride * w.stride
	}
	if next != last || next >= w.stop || !w.settled(w.plan, next) {
		return false
	}
	w.step = next
	w.share()
	return w.at < w.hi
}

// settled reports whether a step of a plan is settled. If not, it sets needs.
func (w *walk) settled(p *plan.Plan, step int64) bool {
	at := w.job.RunStep(p, step)
	if at < w.job.Settled() {
		return true
	}
	w.needs = at + 1
	return false
}

// skip moves forward by n rows, false if the epoch has fewer.
func (w *walk) skip(n int64) bool {
	for offset := w.epochOffset; n > 0; {
		if !w.settle() || w.epochOffset != offset {
			return false
		}
		k := min(n, w.left())
		w.at += k
		n -= k
	}
	return true
}

// left is the number of rows that the share still has.
func (w *walk) left() int64 { return w.hi - w.at }

// row is the walk's offset in the share.
func (w *walk) row() int64 { return w.at - w.lo }

// shared is resolve.Job.Shared of the step; ok is false if that is not computed yet.
func (w *walk) shared() (rows []int32, ok bool) {
	if w.list != nil {
		return nil, true
	}
	return w.job.TryShared(w.epochOffset, w.step)
}

// packed reports whether rows are sequences.
func (w *walk) packed() bool { return w.list == nil && w.plan.Packed() }

// parts returns the parts of documents in the next rows of the share, which are sequences.
func (w *walk) parts(rows int64) []plan.Piece {
	return w.plan.AppendPieces(nil, w.plan.First(w.at), w.plan.First(w.at+rows))
}

// samples returns the positions of the samples in the next rows of the share, which has
// at least that many rows. shared is resolve.Job.Shared of the step.
func (w *walk) samples(shared []int32, rows int64) []int64 {
	if !w.packed() {
		list := make([]int64, rows)
		w.positions(shared, list)
		return list
	}
	parts := w.parts(rows)
	list := make([]int64, len(parts))
	for i := range parts {
		list[i] = parts[i].Position
	}
	return list
}

// positions fills to with the positions of the next rows of the share, which has at
// least len(to) rows. shared is resolve.Job.Shared of the step. Rows are samples.
func (w *walk) positions(shared []int32, to []int64) {
	var start int64
	if shared != nil {
		start, _ = w.plan.Batch(w.step)
	}
	for i := range to {
		at := w.at + int64(i)
		switch {
		case w.list != nil:
			to[i] = w.list[at]
		case shared != nil:
			to[i] = w.plan.Position(start + int64(shared[at-start]))
		default:
			to[i] = w.plan.Position(at)
		}
	}
}

// ordinal is how many steps of this epoch the stream could serve before the current one.
func (w *walk) ordinal() int64 { return w.step / w.stride }

// ticket is t, changed to continue from here.
func (w *walk) ticket(t schema.Ticket) schema.Ticket {
	offset, step, row := w.epochOffset, w.step, w.row()
	if w.at == w.hi {
		step, row = step+w.stride, 0
		switch {
		case t.Stop != nil:
			step = min(step, *t.Stop)
		case step >= w.stop && offset+1 < w.epochs:
			offset, step = offset+1, w.first
		}
	}
	t.Step, t.Row, t.Served, t.Digested = step, row, nil, ""
	if offset > 0 {
		t.Epochs = w.epochs - offset
		if t.Shuffle != nil {
			shuffle := *t.Shuffle
			shuffle.Epoch += uint64(offset)
			t.Shuffle = &shuffle
		}
	}
	return t
}

// bitmap is a set of a stream's rows from base on. Delivered rows at its front are
// forgotten, so its size follows how far rows are out of order.
type bitmap struct {
	base  int64 // a multiple of 64
	words []uint64
}

// bitmapOf returns the set that a ticket carries: bit i of b is the stream's row i.
func bitmapOf(b []byte) bitmap {
	padded := make([]byte, (len(b)+7)/8*8)
	copy(padded, b)
	m := bitmap{words: make([]uint64, len(padded)/8)}
	for i := range m.words {
		m.words[i] = binary.LittleEndian.Uint64(padded[8*i:])
	}
	return m
}

// has reports whether a row from base on is in the set.
func (m *bitmap) has(row int64) bool {
	i := (row - m.base) >> 6
	return i >= 0 && i < int64(len(m.words)) && m.words[i]>>(row&63)&1 == 1
}

// add puts a row from base on into the set.
func (m *bitmap) add(row int64) {
	i := (row - m.base) >> 6
	for i >= int64(len(m.words)) {
		m.words = append(m.words, 0)
	}
	m.words[i] |= 1 << (row & 63)
}

// remove removes a row.
func (m *bitmap) remove(row int64) {
	if i := (row - m.base) >> 6; i >= 0 && i < int64(len(m.words)) {
		m.words[i] &^= 1 << (row & 63)
	}
}

// nextIn returns the first row from a row on that is in the set; -1 if none is.
func (m *bitmap) nextIn(row int64) int64 {
	row = max(row, m.base)
	for i := (row - m.base) >> 6; i < int64(len(m.words)); i++ {
		if w := m.words[i] >> (row & 63); w != 0 {
			return row + int64(bits.TrailingZeros64(w))
		}
		row = row&^63 + 64
	}
	return -1
}

// nextOut returns the first row from a row on that is not in the set.
func (m *bitmap) nextOut(row int64) int64 {
	for i := (row - m.base) >> 6; i < int64(len(m.words)); i++ {
		if w := ^m.words[i] >> (row & 63); w != 0 {
			return row + int64(bits.TrailingZeros64(w))
		}
		row = row&^63 + 64
	}
	return row
}

// forget drops the words before a row.
func (m *bitmap) forget(row int64) {
	n := (row - m.base) >> 6
	if n <= 0 {
		return
	}
	m.base += 64 * n
	m.words = append(m.words[:0], m.words[min(n, int64(len(m.words))):]...)
}

// from returns the set of the rows from a row on, as tickets carry it; nil if it is
// empty.
func (m *bitmap) from(row int64) []byte {
	last := int64(len(m.words)) - 1
	for last >= 0 && m.words[last] == 0 {
		last--
	}
	if last < 0 {
		return nil
	}
	n := m.base + 64*last + int64(bits.Len64(m.words[last])) - row // bits
	if n <= 0 {
		return nil
	}
	b := make([]byte, (n+63)/64*8)
	shift := row & 63
	for i := range int64(len(b) / 8) {
		at := (row-m.base)>>6 + i
		w := m.words[at] >> shift
		if at < last {
			w |= m.words[at+1] << (64 - shift) // nothing, if shift is 0
		}
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
	return b[:(n+7)/8]
}

package operators

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

// What the steps before the first that draws make of a cell is kept in the spill as whole
// results are, where it saves enough for each of its bytes. Whether it does is measured: steps
// that follow one another are carried out in one pass, which decodes the crop alone, so
// the whole list may well cost less than its own tail over decoded pixels. The first cells of
// a list, and one of many later, are made both ways.

// prefix is the steps of a column before the first that draws, and the rest.
type prefix struct {
	head, tail program.Program
	id         [32]byte // of what head makes
}

// key is what a prefix's result of a blob is kept under.
func (p *prefix) key(blob schema.Key) schema.Key { return sha256.Sum256(append(p.id[:], blob[:]...)) }

// betweenForm is what lies between two steps, to who keeps it: bytes.
var betweenForm = &schema.MadeForm{Kind: "encoded"}

const (
	firstTrials = 4   // cells that are made both ways before anything is decided
	trialEvery  = 256 // of later ones, one in so many is
	trialMemory = 64  // trials after which older ones count half
	maxWorths   = 1024
)

// worth is what trials have said of a prefix.
type worth struct {
	mu     sync.Mutex
	cells  int64 // that came
	trials int
	off    bool // the two ways differed
	// Sums over trials of processor time by the way, and of the bytes that would be kept. Times
	// of head are those of headTrials, whose whole way took wholeOfHead.
	whole, tail, head, wholeOfHead time.Duration
	bytes                          int64
}

// way is how a cell of which no prefix is kept is made.
type way uint8

const (
	atOnce way = iota // the whole list
	trial             // both ways
	split             // head, which is kept, and tail
)

// next says how the next cell is made, and whether what is kept is worth looking for.
func (w *worth) next(perByte float64) (way, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cells++
	switch {
	case w.off:
		return atOnce, false
	case w.trials < firstTrials || w.cells%trialEvery == 0:
		return trial, true
	}
	how := w.paysLocked(perByte)
	return how, how == split
}

// paysLocked is split where a prefix saves so many nanoseconds for each of its bytes, and the next use gives back what
// it takes more to make the two apart: head + tail - whole <= whole - tail.
func (w *worth) paysLocked(perByte float64) way {
	saved := w.whole - w.tail
	if saved <= 0 || float64(saved) < perByte*float64(w.bytes) {
		return atOnce
	}
	if share := float64(saved) / float64(w.whole); float64(w.head) > 2*share*float64(w.wholeOfHead) {
		return atOnce
	}
	return split
}

// saved is about how much processor time a prefix of so many bytes saves.
func (w *worth) saved(n int64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(float64(w.whole-w.tail) * float64(n) / float64(max(w.bytes, 1)))
}

// tried notes a trial, and says what is best since. head is 0 where what it makes was kept.
func (w *worth) tried(whole, tail, head time.Duration, n int64, perByte float64) way {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trials++; w.trials%trialMemory == 0 {
		w.whole, w.tail, w.head, w.wholeOfHead, w.bytes = w.whole/2, w.tail/2, w.head/2, w.wholeOfHead/2, w.bytes/2
	}
	w.whole, w.tail, w.bytes = w.whole+whole, w.tail+tail, w.bytes+n
	if head > 0 {
		w.head, w.wholeOfHead = w.head+head, w.wholeOfHead+whole
	}
	return w.paysLocked(perByte)
}

// worthKey names a list of steps and the dataset that it meets.
type worthKey struct {
	id      [32]byte
	dataset uint32
}

// worthOf is what is known of a task's prefix. What was measured is shared by all who ask for the same steps of a
// dataset.
func (s *Stage) worthOf(t *Task) *worth {
	key := worthKey{t.Column.id, t.At.Dataset}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.worths[key]
	if w == nil {
		if len(s.worths) >= maxWorths {
			clear(s.worths) // they are measured again in some cells
		}
		w = &worth{}
		s.worths[key] = w
	}
	return w
}

// best makes the result of a task, which has room for it, in the way that costs least.
func (s *Stage) best(t *Task, clock processorClock) (*cell, int, error) {
	pf, in := t.Column.prefix, t.Cell.Bytes()
	if pf == nil || s.opts.Cache == nil || t.At.Dataset == 0 {
		return s.whole(t, t.Column.Program, in)
	}
	w := s.worthOf(t)
	how, look := w.next(s.opts.KeepNanosPerByte)
	b := &between{stage: s, task: t, clock: clock}
	if look {
		b.find()
	}
	defer b.release()
	switch {
	case how == trial:
		return s.try(b, w)
	case b.n > 0:
	case how != split || !b.make(w):
		return s.whole(t, t.Column.Program, in)
	}
	c, n, _, err := b.finish(0)
	if err != nil { // whatever it is, the whole list says what there is to say
		return s.whole(t, t.Column.Program, in)
	}
	return c, n, nil
}

// try makes a cell both ways, and gives what the whole list has made.
func (s *Stage) try(b *between, w *worth) (*cell, int, error) {
	t := b.task
	began := b.task.spent(b.clock)
	c, n, err := s.whole(t, t.Column.Program, t.Cell.Bytes())
	whole := b.task.spent(b.clock) - began
	if err != nil || b.n == 0 && !b.make(nil) { // a cell that cannot be made tells nothing
		return c, n, err
	}
	other, m, tail, err := b.finish(t.ResultBytes()) // besides the first result
	if err != nil {
		return c, n, nil
	}
	defer other.Unpin()
	s.count.prefixTrials.Add(1)
	if !bytes.Equal(c.memory[:n], other.memory[:m]) || !bytes.Equal(c.made.Params, other.made.Params) {
		w.mu.Lock()
		w.off = true
		w.mu.Unlock()
		s.opts.Logger.ErrorContext(t.Context, "the first steps of a list and the rest make other bytes than the list "+
			"at once; they are not kept",
			"column", t.Column.Name, "position", t.Draws.Key.Position)
		return c, n, nil
	}
	if w.tried(whole, tail, b.took, int64(b.n+resultTail(0)), s.opts.KeepNanosPerByte) == split &&
		s.opts.Cache.Wants(t.At, int64(b.n), false) {
		b.offer(w)
	}
	return c, n, nil
}

// between is what the first steps have made of a task's cell, in the hands of one worker.
type between struct {
	stage *Stage
	task  *Task
	clock processorClock

	kept schema.Blob // that was found
	cell *cell       // that was made
	n    int         // bytes; 0 if there are none
	hold *admission.Hold
	more *admission.Hold // of the steps after it
	took time.Duration   // that making it took
}

// errNoTime says that there is no memory, or no time, to make something in two parts just now.
var errNoTime = errors.New("there is no room for it just now")

// find looks for it in the spill.
func (b *between) find() {
	t := b.task
	kept, ok := b.stage.keptUnder(t, t.Column.prefix.key(t.Ref.Key), betweenForm)
	if ok {
		b.kept, b.n = kept, len(kept.Bytes())
	}
}

func (b *between) bytes() []byte {
	if b.cell != nil {
		return b.cell.memory[:b.n:b.n]
	}
	return b.kept.Bytes()
}

// make makes it, and where w is not nil offers it to the spill. It reports whether it is
// there: not where a sample may not take as much memory, where the spill would not have it,
// nor where the steps fail, as they may read more of a file than the whole list does.
func (b *between) make(w *worth) bool {
	s, t := b.stage, b.task
	head := t.Column.prefix.head
	var cost program.Cost
	err := s.shielded(t, func() (err error) {
		cost, err = head.Cost(t.Cell.Bytes(), s.opts.Limits)
		return err
	})
	if err != nil || cost.Working.Plus(cost.Result).Beyond(s.opts.Limits.Bytes) ||
		cost.Steps.Beyond(s.opts.Limits.Steps) || cost.Steps.Beyond(longSteps) && !t.long || w != nil &&
		!s.opts.Cache.Wants(t.At, cost.Result.Int64(), false) {
		return false
	}
	began := b.task.spent(b.clock)
	hold, ok := s.opts.Ledger.TryFor(t.use(), t.Tenant, cost.Working.Plus(cost.Result).Int64())
	if !ok {
		return false // it is no time for this
	}
	b.hold = hold
	if w == nil { // it comes besides what the list takes at once
		t.place.place.Charge(classOfTask(&t), cost.Steps.Int64()/stepsPerByte)
	}
	c, n, _, err := s.make(t, head, t.Cell.Bytes(), cost.Result.Int64())
	if err != nil {
		return false
	}
	b.cell, b.n, b.took = c, n, b.task.spent(b.clock)-began
	if w != nil {
		b.offer(w)
	}
	return true
}

// offer offers what was made to the spill.
func (b *between) offer(w *worth) {
	if b.cell != nil && b.stage.offer(b.task, b.task.Column.prefix.key(b.task.Ref.Key), b.cell, b.n,
		w.saved(int64(b.n))) {
		b.stage.count.prefixesKept.Add(1)
	}
}

// finish makes the result of it, and says how long that took. It works in what the task has for the whole list, in
// what that is less than the rest of the steps take, and in so many bytes more.
func (b *between) finish(more int64) (*cell, int, time.Duration, error) {
	s, t := b.stage, b.task
	tail := t.Column.prefix.tail
	var cost program.Cost
	if err := s.shielded(t, func() (err error) {
		cost, err = tail.Cost(b.bytes(), s.opts.Limits)
		return err
	}); err != nil {
		return nil, 0, 0, err
	}
	if cost.Steps.Beyond(s.opts.Limits.Steps) || cost.Steps.Beyond(longSteps) && !t.long {
		return nil, 0, 0, errNoTime
	}
	if more += max(cost.Working.Int64()-t.cost.Working.Int64(), 0); more > 0 {
		var ok bool
		if b.more, ok = s.opts.Ledger.TryFor(t.use(), t.Tenant, more); !ok {
			return nil, 0, 0, errNoTime
		}
	}
	began := t.spent(b.clock)
	c, n, err := s.whole(t, tail, b.bytes())
	if err == nil && b.cell == nil {
		s.count.prefixesFound.Add(1)
	}
	return c, n, t.spent(b.clock) - began, err
}

func (b *between) release() {
	b.kept.Release()
	if b.cell != nil {
		b.cell.Unpin()
	}
	b.hold.Release()
	b.more.Release()
}

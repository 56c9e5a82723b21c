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

// The result of the steps before the first random one is cached in the spill, as whole
// results are, if it saves enough time for each of its bytes. Whether it does is
// measured. Consecutive steps are fused into one pass, which may decode only the crop, so
// the whole list may cost less than its tail on decoded pixels. So the first cells of a
// list, and one of many later ones, are made in both ways.

// prefix is the steps of a column before the first random one, and the rest.
type prefix struct {
	head, tail program.Program
	id         [32]byte // of the result of head
}

// key is the key of a prefix's result for a blob.
func (p *prefix) key(blob schema.Key) schema.Key { return sha256.Sum256(append(p.id[:], blob[:]...)) }

// betweenForm is the form of data between two steps for the cache: bytes.
var betweenForm = &schema.MadeForm{Kind: "encoded"}

const (
	firstTrials = 4   // cells that are made in both ways before the first decision
	trialEvery  = 256 // one of this many later cells is made in both ways
	trialMemory = 64  // number of trials after which older trials count half
	maxWorths   = 1024
)

// worth is the result of the trials of a prefix. Several workers share it.
type worth struct {
	mu     sync.Mutex
	cells  int64 // number of cells so far
	trials int
	off    bool // the two ways gave different bytes: a defect, so the prefix is not used
	// Sums over trials: CPU time of each way, and bytes of the prefix. Trials that found
	// a stored prefix did not run head, so head has its own sum of whole times,
	// wholeOfHead.
	whole, tail, head, wholeOfHead time.Duration
	bytes                          int64
}

// way is how to make a cell for which no prefix is cached.
type way uint8

const (
	atOnce way = iota // the whole list in one program
	trial             // both ways
	split             // head, whose result is cached, then tail
)

// next decides how the next cell is made, and whether a cached prefix is worth a lookup.
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

// paysLocked is split if a prefix saves at least perByte nanoseconds of CPU time for each
// of its bytes, and its next use saves what running head and tail separately costs extra:
// head + tail - whole <= whole - tail.
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

// saved estimates how much CPU time a prefix of n bytes saves.
func (w *worth) saved(n int64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(float64(w.whole-w.tail) * float64(n) / float64(max(w.bytes, 1)))
}

// tried records a trial, and returns the best way from now on. head is 0 if the prefix
// was cached.
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

// worthKey names a list of steps and the dataset that it runs on: costs depend on the
// samples.
type worthKey struct {
	id      [32]byte
	dataset uint32
}

// worthOf returns the trials of a task's prefix. All requests with the same steps for a
// dataset share them.
func (s *Stage) worthOf(t *Task) *worth {
	key := worthKey{t.Column.id, t.At.Dataset}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.worths[key]
	if w == nil {
		if len(s.worths) >= maxWorths {
			clear(s.worths) // a few cells measure them again
		}
		w = &worth{}
		s.worths[key] = w
	}
	return w
}

// best makes the result of a task, for which there is room, in the cheapest way.
func (s *Stage) best(t *Task, clock cpuClock) (*cell, int, error) {
	pf, in := t.Column.prefix, t.Cell.Bytes()
	if pf == nil || s.opts.Cache == nil || t.At.Dataset == 0 {
		return s.whole(t, t.Column.Program, in)
	}
	w := s.worthOf(t)
	how, lookup := w.next(s.opts.KeepNanosPerByte)
	b := &between{stage: s, task: t, clock: clock}
	if lookup {
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
	if err != nil { // whatever the error is, the whole list reports it better
		return s.whole(t, t.Column.Program, in)
	}
	return c, n, nil
}

// try makes a cell in both ways, compares them, and returns the result of the whole list.
func (s *Stage) try(b *between, w *worth) (*cell, int, error) {
	t := b.task
	began := b.task.spent(b.clock)
	c, n, err := s.whole(t, t.Column.Program, t.Cell.Bytes())
	whole := b.task.spent(b.clock) - began
	if err != nil || b.n == 0 && !b.make(nil) { // a cell that fails says nothing about the cost
		return c, n, err
	}
	other, m, tail, err := b.finish(t.ResultBytes()) // in addition to the first result
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

// between is the result of the first steps for a task's cell. One worker owns it.
type between struct {
	stage *Stage
	task  *Task
	clock cpuClock

	kept schema.Blob     // found in the cache
	cell *cell           // made now
	n    int             // bytes; 0 if there are none
	hold *admission.Hold // memory of head
	more *admission.Hold // additional memory of tail
	took time.Duration   // CPU time of making it
}

// errNoTime reports that there is no memory or time at the moment to make a cell in two
// parts.
var errNoTime = errors.New("there is no room for it just now")

// find looks for the prefix in the cache.
func (b *between) find() {
	t := b.task
	kept, ok := b.stage.keptUnder(t, t.Column.prefix.key(t.Ref.Key), betweenForm)
	if ok {
		b.kept, b.n = kept, len(kept.Bytes())
	}
}

// bytes is the prefix, made or found.
func (b *between) bytes() []byte {
	if b.cell != nil {
		return b.cell.memory[:b.n:b.n]
	}
	return b.kept.Bytes()
}

// make runs head and, if w is not nil, offers its result to the cache. It reports
// success. It does nothing if a sample may not use that much memory, or if the cache
// would not accept the result. Failing steps are no error: head may read more of a file
// than the whole list does.
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
		return false // memory is short: not now
	}
	b.hold = hold
	if w == nil { // a trial: it is extra work, and is charged
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

// offer offers a prefix that was made to the cache.
func (b *between) offer(w *worth) {
	if b.cell != nil && b.stage.offer(b.task, b.task.Column.prefix.key(b.task.Ref.Key), b.cell, b.n,
		w.saved(int64(b.n))) {
		b.stage.count.prefixesKept.Add(1)
	}
}

// finish runs tail, and returns its CPU time. It uses the memory that the task has for
// the whole list. If tail needs more, it reserves the difference, and the given number of
// bytes.
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

// release frees everything that was made, found or reserved.
func (b *between) release() {
	b.kept.Release()
	if b.cell != nil {
		b.cell.Unpin()
	}
	b.hold.Release()
	b.more.Release()
}

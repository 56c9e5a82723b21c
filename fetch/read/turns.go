package read

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/schema"
	"bowstring/spill"
)

// fewWaiting is how many wants of a place wait when its receiver is asked for more.
const fewWaiting = 16

// Place is where the wants of a stream wait for their turn: tenant, then job, then stream, for each tier by itself.
type Place struct {
	reader  *Reader
	turns   *admission.Stream[queued]
	to      Receiver
	waiting atomic.Int32 // changes with Reader.mu held
	asked   bool         // its receiver was asked for more; guarded by Reader.mu
}

// queued is what waits for its turn, and what came of it.
type queued struct {
	Want
	place   *Place
	verdict verdict
	first   Attempt
	held    schema.Blob
}

// Open gives a stream of a tenant's job a place. What it wants is told to to.
func (r *Reader) Open(tenant string, weight int64, job string, to Receiver) *Place {
	return &Place{reader: r, turns: r.queue.Open(tenant, weight, job), to: to}
}

// Waiting is how many of its wants wait for their turn.
func (p *Place) Waiting() int { return int(p.waiting.Load()) }

// Ask has wants read, or shared, as soon as it is their turn.
func (p *Place) Ask(wants ...Want) {
	list := make([]queued, len(wants))
	for i := range wants {
		list[i] = queued{Want: wants[i], place: p}
		list[i].To = p.to
	}
	r := p.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	p.asked = false
	p.waiting.Add(int32(len(list)))
	if there, runnable := p.turns.Put(list...); !there {
		p.waiting.Add(-int32(len(list)))
	} else if runnable && !r.closed {
		r.wakeLocked()
	}
}

// Leave has wants that match wait no longer, and ends reads that nobody wants any more. It returns how many were taken
// out; what was told already, or is just being told, is not among them.
func (p *Place) Leave(match func(Token) bool) int {
	r := p.reader
	r.mu.Lock()
	n := p.turns.Drop(func(q *queued) bool { return match(q.Token) })
	p.waiting.Add(-int32(n))
	r.mu.Unlock()
	return n + r.Leave(func(to Receiver, t Token) bool { return to == p.to && match(t) })
}

// Close gives the place up, and all that it wants.
func (p *Place) Close() {
	p.Retire()
	p.reader.Leave(func(to Receiver, _ Token) bool { return to == p.to })
}

// Retire gives the place up, and what waits for its turn, which it returns. What is under way is told of.
func (p *Place) Retire() (dropped []Token) {
	p.reader.mu.Lock()
	defer p.reader.mu.Unlock()
	for _, q := range p.turns.Close() {
		dropped = append(dropped, q.Token)
	}
	p.waiting.Store(0)
	return dropped
}

// Idle reports whether the place waits for nothing.
func (p *Place) Idle() bool { return p.turns.Idle() }

// Waiting is how many wants wait for their turn.
func (r *Reader) Waiting() int { return r.queue.Waiting() }

// SetWeights gives tenants other weights, and has those that were held up by their share looked at again.
func (r *Reader) SetWeights(weight func(tenant string) int64) {
	r.queue.SetWeights(weight)
	r.queue.Again()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.wakeLocked()
	}
}

// Waker is told that nothing is wanted that there is room for.
type Waker interface{ Wake() }

// WakeIdle has w told when nothing is wanted that there is room for, with no lock held. It is called before anything
// is wanted.
func (r *Reader) WakeIdle(w Waker) { r.idler = w }

// verdict is what came of an item whose turn it was.
type verdict int

const (
	full      verdict = iota // the tier which has the blob has no room for another read
	begun                    // a read was begun, whose first attempt is to be made
	joined                   // it comes with a read that is under way
	held                     // a window holds it, and it was handed out
	elsewhere                // no window has it any more
	enough                   // its tenant has all in flight that it may, though there may be room
)

// lookLocked says of which class a want is: the first one is what windows hold, the others are the tiers, and the last
// tier's ways.
func (r *Reader) lookLocked(q *queued) int {
	if r.findLocked(&q.Want) != nil {
		return 0
	}
	i := r.below(&q.Want)
	if i < r.last.index {
		return 1 + i
	}
	return 1 + i + int(r.last.way(q.Ref))
}

// beginLocked begins to read what is wanted, if there is room for it.
func (r *Reader) beginLocked(q *queued, class int) admission.Taken {
	for {
		if class == 0 {
			q.verdict, q.held = r.shareLocked(&q.Want)
		} else {
			q.verdict, q.first, q.held = r.tryLocked(&q.Want, &r.lanes[min(class-1, r.last.index)], false)
		}
		switch q.verdict {
		case full:
			return admission.Taken{Class: class}
		case enough:
			return admission.Taken{Class: class, Aside: true}
		case elsewhere:
			if now := r.lookLocked(q); now != class {
				return admission.Taken{Class: now}
			}
		case begun, joined, held:
			return admission.Taken{OK: true, Class: class, Cost: Cost(q.Ref.Size)}
		}
	}
}

// takeLocked has a goroutine make what is due, or else begin what is wanted next: a read that may take long, several
// that a tier serves together, or a run of some that most likely take no time.
func (r *Reader) takeLocked(w *worker) {
	r.forgetFreedLocked()
	w.run, w.quick, w.gathers = w.run[:0], false, false
	w.claimed.Store(0)
	if r.closed {
		return
	}
	if a := r.due.take(); a.read != nil {
		w.run = append(w.run, a) // there is a goroutine woken for it, which looks what else there is
		return
	}
	var bytes int64
	taken := 0
	now := time.Now()
	more := r.queue.Each(func(q *queued, left int) bool {
		p := q.place
		p.waiting.Store(int32(left))
		if left <= fewWaiting && !p.asked {
			p.asked = true
			w.told.more = append(w.told.more, p.to)
		}
		taken++
		switch q.verdict {
		case held:
			w.told.add(q.To, Outcome{Token: q.Token, Ref: q.Ref, Blob: q.held, Tier: InWindow, At: now})
		case begun:
			if len(w.run) > 0 && !w.fits(&q.first) { // it would hold up what the others bring
				r.due.add(q.first)
				return false
			}
			w.add(q.first)
			bytes += q.Ref.Size
			return !w.full(bytes)
		}
		return taken < runLength
	})
	if w.quick {
		w.began = now
		r.runs = append(r.runs, w)
	}
	switch {
	case r.due.len() > 0, more && (!w.quick || len(r.runs) < runtime.GOMAXPROCS(0)):
		r.wakeLocked()
	case len(w.run) == 0:
		w.told.idle = r.idler
	}
}

// Want is a blob that somebody wants.
type Want struct {
	Ref schema.BlobRef
	// At is where it was found to be wanted; the zero Place if that is nowhere in
	// particular, and then no tier keeps the blob.
	At spill.Place
	// Use is when it is used: see [Cell.Use].
	Use int64
	// Context is on whose behalf: what it carries is seen by the store. That it
	// ends does not end the read, which others may want: see [Reader.Leave].
	Context context.Context //nolint:containedctx // its values alone are used
	// Since is when it was first wanted, where that was before the read begins. It is part of the time that the read
	// has while the store says nothing: those that wait for their turn do not begin their time then.
	Since time.Time
	// To is told what became of it, once, with Token.
	To Receiver
	// Account is the stream's, nil if nobody keeps one.
	Account *Account
	// Trace is the stream's, nil if it is not traced.
	Trace *Trace
	Token Token
	// Here says that no other node is asked: the blob is for one of them, and two that
	// take each other for its owner would wait for each other; or it is at no place
	// for which the other would keep it.
	Here bool
	// Late says that the receiver compares the blob's bytes with the reference himself if they are said to be unchecked
	// ([schema.Blob.Unchecked]), and reads what is wrong by [Reader.GetAt].
	Late bool
}

// since is when the blob was wanted, of a read that begins now.
func (w *Want) since(now time.Time) time.Time {
	if w.Since.IsZero() {
		return now
	}
	return w.Since
}

// Token says to a Receiver which of its wants something is about.
type Token struct {
	Of any // a pointer, or nil
	N  int
}

// Receiver is told what became of what it wanted.
type Receiver interface {
	// Receive is called by a goroutine of the reader, with no lock held. It must not
	// block for long. The blobs are the receiver's to release; the list is the reader's again.
	Receive(list []Outcome)
	// More is called likewise when few of its wants wait for their turn: see [Place].
	More()
}

// Outcome is what became of a want.
type Outcome struct {
	Token Token
	Ref   schema.BlobRef
	Blob  schema.Blob
	Err   error
	Tier  int           // index of the tier that had it, or InWindow; that of the last one where there was an error
	Took  time.Duration // since the last attempt at it began
	At    time.Time     // when it came
}

// waiter is who wants a blob.
type waiter struct {
	to    Receiver
	token Token
}

// inbox is a Receiver of single blobs.
type inbox chan Outcome

// Receive implements Receiver. There is room for each outcome.
func (c inbox) Receive(list []Outcome) {
	for _, o := range list {
		c <- o
	}
}

// More implements Receiver.
func (inbox) More() {}

// told is what is to be told when the reader's lock is not held.
type told struct {
	ended []ended    // reads that are over
	to    []Receiver // of each outcome
	list  []Outcome
	more  []Receiver
	idle  Waker // told that nothing is wanted that there is room for, if not nil

	traced []traced
}

// traced is an attempt of a read that is traced.
type traced struct {
	attempt Attempt
	began   time.Time
	slow    bool
	err     error
}

// ended is a read that is over, and what came of it.
type ended struct {
	read *read
	o    Outcome
}

func (t *told) add(to Receiver, o Outcome) {
	t.to, t.list = append(t.to, to), append(t.list, o)
}

// tell offers blobs to the tiers above the ones that had them, and tells those who wait, each once of all that is
// theirs. Meanwhile the reads hold their blobs, so that nobody reads them again.
func (t *told) tell() {
	for _, a := range t.traced {
		a.attempt.read.trace.attempt(a.attempt, a.began, a.slow, a.err)
	}
	for i := range t.ended {
		rd, o := t.ended[i].read, &t.ended[i].o
		rd.offer(o)
		if o.Err == nil {
			o.Blob = schema.NewBlob(o.Blob.Bytes(), rd)
		}
		o.Token = rd.first.token
		t.add(rd.first.to, *o)
		for _, w := range rd.others {
			o.Token = w.token
			t.add(w.to, *o)
		}
	}
	for from := 0; from < len(t.list); {
		upTo := from + 1
		for upTo < len(t.list) && t.to[upTo] == t.to[from] {
			upTo++
		}
		t.to[from].Receive(t.list[from:upTo])
		from = upTo
	}
	for _, to := range t.more {
		to.More()
	}
	idle := t.idle
	t.clear()
	if idle != nil {
		idle.Wake()
	}
}

func (t *told) clear() {
	t.traced = nil
	clear(t.ended)
	clear(t.to)
	clear(t.list)
	clear(t.more)
	t.ended, t.to, t.list, t.more, t.idle = t.ended[:0], t.to[:0], t.list[:0], t.more[:0], nil
}

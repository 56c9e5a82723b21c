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

// fewWaiting is how many waiting requests of a place are left when its receiver's More is called.
const fewWaiting = 16

// Place is the queue of a stream's requests, which wait for their turn: tenant, then job, then stream, separately for
// each tier.
type Place struct {
	reader  *Reader
	turns   *admission.Stream[queued]
	to      Receiver
	waiting atomic.Int32 // changes with Reader.mu held
	asked   bool         // More of its receiver was called; guarded by Reader.mu
}

// queued is a request that waits for its turn, and its result.
type queued struct {
	Want
	place   *Place
	verdict verdict
	first   Attempt
	held    schema.Blob
}

// Open makes a place for a stream of a tenant's job. to receives the outcomes. The caller closes the place.
func (r *Reader) Open(tenant string, weight int64, job string, to Receiver) *Place {
	return &Place{reader: r, turns: r.queue.Open(tenant, weight, job), to: to}
}

// Waiting is how many of its requests wait for their turn.
func (p *Place) Waiting() int { return int(p.waiting.Load()) }

// Ask requests blobs, which are read or shared when it is their turn.
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

// Cancel removes the requests that match, and cancels reads without waiters. It returns how many it removed; requests
// whose outcome was delivered, or is being delivered, are not counted.
func (p *Place) Cancel(match func(Token) bool) int {
	r := p.reader
	r.mu.Lock()
	n := p.turns.Drop(func(q *queued) bool { return match(q.Token) })
	p.waiting.Add(-int32(n))
	r.mu.Unlock()
	return n + r.Cancel(func(to Receiver, t Token) bool { return to == p.to && match(t) })
}

// Close closes the place and cancels its requests.
func (p *Place) Close() {
	p.Retire()
	p.reader.Cancel(func(to Receiver, _ Token) bool { return to == p.to })
}

// Retire closes the place, and returns the requests that waited for their turn. Outcomes of reads in flight are still
// delivered.
func (p *Place) Retire() (dropped []Token) {
	p.reader.mu.Lock()
	defer p.reader.mu.Unlock()
	for _, q := range p.turns.Close() {
		dropped = append(dropped, q.Token)
	}
	p.waiting.Store(0)
	return dropped
}

// Idle reports whether no request waits for its turn.
func (p *Place) Idle() bool { return p.turns.Idle() }

// Waiting is how many requests wait for their turn.
func (r *Reader) Waiting() int { return r.queue.Waiting() }

// SetWeights sets the weights of tenants, and gives another turn to tenants that were held back by their share.
func (r *Reader) SetWeights(weight func(tenant string) int64) {
	r.queue.SetWeights(weight)
	r.queue.Again()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.wakeLocked()
	}
}

// Waker is called when no request waits that there is room for.
type Waker interface{ Wake() }

// WakeIdle sets the Waker that is called, with no lock held, when no request waits that there is room for. It must be
// called before the first request.
func (r *Reader) WakeIdle(w Waker) { r.idler = w }

// verdict is the result of a request's turn.
type verdict int

const (
	full      verdict = iota // the tier that has the blob has no room for another read
	begun                    // a read was started, and its first attempt is to be made
	joined                   // it shares a read in flight
	held                     // a window held the blob, and it was handed out
	elsewhere                // no window holds the blob any more
	enough                   // the tenant is at its share, though there may be room
)

// classLocked returns the class of a request: 0 for blobs that windows hold, then the tiers, then the paths of the
// last tier.
func (r *Reader) classLocked(q *queued) int {
	if r.findLocked(&q.Want) != nil {
		return 0
	}
	i := r.below(&q.Want)
	if i < r.last.index {
		return 1 + i
	}
	return 1 + i + int(r.last.way(q.Ref))
}

// beginLocked starts to read a request's blob, if there is room for it.
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
			if now := r.classLocked(q); now != class {
				return admission.Taken{Class: now}
			}
		case begun, joined, held:
			return admission.Taken{OK: true, Class: class, Cost: Cost(q.Ref.Size)}
		}
	}
}

// takeLocked gives a worker its next reads: an attempt that is due, or else the next
// requests. These are one read that may take long, several that a tier serves together,
// or a run of some that are likely to take no time.
func (r *Reader) takeLocked(w *worker) {
	r.forgetFreedLocked()
	w.run, w.quick, w.gathers = w.run[:0], false, false
	w.claimed.Store(0)
	if r.closed {
		return
	}
	if a := r.due.take(); a.read != nil {
		w.run = append(w.run, a) // another goroutine was woken for it, and takes the rest
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
			w.notices.more = append(w.notices.more, p.to)
		}
		taken++
		switch q.verdict {
		case held:
			w.notices.add(q.To, Outcome{Token: q.Token, Ref: q.Ref, Blob: q.held, Tier: InWindow, At: now})
		case begun:
			if len(w.run) > 0 && !w.fits(&q.first) { // it would delay the others
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
		w.notices.idle = r.idler
	}
}

// Want is a request for a blob.
type Want struct {
	Ref schema.BlobRef
	// At is where the blob is used. With the zero Place, no tier caches the blob.
	At spill.Place
	// Use is when the blob is used: see [Cell.Use].
	Use int64
	// Context identifies the caller: the store sees its values. Its end does not end the read, because others may
	// share it: see [Reader.Cancel].
	Context context.Context //nolint:containedctx // only its values are used
	// Since is when the blob was first requested, if that was before the read begins. While the store sends nothing,
	// a read's timeout counts from then, so that requests that wait for their turn do not start a new timeout.
	Since time.Time
	// To receives the outcome, once, with Token.
	To Receiver
	// Account is the stream's, or nil.
	Account *Account
	// Trace is the stream's; nil if it is not traced.
	Trace *Trace
	Token Token
	// Here says that no other node is asked. One reason is that the blob is for another
	// node: two nodes that consider each other the owner would wait for each other. The
	// other is that the blob has no place, so that another node would not cache it.
	Here bool
	// Late says that the receiver verifies blobs that are unchecked ([schema.Blob.Unchecked]) by the reference, and
	// reads a wrong one with [Reader.GetAt].
	Late bool
}

// since is when the blob was requested, for a read that begins now.
func (w *Want) since(now time.Time) time.Time {
	if w.Since.IsZero() {
		return now
	}
	return w.Since
}

// Token identifies a request to its Receiver.
type Token struct {
	Of any // a pointer, or nil
	N  int
}

// Receiver receives the outcomes of its requests.
type Receiver interface {
	// Receive is called by a goroutine of the reader, with no lock held. It must not block for long. The receiver
	// owns the blobs and releases them; it must not keep the list.
	Receive(list []Outcome)
	// More is called likewise when few of its requests wait for their turn: see [Place].
	More()
}

// Outcome is the result of a request.
type Outcome struct {
	Token Token
	Ref   schema.BlobRef
	Blob  schema.Blob
	Err   error
	Tier  int           // index of the tier that had the blob, or InWindow; the last tier's after an error
	Took  time.Duration // since the last attempt began
	At    time.Time     // when it ended
}

// waiter waits for a read.
type waiter struct {
	to    Receiver
	token Token
}

// inbox is a Receiver of single blobs.
type inbox chan Outcome

// Receive implements Receiver. It does not block, because there is room for each outcome.
func (c inbox) Receive(list []Outcome) {
	for _, o := range list {
		c <- o
	}
}

// More implements Receiver.
func (inbox) More() {}

// notices collects the calls to make when the reader's lock is not held.
type notices struct {
	ended []ended    // ended reads
	to    []Receiver // receiver of each outcome in list
	list  []Outcome
	more  []Receiver
	idle  Waker // to wake, if not nil

	traced []traced
}

// traced is an attempt of a traced read.
type traced struct {
	attempt Attempt
	began   time.Time
	slow    bool
	err     error
}

// ended is a read that is over, with its outcome.
type ended struct {
	read *read
	o    Outcome
}

// add appends an outcome for a receiver. Outcomes of one receiver are delivered together
// if they follow each other.
func (t *notices) add(to Receiver, o Outcome) {
	t.to, t.list = append(t.to, to), append(t.list, o)
}

// send offers blobs to the tiers above, and delivers outcomes, in one call per receiver.
// During that time the reads hold their blobs, so that they are not read again. The
// caller holds no lock.
func (t *notices) send() {
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

// clear empties the lists, and keeps their memory for the next run. Elements are zeroed,
// because a list would otherwise keep blobs and calls from being collected.
func (t *notices) clear() {
	t.traced = nil
	clear(t.ended)
	clear(t.to)
	clear(t.list)
	clear(t.more)
	t.ended, t.to, t.list, t.more, t.idle = t.ended[:0], t.to[:0], t.list[:0], t.more[:0], nil
}

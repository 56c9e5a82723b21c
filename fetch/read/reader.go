package read

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/schema"
	"bowstring/spill"
)

// DefaultReadTimeout is the default of [Options.ReadTimeout].
const DefaultReadTimeout = 30 * time.Second

// Options tunes a Reader. The zero value of each field stands for its default.
type Options struct {
	// MaxReads caps the reads in flight on a way that is measured, whatever was
	// found. Default 4096.
	MaxReads int
	// ReadTimeout is how long a blob is tried before it counts as one that cannot be read, whatever the store does:
	// it fails, or says nothing. A second is added for each mebibyte of the blob. Default DefaultReadTimeout.
	ReadTimeout time.Duration
	// NoHedge leaves slow reads alone. Otherwise one that takes longer than nearly
	// all of late is made a second time, which costs 5 % more reads at most.
	NoHedge bool
	// Keeps says whether blobs of this key are for the tiers of this node to keep; pages of
	// manifests always are. It must not block. Default: all are.
	Keeps func(schema.Key) bool
	// Sharers is how many readers, this one among them, share the way to the last tier as far as is known: other nodes
	// of a cluster. It must not block. Default: this one has it alone.
	Sharers func() int
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.MaxReads == 0 {
		o.MaxReads = 4096
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = DefaultReadTimeout
	}
	if o.Keeps == nil {
		o.Keeps = func(schema.Key) bool { return true }
	}
	if o.Sharers == nil {
		o.Sharers = func() int { return 1 }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.MaxReads < 1:
		return fmt.Errorf("%w: MaxReads is %d; want 1 or more", schema.ErrInvalid, o.MaxReads)
	case o.ReadTimeout < 0:
		return fmt.Errorf("%w: ReadTimeout is %s; want a positive time", schema.ErrInvalid, o.ReadTimeout)
	}
	return nil
}

// Reader reads blobs from an ordered list of tiers, each when it is its turn. It is safe for concurrent use.
//
// A goroutine of it begins reads of one tier, a run of several where they take no time, makes them, takes in what came
// of all, and looks for what is next. So there are as many as reads in flight to a tier that takes time. Some wait
// where there is nothing to read. Slow reads are looked for by a timer that runs while there are any.
//
// Its mutex is taken a few times a run, and never while bytes are touched or a receiver is told. Under it the queue of
// turns is locked, and tiers are asked what they have.
type Reader struct {
	opts  Options
	lanes []lane // the nearest first
	last  *lane
	queue *admission.Queue[queued]
	idler Waker // nil: nobody is told

	mu             sync.Mutex
	closed         bool
	reads          map[readKey]*read // under way, or held by whoever wanted them
	oldest, newest *read             // of those under way, in the order they began
	latency        latencies         // of the last tier
	remote         latencies         // of other nodes
	slow           time.Duration     // how long a slow read takes, brought up to date by the timer
	heard          time.Time         // when the last tier said something of a blob, or was first asked since
	silent         bool              // a read of it has had its time, and nothing was heard since
	hedges         float64           // that may be made now
	watch          *time.Timer
	watching       bool
	stats          counters
	fresh          []read    // reads that are none yet: see newLocked
	due            due       // attempts that are made before what waits for its turn
	runs           []*worker // that make reads which most likely take no time
	idle           []*worker // goroutines that have nothing to read
	spent          []*worker // that have ended

	freed   atomic.Pointer[read] // whose last holder has let go: see forgetFreedLocked
	stuck   atomic.Int64         // attempts at reads that were given up, which have not ended
	trouble trouble
	running sync.WaitGroup // goroutines that read, and the timer's; grows under mu only while not closed
}

// New returns a reader of those tiers, which stay the caller's to close, after
// the reader.
func New(list []Tier, opts Options) (*Reader, error) {
	opts.EnsureDefaults()
	if err := errors.Join(opts.Validate(), Validate(list)); err != nil {
		return nil, err
	}
	r := &Reader{opts: opts, lanes: make([]lane, len(list)), reads: map[readKey]*read{}, hedges: 2}
	for i, t := range list {
		r.lanes[i].init(t, i, opts.MaxReads)
	}
	r.last = &r.lanes[len(list)-1]
	r.last.last = true
	r.last.flow.sharers = opts.Sharers
	r.queue = admission.NewQueue(1+len(list), r.lookLocked, r.beginLocked)
	return r, nil
}

// ErrClosing is the schema.ErrUnavailable of whatever is asked of what is closing.
func ErrClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// InWindow is the tier of a blob that a window held.
const InWindow = -1

// below returns the index of the first tier that is likely to have the blob that is wanted.
func (r *Reader) below(w *Want) int {
	for i := range r.lanes[:len(r.lanes)-1] {
		if l := &r.lanes[i]; (!w.Here || !l.traits.Remote) && l.tier.Has(w.Ref) {
			return i
		}
	}
	return len(r.lanes) - 1
}

// Cost is what a read of so many bytes takes of what is shared out.
func Cost(bytes int64) int64 { return bytes + readOverhead }

// Filling is what came of [Reader.Fill].
type Filling int

// What comes of a fill.
const (
	NoRoom   Filling = iota // on the way to the last tier
	Begun                   // the receiver is told of it
	UnderWay                // for somebody else, who has it kept; the receiver is told of it
)

// Fill begins to read a blob for who can wait, and keeps it himself: nothing is begun unless the way to
// the last tier has room to spare, of which half is left to others where half says so. Where another
// node is likely to have the blob, it is asked first. What is under way for somebody else is not waited for.
func (r *Reader) Fill(w *Want, half bool) Filling {
	l := &r.lanes[r.below(w)]
	if !l.traits.Remote {
		l = r.last
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetFreedLocked()
	if r.findLocked(w) != nil {
		return UnderWay
	}
	if r.closed || !r.last.flow.admitsFill(w.Ref.Size, half) {
		return NoRoom
	}
	_, first, _ := r.tryLocked(w, l, true) // it is not there, and the reader is not closed
	first.read.fill = true
	r.stats.fills++
	r.dueLocked(first)
	return Begun
}

// shareLocked has w come with what is under way, or held; elsewhere if neither.
func (r *Reader) shareLocked(w *Want) (v verdict, blob schema.Blob) {
	rd := r.findLocked(w)
	switch {
	case rd == nil:
		return elsewhere, schema.Blob{}
	case !rd.over:
		rd.others = append(rd.others, waiter{w.To, w.Token})
		r.stats.sharedReads++
		if w.Here && !rd.here {
			r.stayLocked(rd)
		}
		return joined, schema.Blob{}
	case rd.acquire():
		r.stats.sharedReads++
		return held, schema.NewBlob(rd.blob.Bytes(), rd)
	}
	delete(r.reads, rd.key()) // its last holder is letting go
	return elsewhere, schema.Blob{}
}

// stayLocked has a read that is under way go on here.
func (r *Reader) stayLocked(rd *read) {
	rd.here = true
	if r.closed || !r.awayLocked(rd) {
		return
	}
	rd.attemptLocked(time.Now())
	r.last.beganLocked(rd)
	r.dueLocked(Attempt{read: rd, nth: rd.attempts - 1, lane: r.last})
}

// tryLocked has w's receiver told of its blob in the end: it joins the read that is
// under way, or shares what is held, or a read of the lane is begun, if there is room for it.
func (r *Reader) tryLocked(w *Want, l *lane, always bool) (v verdict, first Attempt, blob schema.Blob) {
	if v, blob = r.shareLocked(w); v != elsewhere {
		return v, first, blob
	}
	if r.closed || !always && !l.admitsLocked(w.Ref.Size) {
		return full, Attempt{}, schema.Blob{}
	}
	if l == r.last && !always && w.Account != nil && !w.Account.Tenant.admitsLocked(&l.flow, w.Ref.Size) {
		return enough, Attempt{}, schema.Blob{}
	}
	rd := r.newLocked()
	now := time.Now()
	*rd = read{reader: r, ref: w.Ref, start: now, since: w.since(now), first: waiter{w.To, w.Token}, place: w.At,
		use: w.Use, entry: l.index, older: r.newest, trace: w.Trace, here: w.Here, account: w.Account}
	rd.values = w.Context
	rd.attemptLocked(rd.start)
	if r.newest != nil {
		r.newest.newer = rd
	} else {
		r.oldest = rd
	}
	r.newest = rd
	rd.late = w.Late && r.lateLocked(l, rd)
	r.reads[rd.key()] = rd
	l.beganLocked(rd)
	r.keepWatchLocked()
	return begun, Attempt{read: rd, lane: l}, schema.Blob{}
}

// Get reads one blob, whatever is in flight. No tier keeps it, and no other node is asked.
func (r *Reader) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	return r.GetAt(ctx, ref, spill.Place{})
}

// GetAt is Get of a blob at a place: tiers of this node may keep it.
func (r *Reader) GetAt(ctx context.Context, ref schema.BlobRef, at spill.Place) (schema.Blob, error) {
	result := make(inbox, 1)
	w := Want{Ref: ref, At: at, Context: ctx, To: result, Here: true}
	l := &r.lanes[r.below(&w)]
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return schema.Blob{}, ErrClosing()
	}
	v, first, blob := r.tryLocked(&w, l, true)
	if v == begun {
		r.dueLocked(first)
	}
	r.mu.Unlock()
	if v == held {
		return blob, nil
	}
	select {
	case o := <-result:
		return o.Blob, o.Err
	case <-ctx.Done():
		if r.Leave(func(to Receiver, _ Token) bool { return to == Receiver(result) }) == 0 {
			o := <-result // it comes in this moment
			o.Blob.Release()
		}
		return schema.Blob{}, context.Cause(ctx)
	}
}

// Leave has those who match wait no longer, and ends reads that nobody wants any
// more. It returns how many were taken out; who was told already, or is just
// being told, is not among them.
func (r *Reader) Leave(match func(to Receiver, t Token) bool) (left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := func(w waiter) bool { return match(w.to, w.token) }
	for rd := r.oldest; rd != nil; {
		newer := rd.newer
		before := len(rd.others)
		rd.others = slices.DeleteFunc(rd.others, gone)
		left += before - len(rd.others)
		if gone(rd.first) {
			left++
			if n := len(rd.others); n > 0 {
				rd.first, rd.others = rd.others[n-1], rd.others[:n-1]
			} else {
				r.forgetLocked(rd)
				delete(r.reads, rd.key())
			}
		}
		rd = newer
	}
	if left > 0 && !r.closed && r.queue.Waiting() > 0 {
		r.wakeLocked() // there may be room for others
	}
	return left
}

// Close ends all reads, tells those who wait, and waits for the goroutines.
func (r *Reader) Close() {
	r.mu.Lock()
	r.closed = true
	r.dismissLocked()
	var tell told
	for rd := r.oldest; rd != nil; rd = r.oldest {
		delete(r.reads, rd.key())
		r.forgetLocked(rd)
		tell.ended = append(tell.ended, ended{rd, Outcome{Ref: rd.ref, Err: ErrClosing(), Tier: r.last.index,
			At: time.Now()}})
	}
	if r.watching && r.watch.Stop() {
		r.watching = false
		r.running.Done()
	}
	r.mu.Unlock()
	tell.tell()
	r.running.Wait()
}

// forgetLocked takes r, which is over, off the list of what is under way, and
// ends its other attempts.
func (r *Reader) forgetLocked(rd *read) {
	for i := range r.lanes {
		r.lanes[i].abandonedLocked(rd)
	}
	rd.over = true
	rd.end()
	if rd.older != nil {
		rd.older.newer = rd.newer
	} else {
		r.oldest = rd.newer
	}
	if rd.newer != nil {
		rd.newer.older = rd.older
	} else {
		r.newest = rd.older
	}
	rd.older, rd.newer = nil, nil
}

// letGo has a read forgotten whose last holder has released its blob, when the lock is taken next.
func (r *Reader) letGo(rd *read) {
	for {
		rd.nextFreed = r.freed.Load()
		if r.freed.CompareAndSwap(rd.nextFreed, rd) {
			return
		}
	}
}

// forgetFreedLocked forgets the reads that nobody holds any more.
func (r *Reader) forgetFreedLocked() {
	if r.freed.Load() == nil {
		return
	}
	for rd := r.freed.Swap(nil); rd != nil; {
		if key := rd.key(); r.reads[key] == rd {
			delete(r.reads, key)
		}
		rd, rd.nextFreed = rd.nextFreed, nil
	}
}

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
	// More is asked, with no lock held, what to read next by a goroutine that has
	// made an attempt: it returns the first attempt of a read that Try has begun,
	// or the zero Attempt if there is nothing to read. Default: nothing ever is.
	More func() Attempt
	// Keeps says whether blobs of this key are for the tiers of this node to keep; pages of
	// manifests always are. It must not block. Default: all are.
	Keeps func(schema.Key) bool
	// Sharers is how many readers, this one among them, share the way to the last tier as far as is known: other nodes
	// of a cluster. It must not block. Default: this one has it alone.
	Sharers func() int
	// Freed is told, with the reader's lock held, that a tenant with a share may have
	// room again. It must not block. Default: nobody is told.
	Freed func()
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
	if o.More == nil {
		o.More = func() Attempt { return Attempt{} }
	}
	if o.Keeps == nil {
		o.Keeps = func(schema.Key) bool { return true }
	}
	if o.Sharers == nil {
		o.Sharers = func() int { return 1 }
	}
	if o.Freed == nil {
		o.Freed = func() {}
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

// Reader reads blobs from an ordered list of tiers. It is safe for concurrent use.
//
// A goroutine of it reads one blob at a time and asks for the next one by itself,
// so that there are as many as reads in flight. Some wait where there is nothing to read. Slow reads are looked for by
// a timer that runs while there are any.
//
// Its mutex is held for well under a microsecond a blob, and never while bytes
// are touched, a tier is asked or a receiver told.
type Reader struct {
	opts  Options
	lanes []lane // the nearest first
	last  *lane

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
	due            due       // attempts that may take long
	quick          due       // those that most likely take no time
	servers        int       // goroutines that make quick ones, or were woken for them; more than 0 while any is due
	idle           []*worker // goroutines that have nothing to read
	spent          []*worker // that have ended

	stuck   atomic.Int64 // attempts at reads that were given up, which have not ended
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
	return r, nil
}

// ErrClosing is the schema.ErrUnavailable of whatever is asked of what is closing.
func ErrClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// Tiers is how many tiers there are. The last index is the store's.
func (r *Reader) Tiers() int { return len(r.lanes) }

// InWindow is what Look returns of a blob that is being read, or that a window holds.
const InWindow = -1

// Look returns the index of the first tier that is likely to have the blob that
// is wanted.
func (r *Reader) Look(w *Want) int {
	r.mu.Lock()
	there := r.findLocked(w)
	r.mu.Unlock()
	if there != nil {
		return InWindow
	}
	return r.below(w)
}

func (r *Reader) below(w *Want) int {
	for i := range r.lanes[:len(r.lanes)-1] {
		if l := &r.lanes[i]; (!w.Here || !l.traits.Remote) && l.tier.Has(w.Ref) {
			return i
		}
	}
	return len(r.lanes) - 1
}

// Attempt is an attempt at a read that is to be made. The zero Attempt is none.
type Attempt struct {
	read *read
	nth  int
	lane *lane
	why  Reason // Hedge or Retry, of an attempt at the last tier that is not the first; else Own
}

// Try has w's receiver told of its blob in the end: it joins the read that is
// under way, or shares what is held, or begins to read from the tier at, which
// is what Look has returned. Where the verdict is Held, the blob is returned: the
// caller tells the receiver, when it has no lock.
func (r *Reader) Try(w *Want, at int) (v Verdict, first Attempt, held schema.Blob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at == InWindow {
		return r.shareLocked(w)
	}
	return r.tryLocked(w, &r.lanes[at], false)
}

// Cost is what a read of so many bytes takes of what is shared out.
func Cost(bytes int64) int64 { return bytes + readOverhead }

// TryIdle is Try for who can wait, and keeps the blob himself: nothing is begun unless the way to
// the last tier has room to spare, of which half is left to others where half says so. Where another
// node is likely to have the blob, it is asked first.
func (r *Reader) TryIdle(w *Want, half bool) (v Verdict, first Attempt) {
	l := &r.lanes[r.below(w)]
	if !l.traits.Remote {
		l = r.last
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.findLocked(w) != nil {
		return Joined, Attempt{} // by somebody else, who has it kept
	}
	if r.closed || !r.last.flow.admitsFill(w.Ref.Size, half) {
		return Full, Attempt{}
	}
	v, first, _ = r.tryLocked(w, l, true)
	if v == Begun {
		first.read.fill = true
	}
	r.stats.fills++
	return v, first
}

// shareLocked has w come with what is under way, or held; Elsewhere if neither.
func (r *Reader) shareLocked(w *Want) (v Verdict, first Attempt, held schema.Blob) {
	rd := r.findLocked(w)
	switch {
	case rd == nil:
		return Elsewhere, Attempt{}, schema.Blob{}
	case !rd.over:
		rd.others = append(rd.others, waiter{w.To, w.Token})
		r.stats.sharedReads++
		if w.Here && !rd.here {
			r.stayLocked(rd)
		}
		return Joined, Attempt{}, schema.Blob{}
	case rd.acquire():
		r.stats.sharedReads++
		return Held, Attempt{}, schema.NewBlob(rd.blob.Bytes(), rd)
	}
	delete(r.reads, rd.key()) // its last holder is letting go
	return Elsewhere, Attempt{}, schema.Blob{}
}

// stayLocked has a read that is under way go on here.
func (r *Reader) stayLocked(rd *read) {
	rd.here = true
	if r.closed || !r.awayLocked(rd) {
		return
	}
	rd.attemptLocked(time.Now())
	r.last.beganLocked(rd)
	r.startLocked(Attempt{rd, rd.attempts - 1, r.last, Own})
}

func (r *Reader) tryLocked(w *Want, l *lane, always bool) (v Verdict, first Attempt, held schema.Blob) {
	if v, first, held = r.shareLocked(w); v != Elsewhere {
		return v, first, held
	}
	if r.closed || !always && !l.admitsLocked(w.Ref.Size) {
		return Full, Attempt{}, schema.Blob{}
	}
	if l == r.last && !always && w.Account != nil && !w.Account.Tenant.admitsLocked(&l.flow, w.Ref.Size) {
		return Enough, Attempt{}, schema.Blob{}
	}
	rd := r.newLocked()
	now := time.Now()
	*rd = read{reader: r, ref: w.Ref, start: now, since: w.since(now), first: waiter{w.To, w.Token}, place: w.At, entry: l.index,
		older: r.newest, trace: w.Trace, here: w.Here, account: w.Account}
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
	return Begun, Attempt{rd, 0, l, Own}, schema.Blob{}
}

// Start makes an attempt in a goroutine of the reader. A reader that closes has
// ended the read.
func (r *Reader) Start(a Attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.startLocked(a)
	}
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
	v, first, held := r.tryLocked(&w, l, true)
	if v == Begun {
		r.startLocked(first)
	}
	r.mu.Unlock()
	if v == Held {
		return held, nil
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
	return left
}

// Close ends all reads, tells those who wait, and waits for the goroutines.
func (r *Reader) Close() {
	r.mu.Lock()
	r.closed = true
	r.dismissLocked()
	var ended []*read
	for r.oldest != nil {
		ended = append(ended, r.oldest)
		delete(r.reads, r.oldest.key())
		r.forgetLocked(r.oldest)
	}
	if r.watching && r.watch.Stop() {
		r.watching = false
		r.running.Done()
	}
	r.mu.Unlock()
	for _, rd := range ended {
		rd.deliver(Outcome{Ref: rd.ref, Err: ErrClosing(), Tier: r.last.index, At: time.Now()})
	}
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

// letGo forgets a blob whose last holder has released it.
func (r *Reader) letGo(rd *read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := rd.key(); r.reads[key] == rd {
		delete(r.reads, key)
	}
}

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

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"bowstring/fetch/admission"
	"bowstring/fetch/store"
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
	// Keeps says whether a blob is for the tiers of this node to keep; pages of
	// manifests always are. It must not block. Default: all are.
	Keeps func(schema.BlobRef) bool
	// Sharers is how many readers, this one among them, share the way to the last tier as far as is known: other nodes
	// of a cluster. It must not block. Default: this one has it alone.
	Sharers func() int
	// Prover knows the checksums of blobs that were attached without them, or learns them from the first read. Default: none
	// is known, so that such blobs cannot be read.
	Prover store.Prover
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
		o.Keeps = func(schema.BlobRef) bool { return true }
	}
	if o.Sharers == nil {
		o.Sharers = func() int { return 1 }
	}
	if o.Prover == nil {
		o.Prover = store.ProverOf(nil)
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

	mu             guard
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
	quantiles      Quantiles // of latency, brought up to date by the timer
	fresh          []read    // reads that are none yet: see newLocked
	due            due       // attempts that are made before what waits for its turn
	runs           []*worker // that make reads which most likely take no time
	idle           []*worker // goroutines that have nothing to read
	spent          []*worker // that have ended

	public struct {
		mu    sync.Mutex // is taken with Reader.mu held, or alone
		stats Stats      // as of when Reader.mu was last let go of; written with both held
	}

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
	r.mu.reader = r
	r.last = &r.lanes[len(list)-1]
	r.last.last = true
	for i := range r.last.ways {
		r.last.ways[i].sharers = opts.Sharers
	}
	r.queue = admission.NewQueue(len(list)+int(ways), r.lookLocked, r.beginLocked)
	return r, nil
}

// ErrClosing is the schema.ErrUnavailable of whatever is asked of what is closing.
func ErrClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// InWindow is the tier of a blob that a window held.
const InWindow = -1

// Known returns a reference as the tiers know it: with its checksum, if that was learned since the blob was attached.
// Streams know the blob by the reference of the manifest.
func (r *Reader) Known(ref schema.BlobRef) schema.BlobRef {
	if !ref.Unproven() {
		return ref
	}
	return r.opts.Prover.Proven(ref)
}

// below returns the index of the first tier that is likely to have the blob that is wanted.
func (r *Reader) below(w *Want) int {
	ref := r.Known(w.Ref)
	for i := range r.lanes[:len(r.lanes)-1] {
		if l := &r.lanes[i]; (!w.Here || !l.traits.Remote) && l.tier.Has(ref) {
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
	if r.closed || !r.last.flow(w.Ref).admitsFill(w.Ref.Size, half) {
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
	if r.closed || !always && !l.admitsLocked(w.Ref) {
		return full, Attempt{}, schema.Blob{}
	}
	if l == r.last && !always && w.Account != nil && !w.Account.Tenant.admitsLocked(l.flow(w.Ref), w.Ref.Size) {
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
	rd.late = w.Late && !w.Ref.Unproven() && r.lateLocked(l, rd) // the checksum is not in what the receiver has
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

// Tenant is on whose account reads are made. What it has in flight to the last tier
// is within its share of what may be, but for one read.
type Tenant struct {
	reader *Reader
	reads  int     // in flight to the last tier; guarded by Reader.mu
	bytes  int64   // of those, with their overhead; guarded by Reader.mu
	share  float64 // 0: all; guarded by Reader.mu
}

// NewTenant returns the account of one who may have such a share, of 1, of what may be
// in flight to the last tier; 0 stands for all.
func (r *Reader) NewTenant(share float64) *Tenant { return &Tenant{reader: r, share: share} }

// SetShare changes the share.
func (t *Tenant) SetShare(share float64) {
	t.reader.mu.Lock()
	defer t.reader.mu.Unlock()
	t.share = share
}

// InFlight is what it has in flight to the last tier.
func (t *Tenant) InFlight() (reads int, bytes int64) {
	t.reader.mu.Lock()
	defer t.reader.mu.Unlock()
	return t.reads, t.bytes
}

// Account is what was read for one stream. A read that several want is on the account
// of who asked first.
type Account struct {
	Tenant    *Tenant
	LastBytes atomic.Int64 // of blobs that came from the last tier
}

// admitsLocked reports whether the tenant may have one more read of n bytes in flight on
// a way, whatever room there is.
func (t *Tenant) admitsLocked(f *flow, n int64) bool {
	if t == nil || t.share <= 0 || t.share >= 1 || t.reads == 0 {
		return true
	}
	if float64(t.reads) < t.share*float64(f.floor()) || float64(t.bytes+n+readOverhead) <= t.share*float64(f.limit) {
		return true
	}
	// While the path is being found out it has to be asked for more, or it would never
	// show that it carries it. Later a round says nothing where nobody else was held back.
	f.gated = f.gated || f.startup
	return false
}

func (a *Account) beganLocked(n int64) {
	if a != nil && a.Tenant != nil {
		a.Tenant.reads++
		a.Tenant.bytes += n + readOverhead
	}
}

func (a *Account) endedLocked(n int64) {
	if a != nil && a.Tenant != nil {
		a.Tenant.reads--
		a.Tenant.bytes -= n + readOverhead
		if a.Tenant.share > 0 {
			a.Tenant.reader.queue.Again()
		}
	}
}

const (
	// paceMost is what a read counts for in a lane's pace at most: it may have had to wait for a processor.
	paceMost = 4 * quickRead
	// paceShare is the part that a read has in the pace, as its inverse.
	paceShare = 8
)

// lane is the way to a tier: what may be in flight on it, and what is. All fields
// but tier, keeper, gather, traits, index and last are guarded by Reader.mu.
type lane struct {
	tier   Tier
	keeper Keeper   // the tier, if it keeps what comes from below
	gather Gatherer // the tier, if it serves some cells together
	traits Traits
	index  int
	last   bool // there is none below

	reads int        // under way, where their number is fixed
	ways  [ways]flow // where it is measured
	times Times
	pace  time.Duration // of a read, as a moving average in which none counts for long; 0: not known
}

func (l *lane) init(t Tier, index, maxReads int) {
	l.tier, l.traits, l.index = t, t.Traits(), index
	l.keeper, _ = t.(Keeper)
	l.gather, _ = t.(Gatherer)
	for i := range l.ways {
		l.ways[i].init(maxReads, func() int { return 1 })
	}
	l.ways[toBucket].guess = bucketLatency
}

// quick reports whether its reads most likely take no time.
func (l *lane) quick() bool { return l.pace > 0 && l.pace < quickRead }

// gathers reports whether the tier serves a blob together with others.
func (l *lane) gathers(ref schema.BlobRef) bool {
	return l.traits.Together > 1 && (l.gather == nil || l.gather.Gathers(ref))
}

func (l *lane) bit() uint8 { return 1 << l.index }

// way is how a blob comes from a tier.
type way int

// The ways of the last tier. A store in a directory answers at once while the buckets are far away in which attached
// blobs lie: what is measured of the one says nothing of the other.
const (
	toStore  way = iota
	toBucket     // of what a Gatherer serves
	ways
)

// way is how a blob comes.
func (l *lane) way(ref schema.BlobRef) way {
	if l.gather != nil && l.gather.Gathers(ref) {
		return toBucket
	}
	return toStore
}

// flow is what may be in flight on a blob's way.
func (l *lane) flow(ref schema.BlobRef) *flow { return &l.ways[l.way(ref)] }

// admitsLocked reports whether a read may begin.
func (l *lane) admitsLocked(ref schema.BlobRef) bool {
	if l.traits.Parallel > 0 {
		return l.reads < l.traits.Parallel
	}
	return l.flow(ref).admits(ref.Size)
}

// inFlightLocked is how many reads are under way.
func (l *lane) inFlightLocked() int {
	n := l.reads
	for i := range l.ways {
		n += l.ways[i].reads
	}
	return n
}

// beganLocked counts a read in, once.
func (l *lane) beganLocked(r *read) {
	if r.counted&l.bit() != 0 {
		return
	}
	if l.last {
		r.reader.listenLocked(time.Now())
	}
	r.counted |= l.bit()
	if l.traits.Parallel > 0 {
		l.reads++
	} else {
		l.flow(r.ref).began(r.ref.Size)
	}
	if l.last {
		r.account.beganLocked(r.ref.Size)
	}
}

// abandonedLocked counts a read out that brought nothing.
func (l *lane) abandonedLocked(r *read) {
	if r.counted&l.bit() == 0 {
		return
	}
	r.counted &^= l.bit()
	if l.traits.Parallel > 0 {
		l.reads--
	} else {
		l.flow(r.ref).abandoned(r.ref.Size)
	}
	if l.last {
		r.account.endedLocked(r.ref.Size)
	}
}

// completedLocked counts a read out that brought the blob, and took that long.
func (l *lane) completedLocked(r *read, now time.Time, took time.Duration) {
	counts := min(max(took, 1), paceMost)
	if l.pace == 0 {
		l.pace = counts
	}
	l.pace += (counts - l.pace) / paceShare
	if l.traits.Parallel > 0 || r.counted&l.bit() == 0 {
		l.abandonedLocked(r)
		return
	}
	r.counted &^= l.bit()
	l.flow(r.ref).completed(now, r.ref.Size, took)
	if l.last {
		r.account.endedLocked(r.ref.Size)
	}
}

// counters are guarded by Reader.mu.
type counters struct {
	reads, readBytes, readNanos, failedReads int64
	upperReads, upperBytes                   int64
	peerReads, peerBytes, stoodIn            int64
	sharedReads, retries, hedges, hedgesWon  int64
	fills                                    int64
	lost, givenUp                            int64
	reasons                                  Reasons
}

// Stats are a reader's counters since it was made, and what is in flight now.
type Stats struct {
	Reads       int64         // blobs read from the last tier and found right
	Reasons     Reasons       // of those, why they were made
	ReadBytes   int64         // of those
	ReadTime    time.Duration // summed over those
	FailedReads int64         // attempts at the last tier that brought no blob, or a wrong one
	UpperReads  int64         // blobs found in a tier of this node above and right
	UpperBytes  int64         // of those
	PeerReads   int64         // blobs that other nodes had, and right
	PeerBytes   int64         // of those
	StoodIn     int64         // blobs read from the last tier that are for other nodes to keep
	SharedReads int64         // wants that came with a read made for another, or from what was held
	Retries     int64         // attempts after one that failed or was silent for long
	Hedges      int64         // attempts beside one that was slow
	HedgesWon   int64         // of those, which brought the blob first
	Fills       int64         // reads begun by Fill
	GivenUp     int64         // blobs that no attempt brought
	Lost        int64         // of those, which are missing or damaged

	InFlight      int           // reads of the last tier
	BytesInFlight int64         // with what each read costs beside
	Limit         int64         // bytes that may be in flight, as the way was measured: to buckets, if any are read
	MinLatency    time.Duration // of that way
	BytesPerSec   float64       // that it carries, as a moving average
	Held          int           // blobs that windows hold, or that are being read

	Quantiles // of the latency of the last tier
}

// Quantiles are of the reads of the last five to ten seconds; all but Max are zero where there were too few.
type Quantiles struct{ P50, P95, P99, Max time.Duration }

// Stats returns the reader's counters. It waits for no goroutine that reads: where one has the mutex, the counters are
// those of when the mutex was last free, and quantiles are as old as the last look for slow reads.
func (r *Reader) Stats() Stats {
	if r.mu.TryLock() {
		r.forgetFreedLocked()
		r.quantiles = r.latency.quantiles()
		r.mu.Unlock()
	}
	r.public.mu.Lock()
	defer r.public.mu.Unlock()
	return r.public.stats
}

func (r *Reader) statsLocked() Stats {
	c, f := &r.stats, &r.last.ways[toStore]
	if b := &r.last.ways[toBucket]; b.latency > 0 {
		f = b
	}
	s := Stats{
		Reads: c.reads, Reasons: c.reasons, ReadBytes: c.readBytes, ReadTime: time.Duration(c.readNanos),
		FailedReads: c.failedReads,
		UpperReads:  c.upperReads, UpperBytes: c.upperBytes, PeerReads: c.peerReads, PeerBytes: c.peerBytes,
		StoodIn: c.stoodIn, SharedReads: c.sharedReads,
		Retries: c.retries, Hedges: c.hedges, HedgesWon: c.hedgesWon, Fills: c.fills, GivenUp: c.givenUp, Lost: c.lost,
		InFlight: r.last.inFlightLocked(), Limit: f.limit, MinLatency: f.latency, BytesPerSec: f.rate,
		Held: len(r.reads), Quantiles: r.quantiles,
	}
	for i := range r.last.ways {
		s.BytesInFlight += r.last.ways[i].used
	}
	return s
}

// guard is the reader's mutex. The counters are published when it is unlocked. So Stats does not wait for a goroutine
// that has it, and may have lost its processor.
type guard struct {
	sync.Mutex
	reader *Reader
}

// Unlock implements sync.Locker.
func (g *guard) Unlock() {
	r := g.reader
	if now := r.statsLocked(); now != r.public.stats {
		r.public.mu.Lock()
		r.public.stats = now
		r.public.mu.Unlock()
	}
	g.Mutex.Unlock()
}

// From is where a blob came from.
type From int

// Where blobs come from.
const (
	FromWindow From = iota // of another stream
	FromSpill              // a tier of this node
	FromPeer               // another node
	FromStore
)

// From says where an outcome came from.
func (r *Reader) From(o *Outcome) From {
	switch {
	case o.Tier == InWindow:
		return FromWindow
	case o.Tier == r.last.index:
		return FromStore
	case r.lanes[o.Tier].traits.Remote:
		return FromPeer
	}
	return FromSpill
}

// Path says what the way to the last tier is like: how long a slow read takes,
// the least latency, and how many bytes may be in flight.
type Path struct {
	Slow, Latency time.Duration
	Limit         int64
}

// Path returns what was measured of the way to the last tier: to the buckets in which attached blobs lie, or to the
// store.
func (r *Reader) Path(buckets bool) Path {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.last.ways[toStore]
	if buckets {
		f = &r.last.ways[toBucket]
	}
	return Path{r.slow, f.least(), f.limit}
}

// Far reports whether the last tier does not answer at once.
func (p Path) Far() bool { return p.Latency >= manyLatency }

const (
	// tracedFirst is how many reads of a stream have a span whatever they took:
	// those that its first batch waits for.
	tracedFirst = 8
	// tracedOdd is how many more have one as they were slow or failed.
	tracedOdd = 32
)

// Trace draws spans of some of the reads that a stream asks for: its first ones,
// and those that were slow or failed. A nil Trace is that of a stream nobody
// traces: it costs a comparison a read. It holds nothing of the call, as reads
// lead to it and are held for longer.
type Trace struct {
	tracer trace.Tracer
	parent trace.SpanContext
	first  atomic.Int32 // that may have a span
	odd    atomic.Int32
}

// NewTrace returns the trace of whatever the span of ctx stands for; nil if that
// is not recorded.
func NewTrace(ctx context.Context) *Trace {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil
	}
	t := &Trace{tracer: span.TracerProvider().Tracer("bowstring/fetch"), parent: span.SpanContext()}
	t.first.Store(tracedFirst)
	t.odd.Store(tracedOdd)
	return t
}

// exampleLocked keeps a read of the stream as an example; Reader.mu is held.
func (t *Trace) exampleLocked(times *Times, took time.Duration, at time.Time) {
	times.Examples[bucketOfTimes(took)/exampleWidth] = Example{t.parent.TraceID(), t.parent.SpanID(), took, at}
}

// attempt draws the span of an attempt, if it is one to be drawn.
func (t *Trace) attempt(a Attempt, began time.Time, slow bool, err error) {
	switch {
	case take(&t.first):
	case (slow || err != nil) && take(&t.odd):
	default:
		return
	}
	_, span := t.tracer.Start(trace.ContextWithSpanContext(context.Background(), t.parent), "read "+a.lane.tier.Name(),
		trace.WithTimestamp(began), trace.WithAttributes(
			attribute.Int64("bowstring.bytes", a.read.ref.Size), attribute.Int("bowstring.attempt", a.nth),
			attribute.Bool("bowstring.slow", slow)))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// take takes one of what is left.
func take(left *atomic.Int32) bool { return left.Load() > 0 && left.Add(-1) >= 0 }

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

// Options configures a Reader. Zero fields have defaults.
type Options struct {
	// MaxReads caps the reads in flight on a path that is measured. Default 4096.
	MaxReads int
	// ReadTimeout is how long a blob is tried before the read fails, whether the store fails or sends nothing. One
	// second is added per mebibyte of the blob. Default DefaultReadTimeout.
	ReadTimeout time.Duration
	// NoHedge turns hedging off. Otherwise a read that takes longer than nearly all recent ones is made a second
	// time, which costs at most 5 % more reads.
	NoHedge bool
	// Keeps reports whether the tiers of this node may cache a blob. Pages of manifests are always cached. It must
	// not block. Default: true for all.
	Keeps func(schema.BlobRef) bool
	// Sharers is how many readers share the path to the last tier, as far as known: those of the cluster's nodes,
	// with this one. It must not block. Default: 1.
	Sharers func() int
	// Prover knows the checksums of blobs that were attached without them, or learns them from the first read.
	// Default: none is known, so such blobs cannot be read.
	Prover store.Prover
	// Logger receives messages for operators. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults sets fields that are zero to their defaults.
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

// Validate returns an error that names the first invalid field.
func (o *Options) Validate() error {
	switch {
	case o.MaxReads < 1:
		return fmt.Errorf("%w: MaxReads is %d; want 1 or more", schema.ErrInvalid, o.MaxReads)
	case o.ReadTimeout < 0:
		return fmt.Errorf("%w: ReadTimeout is %s; want a positive time", schema.ErrInvalid, o.ReadTimeout)
	}
	return nil
}

// Reader reads blobs from an ordered list of tiers; tenants, jobs and streams take turns. It is safe for concurrent
// use.
//
// Its goroutines (worker) each start reads of one tier, or a run of several reads that take no time, make them,
// process the results, and look for the next. So a tier whose reads take time has one goroutine per read in flight.
// Some goroutines wait when there is nothing to read. A timer checks for slow reads while there are any. Close waits
// for all of them.
//
// The mutex is taken a few times per run, and never while bytes are touched or a receiver is called. While it is
// held, the queue is locked, and tiers are asked what they have.
type Reader struct {
	opts  Options
	lanes []lane // nearest first
	last  *lane
	queue *admission.Queue[queued]
	idler Waker // nil: not set

	mu             guard
	closed         bool
	reads          map[readKey]*read // in flight, or held by receivers
	oldest, newest *read             // ends of the list of reads in flight, in the order they began
	latency        latencies         // of the last tier
	remote         latencies         // of other nodes
	slow           time.Duration     // how long a slow read takes; updated by the timer
	heard          time.Time         // when the last tier last answered, or was first asked since then
	silent         bool              // a read of it has timed out, and it has not answered since
	hedges         float64           // hedges that may be made now
	watch          *time.Timer
	watching       bool
	stats          counters
	quantiles      Quantiles // of latency; updated by the timer
	fresh          []read    // unused reads: see newLocked
	due            due       // attempts that precede what waits for its turn
	runs           []*worker // workers with reads that are likely to take no time
	idle           []*worker // workers that wait for something to read
	spent          []*worker // workers that have ended, for reuse

	public struct {
		mu    sync.Mutex // taken with Reader.mu held, or alone
		stats Stats      // as of the last unlock of Reader.mu; written with both held
	}

	freed   atomic.Pointer[read] // released reads: see forgetFreedLocked
	stuck   atomic.Int64         // attempts of failed reads that still run
	trouble trouble
	running sync.WaitGroup // workers and the timer's call; grows under mu only while not closed
}

// New returns a reader of the tiers. The caller closes the tiers, after the reader.
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
	r.queue = admission.NewQueue(len(list)+int(ways), r.classLocked, r.beginLocked)
	return r, nil
}

// ErrClosing returns the schema.ErrUnavailable of an engine that is closing.
func ErrClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// InWindow is the Tier of an Outcome that a window held.
const InWindow = -1

// Known returns a reference as the tiers know it: with its checksum, if that was learned since the blob was attached.
// Streams use the reference of the manifest.
func (r *Reader) Known(ref schema.BlobRef) schema.BlobRef {
	if !ref.Unproven() {
		return ref
	}
	return r.opts.Prover.Proven(ref)
}

// below returns the index of the first tier that is likely to have the blob.
func (r *Reader) below(w *Want) int {
	ref := r.Known(w.Ref)
	for i := range r.lanes[:len(r.lanes)-1] {
		if l := &r.lanes[i]; (!w.Here || !l.traits.Remote) && l.tier.Has(ref) {
			return i
		}
	}
	return len(r.lanes) - 1
}

// Cost is what a read of a blob counts in the turns.
func Cost(bytes int64) int64 { return bytes + readOverhead }

// Filling is the result of [Reader.Fill].
type Filling int

// The results of Fill.
const (
	NoRoom   Filling = iota // the path to the last tier has no room
	Begun                   // the receiver gets the outcome
	UnderWay                // another receiver reads it already; this receiver gets no outcome
)

// Fill starts to read a blob that no stream waits for; the receiver stores it itself. It starts nothing unless the
// path to the last tier has spare room; with half, half of the path stays free. If another node is likely to have the
// blob, that node is asked first. If a read of the blob is in flight, Fill does not join it.
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
	_, first, _ := r.tryLocked(w, l, true) // no read is in flight, and the reader is not closed
	first.read.fill = true
	r.stats.fills++
	r.dueLocked(first)
	return Begun
}

// shareLocked joins w to a read in flight, or hands it a held blob; elsewhere if there is neither.
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
	delete(r.reads, rd.key()) // its last hold is being released
	return elsewhere, schema.Blob{}
}

// stayLocked makes a read in flight continue at this node's store.
func (r *Reader) stayLocked(rd *read) {
	rd.here = true
	if r.closed || !r.awayLocked(rd) {
		return
	}
	rd.attemptLocked(time.Now())
	r.last.beganLocked(rd)
	r.dueLocked(Attempt{read: rd, nth: rd.attempts - 1, lane: r.last})
}

// tryLocked joins a read in flight, shares a held blob, or starts a read in the lane if there is room (always: even
// without room). If it returns begun, the caller makes the attempt first.
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
	// The receiver does not have the checksum of an unproven blob
	rd.late = w.Late && !w.Ref.Unproven() && r.lateLocked(l, rd)
	r.reads[rd.key()] = rd
	l.beganLocked(rd)
	r.keepWatchLocked()
	return begun, Attempt{read: rd, lane: l}, schema.Blob{}
}

// Get reads one blob, regardless of what is in flight. No tier caches it, and no other node is asked. The caller
// releases the blob.
func (r *Reader) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	return r.GetAt(ctx, ref, spill.Place{})
}

// GetAt is Get of a blob at a place: tiers of this node may cache it.
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
		if r.Cancel(func(to Receiver, _ Token) bool { return to == Receiver(result) }) == 0 {
			o := <-result // it ended at the same time
			o.Blob.Release()
		}
		return schema.Blob{}, context.Cause(ctx)
	}
}

// Cancel removes the waiters that match, and cancels reads without waiters. It returns how many it removed; waiters
// whose outcome was delivered, or is being delivered, are not counted.
func (r *Reader) Cancel(match func(to Receiver, t Token) bool) (left int) {
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
		r.wakeLocked() // there may be room for other reads
	}
	return left
}

// Close fails all reads, delivers the outcomes, and waits for the goroutines.
func (r *Reader) Close() {
	r.mu.Lock()
	r.closed = true
	r.dismissLocked()
	var notices notices
	for rd := r.oldest; rd != nil; rd = r.oldest {
		delete(r.reads, rd.key())
		r.forgetLocked(rd)
		notices.ended = append(notices.ended, ended{rd, Outcome{Ref: rd.ref, Err: ErrClosing(), Tier: r.last.index,
			At: time.Now()}})
	}
	if r.watching && r.watch.Stop() {
		r.watching = false
		r.running.Done()
	}
	r.mu.Unlock()
	notices.send()
	r.running.Wait()
}

// forgetLocked removes rd, which is over, from the reads in flight, and cancels its other attempts.
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

// abandon queues a read whose last hold was released, so that it is forgotten when the mutex is next taken.
func (r *Reader) abandon(rd *read) {
	for {
		rd.nextFreed = r.freed.Load()
		if r.freed.CompareAndSwap(rd.nextFreed, rd) {
			return
		}
	}
}

// forgetFreedLocked forgets the reads without holds.
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

// Tenant is the account of a tenant's reads. Its reads in flight to the last tier stay within its share, except that
// one read is always allowed.
type Tenant struct {
	reader *Reader
	reads  int     // in flight to the last tier; guarded by Reader.mu
	bytes  int64   // size of those reads, with overhead; guarded by Reader.mu
	share  float64 // 0: all; guarded by Reader.mu
}

// NewTenant returns the account of a tenant that may use a share, from 0 to 1, of what may be in flight to the last
// tier; 0 is all.
func (r *Reader) NewTenant(share float64) *Tenant { return &Tenant{reader: r, share: share} }

// SetShare changes the share.
func (t *Tenant) SetShare(share float64) {
	t.reader.mu.Lock()
	defer t.reader.mu.Unlock()
	t.share = share
}

// InFlight is what the tenant has in flight to the last tier.
func (t *Tenant) InFlight() (reads int, bytes int64) {
	t.reader.mu.Lock()
	defer t.reader.mu.Unlock()
	return t.reads, t.bytes
}

// Account counts the reads of one stream. A shared read counts for the stream that asked first.
type Account struct {
	Tenant    *Tenant
	LastBytes atomic.Int64 // of blobs from the last tier
}

// admitsLocked reports whether the tenant's share allows one more read of n bytes in flight on a path, regardless of
// the path's room.
func (t *Tenant) admitsLocked(f *flow, n int64) bool {
	if t == nil || t.share <= 0 || t.share >= 1 || t.reads == 0 {
		return true
	}
	if float64(t.reads) < t.share*float64(f.floor()) || float64(t.bytes+n+readOverhead) <= t.share*float64(f.limit) {
		return true
	}
	// During startup the path has to be used more, or it would never show that it carries more. Later, a round in
	// which only this tenant was held back shows nothing.
	f.gated = f.gated || f.startup
	return false
}

// beganLocked counts a read that begins at the last tier. A nil account counts nothing.
func (a *Account) beganLocked(n int64) {
	if a != nil && a.Tenant != nil {
		a.Tenant.reads++
		a.Tenant.bytes += n + readOverhead
	}
}

// endedLocked ends the counting. A tenant that was at its share gets another turn,
// because nothing else would wake its requests.
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
	// paceMost bounds what one read counts in a lane's pace, because the read may have waited for a CPU.
	paceMost = 4 * quickRead
	// paceShare is the inverse of the weight of a read in the pace.
	paceShare = 8
)

// lane is the path to a tier: what may be in flight on it, and what is. Reader.mu guards all fields except tier,
// caching, gather, traits, index and last.
type lane struct {
	tier    Tier
	caching CachingTier // the tier, if it caches blobs from tiers below
	gather  Gatherer    // the tier, if it serves some cells together
	traits  Traits
	index   int
	last    bool // there is no tier below

	reads int        // in flight, if their number is fixed
	ways  [ways]flow // if their number is measured
	times Times
	pace  time.Duration // of a read, as a moving average with capped values; 0: unknown
}

// init sets up the lane of a tier. New replaces sharers for the last tier, whose path the
// nodes of a cluster share.
func (l *lane) init(t Tier, index, maxReads int) {
	l.tier, l.traits, l.index = t, t.Traits(), index
	l.caching, _ = t.(CachingTier)
	l.gather, _ = t.(Gatherer)
	for i := range l.ways {
		l.ways[i].init(maxReads, func() int { return 1 })
	}
	l.ways[toBucket].guess = bucketLatency
}

// quick reports whether its reads are likely to take no time.
func (l *lane) quick() bool { return l.pace > 0 && l.pace < quickRead }

// gathers reports whether the tier serves a blob together with others.
func (l *lane) gathers(ref schema.BlobRef) bool {
	return l.traits.Together > 1 && (l.gather == nil || l.gather.Gathers(ref))
}

// bit is the lane's bit in read.counted.
func (l *lane) bit() uint8 { return 1 << l.index }

// way is a path to the blobs of a tier.
type way int

// The paths of the last tier. They are measured separately, because a store in a directory answers at once while
// attached blobs may be in distant buckets.
const (
	toStore  way = iota
	toBucket     // blobs that a Gatherer serves together
	ways
)

// way returns the path of a blob.
func (l *lane) way(ref schema.BlobRef) way {
	if l.gather != nil && l.gather.Gathers(ref) {
		return toBucket
	}
	return toStore
}

// flow returns what may be in flight on a blob's path.
func (l *lane) flow(ref schema.BlobRef) *flow { return &l.ways[l.way(ref)] }

// admitsLocked reports whether a read may begin.
func (l *lane) admitsLocked(ref schema.BlobRef) bool {
	if l.traits.Parallel > 0 {
		return l.reads < l.traits.Parallel
	}
	return l.flow(ref).admits(ref.Size)
}

// inFlightLocked is the number of reads in flight.
func (l *lane) inFlightLocked() int {
	n := l.reads
	for i := range l.ways {
		n += l.ways[i].reads
	}
	return n
}

// beganLocked counts a read, once.
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

// abandonedLocked ends the counting of a read that brought nothing.
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

// completedLocked ends the counting of a read that brought the blob in that time. The time of a joined answer is not
// counted.
func (l *lane) completedLocked(r *read, now time.Time, took time.Duration, joined bool) {
	if !joined {
		counts := min(max(took, 1), paceMost)
		if l.pace == 0 {
			l.pace = counts
		}
		l.pace += (counts - l.pace) / paceShare
	}
	if l.traits.Parallel > 0 || r.counted&l.bit() == 0 {
		l.abandonedLocked(r)
		return
	}
	r.counted &^= l.bit()
	l.flow(r.ref).completed(now, r.ref.Size, took, joined)
	if l.last {
		r.account.endedLocked(r.ref.Size)
	}
}

// counters are guarded by Reader.mu.
type counters struct {
	reads, readBytes, readNanos, failedReads int64
	upperReads, upperBytes                   int64
	peerReads, peerBytes, fellBack           int64
	sharedReads, retries, hedges, hedgesWon  int64
	fills                                    int64
	lost, unanswered                         int64
	reasons                                  Reasons
}

// Stats are a reader's counters since it was made, and what is in flight.
type Stats struct {
	Reads       int64         // blobs read from the last tier and verified
	Reasons     Reasons       // those reads, by reason
	ReadBytes   int64         // size of those blobs
	ReadTime    time.Duration // sum over those reads
	FailedReads int64         // failed attempts at the last tier, including wrong bytes
	UpperReads  int64         // blobs from tiers of this node above the store
	UpperBytes  int64         // size of those blobs
	PeerReads   int64         // blobs from other nodes
	PeerBytes   int64         // size of those blobs
	FellBack    int64         // blobs of other owners read from the last tier
	SharedReads int64         // requests that shared a read or a held blob
	Retries     int64         // attempts after one that failed or was silent for long
	Hedges      int64         // attempts in addition to a slow one
	HedgesWon   int64         // hedges that brought the blob first
	Fills       int64         // reads started by Fill
	Failed      int64         // reads that failed
	Lost        int64         // of Failed: missing or damaged

	InFlight      int   // reads of the last tier
	BytesInFlight int64 // with the overhead of each read
	// Limit is the bytes that may be in flight: on the path to buckets if that is used, else to the store.
	Limit       int64
	MinLatency  time.Duration // of that path
	BytesPerSec float64       // of that path, a moving average
	Held        int           // blobs that windows hold, or that are being read

	Quantiles // latency of the last tier
}

// Quantiles are over the reads of the last 5 to 10 s. All except Max are zero if there were too few reads.
type Quantiles struct{ P50, P95, P99, Max time.Duration }

// Stats returns the reader's counters. It does not wait for the mutex: while a goroutine holds it, the counters are
// as of its last unlock, and quantiles as of the last check for slow reads.
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

// statsLocked copies the counters. It is called at each unlock, so it allocates nothing
// and computes no quantile.
func (r *Reader) statsLocked() Stats {
	c, f := &r.stats, &r.last.ways[toStore]
	if b := &r.last.ways[toBucket]; b.latency > 0 {
		f = b
	}
	s := Stats{
		Reads: c.reads, Reasons: c.reasons, ReadBytes: c.readBytes, ReadTime: time.Duration(c.readNanos),
		FailedReads: c.failedReads,
		UpperReads:  c.upperReads, UpperBytes: c.upperBytes, PeerReads: c.peerReads, PeerBytes: c.peerBytes,
		FellBack: c.fellBack, SharedReads: c.sharedReads,
		Retries: c.retries, Hedges: c.hedges, HedgesWon: c.hedgesWon, Fills: c.fills, Failed: c.unanswered, Lost: c.lost,
		InFlight: r.last.inFlightLocked(), Limit: f.limit, MinLatency: f.latency, BytesPerSec: f.rate,
		Held: len(r.reads), Quantiles: r.quantiles,
	}
	for i := range r.last.ways {
		s.BytesInFlight += r.last.ways[i].used
	}
	return s
}

// guard is the reader's mutex. Unlocking it publishes the counters, so that Stats does not wait for a goroutine that
// holds the mutex and may have lost its CPU.
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

// The sources of blobs.
const (
	FromWindow From = iota // held by another stream
	FromSpill              // a tier of this node
	FromPeer               // another node
	FromStore
)

// From returns where an outcome came from.
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

// Path describes the path to the last tier: how long a slow read takes, the minimum latency, and the bytes that may
// be in flight.
type Path struct {
	Slow, Latency time.Duration
	Limit         int64
}

// Path returns the measurements of the path to the last tier: to the buckets with attached blobs, or to the store.
func (r *Reader) Path(buckets bool) Path {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.last.ways[toStore]
	if buckets {
		f = &r.last.ways[toBucket]
	}
	return Path{r.slow, f.least(), f.limit}
}

// Far reports whether the last tier's latency is 1 ms or more.
func (p Path) Far() bool { return p.Latency >= manyLatency }

const (
	// tracedFirst is how many reads of a stream always have a span: those that its first batch waits for.
	tracedFirst = 8
	// tracedOdd is how many more have a span because they were slow or failed.
	tracedOdd = 32
)

// Trace records spans of some of a stream's reads: its first ones, and those that were slow or failed. A nil Trace is
// that of a stream that is not traced; it costs a comparison per read. It refers to nothing of the call, because
// reads refer to it and live longer.
type Trace struct {
	tracer trace.Tracer
	parent trace.SpanContext
	first  atomic.Int32 // first reads that may still get a span
	odd    atomic.Int32
}

// NewTrace returns the trace of the span in ctx; nil if that is not recorded.
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

// exampleLocked stores a read of the stream as an example; Reader.mu is held.
func (t *Trace) exampleLocked(times *Times, took time.Duration, at time.Time) {
	times.Examples[bucketOfTimes(took)/exampleWidth] = Example{t.parent.TraceID(), t.parent.SpanID(), took, at}
}

// attempt records the span of an attempt, if the attempt is selected.
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

// take decrements left, and reports whether any was left.
func take(left *atomic.Int32) bool { return left.Load() > 0 && left.Add(-1) >= 0 }

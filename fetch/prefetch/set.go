package prefetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/operators"
	"bowstring/fetch/peers"
	"bowstring/fetch/read"
	"bowstring/fetch/upcoming"
	"bowstring/schema"
	"bowstring/spill"
)

// Options says what a Set works with. All fields except Upcoming, Lineage, Forward and NotOwner are required.
type Options struct {
	// WindowBytes is the ledger's limit for windows, in bytes.
	WindowBytes int64
	Ledger      *admission.Ledger
	Reader      *read.Reader
	// Stage runs the operators of requests on cells.
	Stage *operators.Stage
	// Upcoming knows the running jobs; nil if there is no spill.
	Upcoming *upcoming.Jobs
	// MaxPrefetch is how many rows a stream may read after one that has not arrived
	// yet. The default and the maximum is the number of bits of a resume ticket.
	MaxPrefetch int64
	// Forward reports whether this node may forward another node's request for a blob. asked is the request's
	// [peers.Ask.Forward]. nil: it may not. See [peers.Tier.Forward].
	Forward func(ref schema.BlobRef, asked bool) bool
	// NotOwner reports whether this node has nothing to do with a blob that another node requested from it as from one
	// that caches for others. nil: it always has. See [peers.Tier.NotOwner].
	NotOwner func(ref schema.BlobRef) bool
	// SendProgress sends other nodes the progress of the streams: see [Set.Progress]. It must not block. nil: there are
	// no other nodes.
	SendProgress func(list []peers.Progress)
	// There reports which blobs are cached, so that streams with a loose order read
	// them before their turn. nil: such streams follow the plan's order.
	There There
	// Lineage records the delivered rows; nil records nothing.
	Lineage *lineage.Log
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.MaxPrefetch == 0 {
		o.MaxPrefetch = maxPrefetch
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.WindowBytes < 1:
		return fmt.Errorf("%w: WindowBytes is %d; want a positive number of bytes", schema.ErrInvalid, o.WindowBytes)
	case o.MaxPrefetch < 1 || o.MaxPrefetch > maxPrefetch:
		return fmt.Errorf("%w: MaxPrefetch is %d; want 1 to %d rows", schema.ErrInvalid, o.MaxPrefetch, maxPrefetch)
	case o.Ledger == nil || o.Reader == nil || o.Stage == nil:
		return fmt.Errorf("%w: streams need a ledger, a reader and a stage", schema.ErrInvalid)
	}
	return nil
}

// Set is all streams of an engine. It is safe for concurrent use.
type Set struct {
	opts Options

	// Below are what streams share without a lock.
	reading   atomic.Int64 // streams that read blobs
	transit   atomic.Int64 // bytes of batches that were not released
	waiting   atomic.Int64 // streams whose consumer waits for a read
	behind    atomic.Int64 // streams that may request more blobs, and have not yet
	count     counters
	ids       atomic.Uint64  // of streams
	checking  sync.WaitGroup // searches for idle streams; grows only while a stream is not closed
	lastCheck atomic.Int64   // when cramped last searched for idle streams, in Unix nanoseconds
	sending   sync.Mutex     // held while progress is sent to other nodes

	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
	// of ranks that get the same samples, by Stream.sequence
	groups  map[string]*rankGroup
	terms   func(tenant string) admission.Terms // nil: all get the same
	tenants map[string]*tenant                  // that have streams
	live    sync.WaitGroup                      // streams that are not closed; grows under mu only while not closed
}

// counters are what Stats and Demand add up.
type counters struct {
	streams, batches, rows atomic.Int64
	streamed, waited       atomic.Int64 // nanoseconds: of streams that are closed; for the store
	opened                 atomic.Int64 // of the live ones, their opening times added up
	behind                 atomic.Int64 // see rankGroup
}

// NewSet returns a set without streams.
func NewSet(opts Options) (*Set, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Set{opts: opts, streams: map[*Stream]struct{}{}, groups: map[string]*rankGroup{}, tenants: map[string]*tenant{}}
	return s, nil
}

// Idle reports whether no stream needs the path to the store: no consumer waits,
// and each stream has requested all blobs that fit its window.
func (s *Set) Idle() bool {
	return s.waiting.Load() == 0 && s.behind.Load() == 0 && s.opts.Reader.Waiting() == 0
}

// Reading is how many streams read blobs.
func (s *Set) Reading() int { return int(s.reading.Load()) }

// Demand is what streams have read so far, and how long their consumers waited.
func (s *Set) Demand() spill.Demand {
	r := s.opts.Reader.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixNano()
	return spill.Demand{
		Waited:     time.Duration(s.count.waited.Load()),
		Streamed:   time.Duration(s.count.streamed.Load() + int64(len(s.streams))*now - s.count.opened.Load()),
		StoreBytes: r.ReadBytes, SpillBytes: r.UpperBytes,
	}
}

// add registers a stream, and divides the memory again. It fails after Close.
func (s *Set) add(st *Stream) error {
	var free []schema.Blob
	defer func() { releaseBlobs(free) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return read.ErrClosing()
	}
	s.live.Add(1)
	s.streams[st] = struct{}{}
	s.enterLocked(st)
	free = s.enterGroupLocked(st)
	s.count.streams.Add(1)
	s.count.opened.Add(st.opened.UnixNano())
	if len(st.columns) > 0 {
		s.reading.Add(1)
	}
	s.shareLocked()
	return nil
}

// remove is the opposite of add. The stream's goroutine calls it at its end.
func (s *Set) remove(st *Stream) {
	var free []schema.Blob
	defer func() { releaseBlobs(free) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
	free = s.leaveGroupLocked(st)
	s.leaveLocked(st)
	s.count.streamed.Add(int64(time.Since(st.opened)))
	s.count.opened.Add(-st.opened.UnixNano())
	if len(st.columns) > 0 {
		s.reading.Add(-1)
	}
	s.shareLocked()
}

// pieceBytes is how large a batch of the tenant may be. Consumers may never release
// the batches in transit. So while much memory is in transit, batches become so
// small that some memory is left for the next stream, however many streams begin.
func (s *Set) pieceBytes(t *tenant) int64 {
	return min(pieceOf(s.opts.WindowBytes, s.transit.Load(), s.reading.Load()),
		pieceOf(t.most.Load(), t.transit.Load(), t.live.Load()))
}

// pieceOf is the batch size if n streams share all bytes. Of these, transit bytes are in
// batches that were not released.
func pieceOf(all, transit, n int64) int64 {
	if n <= 1 || transit < all/8 {
		return all / 8
	}
	return all / (8 * n * int64(bits.Len64(uint64(2*n))))
}

// roomyPart is the inverse of a share of the memory. A batch may be made ready before
// its consumer asks for it while the batches in transit take at most that share.
const roomyPart = 4

// roomy reports whether a batch of that many bytes may be made ready before the
// consumer asks for it.
func (s *Set) roomy(t *tenant, batch int64) bool {
	return s.transit.Load()+batch <= s.opts.WindowBytes/roomyPart && t.transit.Load()+batch <= t.most.Load()/roomyPart
}

// reserve adds need bytes to the hold of a stream that has nothing it could go on
// with. It reclaims memory from other streams each reclaimPeriod until that succeeds,
// because streams may read more in the meantime. It fails with ctx's cause, or with
// schema.ErrLimit if the bytes never fit.
func (s *Set) reserve(ctx context.Context, st *Stream, h *admission.Hold, need int64) error {
	for {
		s.reclaim(st.tenant, need)
		round, cancel := context.WithTimeout(ctx, reclaimPeriod)
		err := h.Grow(round, need)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// Close fails all streams, and lets no new one begin. Their reads end with the
// reader. [Set.Wait] waits for the streams' end.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for st := range s.streams {
		st.fail(read.ErrClosing())
	}
}

// Wait waits until every stream is closed, and the search for idle streams has ended.
func (s *Set) Wait() {
	s.live.Wait()
	s.checking.Wait()
}

// errNoMemory wraps an error of [Set.reserve]. A schema.ErrLimit means that a sample
// is larger than all windows together, or than those of its tenant.
func errNoMemory(err error, what string) error {
	if errors.As(err, new(*schema.LimitError)) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if errors.Is(err, schema.ErrLimit) {
		return fmt.Errorf("%s: %w; a larger WindowBytes would do", what, err)
	}
	return err
}

// tenant is the streams on one account. Set.mu guards the fields, except those that
// never change and the atomic ones, which streams read without a lock.
type tenant struct {
	name    string       // never changes
	reads   *read.Tenant // likewise
	terms   admission.Terms
	streams int
	readers int // streams that are not idle
	places  int // open places of other nodes that read on this account

	live    atomic.Int64 // streams
	transit atomic.Int64 // bytes of batches that were not released
	share   atomic.Int64 // bytes that the window of each of its streams may have
	most    atomic.Int64 // bytes that all of them may have
}

// enterLocked gives a stream its tenant.
func (s *Set) enterLocked(st *Stream) {
	t := s.tenantLocked(st.caller.Tenant)
	t.streams++
	t.live.Add(1)
	st.tenant = t
}

func (s *Set) leaveLocked(st *Stream) {
	t := st.tenant
	t.live.Add(-1)
	t.streams--
	s.forgetLocked(t)
}

// tenantLocked returns a tenant, and makes it if needed. forgetLocked drops it after
// its last stream and its last place.
func (s *Set) tenantLocked(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		t = &tenant{name: name, terms: s.termsOfLocked(name)}
		t.reads = s.opts.Reader.NewTenant(t.terms.Reads)
		s.tenants[name] = t
	}
	return t
}

func (s *Set) forgetLocked(t *tenant) {
	if t.streams == 0 && t.places == 0 {
		delete(s.tenants, t.name)
	}
}

// openPlace opens a place in the reader's queue for the blobs that another node reads
// for a tenant. Their reads of the store count together with those of the tenant's
// streams on this node.
func (s *Set) openPlace(b *Requester, name string) *place {
	s.mu.Lock()
	t := s.tenantLocked(name)
	t.places++
	of := weight(&t.terms)
	s.mu.Unlock()
	p := &place{requester: b, tenant: t, account: read.Account{Tenant: t.reads}}
	p.Place = s.opts.Reader.Open(name, of, "peer_reads", p)
	return p
}

// closePlace releases the tenant of a place that the caller has retired.
func (s *Set) closePlace(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.tenant.places--
	s.forgetLocked(p.tenant)
}

func (s *Set) termsOfLocked(name string) admission.Terms {
	if s.terms == nil {
		return admission.Terms{}
	}
	return s.terms(name)
}

// weight is the effective weight of terms, at least 1.
func weight(t *admission.Terms) int64 { return max(t.Weight, 1) }

// weightFor is a tenant's weight, whether it has streams or not.
func (s *Set) weightFor(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.termsOfLocked(name)
	return weight(&t)
}

// shareLocked divides the memory between tenants by weight, within their ceilings, and
// the part of each tenant between its streams. Idle streams do not count. A stream
// reads its share the next time that it refills its window. The share bounds what the
// stream prefetches and reserves nothing: the Ledger does that.
func (s *Set) shareLocked() {
	for _, t := range s.tenants {
		t.readers = 0
	}
	for st := range s.streams {
		if !st.idle.Load() {
			st.tenant.readers++
		}
	}
	for _, g := range s.groups {
		if g.streams > 1 && g.tenant.readers > 0 { // the blobs held for all take a share of their own
			g.tenant.readers++
		}
	}
	var sum int64
	for _, t := range s.tenants {
		if t.readers > 0 {
			sum += weight(&t.terms)
		}
	}
	for _, t := range s.tenants {
		if t.streams == 0 {
			continue
		}
		most, of := s.opts.Ledger.MostFor(admission.Windows, t.name), sum
		if t.readers == 0 {
			of += weight(&t.terms)
		}
		t.most.Store(min(most, s.opts.WindowBytes))
		part := int64(float64(s.opts.WindowBytes) * float64(weight(&t.terms)) / float64(of))
		t.share.Store(max(min(part, most)/int64(max(t.readers, 1)), 1))
	}
}

// SetTerms sets the quotas of tenants, including those that have streams. nil treats
// all alike. The caller sets the ledger's terms before.
func (s *Set) SetTerms(terms func(tenant string) admission.Terms) {
	s.mu.Lock()
	s.terms = terms
	for _, t := range s.tenants {
		t.terms = s.termsOfLocked(t.name)
		t.reads.SetShare(t.terms.Reads)
	}
	s.shareLocked()
	s.mu.Unlock()
	s.opts.Reader.SetWeights(func(name string) int64 {
		if terms == nil {
			return 1
		}
		return terms(name).Weight
	})
}

// idleAfter is how long a consumer may ask for no batch before its stream counts as
// idle. Reading the stream's prefetched data again takes less time than that.
const idleAfter = 5 * time.Second

// reclaimPeriod is how often a stream that waits for memory checks whether other
// streams hold memory that they do not use.
const reclaimPeriod = time.Second

// readers lists the streams that read blobs.
func (s *Set) readers() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Stream, 0, len(s.streams))
	for st := range s.streams {
		if len(st.columns) > 0 {
			list = append(list, st)
		}
	}
	return list
}

// holders lists the groups of ranks that hold blobs.
func (s *Set) holders() (list []*rankGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if g.bytes.Load() > 0 {
			list = append(list, g)
		}
	}
	return list
}

// findIdle returns the streams of the list that are idle by now. If one has become
// idle since the last call, the memory is divided again among the others.
func (s *Set) findIdle(list []*Stream) []*Stream {
	now, more := time.Now(), false
	idle := slices.DeleteFunc(slices.Clone(list), func(st *Stream) bool {
		is, since := st.isIdle(now)
		more = more || since
		return !is
	})
	if more {
		s.shareAgain()
	}
	return idle
}

// shareAgain divides the memory again, after a stream has become idle or active.
func (s *Set) shareAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shareLocked()
}

// cramped searches for idle streams, at most once per reclaimPeriod. A stream calls it
// if its consumer waits and its window is full. If memory is short, the idle streams
// free what they do not need for their next batch. cramped does not wait for that.
func (s *Set) cramped() {
	now := time.Now().UnixNano()
	if last := s.lastCheck.Load(); now-last < int64(reclaimPeriod) || !s.lastCheck.CompareAndSwap(last, now) {
		return
	}
	s.checking.Go(func() {
		idle := s.findIdle(s.readers())
		if s.opts.Ledger.Free(admission.Windows) < s.opts.WindowBytes/nextPart {
			for _, st := range idle {
				st.freeIdle()
			}
		}
	})
}

// reclaim frees memory for a stream of the tenant that has nothing and needs that many
// bytes. Streams whose consumers do not wait free prefetched data: first idle streams,
// except their next batch; then blobs that groups hold for ranks; then data above the
// fair share of each stream; then all of it. It stops as soon as the bytes fit. If the
// tenant's own ceiling is the obstacle, only the tenant's own streams are asked.
func (s *Set) reclaim(t *tenant, need int64) {
	list := s.readers()
	short := func(st *Stream) bool {
		own, all := s.opts.Ledger.Left(admission.Windows, t.name)
		return all < need || own < need && st.tenant == t
	}
	for _, st := range s.findIdle(list) {
		if short(st) {
			st.freeIdle()
		}
	}
	for _, g := range s.holders() {
		if own, all := s.opts.Ledger.Left(admission.Windows, t.name); all < need || own < need && g.tenant == t {
			g.release()
		}
	}
	for _, part := range []int64{1, 0} {
		for _, st := range list {
			if short(st) {
				st.giveBack(part * st.tenant.share.Load())
			}
		}
	}
}

// WindowStats is what a stream has prefetched for its consumer, and what it waited for.
type WindowStats struct {
	Job         string `json:"job"` // the plan's id
	Dataset     string `json:"dataset"`
	Order       string `json:"order"`
	Epoch       uint64 `json:"epoch"`
	Step        int64  `json:"step"`
	Steps       int64  `json:"steps"` // of an epoch; 0 where there is no plan
	Rank        int    `json:"rank"`
	WindowLimit int64  `json:"window_limit"` // bytes that it may hold now
	WindowUsed  int64  `json:"window_used"`
	InFlight    int    `json:"reads_in_flight"` // or waiting for their turn
	Ready       int    `json:"rows_ready"`      // rows that have arrived and were not delivered
	StoreWait   int64  `json:"store_wait_ns"`
	SpillWait   int64  `json:"spill_wait_ns"`
	PeerWait    int64  `json:"peer_wait_ns"`
	WindowWait  int64  `json:"window_wait_ns"`
	MakingWait  int64  `json:"operators_wait_ns"`
}

// Stats are the counters of a set since it was made, and what its streams hold now.
type Stats struct {
	Streams, Batches, Rows int64
	Live                   int
	Waiting                int           // of the live ones: those whose consumers wait for a read
	GroupBytes             int64         // held for ranks that get the same samples later than other ranks
	Behind                 int64         // how often such a rank was too far behind
	WindowUsed             int64         // bytes, with batches that were not released
	Windows                []WindowStats // of each stream that reads, by dataset and job
}

// Stats returns the counters. It does not wait for streams: the numbers of a busy
// stream are those that its goroutine published last.
func (s *Set) Stats() Stats {
	c := &s.count
	s.mu.Lock()
	live := len(s.streams)
	s.mu.Unlock()
	var shared int64
	for _, g := range s.holders() {
		shared += g.bytes.Load()
	}
	readers := s.readers()
	st := Stats{
		Streams: c.streams.Load(), Batches: c.batches.Load(), Rows: c.rows.Load(), Live: live,
		Waiting: int(s.waiting.Load()), GroupBytes: shared, Behind: c.behind.Load(),
		Windows:    make([]WindowStats, len(readers)),
		WindowUsed: s.opts.Ledger.Accounts()[admission.Windows].Used,
	}
	for i, stream := range readers {
		st.Windows[i] = stream.stats()
	}
	slices.SortFunc(st.Windows, func(a, b WindowStats) int {
		return cmp.Or(cmp.Compare(a.Dataset, b.Dataset), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
	})
	return st
}

// Progress lists the streams that follow a plan, for other nodes. It leaves out streams
// whose callers may see only a part of their dataset.
func (s *Set) Progress() []peers.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]peers.Progress, 0, len(s.streams))
	for st := range s.streams {
		if len(st.columns) == 0 || st.steps == 0 || st.ticket.Restricted() {
			continue
		}
		list = append(list, peers.Progress{ID: st.id, Ticket: st.named, Tenant: st.caller.Tenant,
			EpochOffset: st.published.epochOffset.Load(), Index: st.published.at.Load()})
	}
	return list
}

// SendProgress sends other nodes the progress of the streams. A stream calls it when it begins, before its first
// request. The caller may call it at any time. The last message is the newest.
func (s *Set) SendProgress() {
	if s.opts.SendProgress == nil {
		return
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.opts.SendProgress(s.Progress())
}

// published is the state of a stream for other goroutines. The stream's goroutine
// stores each number before it waits for messages, so reading it needs no lock. The
// numbers may be of different moments.
type published struct {
	epochOffset, step, at atomic.Int64
	limit, used           atomic.Int64
	inFlight, ready       atomic.Int64
	store, spill, peer    atomic.Int64 // time waited for these, in ns
	making                atomic.Int64 // likewise, for operators
	// full is how long a full window stopped reading, in ns. fullSinceOpened is when the
	// current stop began, in ns after the stream was opened; 0 if there is none.
	full, fullSinceOpened atomic.Int64
}

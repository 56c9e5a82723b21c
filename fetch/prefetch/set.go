package prefetch

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/lookahead"
	"bowstring/fetch/operators"
	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// Options says what a Set works with. All fields but Ahead, Lineage, Onward and Astray are needed.
type Options struct {
	// WindowBytes is what the ledger gives to windows, in bytes.
	WindowBytes int64
	Ledger      *admission.Ledger
	Reader      *read.Reader
	// Stage makes what operators make of cells.
	Stage *operators.Stage
	// Ahead is told which jobs run; nil if there is no spill.
	Ahead *lookahead.Ahead
	// MaxAhead is how many rows a stream may read ahead of one that is not back
	// yet. Default, and most: as many as a resume ticket has bits.
	MaxAhead int64
	// Onward says whether other nodes may be asked for a blob that another node has asked for; asked, whether
	// that one lets this one. nil: they may not. See [peers.Tier.Onward].
	Onward func(key schema.Key, asked bool) bool
	// Astray says whether this node has nothing to do with a blob that another one asks of it as of one that acts for
	// others. nil: it never is so. See [peers.Tier.Astray].
	Astray func(key schema.Key) bool
	// Told says that other nodes are told what the streams do: see [Set.Progress].
	Told bool
	// Lineage records what is handed out; nil for nowhere.
	Lineage *lineage.Log
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.MaxAhead == 0 {
		o.MaxAhead = maxAhead
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.WindowBytes < 1:
		return fmt.Errorf("%w: WindowBytes is %d; want a positive number of bytes", schema.ErrInvalid, o.WindowBytes)
	case o.MaxAhead < 1 || o.MaxAhead > maxAhead:
		return fmt.Errorf("%w: MaxAhead is %d; want 1 to %d rows", schema.ErrInvalid, o.MaxAhead, maxAhead)
	case o.Ledger == nil || o.Reader == nil || o.Stage == nil:
		return fmt.Errorf("%w: streams need a ledger, a reader and a stage", schema.ErrInvalid)
	}
	return nil
}

// Set is all streams of an engine. It is safe for concurrent use.
type Set struct {
	opts Options

	// Below are what streams share without a lock.
	reading atomic.Int64 // streams that read
	transit atomic.Int64 // bytes of batches that were not released
	waiting atomic.Int64 // streams whose consumer waits for a read
	count   counters
	ids     atomic.Uint64  // of streams
	looking sync.WaitGroup // for streams that stand still; grows only while a stream is not closed
	looked  atomic.Int64   // when it was last looked for streams that stand still, in nanoseconds

	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
	terms   func(tenant string) admission.Terms // nil: all get the same
	tenants map[string]*tenant                  // that have streams
	live    sync.WaitGroup                      // streams that are not closed; grows under mu only while not closed
}

// counters are what Stats and Demand add up.
type counters struct {
	streams, batches, rows atomic.Int64
	streamed, waited       atomic.Int64 // nanoseconds: of streams that are closed; for the store
	opened                 atomic.Int64 // of the live ones, their opening times added up
}

// NewSet returns a set without streams.
func NewSet(opts Options) (*Set, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Set{opts: opts, streams: map[*Stream]struct{}{}, tenants: map[string]*tenant{}}
	return s, nil
}

// Idle reports whether no stream has a use for the way to the store: none waits,
// and each has read ahead all it may.
func (s *Set) Idle() bool { return s.waiting.Load() == 0 && s.opts.Reader.Waiting() == 0 }

// Reading is how many streams read.
func (s *Set) Reading() int { return int(s.reading.Load()) }

// Demand says what streams have asked for, and how long their consumers waited.
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

// add counts a stream in.
func (s *Set) add(st *Stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return read.ErrClosing()
	}
	s.live.Add(1)
	s.streams[st] = struct{}{}
	s.enterLocked(st)
	s.count.streams.Add(1)
	s.count.opened.Add(st.opened.UnixNano())
	if len(st.columns) > 0 {
		s.reading.Add(1)
	}
	s.shareLocked()
	return nil
}

// remove counts a stream out.
func (s *Set) remove(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
	s.leaveLocked(st)
	s.count.streamed.Add(int64(time.Since(st.opened)))
	s.count.opened.Add(-st.opened.UnixNano())
	if len(st.columns) > 0 {
		s.reading.Add(-1)
	}
	s.shareLocked()
}

// pieceBytes is how large a batch may be. While much is on its way to consumers,
// who may never take it, batches are so small that however many streams come one
// after another, there is something left for the next.
func (s *Set) pieceBytes(t *tenant) int64 {
	return min(pieceOf(s.opts.WindowBytes, s.transit.Load(), s.reading.Load()),
		pieceOf(t.most.Load(), t.transit.Load(), t.live.Load()))
}

// pieceOf is that of so many bytes for n streams, with some of them on their way.
func pieceOf(all, transit, n int64) int64 {
	if n <= 1 || transit < all/8 {
		return all / 8
	}
	return all / (8 * n * int64(bits.Len64(uint64(2*n))))
}

// roomyPart is of which part of the memory what is on its way to consumers is at most, if a batch is made ready before
// its consumer has taken the one ahead.
const roomyPart = 4

// roomy reports whether a batch of so many bytes may be made ready before it is wanted.
func (s *Set) roomy(t *tenant, batch int64) bool {
	return s.transit.Load()+batch <= s.opts.WindowBytes/roomyPart && t.transit.Load()+batch <= t.most.Load()/roomyPart
}

// reserve counts in what a stream needs that has nothing, as soon as others have given it back.
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

// Close ends all streams. The reader ends their reads; see Wait.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for st := range s.streams {
		st.fail(read.ErrClosing())
	}
}

// Wait waits until every stream is closed.
func (s *Set) Wait() {
	s.live.Wait()
	s.looking.Wait()
}

// errNoMemory says that a sample is larger than all windows together, or than those
// of its tenant.
func errNoMemory(err error, what string) error {
	if errors.As(err, new(*schema.LimitError)) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if errors.Is(err, schema.ErrLimit) {
		return fmt.Errorf("%s: %w; a larger WindowBytes would do", what, err)
	}
	return err
}

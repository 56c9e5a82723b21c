package spans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// span is a range of an object that one request reads. It owns the blobs that are cut out of it. Tier.mu guards all
// fields except those that never change, and refs.
type span struct {
	tier       *Tier
	set        schema.ObjectPrefix // of the cell that it was begun for
	at         place
	begin, end int64
	ctx        context.Context //nolint:containedctx // of the request; it ends when no cell waits any more
	cancel     context.CancelFunc
	neighbours []neighbour // blobs that are offered to the spill
	others     int         // of neighbours: blobs that no stream has requested
	wanted     int         // blobs that the spill is to keep, including those that it has
	refused    int         // of wanted: blobs that the spill would reject
	chunks     float64     // of the dataset
	keep       bool        // it is kept for later cells

	// The cells. due and served differ for cells that left: served decides whether a kept
	// span is used up.
	waiting []*cell
	due     int64     // bytes of the cells that it was begun for, or that joined
	began   time.Time // when the request began; zero while the span waits for memory
	over    bool      // it is in no list any more
	used    time.Time // when a cell last used it, while it is kept
	served  int64     // bytes of cells that used it
	held    int       // cells that got a hold

	// The bytes. refs counts holders: the read itself, each cell with a hold, each blob
	// handed out, and being kept. The last one returns data to the memory.
	data    []byte       // set once, when its memory is reserved
	arrived int64        // bytes of data that have arrived, as far as noted
	wakeAt  atomic.Int64 // bytes after which the next waiting cell is complete; decreases with Tier.mu held
	whole   bool         // all of it has arrived, or it has failed
	pinned  atomic.Bool  // blobs that were handed out are slices of it; set with Tier.mu held
	refs    atomic.Int32
}

// never is the wakeAt of a span without waiting cells.
const never = math.MaxInt64

// neighbour is a blob for the spill.
type neighbour struct {
	ref   schema.BlobRef
	at    spill.Place
	begin int64   // offset in the object
	turn  float64 // when it is used next
}

// Unpin implements schema.Owner.
func (s *span) Unpin() {
	if s.refs.Add(-1) == 0 {
		if s.pinned.Load() {
			s.tier.pinned.Add(-s.size())
		}
		data := s.data
		s.data = nil // a trail may refer to the span for longer
		s.tier.memory.give(data)
	}
}

// size is the bytes of the request, gaps between cells included.
func (s *span) size() int64 { return s.end - s.begin }

func (s *span) covers(begin, end int64) bool { return s.begin <= begin && end <= s.end }

// cut returns a part of the span that has arrived.
func (s *span) cut(begin, n int64) []byte {
	from := begin - s.begin
	return s.data[from : from+n : from+n]
}

// joinLocked adds a cell to a span. It reports whether the cell's bytes have arrived; then the cell has a hold.
func (t *Tier) joinLocked(s *span, c *cell) (there bool) {
	s.due += c.end - c.begin
	s.served += c.end - c.begin
	c.span = s
	if s.data != nil && c.end-s.begin <= s.arrived {
		t.holdLocked(s, c)
		return true
	}
	s.waiting = append(s.waiting, c)
	s.wakeAt.Store(min(s.wakeAt.Load(), c.end-s.begin))
	return false
}

// pinnedShare is the divisor of the memory that bounds the bytes of pinned spans. Streams hold their blobs for as
// long as their consumers take, and the next spans must not wait for that.
const pinnedShare = 4

// holdLocked gives a cell whose bytes have arrived a hold of its span. If streams want little of the span, or hold
// much of the memory, they get copies in their own reserved memory, so that they do not pin the span. A run in order
// will want all of the span.
func (t *Tier) holdLocked(s *span, c *cell) {
	s.used = t.opts.Clock()
	s.refs.Add(1)
	s.held++
	c.slice = s.pinned.Load()
	if !c.slice && (s.keep || 2*s.due >= s.size()) && t.memory.inUse() <= t.opts.Memory/2 &&
		(s.keep || t.pinned.Load()+s.size() <= t.opts.Memory/pinnedShare) {
		c.slice = true
		s.pinned.Store(true)
		t.pinned.Add(s.size())
	}
}

// leave removes a cell that does not wait any more. A span without waiting cells is cancelled if
// no cell got a hold of it.
func (t *Tier) leave(c *cell) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.gone = true
	s := c.span
	if s == nil || s.whole || s.over {
		return
	}
	i := slices.Index(s.waiting, c)
	if i < 0 {
		return
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	if len(s.waiting) == 0 && s.held == 0 {
		t.removeLocked(s)
		s.cancel()
	}
}

// addLocked makes a span visible, so that cells of other calls join it from then on.
func (t *Tier) addLocked(s *span) {
	t.places[s.at] = append(t.places[s.at], s)
	t.sets[s.set]++
	t.under.Add(1)
	t.begun.Add(1)
}

// removeLocked makes a span invisible. It is not cancelled: cells that joined before
// still get their bytes. Further calls do nothing.
func (t *Tier) removeLocked(s *span) {
	if s.over {
		return
	}
	s.over = true
	t.under.Add(-1)
	if t.sets[s.set]--; t.sets[s.set] == 0 {
		delete(t.sets, s.set)
	}
	list := slices.DeleteFunc(t.places[s.at], func(o *span) bool { return o == s })
	if len(list) == 0 {
		delete(t.places, s.at)
	} else {
		t.places[s.at] = list
	}
}

// coveringLocked returns a span that has a range, or will have it; nil if there is none.
func (t *Tier) coveringLocked(at place, begin, end int64) *span {
	for _, s := range t.places[at] {
		if s.covers(begin, end) {
			return s
		}
	}
	return nil
}

// read reads a span, answers waiting cells as their bytes arrive, and offers the
// neighbours to the spill. It blocks as long as that takes. Without memory for the span,
// its cells are read one by one, since waiting longer could be waiting for these very
// cells' consumers.
func (t *Tier) read(s *span) {
	defer s.cancel()
	t.makeRoom(s.size())
	data, ok := t.memory.take(s.ctx, s.size())
	if !ok {
		t.apart(s)
		return
	}
	t.mu.Lock()
	s.began, s.data = t.opts.Clock(), data
	s.refs.Store(1)
	t.mu.Unlock()
	defer s.Unpin()
	began := s.began
	ctx := object.WithProgress(s.ctx, func(n int) {
		if int64(n) >= s.wakeAt.Load() {
			t.arrive(s, int64(n))
		}
	})
	err := s.at.bucket.Range(ctx, s.at.key, s.at.version, s.begin, data)
	if err != nil {
		if errors.Is(err, schema.ErrInvalid) { // the object is shorter than the range
			err = fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
		}
		t.failed(s, fmt.Errorf("reading bytes %d to %d: %w", s.begin, s.end-1, err))
		return
	}
	now := t.opts.Clock()
	t.mu.Lock()
	s.whole = true
	t.link.add(now, s.size(), now.Sub(began))
	t.mu.Unlock()
	t.arrive(s, s.size())
	t.count.spans.Add(1)
	t.count.bytes.Add(s.size())
	t.offer(s, now.Sub(began))
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.keep && s.served < s.size() && !s.over {
		s.refs.Add(1)
		t.keepLocked(s)
		return
	}
	t.removeLocked(s)
}

// arrive answers the cells that are complete with the first n bytes of the span, soonest
// use first. The bucket's goroutine calls it while it reads.
func (t *Tier) arrive(s *span, n int64) {
	t.mu.Lock()
	s.arrived = n
	var there []*cell
	s.wakeAt.Store(never)
	s.waiting = slices.DeleteFunc(s.waiting, func(c *cell) bool {
		if c.end-s.begin > n {
			s.wakeAt.Store(min(s.wakeAt.Load(), c.end-s.begin))
			return false
		}
		t.holdLocked(s, c)
		there = append(there, c)
		return true
	})
	t.mu.Unlock()
	slices.SortFunc(there, func(a, b *cell) int { return cmp.Compare(a.Use, b.Use) })
	for _, c := range there {
		t.serve(c)
	}
}

// failed answers the waiting cells of a span with an error. The reader may then try each
// of them again.
func (t *Tier) failed(s *span, err error) {
	t.mu.Lock()
	t.removeLocked(s)
	s.whole = true
	waiting := s.waiting
	s.waiting = nil
	t.mu.Unlock()
	for _, c := range waiting {
		c.answer(read.Answer{Err: err})
	}
}

// apart reads the cells of a span one by one, because there is no memory for the span.
func (t *Tier) apart(s *span) {
	t.mu.Lock()
	t.removeLocked(s)
	waiting := s.waiting
	s.waiting = nil
	t.mu.Unlock()
	done := make(chan struct{}, len(waiting))
	for _, c := range waiting {
		t.count.singles.Add(1)
		go func() {
			defer func() { done <- struct{}{} }()
			t.alone(c)
		}()
	}
	for range waiting {
		<-done
	}
}

// serve answers a cell that has a hold of its span and whose bytes have arrived.
func (t *Tier) serve(c *cell) {
	s := c.span
	data := s.cut(c.begin, c.end-c.begin)
	t.count.blobs.Add(1)
	if c.slice {
		c.answer(read.Answer{Blob: schema.NewBlob(data, s), Joined: c.joined})
		return
	}
	data = append(make([]byte, 0, len(data)), data...)
	s.Unpin()
	c.answer(read.Answer{Blob: schema.NewBlob(data, nil), Joined: c.joined})
}

// offer offers the neighbours to the spill, soonest use first.
func (t *Tier) offer(s *span, took time.Duration) {
	if s.wanted == 0 {
		return
	}
	slices.SortFunc(s.neighbours, func(a, b neighbour) int { return cmp.Compare(a.turn, b.turn) })
	for i := range s.neighbours {
		b := &s.neighbours[i]
		data := s.cut(b.begin, b.ref.Size)
		ref, err := t.checked(s.ctx, b.ref, data)
		if err != nil {
			continue // a stream that wants it reads it, and gets the error
		}
		t.count.neighbour.Add(1)
		s.refs.Add(1)
		c := t.opts.Cache
		// If the spill's queue is full, this goroutine writes the blob. The next span waits for memory in the
		// meantime.
		if c.Offer(ref, b.at, took, schema.NewBlob(data, s)) || c.Keep(ref, b.at.Until) ||
			c.Put(ref, b.at, took, data) {
			t.count.neighboursKept.Add(1)
		}
	}
	notKept := t.opts.Cache.NotKept()
	t.mu.Lock()
	defer t.mu.Unlock()
	refused := s.refused + int(notKept-t.notKept)
	t.notKept = notKept
	t.pace.kept(s.wanted, refused, s.chunks)
}

// checked verifies a blob by its checksum and returns its reference with the checksum. An unknown checksum is learned
// from the bytes.
func (t *Tier) checked(ctx context.Context, ref schema.BlobRef, data []byte) (schema.BlobRef, error) {
	if ref = t.prover.Proven(ref); !ref.Unproven() {
		return ref, ref.Check(data)
	}
	if _, err := t.prover.Prove(context.WithoutCancel(ctx), ref, data); err != nil {
		return ref, err
	}
	if ref = t.prover.Proven(ref); ref.Unproven() {
		return ref, fmt.Errorf("%w: the checksum of blob %s is not kept", schema.ErrLimit, ref.Key)
	}
	return ref, nil
}

const (
	// keepFor is how long a span is kept without a cell that uses it.
	keepFor = 10 * time.Second
	// keptShare is the divisor of the memory that bounds the bytes of kept spans.
	keptShare = 2
)

// keepLocked keeps a span for later cells, and drops the oldest kept ones beyond the
// bound. The caller passes on its first hold.
func (t *Tier) keepLocked(s *span) {
	t.kept = append(t.kept, s)
	var bytes int64
	for _, k := range t.kept {
		bytes += k.size()
	}
	for len(t.kept) > 1 && bytes > t.opts.Memory/keptShare {
		bytes -= t.kept[0].size()
		t.dropLocked(t.kept[0])
	}
	if t.expiry == nil {
		t.expiry = time.AfterFunc(keepFor, t.expire)
	}
}

// dropLocked stops keeping a span, and releases the hold of being kept. Blobs that were
// handed out keep the bytes.
func (t *Tier) dropLocked(s *span) {
	t.kept = slices.DeleteFunc(t.kept, func(k *span) bool { return k == s })
	t.removeLocked(s)
	s.Unpin()
}

// expire drops spans that were not used for keepFor.
func (t *Tier) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.expiry = nil
	old := t.opts.Clock().Add(-keepFor)
	for _, s := range slices.Clone(t.kept) {
		if s.used.Before(old) {
			t.dropLocked(s)
		}
	}
	if len(t.kept) > 0 {
		t.expiry = time.AfterFunc(keepFor, t.expire)
	}
}

// passedLocked drops a span that all of its cells have used.
func (t *Tier) passedLocked(s *span) {
	if s.keep && s.served >= s.size() && slices.Contains(t.kept, s) {
		t.dropLocked(s)
	}
}

// makeRoom drops kept spans if their memory is needed.
func (t *Tier) makeRoom(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.kept) > 0 && t.memory.inUse()+n > t.opts.Memory {
		t.dropLocked(t.kept[0])
	}
}

// Close drops the kept spans. Every Fetch must have returned.
func (t *Tier) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.expiry != nil {
		t.expiry.Stop()
	}
	for len(t.kept) > 0 {
		t.dropLocked(t.kept[0])
	}
}

const (
	// A span is overdue if it takes longer than overdueFactor times the usual time of its size, and than
	// overdueLeast. A repeated attempt at one of its cells is then read alone; before that, it waits for the span.
	overdueFactor = 4
	overdueLeast  = time.Second
)

// overdueLocked reports whether a span takes so long that another request may be quicker.
func (t *Tier) overdueLocked(s *span) bool {
	if s.began.IsZero() || s.whole {
		return false
	}
	usual := t.link.takes(s.size())
	return t.opts.Clock().Sub(s.began) > max(overdueLeast, overdueFactor*usual)
}

// again reports whether a cell is an attempt after the first.
func again(c *cell) bool { return store.AttemptFrom(c.Context) > 0 }

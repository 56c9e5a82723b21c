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

// span is a stretch of an object that one request brings. It is the owner of the blobs that are cut out of it. All
// fields but those that never change and refs are guarded by Tier.mu.
type span struct {
	tier       *Tier
	set        schema.ObjectPrefix // of the cell that it was begun for
	at         place
	begin, end int64
	ctx        context.Context //nolint:containedctx // of the request; it ends when no cell waits for it any more
	cancel     context.CancelFunc
	beside     []beside // what the spill is to have of it
	others     int      // of those, which no stream has asked for
	wanted     int      // blobs that the spill is to keep, those included that it has
	refused    int      // of those, which it would not
	chunks     float64  // that the dataset has
	keep       bool     // it is kept for cells that come after it

	waiting []*cell
	due     int64     // bytes of cells that it was begun for, or that joined
	began   time.Time // when it was asked for; zero while it waits for memory
	over    bool      // it is in no list any more
	used    time.Time // when a cell last came to it, while it is kept
	served  int64     // bytes of cells that came to it
	held    int       // cells that got a hold

	data    []byte       // once there is memory for it; does not change then
	arrived int64        // bytes of data that are there, as far as that was noted
	wakeAt  atomic.Int64 // bytes with which the first cell that waits is there; falls with Tier.mu held
	whole   bool         // all of it is there, or it has failed
	pinned  atomic.Bool  // blobs that were handed out are parts of it; set with Tier.mu held
	refs    atomic.Int32
}

// never is the wakeAt of a span that no cell waits for.
const never = math.MaxInt64

// beside is a blob for the spill.
type beside struct {
	ref   schema.BlobRef
	at    spill.Place
	begin int64   // in the object
	turn  float64 // when it is used
}

// Unpin implements schema.Owner.
func (s *span) Unpin() {
	if s.refs.Add(-1) == 0 {
		if s.pinned.Load() {
			s.tier.pinned.Add(-s.size())
		}
		s.tier.memory.give(s.data)
	}
}

func (s *span) size() int64 { return s.end - s.begin }

func (s *span) covers(begin, end int64) bool { return s.begin <= begin && end <= s.end }

// cut is a part of the span that is there.
func (s *span) cut(begin, n int64) []byte {
	from := begin - s.begin
	return s.data[from : from+n : from+n]
}

// joinLocked has a cell wait for a span. It reports whether the cell is there: then it has a hold.
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

// pinnedShare is the divisor of the memory that bounds the bytes of spans which blobs that were handed out are parts of.
// Streams hold those for as long as their consumers take, and the next spans must not wait for that.
const pinnedShare = 4

// holdLocked gives a cell that is there a hold of its span. If streams want little of a span, or hold much of the
// memory, they get copies in the memory that is reserved for them, so that they do not hold the span. A run in order will
// want all of it.
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

// leave has a cell wait no longer. A span that no cell waits for, and has come of, is cancelled.
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

func (t *Tier) addLocked(s *span) {
	t.places[s.at] = append(t.places[s.at], s)
	t.sets[s.set]++
	t.under.Add(1)
	t.begun.Add(1)
}

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

// coveringLocked returns a span that has a stretch, or will; nil if there is none.
func (t *Tier) coveringLocked(at place, begin, end int64) *span {
	for _, s := range t.places[at] {
		if s.covers(begin, end) {
			return s
		}
	}
	return nil
}

// read reads a span, answers the cells that wait for it as their bytes come, and gives what lies beside to the spill.
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
		if errors.Is(err, schema.ErrInvalid) { // the object ends before them
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

// arrive answers the cells of a span that are there with its first n bytes.
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

// failed answers the cells that wait for a span with its error.
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

// apart has the cells of a span read one by one, as there is no memory for it.
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

// serve answers a cell that has a hold of its span, and is there.
func (t *Tier) serve(c *cell) {
	s := c.span
	data := s.cut(c.begin, c.end-c.begin)
	t.count.blobs.Add(1)
	if c.slice {
		c.answer(read.Answer{Blob: schema.NewBlob(data, s)})
		return
	}
	data = append(make([]byte, 0, len(data)), data...)
	s.Unpin()
	c.answer(read.Answer{Blob: schema.NewBlob(data, nil)})
}

// offer gives the spill what lies beside, what is used soonest first.
func (t *Tier) offer(s *span, took time.Duration) {
	if s.wanted == 0 {
		return
	}
	slices.SortFunc(s.beside, func(a, b beside) int { return cmp.Compare(a.turn, b.turn) })
	for i := range s.beside {
		b := &s.beside[i]
		data := s.cut(b.begin, b.ref.Size)
		ref, err := t.checked(s.ctx, b.ref, data)
		if err != nil {
			continue // a stream that wants it reads it, and gets the error
		}
		t.count.beside.Add(1)
		s.refs.Add(1)
		c := t.opts.Cache
		// What its queue has no room for is written here: the next span waits for memory meanwhile.
		if c.Offer(ref, b.at, took, schema.NewBlob(data, s)) || c.Keep(ref, b.at.Until) ||
			c.Put(ref, b.at, took, data) {
			t.count.besideKept.Add(1)
		}
	}
	notKept := t.opts.Cache.NotKept()
	t.mu.Lock()
	defer t.mu.Unlock()
	refused := s.refused + int(notKept-t.notKept)
	t.notKept = notKept
	t.pace.kept(s.wanted, refused, s.chunks)
}

// checked compares a blob with its checksum, which is learned where it is not known, and returns its reference with it.
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
	// keepFor is for how long a span is kept to which no cell comes.
	keepFor = 10 * time.Second
	// keptShare is the divisor of the memory that bounds the bytes of kept spans.
	keptShare = 2
)

// keepLocked keeps a span that was read for cells that come later. The caller hands on the span's first hold.
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

// dropLocked keeps a span no longer.
func (t *Tier) dropLocked(s *span) {
	t.kept = slices.DeleteFunc(t.kept, func(k *span) bool { return k == s })
	t.removeLocked(s)
	s.Unpin()
}

// expire drops what is kept in vain.
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

// passedLocked drops spans that all of their cells have come to.
func (t *Tier) passedLocked(s *span) {
	if s.keep && s.served >= s.size() && slices.Contains(t.kept, s) {
		t.dropLocked(s)
	}
}

// makeRoom drops what is kept where its memory is needed.
func (t *Tier) makeRoom(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.kept) > 0 && t.memory.inUse()+n > t.opts.Memory {
		t.dropLocked(t.kept[0])
	}
}

// Close drops what is kept. Every Fetch is back.
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
	// A span is overdue that has taken overdueFactor times as long as spans of its size, and overdueLeast. A cell of it
	// that is asked for again is then read alone; before, it goes on waiting.
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

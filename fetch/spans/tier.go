package spans

import (
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	// together is how many cells one Fetch takes.
	together = 256
	// MaxSpan is the most bytes of one request, unless a single blob is larger.
	MaxSpan = 2 * schema.ObjectChunk
	// memoryShare is the divisor of the memory that bounds one span, so that several can be in flight.
	memoryShare = 8
)

// Options configures a Tier. Store is needed; the other fields have defaults.
type Options struct {
	// Store has all blobs.
	Store store.Store
	// Cache keeps neighbours that were read along. nil: they are not kept.
	Cache *spill.Cache
	// Future knows when blobs are used next. nil: Cache alone decides what is kept.
	Future *spill.Future
	// Sharers is how many caches share the blobs of a dataset: those of the cluster's nodes, with this one. It must
	// not block. Default: 1.
	Sharers func() int
	// Neighbours lists the blobs of samples at the positions after a place, or before it, nearest first: those whose rows
	// are in memory and that this node owns. It must not block. nil: none.
	Neighbours func(at spill.Place, after bool) iter.Seq2[schema.BlobRef, spill.Place]
	// Near loads the rows at positions of a dataset, by the spill's number, into memory, so that Neighbours finds them.
	// It may wait until ctx ends. nil: no rows need loading.
	Near func(ctx context.Context, dataset uint32, positions []int64)
	// Bytes is how many bytes of blobs this node reads of a dataset, by the spill's number. It must not block. nil,
	// or a result of 0: unknown.
	Bytes func(dataset uint32) int64
	// Waits reports whether consumers have recently waited for the store. It must not block. nil: they have not.
	Waits func() bool
	// Set returns the object set of a blob; false if it is in none. It must not block. Default: the key determines
	// it.
	Set func(ref schema.BlobRef) (schema.ObjectPrefix, bool)
	// Memory bounds the bytes of spans that are being read, kept, or held by readers of their blobs. Default 256 MiB.
	Memory int64
	// Costs apply where Price is unknown.
	Costs Costs
	// Price returns the cost of a request to a bucket, and of a byte of it, in dollars; false if unknown. It must not
	// block, and is called once for each bucket. nil: unknown for all.
	Price func(bucket string) (request, byte float64, ok bool)
	// Clock returns the time. Default time.Now.
	Clock func() time.Time
}

// EnsureDefaults sets fields that are zero to their defaults.
func (o *Options) EnsureDefaults() {
	if o.Set == nil {
		o.Set = setOf
	}
	if o.Memory == 0 {
		o.Memory = 256 << 20
	}
	if o.Waits == nil {
		o.Waits = func() bool { return false }
	}
	if o.Near == nil {
		o.Near = func(context.Context, uint32, []int64) {}
	}
	if o.Bytes == nil {
		o.Bytes = func(uint32) int64 { return 0 }
	}
	if o.Sharers == nil {
		o.Sharers = func() int { return 1 }
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Costs.ensureDefaults()
}

// Validate returns an error that names the first invalid field.
func (o *Options) Validate() error {
	switch {
	case o.Store == nil:
		return fmt.Errorf("%w: spans need a store", schema.ErrInvalid)
	case o.Memory < 1:
		return fmt.Errorf("%w: Memory is %d; want a positive number of bytes", schema.ErrInvalid, o.Memory)
	}
	return o.Costs.Validate()
}

// setOf reads the object set from a key that is an address.
func setOf(ref schema.BlobRef) (schema.ObjectPrefix, bool) {
	if ref.Hashed() {
		return schema.ObjectPrefix{}, false
	}
	return schema.ObjectPrefix(ref.Key[:]), true
}

// Tier reads blobs in buckets by spans, and others from the store. It is a read.Gatherer, and safe for concurrent
// use.
//
// The goroutine of the Fetch that began a span reads it, and offers the neighbours to the spill. The mutex is not
// held while bytes are read, copied or checked.
type Tier struct {
	opts    Options
	most    int64 // of a span, in bytes
	chunk   int64 // bytes of the chunks by which objects are read: a multiple or a part of the chunks that nodes own
	seed    maphash.Seed
	singles read.Tier
	prover  store.Prover // of the store
	memory  memory
	pinned  atomic.Int64 // bytes of spans that handed-out blobs are slices of
	under   atomic.Int64 // spans in places
	begun   atomic.Int64 // spans begun so far

	mu     sync.Mutex
	places map[place][]*span           // in flight, or kept
	kept   []*span                     // least recently used first
	trails []trail                     // least recently used first
	sets   map[schema.ObjectPrefix]int // number of spans in places by set
	// Of objects whose length the store does not report; 0 while the bucket is asked
	lengths map[place]int64
	costs   map[object.Bucket]Costs
	starts  map[uint32]int64 // by the spill's number of a dataset: urgent cells that were read alone
	pace    pace
	notKept int64 // last value of Cache.NotKept
	link    link
	expiry  *time.Timer // drops spans that are not used; nil while none is kept
	closed  bool

	count counters
}

// New returns a tier. The caller keeps the ownership of what is in opts.
func New(opts Options) (*Tier, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &Tier{
		opts: opts, most: Most(opts.Memory), singles: read.Store(opts.Store), prover: store.ProverOf(opts.Store),
		places: map[place][]*span{}, starts: map[uint32]int64{}, pace: newPace(), lengths: map[place]int64{},
		sets:  map[schema.ObjectPrefix]int{},
		costs: map[object.Bucket]Costs{}, seed: maphash.MakeSeed(),
	}
	for t.chunk = MaxSpan; t.chunk > max(t.most, 1); {
		t.chunk /= 2
	}
	t.memory.init(opts.Memory)
	return t, nil
}

// Name implements read.Tier.
func (*Tier) Name() string { return "store" }

// Where implements read.Placed.
func (t *Tier) Where() string { return t.opts.Store.Where() }

// Has implements read.Tier.
func (*Tier) Has(schema.BlobRef) bool { return true }

// Traits implements read.Tier.
func (t *Tier) Traits() read.Traits {
	traits := t.singles.Traits()
	traits.Together = together
	return traits
}

// Gathers implements read.Gatherer.
func (t *Tier) Gathers(ref schema.BlobRef) bool {
	_, in := t.opts.Set(ref)
	return in
}

// Stats are counters since the tier was made, and the memory that it holds now.
type Stats struct {
	Spans          int64 `json:"spans"`       // requests for several blobs
	Bytes          int64 `json:"bytes"`       // size of those requests
	Blobs          int64 `json:"blobs"`       // blobs that streams wanted and got from spans
	Joined         int64 `json:"joined"`      // of Blobs: from a span that was already in flight or kept
	Neighbours     int64 `json:"beside"`      // neighbours offered to the spill
	NeighboursKept int64 `json:"beside_kept"` // of Neighbours: stored by the spill
	Singles        int64 `json:"singles"`     // blobs in buckets that were read alone
	Memory         int64 `json:"memory"`      // bytes of spans now
}

// Coming reports whether a blob is in a span that is in flight or kept, so that reading it takes no request. It does
// not block, and may return false where it would have to.
func (t *Tier) Coming(ref schema.BlobRef) bool {
	if t.under.Load() == 0 {
		return false
	}
	set, in := t.opts.Set(ref)
	if !in || !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	if t.sets[set] == 0 {
		return false
	}
	// The set is open, because a span of it is in flight.
	loc, in, err := t.opts.Store.Locate(context.Background(), ref)
	if err != nil || !in || loc.Unit != nil || loc.Length != ref.Size || loc.Length == 0 {
		return false
	}
	at := place{loc.Bucket, loc.Object.Key, loc.Object.Version}
	return t.coveringLocked(at, loc.Offset, loc.Offset+loc.Length) != nil
}

// Begun is how many spans were begun. While it does not change, Coming does not become true for more blobs.
func (t *Tier) Begun() int64 { return t.begun.Load() }

type counters struct {
	spans, bytes, blobs, joined, neighbour, neighboursKept, singles atomic.Int64
}

// Stats returns the tier's counters.
func (t *Tier) Stats() Stats {
	c := &t.count
	return Stats{
		Spans: c.spans.Load(), Bytes: c.bytes.Load(), Blobs: c.blobs.Load(), Joined: c.joined.Load(),
		Neighbours: c.neighbour.Load(), NeighboursKept: c.neighboursKept.Load(), Singles: c.singles.Load(), Memory: t.memory.inUse(),
	}
}

// Fetch implements read.Tier.
func (t *Tier) Fetch(cells []read.Cell, to read.Answers) {
	sets := map[schema.ObjectPrefix][]int{}
	var alone []int
	for i := range cells {
		if set, in := t.opts.Set(cells[i].Ref); in {
			sets[set] = append(sets[set], i)
		} else if len(cells) == 1 {
			t.singles.Fetch(cells, to)
			return
		} else {
			alone = append(alone, i)
		}
	}
	var others sync.WaitGroup
	for _, i := range alone {
		others.Go(func() { t.single(cells, i, to) })
	}
	rest := len(sets)
	for _, list := range sets {
		if rest--; rest == 0 {
			t.fetch(cells, list, to)
		} else {
			others.Go(func() { t.fetch(cells, list, to) })
		}
	}
	others.Wait()
}

// single reads one cell from the store.
func (t *Tier) single(cells []read.Cell, i int, to read.Answers) {
	t.singles.Fetch(cells[i:i+1], numbered{to, i})
}

// numbered answers for one cell of several.
type numbered struct {
	to read.Answers
	n  int
}

// Answer implements read.Answers.
func (a numbered) Answer(_ int, answer read.Answer) { a.to.Answer(a.n, answer) }

// place is a version of an object.
type place struct {
	bucket  object.Bucket
	key     string
	version schema.ObjectVersion
}

// cell is a cell in a bucket, until it is answered.
type cell struct {
	read.Cell
	n          int // index in the Fetch
	to         read.Answers
	loc        store.Location
	begin, end int64 // range in the object

	pending  *sync.WaitGroup
	answered atomic.Bool
	span     *span // the span that it waits for; guarded by Tier.mu
	gone     bool  // its context has ended; guarded by Tier.mu
	slice    bool  // its blob is a slice of the span, not a copy; set with its hold
	joined   bool  // the span had begun before
}

// answer answers the cell, if that has not been done.
func (c *cell) answer(a read.Answer) {
	if c.answered.Swap(true) {
		a.Blob.Release()
		return
	}
	c.to.Answer(c.n, a)
	c.pending.Done()
}

// Answer implements read.Answers for a cell that the store reads.
func (c *cell) Answer(_ int, a read.Answer) { c.answer(a) }

// objectEnd is where its object ends, if known: the store does not report the length of its own segments.
func (c *cell) objectEnd() int64 {
	if c.loc.Object.Size > 0 {
		return c.loc.Object.Size
	}
	return math.MaxInt64
}

func (c *cell) place() place { return place{c.loc.Bucket, c.loc.Object.Key, c.loc.Object.Version} }

// fetch reads cells of one object set.
func (t *Tier) fetch(cells []read.Cell, which []int, to read.Answers) {
	// The look-ups of places are for all cells, so their context ends with the last cell.
	ctx, cancel := context.WithCancel(context.WithoutCancel(cells[which[0]].Context))
	defer cancel()
	var pending, others, ends sync.WaitGroup
	defer ends.Wait()
	pending.Add(len(which))
	var left atomic.Int32
	left.Store(int32(len(which)))
	list := make([]*cell, len(which))
	for k, i := range which {
		c := &cell{Cell: cells[i], n: i, to: to, pending: &pending}
		list[k] = c
		ends.Add(1)
		stop := context.AfterFunc(c.Context, func() {
			defer ends.Done()
			if left.Add(-1) == 0 {
				cancel()
			}
			t.leave(c)
			c.answer(read.Answer{Err: context.Cause(c.Context)})
		})
		defer func() {
			if stop() {
				ends.Done()
			}
		}()
	}
	lie := list[:0:0]
	for _, c := range list {
		loc, in, err := t.opts.Store.Locate(ctx, c.Ref)
		switch {
		case err != nil:
			c.answer(read.Answer{Err: err})
		case !in || loc.Unit != nil || loc.Length != c.Ref.Size || loc.Length == 0:
			others.Go(func() { t.alone(c) })
		default:
			c.loc, c.begin, c.end = loc, loc.Offset, loc.Offset+loc.Length
			lie = append(lie, c)
		}
	}
	t.near(ctx, lie)
	t.measure(ctx, lie)
	p := t.plan(lie)
	var last *cell // is read by this goroutine, whose stack has grown already
	for _, c := range p.alone {
		t.count.singles.Add(1)
		if last != nil {
			before := last
			others.Go(func() { t.alone(before) })
		}
		last = c
	}
	for _, s := range p.spans {
		others.Go(func() { t.read(s) })
	}
	for _, c := range p.there {
		t.serve(c)
	}
	for _, c := range p.kept {
		others.Go(func() { t.fromCache(c) })
	}
	if last != nil {
		t.alone(last)
	}
	others.Wait()
	pending.Wait()
}

// near loads the rows of cells whose neighbours may be kept.
func (t *Tier) near(ctx context.Context, list []*cell) {
	positions := map[uint32][]int64{}
	for _, c := range list {
		if t.keeps(c) {
			positions[c.At.Dataset] = append(positions[c.At.Dataset], c.At.Position)
		}
	}
	for dataset, at := range positions {
		t.opts.Near(ctx, dataset, at)
	}
}

// maxLengths bounds the objects whose lengths are cached.
const maxLengths = 4096

// measure finds the lengths of objects through which a run goes in order and whose length the store does not report,
// such as segments of a store in a bucket. Then the run's spans end where the object does. Each object takes one
// request.
func (t *Tier) measure(ctx context.Context, list []*cell) {
	for _, c := range list {
		if c.loc.Object.Size > 0 || t.keeps(c) {
			continue
		}
		at := c.place()
		t.mu.Lock()
		size, known := t.lengths[at]
		ask := !known && t.trailLocked(at, c.begin) >= 0
		if ask {
			if len(t.lengths) >= maxLengths {
				clear(t.lengths)
			}
			t.lengths[at] = 0 // so that no other Fetch asks in the meantime
		}
		t.mu.Unlock()
		if ask {
			size = t.length(ctx, at)
		}
		c.loc.Object.Size = size
	}
}

// length requests the length of an object, and caches it. It returns 0 on failure: reading the span then returns the
// error.
func (t *Tier) length(ctx context.Context, at place) int64 {
	info, err := at.bucket.Stat(ctx, at.key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || info.Size <= 0 {
		delete(t.lengths, at)
		return 0
	}
	t.lengths[at] = info.Size
	return info.Size
}

// fromCache answers a cell from the spill, or from the store if the spill has evicted the blob in the meantime.
func (t *Tier) fromCache(c *cell) {
	if b, ok := t.opts.Cache.Get(t.prover.Proven(c.Ref), c.At); ok {
		c.answer(read.Answer{Blob: b, Joined: true})
		return
	}
	t.count.singles.Add(1)
	t.alone(c)
}

// alone reads a cell from the store.
func (t *Tier) alone(c *cell) {
	t.singles.Fetch([]read.Cell{c.Cell}, c)
}

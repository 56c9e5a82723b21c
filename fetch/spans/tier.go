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
	// MaxSpan is how many bytes one request brings at most, unless one blob is larger.
	MaxSpan = 2 * schema.ObjectChunk
	// memoryShare is the divisor of the memory that bounds one span: several are under way at once.
	memoryShare = 8
)

// Options says what a Tier works with. Store is needed; the zero value of each other field stands for its default.
type Options struct {
	// Store has all blobs.
	Store store.Store
	// Cache keeps what is read beside what streams want. nil: nothing is.
	Cache *spill.Cache
	// Future knows when blobs are used next. nil: what is kept is up to Cache alone.
	Future *spill.Future
	// Sharers is how many caches, this one among them, share the blobs of a dataset: other nodes of a cluster. It must not
	// block. Default: this one has them all.
	Sharers func() int
	// Beside lists the blobs of samples at the positions after a place, or before it, the nearest first, as far as their
	// rows are in memory and this node is the one that keeps them. It must not block. nil: none is known.
	Beside func(at spill.Place, after bool) iter.Seq2[schema.BlobRef, spill.Place]
	// Near has the rows at positions of a dataset, by the spill's number, be in memory, for Beside to find. It may wait
	// for them, until ctx ends. nil: there is nothing to do.
	Near func(ctx context.Context, dataset uint32, positions []int64)
	// Bytes is how many bytes of blobs the samples of a dataset have that this node reads, by the spill's number. It must
	// not block. nil, or 0: that is not known.
	Bytes func(dataset uint32) int64
	// Waits says whether consumers have waited for the store recently. It must not block. nil: they have not.
	Waits func() bool
	// Set says in which object set a blob lies; false if it lies in none. It must not block. Default: what its key says.
	Set func(ref schema.BlobRef) (schema.ObjectPrefix, bool)
	// Memory bounds the bytes of spans that are read, kept, or held by readers of their blobs. Default 256 MiB.
	Memory int64
	// Costs are what a request and a byte cost where Price does not say it.
	Costs Costs
	// Price says what a request to a bucket costs, and a byte of it, in dollars; false if that is not known. It must not
	// block, and is asked once for each bucket. nil: it is not known of any.
	Price func(bucket string) (request, byte float64, ok bool)
	// Clock is the time. Default time.Now.
	Clock func() time.Time
}

// EnsureDefaults fills in the fields that are zero.
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

// Validate returns an error that names the first field without a sensible value.
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

// Tier reads blobs from buckets, and others from the store. It is a read.Gatherer, and safe for concurrent use.
//
// Each span is read by the goroutine of the Fetch that began it, which gives what lies beside to the spill, too. Its
// mutex is not held while bytes are read, copied or checked.
type Tier struct {
	opts    Options
	most    int64 // bytes of a span
	chunk   int64 // bytes of the chunks that objects are read by: several that nodes own, one, or a part of one
	seed    maphash.Seed
	singles read.Tier
	prover  store.Prover // of the store
	memory  memory
	pinned  atomic.Int64 // bytes of spans that blobs which were handed out are parts of
	under   atomic.Int64 // spans in places
	begun   atomic.Int64 // spans that ever were

	mu      sync.Mutex
	places  map[place][]*span           // under way, or kept
	kept    []*span                     // the one that was used longest ago first
	ahead   []trail                     // the one that was used longest ago first
	sets    map[schema.ObjectPrefix]int // of spans in places, how many there are
	lengths map[place]int64             // of objects whose lengths the store does not say; 0 while the bucket is asked
	costs   map[object.Bucket]Costs
	starts  map[uint32]int64 // by the spill's number of a dataset, cells that were read alone as they were urgent
	pace    pace
	notKept int64 // what Cache.NotKept last said
	link    link
	expiry  *time.Timer // looks for what is kept in vain; nil while nothing is kept
	closed  bool

	count counters
}

// New returns a tier. What it is made of stays the caller's.
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

// Stats are counters since the tier was made, and what it holds now.
type Stats struct {
	Spans      int64 `json:"spans"`       // requests that were made for several blobs
	Bytes      int64 `json:"bytes"`       // that these brought
	Blobs      int64 `json:"blobs"`       // that streams wanted and that came so
	Joined     int64 `json:"joined"`      // of those, which lay in a span that was under way or kept
	Beside     int64 `json:"beside"`      // blobs that came along, for the spill
	BesideKept int64 `json:"beside_kept"` // of those, which it took
	Singles    int64 `json:"singles"`     // blobs in buckets that were read alone
	Memory     int64 `json:"memory"`      // bytes of spans now
}

// Coming reports whether a blob lies in a span that is under way, or kept: reading it takes no request. It does not block,
// and may say no where it would have to.
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
	// Its set is open, as a span of it is under way.
	loc, in, err := t.opts.Store.Locate(context.Background(), ref)
	if err != nil || !in || loc.Unit != nil || loc.Length != ref.Size || loc.Length == 0 {
		return false
	}
	at := place{loc.Bucket, loc.Object.Key, loc.Object.Version}
	return t.coveringLocked(at, loc.Offset, loc.Offset+loc.Length) != nil
}

// Begun is how many spans were begun: while it stays the same, no more is coming.
func (t *Tier) Begun() int64 { return t.begun.Load() }

type counters struct {
	spans, bytes, blobs, joined, beside, besideKept, singles atomic.Int64
}

// Stats returns the tier's counters.
func (t *Tier) Stats() Stats {
	c := &t.count
	return Stats{
		Spans: c.spans.Load(), Bytes: c.bytes.Load(), Blobs: c.blobs.Load(), Joined: c.joined.Load(),
		Beside: c.beside.Load(), BesideKept: c.besideKept.Load(), Singles: c.singles.Load(), Memory: t.memory.inUse(),
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

// single has the store read a cell by itself.
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

// place is an object in one of its states.
type place struct {
	bucket  object.Bucket
	key     string
	version schema.ObjectVersion
}

// cell is one that lies in a bucket, until it is answered.
type cell struct {
	read.Cell
	n          int // in the Fetch
	to         read.Answers
	loc        store.Location
	begin, end int64 // in the object

	pending  *sync.WaitGroup
	answered atomic.Bool
	span     *span // that it waits for; guarded by Tier.mu
	gone     bool  // its context has ended; guarded by Tier.mu
	slice    bool  // its blob is a part of the span, and no copy; set with its hold
}

// answer answers the cell, unless that was done.
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

// objectEnd is where its object ends, as far as is known: a segment of a store does not say it.
func (c *cell) objectEnd() int64 {
	if c.loc.Object.Size > 0 {
		return c.loc.Object.Size
	}
	return math.MaxInt64
}

func (c *cell) place() place { return place{c.loc.Bucket, c.loc.Object.Key, c.loc.Object.Version} }

// fetch reads cells of one object set.
func (t *Tier) fetch(cells []read.Cell, which []int, to read.Answers) {
	// What is found out about where they lie is for all, and ends with the last of them.
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
	for _, c := range p.alone {
		t.count.singles.Add(1)
		others.Go(func() { t.alone(c) })
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
	others.Wait()
	pending.Wait()
}

// near has the rows of cells be in memory beside which others may be kept.
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

// maxLengths bounds the objects whose lengths are kept.
const maxLengths = 4096

// measure finds out the lengths of objects that a run goes on in in order, where the store does not say them, as of
// segments of a store in a bucket: the run's spans end where the object does. Each such object takes a request.
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
			t.lengths[at] = 0 // no other Fetch asks meanwhile
		}
		t.mu.Unlock()
		if ask {
			size = t.length(ctx, at)
		}
		c.loc.Object.Size = size
	}
}

// length asks a bucket how long an object is, and keeps the answer. It is 0 if there is none: the span that is read then
// says what is wrong.
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

// fromCache has a cell come from the spill, or alone where that has lost it meanwhile.
func (t *Tier) fromCache(c *cell) {
	if b, ok := t.opts.Cache.Get(t.prover.Proven(c.Ref), c.At); ok {
		c.answer(read.Answer{Blob: b})
		return
	}
	t.count.singles.Add(1)
	t.alone(c)
}

// alone has the store read a cell.
func (t *Tier) alone(c *cell) {
	t.singles.Fetch([]read.Cell{c.Cell}, c)
}

package upcoming

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// Options configures a Jobs. All fields except Owns and Spare are required.
type Options struct {
	// Cache is the spill that is filled. Future is what its eviction policy reads.
	Cache  *spill.Cache
	Future *spill.Future
	// Reader reads the blobs that are missing.
	Reader *read.Reader
	// Owns reports whether this node owns a blob. It must not block, and must return the same for all blobs of a slot
	// of a layout. Default: the node owns every blob.
	Owns func(schema.BlobRef) bool
	// Spare reports whether another node also caches a blob. It must not block. Default: always false.
	Spare func(schema.BlobRef) bool
}

// Validate returns an error that names a missing field.
func (o *Options) Validate() error {
	for name, missing := range map[string]bool{
		"Cache": o.Cache == nil, "Future": o.Future == nil, "Reader": o.Reader == nil,
	} {
		if missing {
			return fmt.Errorf("%w: prefetching for jobs needs %s", schema.ErrInvalid, name)
		}
	}
	return nil
}

// Streams are the engine's open streams. The methods do not block.
type Streams interface {
	// Idle reports whether no stream has a read to start on the path to the store.
	Idle() bool
	// Reading is how many streams are reading.
	Reading() int
	// Demand is what streams have requested since the engine was made.
	Demand() spill.Demand
}

// Jobs is the set of running jobs, and prefetches into the spill for them. It is safe for concurrent use. A nil Jobs is that of an
// engine without a spill, where streams belong to no job.
type Jobs struct {
	opts    Options
	streams Streams // set by Start

	blocked atomic.Int32 // fillers that have a blob to read, and no room
	moved   atomic.Bool  // jobs have advanced since the fillers were last woken
	looked  atomic.Int64 // rows looked up in the spill

	mu      sync.Mutex
	closed  bool
	jobs    []*running
	fillers map[*filler]struct{}
	// Jobs with every blob in the spill -> the spill's count of removals when that was found
	whole    map[wholeKey]int64
	measured spill.Demand  // the demand when waits was last computed
	waits    bool          // consumers wait for the store
	expected int           // calls of Expect that have not ended
	news     chan struct{} // closed when one of those calls ends; nil if expected is 0

	closing chan struct{}  // closed by Close
	filling sync.WaitGroup // Warm and the goroutine fill; grows under mu only while not closed
}

// New returns a Jobs that knows no job. Start begins prefetching.
func New(opts Options) (*Jobs, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Spare == nil {
		opts.Spare = func(schema.BlobRef) bool { return false }
	}
	if opts.Owns == nil {
		opts.Owns = func(schema.BlobRef) bool { return true }
	}
	return &Jobs{
		opts: opts, fillers: map[*filler]struct{}{}, whole: map[wholeKey]int64{}, closing: make(chan struct{}),
	}, nil
}

// Looked is how many rows of jobs were looked up in the spill.
func (js *Jobs) Looked() int64 {
	if js == nil {
		return 0
	}
	return js.looked.Load()
}

// Start begins prefetching, before any stream is open. Stop ends it.
func (js *Jobs) Start(streams Streams) {
	if js != nil {
		js.streams = streams
		js.filling.Go(js.fill)
	}
}

// Stop ends prefetching and waits for its goroutines. Streams may still be open.
func (js *Jobs) Stop() {
	if js == nil {
		return
	}
	js.mu.Lock()
	if !js.closed {
		js.closed = true
		close(js.closing)
	}
	js.mu.Unlock()
	js.filling.Wait()
}

// Close ends all jobs. Call it after Stop, with every stream closed.
func (js *Jobs) Close() {
	if js == nil {
		return
	}
	js.mu.Lock()
	for _, l := range js.jobs {
		l.until = time.Time{}
	}
	ended := js.forgetLocked(time.Now())
	js.mu.Unlock()
	release(ended)
}

// Wake wakes fillers when the path to the store may have room: those that are blocked or, if jobs have advanced, all.
func (js *Jobs) Wake() {
	if js == nil || js.blocked.Load() == 0 && !js.moved.Load() || !js.streams.Idle() {
		return
	}
	all := js.moved.Swap(false)
	js.mu.Lock()
	defer js.mu.Unlock()
	for f := range js.fillers {
		if !all && !f.blocked.Load() {
			continue
		}
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// Wants returns how many bytes of blobs the known jobs read, by snapshot. If several jobs read a snapshot, the
// largest counts. A job on a part of a snapshot counts with that part.
func (js *Jobs) Wants() map[string]int64 {
	wants := map[string]int64{}
	if js == nil {
		return wants
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, l := range js.jobs {
		for i, number := range l.places.numbers {
			name := js.opts.Cache.DatasetName(number)
			wants[name] = max(wants[name], l.bytes(i))
		}
	}
	return wants
}

// Neighbours yields the blobs of the samples at the positions after a place, or before it, nearest first; before those,
// the other blobs of the sample at the place. It yields only blobs that a running job reads, whose rows are in
// memory, and that this node owns. It does no I/O and does not block.
func (js *Jobs) Neighbours(at spill.Place, after bool) iter.Seq2[schema.BlobRef, spill.Place] {
	return func(yield func(schema.BlobRef, spill.Place) bool) {
		if l := js.retain(at.Dataset); l != nil {
			defer l.order.job.Release()
			js.neighbours(l, at, after, yield)
		}
	}
}

// retain returns a job on a dataset, nil if there is none. The caller releases the job.
func (js *Jobs) retain(dataset uint32) *running {
	if js == nil || dataset == 0 {
		return nil
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, l := range js.jobs {
		if slices.Contains(l.places.numbers, dataset) {
			l.order.job.Retain()
			return l
		}
	}
	return nil
}

func (js *Jobs) neighbours(l *running, at spill.Place, after bool, yield func(schema.BlobRef, spill.Place) bool) {
	m, columns := l.order.job.Manifest(), l.order.job.Projection().BlobColumns()
	in := l.places.source(at.Dataset)
	step := int64(1)
	if !after {
		step = -1
		columns = slices.Clone(columns)
		slices.Reverse(columns)
	}
	more := true
	for pos := in.Base + at.Position; more && pos >= in.Base && pos < in.End; {
		there := m.Peek(pos, func(start int64, p *schema.Page) {
			for ; more && pos >= start && pos < start+int64(p.Rows()); pos += step {
				for _, column := range columns {
					ref, ok, err := p.TryBlob(column, int(pos-start))
					if err != nil {
						more = false
						return
					}
					place := spill.Place{Dataset: at.Dataset, Tenant: at.Tenant, Position: pos - in.Base}
					if ok && js.opts.Owns(ref) && !yield(js.opts.Reader.Known(ref), place) {
						more = false
						return
					}
				}
			}
		})
		more = more && there
	}
}

// Near loads the rows at the positions into memory, if a running job reads them: another node may request blobs of
// rows that no stream of this node has reached. For each missing row it also loads neighbours, whose blobs may be in
// the same chunks. It waits for the rows until ctx ends. Errors are dropped: Neighbours does not yield rows that could
// not be read.
func (js *Jobs) Near(ctx context.Context, dataset uint32, positions []int64) {
	l := js.await(ctx, dataset)
	if l == nil {
		return
	}
	defer l.order.job.Release()
	m := l.order.job.Manifest()
	in := l.places.source(dataset)
	var missing []int64
	for _, at := range positions {
		pos := in.Base + at
		if at >= 0 && pos < in.End && !m.Peek(pos, func(int64, *schema.Page) {}) {
			missing = append(missing, pos, max(pos-nearRows, in.Base), min(pos+nearRows, in.End-1))
		}
	}
	if len(missing) > 0 {
		_, _ = m.At(ctx, missing) // without the row, it has no neighbours to yield
	}
}

// Expect announces that the job of another node's stream will be known soon. Until over is called, which happens
// once, Near waits for that job, for expectFor at most.
func (js *Jobs) Expect() (over func()) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.expected++; js.expected == 1 {
		js.news = make(chan struct{})
	}
	return func() {
		js.mu.Lock()
		defer js.mu.Unlock()
		close(js.news)
		js.news = nil
		if js.expected--; js.expected > 0 {
			js.news = make(chan struct{})
		}
	}
}

// expectFor bounds the wait for an announced job, whose manifest may have to be opened.
const expectFor = time.Second

// await is retain that also waits for announced jobs.
func (js *Jobs) await(ctx context.Context, dataset uint32) *running {
	if l := js.retain(dataset); l != nil || js == nil {
		return l
	}
	ctx, cancel := context.WithTimeout(ctx, expectFor)
	defer cancel()
	for {
		js.mu.Lock()
		news := js.news
		js.mu.Unlock()
		if l := js.retain(dataset); l != nil || news == nil {
			return l
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
}

// nearRows is roughly how far apart two rows in the same chunk are at most.
const nearRows = 256

// Bytes is roughly how many bytes of blobs a running job reads from a dataset; 0 if unknown.
func (js *Jobs) Bytes(dataset uint32) int64 {
	if js == nil {
		return 0
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, l := range js.jobs {
		if i := slices.Index(l.places.numbers, dataset); i >= 0 {
			return l.bytes(i)
		}
	}
	return 0
}

// bytes is how many bytes of a source's blobs the job reads in an epoch, counting each blob once.
func (l *running) bytes(source int) int64 {
	s := &l.sources[source]
	return s.RowBytes * min(s.Rows, s.Positions)
}

// Waits reports whether consumers have waited for the store recently.
func (js *Jobs) Waits() bool {
	if js == nil {
		return false
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.waits
}

package lookahead

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

// Options says what an Ahead works with. All fields but Mine and Spare are needed.
type Options struct {
	// Cache is what is filled, Future what it evicts by.
	Cache  *spill.Cache
	Future *spill.Future
	// Reader reads what is missing.
	Reader *read.Reader
	// Mine says whether a blob is for this node to keep. It must not block, and answers alike for all blobs
	// of a slot of layouts.
	// Default: all are.
	Mine func(schema.BlobRef) bool
	// Spare says whether another node keeps a blob, too. It must not block. Default: none does.
	Spare func(schema.BlobRef) bool
}

// Validate returns an error that names the first field that is missing.
func (o *Options) Validate() error {
	for name, missing := range map[string]bool{
		"Cache": o.Cache == nil, "Future": o.Future == nil, "Reader": o.Reader == nil,
	} {
		if missing {
			return fmt.Errorf("%w: looking ahead needs %s", schema.ErrInvalid, name)
		}
	}
	return nil
}

// Streams are those of the engine. Their methods do not block.
type Streams interface {
	// Idle reports whether no stream has a use for the way to the store.
	Idle() bool
	// Reading is how many streams read.
	Reading() int
	// Demand says what they have asked for since the engine was made.
	Demand() spill.Demand
}

// Ahead looks ahead for the jobs that run. It is safe for concurrent use. A nil
// Ahead is that of an engine without a spill: streams belong to no job.
type Ahead struct {
	opts    Options
	streams Streams // set by Start

	blocked atomic.Int32 // fillers that have something to read, and no room
	moved   atomic.Bool  // jobs have gone on since the fillers were told
	looked  atomic.Int64 // rows that were looked for

	mu       sync.Mutex
	closed   bool
	jobs     []*running
	fillers  map[*filler]struct{}
	whole    map[wholeKey]int64 // jobs of which the spill had every blob, and what it had removed by then
	measured spill.Demand       // when waits was last found out
	waits    bool               // consumers wait for the store
	expected int                // how often Expect was called and has not ended
	news     chan struct{}      // closed when one of them ends; nil if expected is 0

	closing chan struct{}  // closed by Close
	filling sync.WaitGroup // Warm and the goroutine that looks ahead; grows under mu only while not closed
}

// New returns an Ahead that knows of no job. Start has it look ahead.
func New(opts Options) (*Ahead, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Spare == nil {
		opts.Spare = func(schema.BlobRef) bool { return false }
	}
	if opts.Mine == nil {
		opts.Mine = func(schema.BlobRef) bool { return true }
	}
	return &Ahead{
		opts: opts, fillers: map[*filler]struct{}{}, whole: map[wholeKey]int64{}, closing: make(chan struct{}),
	}, nil
}

// Looked counts the rows of jobs that were looked for in the spill.
func (a *Ahead) Looked() int64 {
	if a == nil {
		return 0
	}
	return a.looked.Load()
}

// Start begins to look ahead, beside streams of which none is open yet. Stop ends it.
func (a *Ahead) Start(streams Streams) {
	if a != nil {
		a.streams = streams
		a.filling.Go(a.fill)
	}
}

// Stop ends what fills the spill, and waits for it. No stream has to be closed.
func (a *Ahead) Stop() {
	if a == nil {
		return
	}
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.closing)
	}
	a.mu.Unlock()
	a.filling.Wait()
}

// Close ends all jobs, after Stop; every stream is closed.
func (a *Ahead) Close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	for _, l := range a.jobs {
		l.until = time.Time{}
	}
	ended := a.forgetLocked(time.Now())
	a.mu.Unlock()
	release(ended)
}

// Wake tells the fillers that the way to the store may have room: those that have
// use for it or, if jobs have gone on, all.
func (a *Ahead) Wake() {
	if a == nil || a.blocked.Load() == 0 && !a.moved.Load() || !a.streams.Idle() {
		return
	}
	all := a.moved.Swap(false)
	a.mu.Lock()
	defer a.mu.Unlock()
	for f := range a.fillers {
		if !all && !f.blocked.Load() {
			continue
		}
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// Wants is how many bytes of blobs the jobs that are known read, by snapshot: of several on one, the most. Jobs of a
// part of a snapshot count with that part.
func (a *Ahead) Wants() map[string]int64 {
	wants := map[string]int64{}
	if a == nil {
		return wants
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.jobs {
		for i, number := range l.places.numbers {
			name := a.opts.Cache.DatasetName(number)
			wants[name] = max(wants[name], l.bytes(i))
		}
	}
	return wants
}

// Beside lists the blobs of samples at the positions after a place, or before it, the nearest first, and before them the
// other ones of the sample there: as far as a job that runs reads them, their rows are in memory, and this node is the
// one that keeps them. It reads nothing, and waits for nothing.
func (a *Ahead) Beside(at spill.Place, after bool) iter.Seq2[schema.BlobRef, spill.Place] {
	return func(yield func(schema.BlobRef, spill.Place) bool) {
		if l := a.retain(at.Dataset); l != nil {
			defer l.order.job.Release()
			a.beside(l, at, after, yield)
		}
	}
}

// retain returns a job on a dataset, which the caller releases; nil if there is none.
func (a *Ahead) retain(dataset uint32) *running {
	if a == nil || dataset == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.jobs {
		if slices.Contains(l.places.numbers, dataset) {
			l.order.job.Retain()
			return l
		}
	}
	return nil
}

func (a *Ahead) beside(l *running, at spill.Place, after bool, yield func(schema.BlobRef, spill.Place) bool) {
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
					if ok && a.opts.Mine(ref) && !yield(a.opts.Reader.Known(ref), place) {
						more = false
						return
					}
				}
			}
		})
		more = more && there
	}
}

// Near has the rows at some positions be in memory, as far as a job that runs reads them: another node may ask for blobs
// of rows that no stream of this one has come to. Rows beside those that were not, which may lie in the same chunks, are
// in memory then, too. It waits for them until ctx ends. What cannot be read, Beside does not find.
func (a *Ahead) Near(ctx context.Context, dataset uint32, positions []int64) {
	l := a.await(ctx, dataset)
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
		_, _ = m.At(ctx, missing) // a row that is lost has no neighbours
	}
}

// Expect says that the job of a stream of another node is about to be known. Near waits for it, for expectFor at most,
// until the returned function is called, which is once.
func (a *Ahead) Expect() (over func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.expected++; a.expected == 1 {
		a.news = make(chan struct{})
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(a.news)
		a.news = nil
		if a.expected--; a.expected > 0 {
			a.news = make(chan struct{})
		}
	}
}

// expectFor is how long a job is waited for that is about to be known: its manifest may have to be opened.
const expectFor = time.Second

// await is retain of a job that may be about to be known.
func (a *Ahead) await(ctx context.Context, dataset uint32) *running {
	if l := a.retain(dataset); l != nil || a == nil {
		return l
	}
	ctx, cancel := context.WithTimeout(ctx, expectFor)
	defer cancel()
	for {
		a.mu.Lock()
		news := a.news
		a.mu.Unlock()
		if l := a.retain(dataset); l != nil || news == nil {
			return l
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
}

// nearRows is how far from a row others may lie in the same chunk, about.
const nearRows = 256

// Bytes is how many bytes of blobs a job reads that runs on a dataset, about; 0 if that is not known.
func (a *Ahead) Bytes(dataset uint32) int64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.jobs {
		if i := slices.Index(l.places.numbers, dataset); i >= 0 {
			return l.bytes(i)
		}
	}
	return 0
}

// bytes is how many bytes of blobs of a source the job reads in an epoch, each once.
func (l *running) bytes(source int) int64 {
	s := &l.sources[source]
	return s.RowBytes * min(s.Rows, s.Positions)
}

// Waits reports whether consumers have waited for the store recently.
func (a *Ahead) Waits() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waits
}

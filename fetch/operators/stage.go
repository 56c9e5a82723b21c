package operators

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
	"bowstring/spill"
)

// Options says what a Stage works with. Ledger is needed.
type Options struct {
	// Workers is how many cells are made at once. Default: one for each processor.
	Workers int
	// Limits bound what a cell may become. Default: 2^27 pixels, 2^28 samples, and 256 MiB,
	// or what the ledger has for windows or for making, if that is less; 6e10 steps, about a minute of a processor.
	Limits program.Limits
	// Ledger counts the memory that programs work in.
	Ledger *admission.Ledger
	// Cache keeps results of programs that draw nothing; nil if none are kept.
	Cache Cache
	// KeepNanosPerByte is how much processor time a result has to save for each of its bytes,
	// in nanoseconds, to be kept. Default 4: some times what it takes to read it and to check it.
	KeepNanosPerByte float64
	// Logger receives what operators of the server should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero. The ledger is there.
func (o *Options) EnsureDefaults() {
	o.Workers = cmp.Or(o.Workers, runtime.GOMAXPROCS(0))
	o.Limits.Pixels = cmp.Or(o.Limits.Pixels, 1<<27)
	o.Limits.Samples = cmp.Or(o.Limits.Samples, 1<<28)
	o.Limits.Bytes = cmp.Or(o.Limits.Bytes, min(256<<20, o.Ledger.Limit(admission.Windows),
		o.Ledger.Limit(admission.Making), o.Ledger.Limit(admission.LongMaking)))
	o.Limits.Steps = cmp.Or(o.Limits.Steps, 60_000_000_000)
	o.KeepNanosPerByte = cmp.Or(o.KeepNanosPerByte, 4)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	if o.Workers < 1 {
		return fmt.Errorf("%w: Workers is %d; want 1 or more", schema.ErrInvalid, o.Workers)
	}
	for name, n := range map[string]int64{"Limits.Pixels": o.Limits.Pixels, "Limits.Samples": o.Limits.Samples,
		"Limits.Bytes": o.Limits.Bytes, "Limits.Steps": o.Limits.Steps} {
		if n < 1 {
			return fmt.Errorf("%w: %s is %d; want 1 or more", schema.ErrInvalid, name, n)
		}
	}
	if most := min(o.Ledger.Limit(admission.Making), o.Ledger.Limit(admission.LongMaking)); o.Limits.Bytes > most {
		return fmt.Errorf("%w: Limits.Bytes is %d, and all programs together may work in %d", schema.ErrInvalid,
			o.Limits.Bytes, most)
	}
	return nil
}

// Task is a cell that is to be made. All but Of are the stage's from Put until
// Made or Room is called.
type Task struct {
	Column *Column
	// Cell is what was read. Its receiver releases it, in Made.
	Cell  schema.Blob
	Draws program.Draws
	// Context is the stream's; a task whose context has ended is not begun.
	Context context.Context //nolint:containedctx // a task is work under way
	Tenant  string
	To      Receiver
	// Ref names Cell, and At is where it was found to be wanted; the zero Place where results
	// are not kept.
	Ref schema.BlobRef
	At  spill.Place
	// Guess is about how many bytes the result will have, where cells differ. It counts between tenants and jobs, and
	// bounds nothing.
	Guess int64
	// Trace draws spans; nil for none.
	Trace *Trace
	// Of is the receiver's.
	Of any

	cost     program.Cost
	measured bool  // cost is known
	long     bool  // it waits, or runs, among the cells that take long
	paid     int64 // what it has counted for so far between tenants and jobs
	roomy    bool  // there is room for a result of room bytes
	room     int64
	put      time.Time
	place    *Place
	// elsewhere is processor time of other processes for it.
	elsewhere time.Duration
}

// ResultBytes is how large the result may become, once Room was called.
func (t *Task) ResultBytes() int64 { return t.cost.Result.Int64() }

// Receiver is told what became of tasks, by a goroutine of the stage with no lock held. It
// must not block for long.
type Receiver interface {
	// Room reports whether there is room for a result of so many bytes, which was not
	// known before. Where there is none, the task is the receiver's: it puts it again with
	// [Place.Again] when there is.
	Room(t *Task, bytes int64) bool
	// Made is the end of the task.
	Made(t *Task, o Outcome)
}

// Outcome is what became of a task.
type Outcome struct {
	// Blob is the receiver's to release. Its Made says more of it.
	Blob schema.Blob
	// Err is a *FaultError where operators could make nothing of the cell.
	Err error
	// Queued is how long it waited for its turn, Took how long it ran, and Processor how
	// much processor time it took.
	Queued, Took, Processor time.Duration
	// Kept says that the result was not made again.
	Kept bool

	done bool
}

// Stage runs programs. It is safe for concurrent use.
type Stage struct {
	opts  Options
	queue *admission.Queue[*Task]
	count counters
	// Cells that are being made. They grow while the queue is locked.
	short, long atomic.Int64

	mu      sync.Mutex
	closed  bool
	running int
	terms   func(tenant string) admission.Terms // nil: all are alike
	tenants map[string]*tenant
	panics  map[string]*schema.DefectError // that were logged
	worths  map[worthKey]*worth            // of prefixes
	workers sync.WaitGroup                 // grows under mu only while not closed
}

// tenant is what one account has of the stage. It is there as long as it has a place.
type tenant struct {
	name    string
	places  int          // guarded by Stage.mu
	most    atomic.Int64 // tasks that may run at once; 0: as many as there are workers
	running atomic.Int64
}

// Place is a stream's place in the stage.
type Place struct {
	stage  *Stage
	tenant *tenant
	place  *admission.Stream[*Task]
}

// NewStage returns a stage without work. It has no goroutine while there is none.
func NewStage(opts Options) (*Stage, error) {
	if opts.Ledger == nil {
		return nil, fmt.Errorf("%w: a stage of operators needs a ledger", schema.ErrInvalid)
	}
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Stage{opts: opts, tenants: map[string]*tenant{}, panics: map[string]*schema.DefectError{},
		worths: map[worthKey]*worth{}}
	s.queue = admission.NewQueue(2, classOfTask, s.take)
	return s, nil
}

// Workers is how many cells are made at once, without those that take long.
func (s *Stage) Workers() int { return s.opts.Workers }

// SetTerms has tenants get what terms says; nil has all get the same.
func (s *Stage) SetTerms(terms func(tenant string) admission.Terms) {
	s.mu.Lock()
	s.terms = terms
	for name, t := range s.tenants {
		s.limitLocked(name, t)
	}
	s.mu.Unlock()
	s.queue.SetWeights(func(name string) int64 {
		if terms == nil {
			return 1
		}
		return terms(name).Weight
	})
	s.queue.Again()
	s.kick(classShort)
	s.kick(classLong)
}

func (s *Stage) limitLocked(name string, t *tenant) {
	t.most.Store(0)
	if s.terms == nil {
		return
	}
	if share := s.terms(name).Workers; share > 0 {
		t.most.Store(max(int64(share*float64(s.opts.Workers)), 1))
	}
}

// Open gives a stream of a tenant's job a place.
func (s *Stage) Open(tenantName, jobName string) *Place {
	s.mu.Lock()
	t := s.tenants[tenantName]
	if t == nil {
		t = &tenant{name: tenantName}
		s.tenants[tenantName] = t
		s.limitLocked(tenantName, t)
	}
	t.places++
	weight := int64(1)
	if s.terms != nil {
		weight = s.terms(tenantName).Weight
	}
	s.mu.Unlock()
	return &Place{stage: s, tenant: t, place: s.queue.Open(tenantName, weight, jobName)}
}

// Put has a task wait for its turn. The place is not closed.
func (p *Place) Put(t *Task) {
	t.put, t.place = time.Now(), p
	p.again(t)
}

// again has a task wait, as long as the place is not closed.
func (p *Place) again(t *Task) bool {
	class := classOfTask(&t)
	if !p.place.Put(t) {
		return false
	}
	p.stage.kick(class)
	return true
}

// Again is Put of a task that there was no room for, and now is.
func (p *Place) Again(t *Task) {
	t.roomy, t.room = true, t.ResultBytes()
	p.Put(t)
}

// Drop takes the tasks out that match and were not begun. They are the caller's.
func (p *Place) Drop(match func(*Task) bool) (dropped []*Task) {
	p.place.Drop(func(t **Task) bool {
		if !match(*t) {
			return false
		}
		dropped = append(dropped, *t)
		return true
	})
	return dropped
}

// Close gives the place up, once, and returns what waits there. What runs is told of.
func (p *Place) Close() (dropped []*Task) {
	dropped = p.place.Close()
	s := p.stage
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.tenant.places--; p.tenant.places == 0 {
		delete(s.tenants, p.tenant.name)
	}
	return dropped
}

// kick has one more worker begin for a cell of a class, if there may be one. Where there may not, one that ends finds it.
func (s *Stage) kick(class int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= 2*s.opts.Workers || !s.room(class) {
		return
	}
	s.running++
	s.workers.Go(s.run)
}

// run does tasks until there is none.
func (s *Stage) run() {
	for {
		t, _, ok := s.queue.Take()
		if !ok {
			s.mu.Lock()
			if t, _, ok = s.queue.Take(); !ok { // what was put since has found the workers running
				s.running--
				s.mu.Unlock()
				return
			}
			s.mu.Unlock()
		}
		of, class := t.place.tenant, classOfTask(&t)
		s.work(t)
		s.runningOf(class).Add(-1)
		if of.running.Add(-1); of.most.Load() > 0 {
			s.queue.Again()
		}
	}
}

// tell counts a task that has ended, and tells its receiver.
func (s *Stage) tell(t *Task, o *Outcome) {
	s.count.add(t, o)
	t.Trace.made(t, o)
	t.To.Made(t, *o)
}

// Close waits for the tasks that run. Every place is closed.
func (s *Stage) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.workers.Wait()
}

// Package operators transforms samples as a request asks: it compiles lists of steps into
// programs, and runs these between the arrival of a blob and the batch that it goes into.
//
// A [Set] is the compiled operators of a request. A [Stage] runs them: as many cells at
// once as there are CPUs. It shares its workers between tenants by weight and between the
// jobs of a tenant, and works in memory that the ledger has counted. The result of a cell
// is in a buffer that is sent without a copy.
//
// A cell that cannot be made is a fault of that cell: damaged bytes, a size that is
// refused before it is allocated, or a panic of the program. Results of programs without
// random steps are cached in the spill if that pays.
//
// The steps themselves are in the packages below, one for each kind of samples; [Kinds]
// lists them. This package knows neither plans nor streams, nor how blobs are read. Begin
// reading with [CompileSet] and Stage.work.
package operators

import (
	"cmp"
	"context"
	"errors"
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

// Options configure a Stage. Ledger is required.
type Options struct {
	// Workers is how many cells are made at once. Default: one for each CPU.
	Workers int
	// Limits bound the result of a cell. Default: 2^27 pixels; 2^28 samples; 256 MiB, or
	// the ledger's limits for windows or for making if these are lower; and 6e10 steps,
	// about a minute of CPU time.
	Limits program.Limits
	// Ledger counts the memory of programs.
	Ledger *admission.Ledger
	// Cache stores results of programs without random steps; nil for no cache.
	Cache Cache
	// KeepNanosPerByte is how much CPU time a result has to save for each of its bytes to
	// be cached, in nanoseconds. Default 4: several times the time of reading and
	// checking a byte.
	KeepNanosPerByte float64
	// Logger receives defects of programs. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero. The ledger must be set.
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

// Validate returns an error that names the first field with an impossible value.
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

// Task is a cell to be made. All of it except Data belongs to the stage from Put until it
// calls Made or Room.
type Task struct {
	Column *Column
	// Cell is the blob that was read. The receiver releases it, in Made.
	Cell  schema.Blob
	Draws program.Draws
	// Context is the stream's; a task is not begun after its context has ended.
	Context context.Context //nolint:containedctx // a task is work under way
	Tenant  string
	To      Receiver
	// Ref names Cell, and At is the place of its next use; the zero Place if results are
	// not cached.
	Ref schema.BlobRef
	At  spill.Place
	// Guess is about how many bytes the result will have, if cells differ. It counts for
	// the shares of tenants and jobs, and limits nothing.
	Guess int64
	// Trace records spans; nil for none.
	Trace *Trace
	// Data is the receiver's own; the stage does not use it.
	Data any

	cost     program.Cost
	measured bool  // cost is known
	long     bool  // it waits, or runs, in the class of long cells
	paid     int64 // share that was charged so far
	roomy    bool  // the receiver has room for a result of room bytes
	room     int64
	put      time.Time
	place    *Place
	// elsewhere is the CPU time of other processes for the task.
	elsewhere time.Duration
}

// ResultBytes bounds the size of the result. It is valid once Room was called.
func (t *Task) ResultBytes() int64 { return t.cost.Result.Int64() }

// Receiver is notified of the progress of tasks, by a goroutine of the stage that holds
// no lock. Its methods must not block for long.
type Receiver interface {
	// Room reports whether there is room for a result of that number of bytes, which was
	// unknown before. If not, the task belongs to the receiver again, which puts it with
	// [Place.Again] when there is room.
	Room(t *Task, bytes int64) bool
	// Made is the end of the task.
	Made(t *Task, o Outcome)
}

// Outcome is the result of a task.
type Outcome struct {
	// Blob is the result, which the receiver releases. Its Made describes it.
	Blob schema.Blob
	// Err is a *FaultError if the operators could not make the cell.
	Err error
	// Queued is the time that it waited for its turn, Took the time that it ran, and
	// Processor its CPU time.
	Queued, Took, Processor time.Duration
	// Kept says that the result came from the cache.
	Kept bool

	done bool
}

// Stage runs programs. It is safe for concurrent use.
type Stage struct {
	opts  Options
	queue *admission.Queue[*Task]
	count counters
	// Numbers of cells being made. They grow only while the queue is locked.
	short, long atomic.Int64

	mu      sync.Mutex
	closed  bool
	running int                                 // workers
	terms   func(tenant string) admission.Terms // nil: all tenants are equal
	tenants map[string]*tenant
	panics  map[string]*schema.DefectError // defects that were logged
	worths  map[worthKey]*worth            // trials of prefixes
	workers sync.WaitGroup                 // grows under mu, and only while not closed
}

// tenant is the state of a tenant in the stage. It exists while the tenant has a place.
type tenant struct {
	name    string
	places  int          // guarded by Stage.mu
	most    atomic.Int64 // tasks that may run at once; 0: no limit of its own
	running atomic.Int64
}

// Place is a stream's place in the stage's queue. It is safe for concurrent use until
// Close.
type Place struct {
	stage  *Stage
	tenant *tenant
	place  *admission.Stream[*Task]
}

// NewStage returns a stage without work. It has goroutines only while there is work.
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

// Workers is how many short cells are made at once.
func (s *Stage) Workers() int { return s.opts.Workers }

// SetTerms sets the weights and limits of tenants; nil makes all equal.
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

// limitLocked sets how many workers a tenant may use at once.
func (s *Stage) limitLocked(name string, t *tenant) {
	t.most.Store(0)
	if s.terms == nil {
		return
	}
	if share := s.terms(name).Workers; share > 0 {
		t.most.Store(max(int64(share*float64(s.opts.Workers)), 1))
	}
}

// Open gives a stream of a tenant's job a place. The caller must Close it.
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

// Put enqueues a task. The place must not be closed.
func (p *Place) Put(t *Task) {
	t.put, t.place = time.Now(), p
	p.again(t)
}

// again enqueues a task; false if the place is closed.
func (p *Place) again(t *Task) bool {
	class := classOfTask(&t)
	if there, _ := p.place.Put(t); !there {
		return false
	}
	p.stage.kick(class)
	return true
}

// Again is Put for a task that Room had refused, now that there is room.
func (p *Place) Again(t *Task) {
	t.roomy, t.room = true, t.ResultBytes()
	p.Put(t)
}

// Drop removes the matching tasks that were not begun, and returns them to the caller.
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

// Close closes the place, once, and returns the waiting tasks. Receivers are still
// notified of running ones.
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

// kick starts a worker for a cell of a class, unless there are enough. Then a worker that
// ends its cell finds the new one.
func (s *Stage) kick(class int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= 2*s.opts.Workers || !s.room(class) {
		return
	}
	s.running++
	s.workers.Go(s.run)
}

// run makes cells until none is waiting.
func (s *Stage) run() {
	for {
		t, _, ok := s.queue.Take()
		if !ok {
			s.mu.Lock()
			if t, _, ok = s.queue.Take(); !ok { // a task put since then found the workers running
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

// end counts a task that has ended, and notifies its receiver.
func (s *Stage) end(t *Task, o *Outcome) {
	s.count.add(t, o)
	t.Trace.made(t, o)
	t.To.Made(t, *o)
}

// Close waits for the running tasks. Every place must be closed before.
func (s *Stage) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.workers.Wait()
}

// Cells that take long wait in a class of their own. A running cell is not interrupted:
// if all workers had long cells, those of other tenants would wait for as long. So long
// cells have workers of their own, which share the CPUs with the others.
const (
	classShort = iota // also cells of unknown duration
	classLong

	// longSteps is the number of steps from which on a cell is long: about a quarter of a
	// second.
	longSteps = 1 << 28
	// stepsPerByte converts steps to bytes for the shares of tenants and jobs. Decoding a
	// photograph takes about as many, relative to the bytes of the file and of the
	// pixels.
	stepsPerByte = 16
)

// classOfTask is the queue of a task: short or long cells.
func classOfTask(t **Task) int {
	if (*t).long {
		return classLong
	}
	return classShort
}

// runningOf is the number of cells of a class being made.
func (s *Stage) runningOf(class int) *atomic.Int64 {
	if class == classLong {
		return &s.long
	}
	return &s.short
}

// room reports whether a cell of a class may begin. Long cells get half of the workers,
// even if the others are idle. With all CPUs, they reduced another stream to a tenth of
// its throughput, because a running goroutine is preempted after 10 ms at the earliest.
func (s *Stage) room(class int) bool {
	workers := int64(s.opts.Workers)
	if class == classShort {
		return s.short.Load() < workers
	}
	return s.long.Load() < max(workers/2, 1)
}

// take decides whether a task may run. The queue calls it with its lock held.
func (s *Stage) take(t **Task, class int) admission.Taken {
	if !s.room(class) {
		return admission.Taken{Class: class}
	}
	of := (*t).place.tenant
	if most := of.most.Load(); most > 0 && of.running.Load() >= most {
		return admission.Taken{Class: class, Aside: true}
	}
	of.running.Add(1)
	s.runningOf(class).Add(1)
	cost := (*t).share()
	(*t).paid += cost
	return admission.Taken{OK: true, Class: class, Cost: cost}
}

// share is what a task costs in the shares of tenants and jobs, in bytes, beyond what it
// was charged: the bytes of input and result, actual or estimated, or the steps once they
// are known, if these are more.
func (t *Task) share() int64 {
	out := t.Column.Form.CellBytes()
	if out < 0 {
		out = max(t.Guess, 0)
	}
	all := max(int64(len(t.Cell.Bytes()))+out, t.cost.Steps.Int64()/stepsPerByte)
	return max(all-t.paid, 1)
}

// charge charges a task for what was learned since it was taken.
func (t *Task) charge() {
	if more := t.share(); more > 1 {
		t.paid += more
		t.place.place.Charge(classOfTask(&t), more)
	}
}

// FaultError is the reason why operators could not make a cell: schema.ErrDataLoss,
// schema.ErrNotSupported or schema.ErrLimit if the cell is at fault,
// schema.ErrUnavailable if another attempt may succeed.
type FaultError struct {
	// Operator is the name of the step, if it is known.
	Operator string
	err      error
}

// Error names the operator that failed on the sample.
func (f *FaultError) Error() string {
	if f.Operator == "" {
		return "operators: " + f.err.Error()
	}
	return "operators: " + f.Operator + ": " + f.err.Error()
}

// Unwrap is the cause.
func (f *FaultError) Unwrap() error { return f.err }

// unsupported makes a schema.ErrNotSupported of a program's error without repeating its
// words.
type unsupported struct{ error }

// Unwrap is the kind of failure, and the cause.
func (u unsupported) Unwrap() []error { return []error{schema.ErrNotSupported, u.error} }

// faultOf converts a program's error to a FaultError with a sentinel of package schema.
// An error without a step comes from reading the header, which is the first step's task.
func (c *Column) faultOf(err error) error {
	f := &FaultError{Operator: c.Named(0), err: err}
	if step, ok := errors.AsType[*program.StepError](err); ok {
		f.Operator = step.Name
	}
	switch {
	case errors.Is(err, schema.ErrDataLoss): // a page of a file that cannot be read
	case errors.Is(err, program.ErrUnavailable):
		f.err = fmt.Errorf("%w: %w", schema.ErrUnavailable, err)
	case errors.Is(err, program.ErrNotSupported):
		f.err = unsupported{err}
	case errors.Is(err, program.ErrTooLarge):
		f.err = fmt.Errorf("%w: %w", schema.ErrLimit, err)
	default:
		f.err = fmt.Errorf("%w: %w", schema.ErrDataLoss, err)
	}
	return f
}

// cost bounds the result and the work of a cell, from its header. It allocates almost
// nothing.
func (s *Stage) cost(t *Task) (cost program.Cost, err error) {
	err = s.shielded(t, func() (err error) {
		cost, err = t.Column.Program.Cost(t.Cell.Bytes(), s.opts.Limits)
		return err
	})
	if err == nil && cost.Steps.Beyond(s.opts.Limits.Steps) {
		err = fmt.Errorf("%w: it would take %v steps of work; a sample may take %d", program.ErrTooLarge, cost.Steps,
			s.opts.Limits.Steps)
	}
	if err == nil && cost.Result.Plus(cost.Working).Beyond(s.opts.Limits.Bytes) {
		err = fmt.Errorf("%w: it would take %v bytes, and %v beside while it is made; a sample may take %d",
			program.ErrTooLarge, cost.Result, cost.Working, s.opts.Limits.Bytes)
	}
	if size := t.Column.Form.CellBytes(); err == nil && size >= 0 {
		cost.Result = program.Count(size)
	}
	if err != nil {
		return cost, t.Column.faultOf(err)
	}
	return cost, nil
}

// make runs a program over bytes, for a task with room for a result of most bytes. The
// caller holds the returned cell.
func (s *Stage) make(t *Task, p program.Program, in []byte,
	most int64) (c *cell, n int, outcome program.Outcome, err error) {
	var refused error
	err = s.shielded(t, func() (err error) {
		outcome, err = p.Run(t.Context, in, t.Draws, func(size int) []byte {
			if size < 0 || int64(size) > most {
				refused = fmt.Errorf("%w: the program makes %d bytes, where it said that it would make %d at most",
					program.ErrTooLarge, size, most)
				return nil
			}
			c, n = newCell(size), size
			return c.memory[:n:n]
		})
		return err
	})
	t.elsewhere += outcome.Elsewhere
	if refused != nil {
		err = refused
	}
	if err == nil && c == nil {
		err = errors.New("the program has made nothing")
	}
	if err != nil && c != nil {
		c.Unpin()
		c = nil
	}
	return c, n, outcome, err
}

// whole makes the result of a task by a program, from the cell or from a prefix.
func (s *Stage) whole(t *Task, p program.Program, in []byte) (*cell, int, error) {
	c, n, outcome, err := s.make(t, p, in, t.cost.Result.Int64())
	if err != nil {
		return nil, 0, err
	}
	if err := t.Column.checkOutcome(&outcome, n); err != nil {
		c.Unpin()
		return nil, 0, err
	}
	c.describe(t.Column, &outcome)
	return c, n, nil
}

// checkOutcome fails if a program's result contradicts its form: batches use it without
// further checks.
func (c *Column) checkOutcome(o *program.Outcome, made int) error {
	if c.Form.Encoded() {
		return nil
	}
	if len(o.Dims) != len(c.Form.Shape) {
		return fmt.Errorf("the program made %d dimensions, its result has %d", len(o.Dims), len(c.Form.Shape))
	}
	size := c.Form.ElementBytes()
	for i, d := range o.Dims {
		if want := c.Form.Shape[i]; d < 0 || want != nil && d != *want {
			return fmt.Errorf("the program made dimensions %v", o.Dims)
		}
		size *= int64(d)
	}
	if size != int64(made) {
		return fmt.Errorf("the program made %d bytes of dimensions %v", made, o.Dims)
	}
	return nil
}

// shielded calls a function that reads a cell. A page that cannot be read, and a panic,
// become errors.
func (s *Stage) shielded(t *Task, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(t, p)
		}
	}()
	return schema.Guard(f)
}

// maxPanics is how many different panics are logged. Cells may come from a caller, who
// must not fill the log.
const maxPanics = 32

// errPanicked is the error for a panic that is not logged because enough others were.
var errPanicked = errors.New("the program has panicked")

// panicked makes an error of a panic, and logs it once for each column's operators and
// each text. The error goes to clients: it has the id of the log entry, and not the text.
func (s *Stage) panicked(t *Task, p any) error {
	s.count.panics.Add(1)
	key := string(t.Column.id[:]) + fmt.Sprint(p)
	s.mu.Lock()
	defect, known := s.panics[key]
	if !known && len(s.panics) < maxPanics {
		defect = schema.Recovered(p)
		s.panics[key] = defect
	}
	s.mu.Unlock()
	if defect == nil {
		return errPanicked
	}
	_ = defect.Log(t.Context, s.opts.Logger, "a program of operators has panicked; the sample counts as one that cannot be "+
		"made", slog.String("column", t.Column.Name), slog.Uint64("position", t.Draws.Key.Position))
	return fmt.Errorf("%w: %w", errPanicked, defect)
}

// spent is the CPU time of a running task so far, in all processes.
func (t *Task) spent(clock cpuClock) time.Duration { return clock.so() + t.elsewhere }

// errClosed is the error of a task whose place was closed while it ran.
var errClosed = errors.New("operators: the stream has ended")

// use is the account of the task's working memory.
func (t *Task) use() admission.Use {
	if t.long {
		return admission.LongMaking
	}
	return admission.Making
}

// work makes a task's cell, or runs it until it needs room or another class.
func (s *Stage) work(t *Task) {
	if err := context.Cause(t.Context); err != nil {
		t.To.Made(t, Outcome{Err: err})
		return
	}
	began := time.Now()
	clock := startClock()
	t.elsewhere = 0
	o := Outcome{Queued: began.Sub(t.put)}
	defer func() {
		if o.done {
			o.Processor, o.Took = clock.stop()+t.elsewhere, time.Since(began)
			s.end(t, &o)
		} else {
			clock.stop()
		}
	}()
	var found schema.Blob // the cached result
	if s.keeps(t) {
		found, o.Kept = s.kept(t)
	}
	if o.Kept {
		// The result's cost is not computed: it is needed only if the result has been
		// evicted when there is room.
		t.cost = program.Cost{Result: program.Count(int64(len(found.Bytes())))}
	} else if !t.measured {
		cost, err := s.cost(t)
		if err != nil {
			o.Err, o.done = err, true
			return
		}
		t.cost, t.measured = cost, true
		t.long = t.long || cost.Steps.Beyond(longSteps)
		if t.long {
			if t.place.again(t) {
				return // it waits for its turn in the class of long cells
			}
			o.Err, o.done = cmp.Or(context.Cause(t.Context), errClosed), true
			return
		}
		t.charge()
	}
	// A cached result that had no room may have been evicted since, and making it may
	// take more room.
	if t.Column.Form.CellBytes() < 0 && (!t.roomy || t.cost.Result.Beyond(t.room)) && !t.To.Room(t, t.ResultBytes()) {
		found.Release()
		return // the receiver owns it now
	}
	o.done = true
	if o.Kept {
		o.Blob = found
		return
	}
	hold, err := s.opts.Ledger.ReserveFor(t.Context, t.use(), t.Tenant, t.cost.Working.Int64())
	if err != nil {
		o.Err = err
		return
	}
	making := t.spent(clock)
	c, n, err := s.best(t, clock)
	hold.Release()
	if err != nil {
		if o.Err = context.Cause(t.Context); o.Err == nil { // otherwise it was interrupted, whatever its error says
			o.Err = t.Column.faultOf(err)
		}
		return
	}
	if s.keeps(t) {
		s.keep(t, c, n, t.spent(clock)-making)
	}
	o.Blob = schema.NewBlob(c.memory[:n:n], c)
}

// Stats are the counters of a stage since its start, and its current state.
type Stats struct {
	Workers       int   `json:"workers"`         // cells that may be made at once
	Running       int   `json:"running"`         // cells being made
	Waiting       int   `json:"waiting"`         // cells that wait for their turn
	Cells         int64 `json:"cells"`           // made or failed
	Faults        int64 `json:"faults"`          // of those, failed
	Panics        int64 `json:"panics"`          // of those, with a panic of the program
	Kept          int64 `json:"kept"`            // results that were offered to the cache
	Found         int64 `json:"found"`           // results that were found in the cache
	PrefixesKept  int64 `json:"prefixes_kept"`   // prefixes that were offered to the cache
	PrefixesFound int64 `json:"prefixes_found"`  // prefixes that were found in the cache
	PrefixTrials  int64 `json:"prefix_trials"`   // cells that were made in both ways, to compare
	InBytes       int64 `json:"in_bytes"`        // of the blobs
	OutBytes      int64 `json:"out_bytes"`       // of the results
	Processor     int64 `json:"processor_nanos"` // CPU time
	Queued        int64 `json:"queued_nanos"`    // time that cells waited for their turn
}

// counters are the sums of Stats.
type counters struct {
	prefixesKept, prefixesFound, prefixTrials                      atomic.Int64
	kept, found, cells, faults, panics, in, out, processor, queued atomic.Int64
}

// add counts a finished task.
func (c *counters) add(t *Task, o *Outcome) {
	c.cells.Add(1)
	if o.Kept {
		c.found.Add(1)
	}
	if o.Err != nil {
		c.faults.Add(1)
	}
	c.in.Add(int64(len(t.Cell.Bytes())))
	c.out.Add(int64(len(o.Blob.Bytes())))
	c.processor.Add(int64(o.Processor))
	c.queued.Add(int64(o.Queued))
}

// Stats returns the counters.
func (s *Stage) Stats() Stats {
	c := &s.count
	st := Stats{
		Workers: s.opts.Workers, Waiting: s.queue.Waiting(), Cells: c.cells.Load(), Faults: c.faults.Load(),
		Panics: c.panics.Load(),
		Kept:   c.kept.Load(), Found: c.found.Load(),
		PrefixesKept: c.prefixesKept.Load(), PrefixesFound: c.prefixesFound.Load(), PrefixTrials: c.prefixTrials.Load(),
		InBytes: c.in.Load(), OutBytes: c.out.Load(), Processor: c.processor.Load(), Queued: c.queued.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tenants {
		st.Running += int(t.running.Load())
	}
	return st
}

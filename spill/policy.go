package spill

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Time is a time on the clock of whoever asks, in nanoseconds. Nothing in a policy reads a clock, so
// that it can be replayed in virtual time.
type Time int64

// Place is where a blob occurs: a sample of a dataset. Dataset is a number that the caller gives to
// each snapshot (see [Cache.Dataset]); 0 stands for a blob that is at no known place. Tenant says in the
// same way on whose account it is wanted there (see [Cache.Tenant]); 0 is nobody's.
type Place struct {
	Dataset  uint32
	Tenant   uint16
	Position int64 // negative of a page of the manifest, as PageAt has it
	// Until has what is stored there kept for its next use, if that comes by then on the clock of [Future.Turn]: it does
	// not make room for another one that has such a time. 0: it has none.
	Until float64
}

// PageAt is the place of the page of a dataset's manifest that begins at a position. It is used with each of its rows.
func PageAt(dataset uint32, start int64) Place { return Place{Dataset: dataset, Position: -1 - start} }

// IsPage reports whether a place is that of a page of a manifest.
func (p Place) IsPage() bool { return p.Position < 0 }

// page returns where the page begins that a place is of, if it is of one.
func (p Place) page() (start int64, ok bool) { return -1 - p.Position, p.Position < 0 }

// Entry is what a policy is told of a blob.
type Entry struct {
	Place Place
	Size  int64         // bytes
	Cost  time.Duration // what getting it once more from the store would take
	Uses  uint32        // how often it was wanted since it was stored, that time included
	Added Time          // when it was stored
	Used  Time          // when it was wanted last
	Spare bool          // another node near owns it and keeps it, too: see [Cache.SetSpare]
}

// Worth is what keeping a blob is worth, for comparison at one time. A blob that is going to be used
// is worth more than any other. Of those, one that another node keeps too is worth less than one that the
// store alone has: it costs that node a question, not the store a read. What is to be kept until a time ([Place.Until])
// and is used by then is worth more than what is not.
type Worth struct {
	Planned bool
	Spare   bool
	Kept    bool
	Value   float64
}

// Less reports whether w is worth less than o.
func (w Worth) Less(o Worth) bool {
	if w.Planned != o.Planned {
		return o.Planned
	}
	if w.Spare != o.Spare {
		return w.Spare
	}
	if w.Kept != o.Kept {
		return o.Kept
	}
	return w.Value < o.Value
}

// Policy says which blobs to keep. It has no list of them: it is shown some, and is asked for
// the worth of each. Implementations are safe for concurrent use.
type Policy interface {
	// Name is the policy's name.
	Name() string
	// Worth is what keeping e is worth at a time; the candidate that is worth least is evicted.
	// e is the caller's and may change after the call.
	Worth(e *Entry, now Time) Worth
	// Admit reports whether a new blob may take the place of the one that would be evicted for it.
	// Otherwise the new one is not stored (it bypasses the cache).
	Admit(newcomer, victim Worth) bool
}

// Oracle knows the future.
type Oracle interface {
	// NextUse returns when the blob at a place is used next; false if no job that runs will.
	NextUse(at Place, now Time) (Time, bool)
}

// NextUse evicts what will be used last, and does not store what would be used later than that:
// Belady's rule ("A study of replacement algorithms for a virtual-storage computer", 1966), with a
// sample of the blobs in the place of all. What no job is known to use counts by [Score], and for less
// than all that some job will use.
func NextUse(oracle Oracle) Policy { return nextUse{oracle} }

type nextUse struct{ oracle Oracle }

func (nextUse) Name() string { return "next-use" }

func (p nextUse) Worth(e *Entry, now Time) Worth {
	if at, ok := p.oracle.NextUse(e.Place, now); ok {
		w := Worth{Planned: true, Spare: e.Spare, Value: -float64(at)}
		if e.Place.Until > 0 {
			turns, ok := p.oracle.(turns)
			w.Kept = ok && turns.keeps(e.Place)
		}
		return w
	}
	return score{}.Worth(e, now)
}

// turns is an Oracle that has the clock of [Place.Until].
type turns interface {
	// keeps reports whether what is at a place is used by the time until which it is to be kept.
	keeps(at Place) bool
}

// Admit rejects a blob without a planned use if it would evict one that has. What is to be kept until a
// time is not displaced by what is to be kept, too: else all that is kept would be due at one time.
func (nextUse) Admit(newcomer, victim Worth) bool {
	if newcomer.Kept && victim.Kept && newcomer.Spare == victim.Spare {
		return false
	}
	if !newcomer.Planned && !victim.Planned {
		return score{}.Admit(newcomer, victim)
	}
	return victim.Less(newcomer)
}

// Score evicts what has the least cost to get × frequency ÷ (age × size), where the frequency is the
// number of uses since it was stored and the age the time since then: the hyperbolic priority of
// Blankstein, Sen and Freedman, "Hyperbolic caching: flexible caching for web applications", USENIX ATC
// 2017, in its form for unequal costs and sizes, and evaluated as there, lazily, on a sample. What is new
// has no age yet, and is always stored.
func Score() Policy { return score{} }

type score struct{}

func (score) Name() string { return "score" }

func (score) Worth(e *Entry, now Time) Worth {
	age := max(float64(now-e.Added), 1)
	// A blob of no bytes still takes a place, and one that cost nothing a question.
	cost := max(float64(e.Cost), 1)
	return Worth{Value: cost * float64(e.Uses) / (age * float64(max(e.Size, 1)))}
}

func (score) Admit(Worth, Worth) bool { return true }

var _ fmt.Stringer = Worth{}

// String is for logs.
func (w Worth) String() string {
	if w.Planned {
		return fmt.Sprintf("next use at %.3f s", -w.Value/1e9)
	}
	return fmt.Sprintf("score %.3g", w.Value)
}

// Table is the blobs that a [Chooser] takes its samples from. A slot holds one or none.
type Table interface {
	// Slots is the number of slots.
	Slots() int
	// Entry fills in e with what is in a slot, and reports whether there is a blob that may be evicted.
	Entry(slot int, e *Entry) bool
}

// Chooser picks what to evict: the least worthy of some tens of candidates. Half of them are drawn at random
// each time, the other half are the least worthy of those seen before, which are evaluated again. So
// each choice costs the same, and is about as good as one among several times as many: what was found to be
// of little worth, and not evicted, is not forgotten. (Redis keeps such a pool for its approximation of LRU.)
//
// It is not safe for concurrent use.
type Chooser struct {
	policy Policy
	rng    *rand.Rand
	pool   []choice // least worthy first
	keep   int      // most that are kept in pool
	fresh  int      // drawn at each choice
	entry  Entry    // scratch, so that it does not escape anew each time
}

type choice struct {
	slot  int
	worth Worth
}

// DefaultCandidates is how many candidates a [Chooser] compares unless it is told otherwise.
const DefaultCandidates = 64

// NewChooser returns a chooser that compares so many candidates each time (0: [DefaultCandidates]).
func NewChooser(policy Policy, candidates int, seed uint64) *Chooser {
	if candidates <= 0 {
		candidates = DefaultCandidates
	}
	keep := candidates / 2
	return &Chooser{
		policy: policy, rng: rand.New(rand.NewPCG(seed, 0)),
		keep: keep, fresh: candidates - keep, pool: make([]choice, 0, keep+1),
	}
}

// Victim returns the slot of what to evict next and what it is worth; false if nothing was found that may be
// evicted. It stays a candidate until the table no longer says so.
func (c *Chooser) Victim(t Table, now Time) (slot int, worth Worth, ok bool) {
	// Worths change with time and use, and slots get other blobs.
	known := c.pool
	c.pool = c.pool[:0]
	for _, old := range known {
		c.consider(t, old.slot, now)
	}
	n := t.Slots()
	// Empty slots cost a draw, but not many: a table that is mostly empty has nothing to evict.
	for drawn, tries := 0, 0; n > 0 && drawn < c.fresh && tries < 4*c.fresh; tries++ {
		if c.consider(t, c.rng.IntN(n), now) {
			drawn++
		}
	}
	if len(c.pool) == 0 {
		return 0, Worth{}, false
	}
	return c.pool[0].slot, c.pool[0].worth, true
}

// consider puts a slot's blob in its place in the pool, if it is among the least worthy, and reports whether there is
// one.
func (c *Chooser) consider(t Table, slot int, now Time) bool {
	if !t.Entry(slot, &c.entry) {
		return false
	}
	w := c.policy.Worth(&c.entry, now)
	if len(c.pool) == c.keep && c.keep > 0 && !w.Less(c.pool[len(c.pool)-1].worth) {
		return true
	}
	for _, other := range c.pool {
		if other.slot == slot {
			return true
		}
	}
	at := len(c.pool)
	for at > 0 && w.Less(c.pool[at-1].worth) {
		at--
	}
	c.pool = slices.Insert(c.pool, at, choice{slot, w})
	if len(c.pool) > max(c.keep, 1) {
		c.pool = c.pool[:len(c.pool)-1]
	}
	return true
}

// Order is the order in which a job uses the samples of a dataset, epoch by epoch: a permutation that knows its
// inverse. It is safe for concurrent use, allocates nothing, and its methods take constant time.
type Order interface {
	// Rows is the number of indices of an epoch, the same for each.
	Rows() int64
	// Index returns where in an epoch, counted from the job's first as 0, the sample at a position is used;
	// false if it is not.
	Index(epoch, position int64) (index int64, ok bool)
}

// Repeating is an Order in which an epoch may use a sample several times.
type Repeating interface {
	Order
	// Next returns where in an epoch the sample at a position is used first from an index on; false if it is not.
	Next(epoch, position, from int64) (index int64, ok bool)
}

// Future is the jobs that run. It knows when a sample is used next by any of them: the place of the
// sample in the remaining part of the job's epoch, or else in its next epoch, at the pace that the job is
// seen to keep. So it keeps no list, and an answer costs one or two inverses for each job on the dataset.
//
// It is an [Oracle], and safe for concurrent use.
type Future struct {
	mu   sync.Mutex             // held to change jobs
	jobs atomic.Pointer[[]*Job] // replaced, never changed
	gone atomic.Int64           // rows that jobs used which are removed

	horizons horizons
}

// JobOptions describe a job to a [Future].
type JobOptions struct {
	// Dataset is what the job's positions are positions in, as in [Place].
	Dataset uint32
	// Order is the order of its epochs.
	Order Order
	// Epochs is how many there are; 0 if that is not known. Then it is taken for granted that another one follows.
	Epochs int64
	// At is the index, in its first epoch, at which the job begins.
	At int64
	// RowTime is the time that a sample is supposed to take the job until its pace is seen. Default: 1 ms.
	RowTime time.Duration
	// RowBytes is how many bytes of blobs a sample of the job has, in the mean; 0 if that is not known.
	RowBytes int64
	// Positions is how many the dataset has: all that Order knows are below it. Default: the rows of an epoch.
	Positions int64
	// Sources are the datasets of a job that reads several, in the place of Dataset, Positions and RowBytes. The positions
	// of its order are those of the first one, then those of the next one, and so on.
	Sources []Source
}

// Source is a dataset of those that a job reads. Several may be of the same number.
type Source struct {
	Dataset   uint32
	Positions int64 // that it has
	RowBytes  int64 // as in JobOptions
	// Rows is how many of the rows of an epoch are of the source, about.
	Rows int64
}

// reads is a dataset that a job reads, whose first position is base in the job's order.
type reads struct {
	Source
	base int64
}

// within is the order of a job, by the positions of one of its datasets.
type within struct {
	Order
	base int64
}

// Index implements [Order].
func (w within) Index(epoch, position int64) (int64, bool) {
	return w.Order.Index(epoch, w.base+position)
}

// Job is a job that runs.
type Job struct {
	opts JobOptions
	rows int64 // of an epoch
	end  int64 // served where the job ends
	of   []reads
	// repeats is the order, if an epoch may use a sample several times; else nil
	repeats Repeating

	served  atomic.Int64 // rows, from the beginning of the first epoch on
	rowTime atomic.Int64 // nanoseconds
	loose   atomic.Pointer[loose]

	pace pace
}

// Add adds a job that begins now. The error, a [schema.FieldError], says what is wrong with the options.
func (f *Future) Add(opts JobOptions, now Time) (*Job, error) {
	if opts.Order == nil {
		return nil, &schema.FieldError{Field: "order", Got: "none", Want: "the order of the job's epochs"}
	}
	rows := opts.Order.Rows()
	if rows < 0 || opts.Epochs < 0 || opts.At < 0 || opts.At > rows {
		return nil, &schema.FieldError{
			Field: "job", Want: "rows, epochs and a beginning of 0 or more, the beginning within the first epoch",
			Got: strconv.FormatInt(rows, 10) + " rows, " + strconv.FormatInt(opts.Epochs, 10) +
				" epochs, beginning at " + strconv.FormatInt(opts.At, 10),
		}
	}
	if opts.RowTime <= 0 {
		opts.RowTime = time.Millisecond
	}
	opts.RowBytes, opts.Positions = max(opts.RowBytes, 0), max(opts.Positions, rows)
	j := &Job{opts: opts, rows: rows, end: opts.Epochs * rows}
	j.repeats, _ = opts.Order.(Repeating)
	if opts.Sources == nil {
		j.of = []reads{{Source{opts.Dataset, opts.Positions, opts.RowBytes, rows}, 0}}
	}
	base := int64(0)
	for _, s := range opts.Sources {
		j.of = append(j.of, reads{s, base})
		base += s.Positions
	}
	if opts.Epochs == 0 || rows > 0 && j.end/rows != opts.Epochs {
		j.end = 1<<63 - 1
	}
	j.served.Store(opts.At)
	j.rowTime.Store(int64(opts.RowTime))
	j.pace.begin(opts.At, now, max(rows/4, minHorizon))
	f.mu.Lock()
	defer f.mu.Unlock()
	jobs := append(slices.Clone(f.list()), j)
	f.jobs.Store(&jobs)
	return j, nil
}

// Remove forgets a job, which has ended.
func (f *Future) Remove(j *Job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	jobs := slices.DeleteFunc(slices.Clone(f.list()), func(other *Job) bool { return other == j })
	if len(jobs) < len(f.list()) {
		f.gone.Add(j.served.Load() - j.opts.At)
	}
	f.jobs.Store(&jobs)
}

func (f *Future) list() []*Job {
	if p := f.jobs.Load(); p != nil {
		return *p
	}
	return nil
}

// Len is the number of jobs that run.
func (f *Future) Len() int { return len(f.list()) }

// JobState is where a job stands.
type JobState struct {
	Job       *Job          `json:"-"`
	Order     Order         `json:"-"` // of its epochs
	Dataset   uint32        `json:"dataset"`
	Positions int64         `json:"positions"` // of the dataset
	Rows      int64         `json:"rows"`      // of an epoch
	Served    int64         `json:"served"`    // rows, from the beginning of the first epoch on
	Left      int64         `json:"left"`      // rows until the job ends, -1 if that is not known
	RowTime   time.Duration `json:"row_time_ns"`
	RowBytes  int64         `json:"row_bytes"` // 0 if not known
}

// Jobs returns where the jobs stand that run, in the order in which they were added: a job on several datasets once for
// each.
func (f *Future) Jobs() []JobState {
	jobs := f.list()
	states := make([]JobState, 0, len(jobs))
	for _, j := range jobs {
		served := j.served.Load()
		left := int64(-1)
		if j.end != 1<<63-1 {
			left = max(j.end-served, 0)
		}
		for _, of := range j.of {
			order := j.opts.Order
			if of.base > 0 {
				order = within{order, of.base}
			}
			states = append(states, JobState{
				Job: j, Order: order, Dataset: of.Dataset, Positions: of.Positions,
				Rows: j.rows, Served: served, Left: left, RowTime: j.RowTime(), RowBytes: of.RowBytes,
			})
		}
	}
	return states
}

// NextUse implements [Oracle].
func (f *Future) NextUse(at Place, now Time) (next Time, ok bool) {
	for _, j := range f.list() {
		if rows, used := j.rowsUntil(at); used {
			// Far beyond any use in practice; rather late than negative.
			t := now + Time(min(float64(rows)*float64(j.rowTime.Load()), 1<<61))
			if !ok || t < next {
				next, ok = t, true
			}
		}
	}
	return next, ok
}

// pageSamples is at how many of a page's rows it is looked when they are used.
const pageSamples = 4

// rowsUntil is how many rows the job uses before it uses what is at a place; false if it will not.
func (j *Job) rowsUntil(at Place) (first int64, used bool) { return j.soonest(at, j.rowsUntilIn) }

// soonest is the least of what rows says of a place for each of the job's datasets that has it.
func (j *Job) soonest(at Place, rows func(at Place, base int64) (int64, bool)) (first int64, used bool) {
	for i := range j.of {
		if j.of[i].Dataset != at.Dataset {
			continue
		}
		if n, ok := rows(at, j.of[i].base); ok && (!used || n < first) {
			first, used = n, true
		}
	}
	return first, used
}

// rowsUntilIn is rowsUntil in a dataset whose first position is base in the job's order. Of a page it looks at pageSamples
// rows only, and takes the first use of them. In a random order the first use of all rows comes sooner, by the ratio of
// their numbers.
func (j *Job) rowsUntilIn(at Place, base int64) (first int64, used bool) {
	start, page := at.page()
	if !page {
		return j.RowsUntil(base + at.Position)
	}
	start += base
	for i := range int64(pageSamples) {
		if rows, ok := j.RowsUntil(start + i*schema.PageRows/pageSamples); ok && (!used || rows < first) {
			first, used = rows, true
		}
	}
	return first * (pageSamples + 1) / (schema.PageRows + 1), used
}

// Advance says how far the job is: the next row it uses is the one at an index of an epoch, counted from its first as
// 0. It should be called for each batch at least. A call that would move the job back is ignored, as calls may overtake
// each other.
func (j *Job) Advance(epoch, index int64, now Time) {
	served := epoch*j.rows + index
	for {
		old := j.served.Load()
		if served <= old {
			return
		}
		if j.served.CompareAndSwap(old, served) {
			j.loose.Load().forget(old, served)
			break
		}
	}
	if t := j.pace.observe(served, now); t > 0 {
		j.rowTime.Store(t)
	}
}

// RowsUntil returns how many rows the job uses before it uses the sample at a position; false if it will not, as
// far as is known. Of a job that is loose that is how many it uses before it may.
func (j *Job) RowsUntil(position int64) (int64, bool) {
	row, reach, ok := j.nextRow(position)
	return max(row-reach-j.served.Load(), 0), ok
}

// nextRow returns the row by which the job uses the sample at a position next, counted from the beginning of its first
// epoch, and by how many rows earlier it may.
func (j *Job) nextRow(position int64) (row, reach int64, ok bool) {
	if j.rows == 0 {
		return 0, 0, false
	}
	served := j.served.Load()
	if served >= j.end {
		return 0, 0, false
	}
	epoch := served / j.rows
	start := epoch * j.rows
	l := j.loose.Load()
	for from := served - start; ; {
		i, ok := j.next(epoch, position, from)
		if !ok {
			break
		}
		if !l.has(start+i, served) {
			return start + i, l.by(), true
		}
		from = i + 1
	}
	if start+j.rows >= j.end {
		return 0, 0, false
	}
	if i, ok := j.next(epoch+1, position, 0); ok {
		return start + j.rows + i, 0, true
	}
	return 0, 0, false
}

// next returns where in an epoch the job uses the sample at a position first, from an index on.
func (j *Job) next(epoch, position, from int64) (int64, bool) {
	if j.repeats != nil {
		return j.repeats.Next(epoch, position, from)
	}
	i, ok := j.opts.Order.Index(epoch, position)
	return i, ok && i >= from
}

// Served is how many rows it has used, counted from the beginning of its first epoch.
func (j *Job) Served() int64 { return j.served.Load() }

// End is how many it will have used when it ends, the greatest number there is if that is not known.
func (j *Job) End() int64 { return j.end }

// RowTime is the time a row takes, as seen of late.
func (j *Job) RowTime() time.Duration { return time.Duration(j.rowTime.Load()) }

// minHorizon is the least number of rows over which a pace is averaged, so that it does not follow what a read ahead
// does.
const minHorizon = 1024

// pace averages the time that a row takes over the last rows, older ones counting for less and less.
type pace struct {
	mu      sync.Mutex
	at      int64 // rows
	when    Time
	rows    float64
	time    float64
	horizon float64
}

func (p *pace) begin(at int64, now Time, horizon int64) {
	p.at, p.when, p.horizon = at, now, float64(horizon)
}

// observe returns the time of a row in nanoseconds, 0 if it is not known yet.
func (p *pace) observe(at int64, now Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at > p.at && now > p.when {
		p.rows += float64(at - p.at)
		p.time += float64(now - p.when)
		p.at, p.when = at, now
		if p.rows > 2*p.horizon {
			shrink := p.horizon / p.rows
			p.rows, p.time = p.rows*shrink, p.time*shrink
		}
	}
	if p.rows == 0 {
		return 0
	}
	return max(1, int64(p.time/p.rows))
}

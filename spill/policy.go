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

// Time is a time on the caller's clock, in nanoseconds. Policies read no clock, so that they can be replayed in
// virtual time.
type Time int64

// Place is where a blob occurs: a sample of a dataset. Dataset is the number of a snapshot (see [Cache.Dataset]); 0
// is for a blob without a known place. Tenant is the number of the tenant on whose account it is stored (see
// [Cache.Tenant]); 0 is on no account.
type Place struct {
	Dataset  uint32
	Tenant   uint16
	Position int64 // negative for a page of the manifest: see PageAt
	// Until protects a stored blob until its next use, if that comes by this time on the clock of [Future.Turn]: it
	// is not evicted for another blob with such a time. 0: it has none.
	Until float64
}

// PageAt is the place of the page of a dataset's manifest that begins at a position. It is used with each of its
// rows.
func PageAt(dataset uint32, start int64) Place { return Place{Dataset: dataset, Position: -1 - start} }

// IsPage reports whether a place is that of a page of a manifest.
func (p Place) IsPage() bool { return p.Position < 0 }

// page returns where the page of a place begins, if the place is that of a page.
func (p Place) page() (start int64, ok bool) { return -1 - p.Position, p.Position < 0 }

// Entry describes a blob to a policy.
type Entry struct {
	Place Place
	Size  int64         // bytes
	Cost  time.Duration // how long another read from the store would take
	Uses  uint32        // uses since it was stored, including the first
	Added Time          // when it was stored
	Used  Time          // when it was last used
	Spare bool          // a near node owns it and caches it too: see [Cache.SetSpare]
}

// Worth is the value of keeping a blob, for comparison with others at the same time. A blob with a planned use is
// worth more than any without. Among those with a planned use, a spare blob is worth less than one that only the
// store has: losing it costs a read from that node, not from the store. Then a blob that is used by its [Place.Until]
// is worth more than one that is not.
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

// Policy decides which blobs to keep. It has no list of blobs: it is given some and returns the worth of each.
// Implementations are safe for concurrent use.
type Policy interface {
	// Name is the policy's name.
	Name() string
	// Worth returns the worth of e at a time. The candidate with the least worth is evicted. The policy must not keep
	// e.
	Worth(e *Entry, now Time) Worth
	// Admit reports whether a new blob may replace the victim. Otherwise the new blob is not stored: it bypasses the
	// cache.
	Admit(newcomer, victim Worth) bool
}

// Oracle knows when blobs are used next.
type Oracle interface {
	// NextUse returns when the blob at a place is used next; false if no running job uses it.
	NextUse(at Place, now Time) (Time, bool)
}

// NextUse evicts the blob whose next use is last, and does not store a blob that would be used later than that:
// Belady's rule ("A study of replacement algorithms for a virtual-storage computer", 1966), applied to a sample of
// the blobs. A blob without a planned use is valued by [Score], below all with one.
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
	// keeps reports whether the blob at a place is used by its Until.
	keeps(at Place) bool
}

// Admit rejects a blob without a planned use if it would evict one that has. A protected blob does not replace
// another protected one, because then all protected blobs would be due at one time.
func (nextUse) Admit(newcomer, victim Worth) bool {
	if newcomer.Kept && victim.Kept && newcomer.Spare == victim.Spare {
		return false
	}
	if !newcomer.Planned && !victim.Planned {
		return score{}.Admit(newcomer, victim)
	}
	return victim.Less(newcomer)
}

// Score evicts the blob with the least cost × frequency ÷ (age × size), where frequency is the number of uses since
// it was stored and age the time since then: the hyperbolic priority of Blankstein, Sen and Freedman, "Hyperbolic
// caching: flexible caching for web applications", USENIX ATC 2017, in its form for unequal costs and sizes,
// evaluated lazily on a sample as there. A new blob has no age yet, and is always stored.
func Score() Policy { return score{} }

type score struct{}

func (score) Name() string { return "score" }

func (score) Worth(e *Entry, now Time) Worth {
	age := max(float64(now-e.Added), 1)
	// An empty blob still takes a slot, and a blob without cost still takes a request.
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

// Table holds the blobs that a [Chooser] samples. A slot holds one blob or none.
type Table interface {
	// Slots is the number of slots.
	Slots() int
	// Entry fills e with the blob of a slot, and reports whether there is one that may be evicted.
	Entry(slot int, e *Entry) bool
}

// Chooser picks the blob to evict: the least worth of some tens of candidates. Half of the candidates are drawn at
// random each time. The other half are the least worth of those seen before, evaluated again. So each choice costs
// the same, and is about as good as one among several times as many candidates, because blobs of little worth that
// were not evicted are remembered. (Redis has such a pool for its approximation of LRU.)
//
// It is not safe for concurrent use.
type Chooser struct {
	policy Policy
	rng    *rand.Rand
	pool   []choice // least worth first
	keep   int      // maximum length of pool
	fresh  int      // drawn at each choice
	entry  Entry    // scratch, to avoid an allocation per call
}

type choice struct {
	slot  int
	worth Worth
}

// DefaultCandidates is how many candidates a [Chooser] compares by default.
const DefaultCandidates = 64

// NewChooser returns a chooser that compares that many candidates each time; 0 is [DefaultCandidates].
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

// Victim returns the slot of the blob to evict next, and its worth; false if no blob was found that may be evicted.
// The blob stays a candidate until the table no longer offers it.
func (c *Chooser) Victim(t Table, now Time) (slot int, worth Worth, ok bool) {
	// Worths change with time and use, and slots get other blobs.
	known := c.pool
	c.pool = c.pool[:0]
	for _, old := range known {
		c.consider(t, old.slot, now)
	}
	n := t.Slots()
	// Draws of empty slots are bounded: a table that is mostly empty has nothing to evict.
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

// consider puts a slot's blob into the pool if it is among the least worth, and reports whether the slot has one.
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

// Order is the order in which a job uses the samples of a dataset, per epoch: a permutation with its inverse. It is
// safe for concurrent use, does not allocate, and its methods take constant time.
type Order interface {
	// Rows is the number of indexes of an epoch, the same for all epochs.
	Rows() int64
	// Index returns the index in an epoch, counted from the job's first as 0, at which the sample at a position is
	// used; false if it is not.
	Index(epoch, position int64) (index int64, ok bool)
}

// Repeating is an Order in which an epoch may use a sample several times.
type Repeating interface {
	Order
	// Next returns the first index from from on at which an epoch uses the sample at a position; false if there is
	// none.
	Next(epoch, position, from int64) (index int64, ok bool)
}

// Future knows the running jobs, and when any of them uses a sample next: from its place in the rest of the job's
// epoch, or else in the next epoch, and the job's measured pace. It stores no list of uses; an answer costs one or
// two inverses for each job on the dataset.
//
// It is an [Oracle], and safe for concurrent use.
type Future struct {
	mu   sync.Mutex             // held while jobs is changed
	jobs atomic.Pointer[[]*Job] // replaced, never changed
	gone atomic.Int64           // rows that removed jobs have used

	horizons horizons
}

// JobOptions describe a job to a [Future].
type JobOptions struct {
	// Dataset is the dataset of the job's positions, as in [Place].
	Dataset uint32
	// Order is the order of its epochs.
	Order Order
	// Epochs is the number of epochs; 0 if unknown. Then one more is assumed to follow.
	Epochs int64
	// At is the index in the first epoch at which the job begins.
	At int64
	// RowTime is the assumed time per sample until the pace is measured. Default: 1 ms.
	RowTime time.Duration
	// RowBytes is the mean size of a sample's blobs together; 0 if unknown.
	RowBytes int64
	// Positions is the number of positions of the dataset; all positions in Order are below it. Default: the rows of
	// an epoch.
	Positions int64
	// Sources are the datasets of a job on several, instead of Dataset, Positions and RowBytes. The positions of the
	// job's order are those of the first source, then of the next, and so on.
	Sources []Source
}

// Source is one dataset of a job. Several sources may have the same number.
type Source struct {
	Dataset   uint32
	Positions int64 // number of positions
	RowBytes  int64 // as in JobOptions
	// Rows is about how many rows of an epoch come from the source.
	Rows int64
}

// reads is a dataset of a job; base is its first position in the job's order.
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

// Job is a running job.
type Job struct {
	opts JobOptions
	rows int64 // per epoch
	end  int64 // value of served at the end of the job
	of   []reads
	// The order, if an epoch may use a sample several times; else nil.
	repeats Repeating

	served  atomic.Int64 // rows, since the beginning of the first epoch
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

// Remove removes a job that has ended.
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

// Len is the number of running jobs.
func (f *Future) Len() int { return len(f.list()) }

// JobState is the progress of a job.
type JobState struct {
	Job       *Job          `json:"-"`
	Order     Order         `json:"-"` // of its epochs
	Dataset   uint32        `json:"dataset"`
	Positions int64         `json:"positions"` // of the dataset
	Rows      int64         `json:"rows"`      // per epoch
	Served    int64         `json:"served"`    // rows, since the beginning of the first epoch
	Left      int64         `json:"left"`      // rows until the job ends, -1 if unknown
	RowTime   time.Duration `json:"row_time_ns"`
	RowBytes  int64         `json:"row_bytes"` // 0 if unknown
}

// Jobs returns the state of the running jobs, in the order in which they were added. A job on several datasets has
// one entry for each.
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
			// Later than any real use; the bound prevents an overflow.
			t := now + Time(min(float64(rows)*float64(j.rowTime.Load()), 1<<61))
			if !ok || t < next {
				next, ok = t, true
			}
		}
	}
	return next, ok
}

// pageSamples is how many rows of a page are looked up.
const pageSamples = 4

// rowsUntil is how many rows the job uses before it uses the blob at a place; false if it does not use it.
//
// A blob that was read together with others is ranked by its turn, for a loose job, too. Such a job may use all of them
// at once, but it begins rows in the plan's order: if all had the same rank, the cache would keep any of them, and the
// chunk would be read again for those whose turn comes first.
func (j *Job) rowsUntil(at Place) (first int64, used bool) {
	if at.Until > 0 {
		return j.soonest(at, j.rowsInTurn)
	}
	return j.soonest(at, j.RowsUntil)
}

// soonest is the minimum of rows over the job's datasets that the place may be in. For a page it looks up only
// pageSamples rows, and takes their first use. In a random order the first use of all rows is sooner, by the ratio of
// their numbers.
func (j *Job) soonest(at Place, rows func(position int64) (int64, bool)) (first int64, used bool) {
	least := func(position int64) {
		if n, ok := rows(position); ok && (!used || n < first) {
			first, used = n, true
		}
	}
	start, page := at.page()
	for i := range j.of {
		switch base := j.of[i].base; {
		case j.of[i].Dataset != at.Dataset:
		case page:
			for k := range int64(pageSamples) {
				least(base + start + k*schema.PageRows/pageSamples)
			}
		default:
			least(base + at.Position)
		}
	}
	if page {
		first = first * (pageSamples + 1) / (schema.PageRows + 1)
	}
	return first, used
}

// Advance sets the job's progress: the next row it uses is at an index of an epoch, counted from its first as 0. Call
// it at least once per batch. A call that would move the job back is ignored, because calls may overtake each other.
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

// RowsUntil returns how many rows the job uses before it uses the sample at a position; false if it is not known to
// use it. For a loose job it is the number before it may.
func (j *Job) RowsUntil(position int64) (int64, bool) {
	row, reach, ok := j.nextRow(position)
	return max(row-reach-j.served.Load(), 0), ok
}

// rowsInTurn is RowsUntil as if the job kept the plan's order.
func (j *Job) rowsInTurn(position int64) (int64, bool) {
	row, _, ok := j.nextRow(position)
	return max(row-j.served.Load(), 0), ok
}

// nextRow returns the row at which the job uses the sample at a position next, counted from the beginning of its
// first epoch, and by how many rows earlier it may use it.
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

// next returns the first index from from on at which the job uses the sample at a position in an epoch.
func (j *Job) next(epoch, position, from int64) (int64, bool) {
	if j.repeats != nil {
		return j.repeats.Next(epoch, position, from)
	}
	i, ok := j.opts.Order.Index(epoch, position)
	return i, ok && i >= from
}

// Served is how many rows the job has used, counted from the beginning of its first epoch.
func (j *Job) Served() int64 { return j.served.Load() }

// End is the value of Served at the end of the job; the largest int64 if unknown.
func (j *Job) End() int64 { return j.end }

// RowTime is the recent time per row.
func (j *Job) RowTime() time.Duration { return time.Duration(j.rowTime.Load()) }

// minHorizon is the smallest number of rows over which a pace is averaged, so that prefetching does not distort it.
const minHorizon = 1024

// pace is the moving average of the time per row.
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

// observe returns the time per row in nanoseconds, 0 if unknown.
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

// Package replay runs cache policies over mixes of jobs in virtual time, and compares them with the optimum.
//
// A [Trace] is the sequence of samples that a mix of jobs uses. It is replayed with a policy of package spill, with
// that package's own code for choosing a victim, or with the rule that knows the whole trace ([Trace.Optimum]). All
// samples have one size: with unequal ones the optimum cannot be computed (it is NP-hard).
package replay

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// Order is the order of a job's epochs, with its inverse.
type Order interface {
	spill.Order
	// Position returns the position of the sample at an index of an epoch.
	Position(epoch, index int64) int64
}

// Job is a job of a mix.
type Job struct {
	Dataset uint32  // from 1; jobs on one dataset share its samples
	Order   Order   // of its epochs
	Epochs  int64   // at least 1
	Speed   float64 // samples per second, more than 0
	Start   float64 // when it begins, in seconds
	Jitter  float64 // share, below 1, by which the time of a sample varies at random
}

// Trace is the sequence of samples that a mix of jobs uses.
type Trace struct {
	jobs   []Job
	uses   []use
	items  int           // distinct samples
	places []spill.Place // by item
}

// use is a use of a sample.
type use struct {
	at   spill.Time
	job  int32 // index in Trace.jobs
	item int32 // number of the sample, in the order of first uses
}

// maxUses is the maximum length of a trace: indexes of uses are int32.
const maxUses = math.MaxInt32

// NewTrace computes the trace of a mix. The seed determines the jitter. The error, a [schema.FieldError], says what
// is wrong with a job.
func NewTrace(jobs []Job, seed uint64) (*Trace, error) {
	var total int64
	for i, j := range jobs {
		bad := func(field, got, want string) error {
			return &schema.FieldError{Field: fmt.Sprintf("jobs[%d].%s", i, field), Got: got, Want: want}
		}
		float := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
		switch {
		case j.Order == nil:
			return nil, bad("order", "none", "the order of its epochs")
		case j.Epochs < 1:
			return nil, bad("epochs", strconv.FormatInt(j.Epochs, 10), "1 epoch or more")
		case !(j.Speed > 0 && j.Speed <= 1e9):
			return nil, bad("speed", float(j.Speed), "more than 0 samples a second, and at most 1e9")
		case !(j.Start >= 0 && j.Start <= 1e9):
			return nil, bad("start", float(j.Start), "0 to 1e9 seconds")
		case !(j.Jitter >= 0 && j.Jitter < 1):
			return nil, bad("jitter", float(j.Jitter), "a share from 0 to below 1")
		case j.Order.Rows() > (maxUses-total)/j.Epochs:
			return nil, bad("epochs", strconv.FormatInt(j.Epochs, 10),
				fmt.Sprintf("a trace of at most %d uses", maxUses))
		}
		total += j.Order.Rows() * j.Epochs
	}
	t := &Trace{jobs: jobs, uses: make([]use, 0, total)}
	// Jobs are merged by the times of their next uses.
	items := map[spill.Place]int32{}
	var next runners
	for i, j := range jobs {
		if j.Order.Rows() > 0 {
			next = append(next, runner{
				job: i, at: spill.Time(j.Start * 1e9),
				rng: rand.New(rand.NewPCG(seed, uint64(i))),
			})
		}
	}
	heap.Init(&next)
	for len(next) > 0 {
		r := &next[0]
		j := &jobs[r.job]
		rows := j.Order.Rows()
		at := spill.Place{Dataset: j.Dataset, Position: j.Order.Position(r.served/rows, r.served%rows)}
		item, ok := items[at]
		if !ok {
			item = int32(len(items))
			items[at] = item
			t.places = append(t.places, at)
		}
		t.uses = append(t.uses, use{r.at, int32(r.job), item})
		r.served++
		// The time per sample is uniform within the jitter.
		r.at += spill.Time(1e9 / j.Speed * (1 + j.Jitter*(2*r.rng.Float64()-1)))
		if r.served == j.Epochs*rows {
			heap.Pop(&next)
		} else {
			heap.Fix(&next, 0)
		}
	}
	t.items = len(items)
	return t, nil
}

// runner is the progress of a job.
type runner struct {
	job    int        // index in Trace.jobs
	served int64      // samples used so far
	at     spill.Time // time of the next use
	rng    *rand.Rand
}

// runners is a heap by time; ties are broken by number.
type runners []runner

func (r runners) Len() int { return len(r) }
func (r runners) Less(i, k int) bool {
	return r[i].at < r[k].at || r[i].at == r[k].at && r[i].job < r[k].job
}
func (r runners) Swap(i, k int) { r[i], r[k] = r[k], r[i] }
func (r *runners) Push(x any)   { *r = append(*r, x.(runner)) }
func (r *runners) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}

// Items is the number of distinct samples used.
func (t *Trace) Items() int { return t.items }

// Uses is the number of uses.
func (t *Trace) Uses() int { return len(t.uses) }

// Result is the outcome of a policy on a trace.
type Result struct {
	Uses int64 // of samples
	// First counts first uses of samples, which no cache that is filled by use can have.
	First    int64
	Hits     int64 // samples found in the cache
	Stored   int64 // samples stored in the cache
	Bypassed int64 // samples not stored after a miss
	Evicted  int64
}

// HitRate is the share of hits in the uses, not counting first uses.
func (r Result) HitRate() float64 {
	if r.Uses == r.First {
		return 0
	}
	return float64(r.Hits) / float64(r.Uses-r.First)
}

// Options configure a replay.
type Options struct {
	Capacity   int    // samples that the cache holds
	Candidates int    // compared at each eviction; 0: spill.DefaultCandidates
	Seed       uint64 // of the sampling of candidates
}

// Run replays the trace with a policy. An oracle knows the running jobs from when each begins, with its order, number
// of epochs and progress; it has to measure their speeds.
func (t *Trace) Run(policy string, opts Options) (Result, error) {
	future := &spill.Future{}
	p, err := ParsePolicy(policy, future)
	if err != nil {
		return Result{}, err
	}
	c := &cache{
		slots:   make([]spill.Entry, 0, opts.Capacity),
		items:   make([]int32, 0, opts.Capacity),
		slotOf:  make([]int32, t.items),
		chooser: spill.NewChooser(p, opts.Candidates, opts.Seed),
	}
	for i := range c.slotOf {
		c.slotOf[i] = -1
	}
	r := Result{Uses: int64(len(t.uses)), First: int64(t.items)}
	running := make([]*spill.Job, len(t.jobs))
	served := make([]int64, len(t.jobs))
	for _, u := range t.uses {
		j := &t.jobs[u.job]
		if running[u.job] == nil {
			running[u.job], err = future.Add(spill.JobOptions{Dataset: j.Dataset, Order: j.Order, Epochs: j.Epochs},
				u.at)
			if err != nil {
				return Result{}, err
			}
		}
		rows := j.Order.Rows()
		served[u.job]++
		running[u.job].Advance(served[u.job]/rows, served[u.job]%rows, u.at)
		if served[u.job] == j.Epochs*rows {
			future.Remove(running[u.job])
		}

		if slot := c.slotOf[u.item]; slot >= 0 {
			r.Hits++
			c.slots[slot].Uses++
			c.slots[slot].Used = u.at
			continue
		}
		if opts.Capacity == 0 {
			r.Bypassed++
			continue
		}
		e := spill.Entry{Place: t.places[u.item], Size: 1, Cost: time.Millisecond, Uses: 1, Added: u.at, Used: u.at}
		slot := len(c.slots)
		if slot == opts.Capacity {
			victim, worth, _ := c.chooser.Victim(c, u.at)
			if !p.Admit(p.Worth(&e, u.at), worth) {
				r.Bypassed++
				continue
			}
			// The new sample replaces the victim.
			slot = victim
			c.slotOf[c.items[slot]] = -1
			r.Evicted++
		} else {
			c.slots = append(c.slots, spill.Entry{})
			c.items = append(c.items, 0)
		}
		c.slots[slot], c.items[slot], c.slotOf[u.item] = e, u.item, int32(slot)
		r.Stored++
	}
	return r, nil
}

// cache is the simulated cache.
type cache struct {
	slots   []spill.Entry
	items   []int32 // by slot
	slotOf  []int32 // by item, -1 if it is not cached
	chooser *spill.Chooser
}

// Slots implements spill.Table.
func (c *cache) Slots() int { return len(c.slots) }

// Entry implements spill.Table.
func (c *cache) Entry(slot int, e *spill.Entry) bool {
	*e = c.slots[slot]
	return true
}

// Optimum replays the trace with the rule that no other can beat: on a miss, of the cached samples and the missed
// one, the one whose next use in the whole trace is last is not kept. That is Belady's MIN for caches that need not
// store a sample ("A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966).
func (t *Trace) Optimum(capacity int) Result {
	return t.OptimumFrom(math.MinInt64, capacity, capacity)
}

// OptimumFrom is Optimum for the part of the trace from a time on, if the capacity of the cache changes then. The
// cache begins with what the rule has kept until then, as far as there is room. The result counts only that part;
// First counts uses in it of samples that were not used before in the whole trace.
func (t *Trace) OptimumFrom(at spill.Time, before, after int) Result {
	const never = int32(1<<31 - 1)
	next := make([]int32, len(t.uses)) // by use, the index of the next use of its sample
	// Backwards, last is the next use of each sample.
	last := make([]int32, t.items)
	for i := range last {
		last[i] = never
	}
	for i := len(t.uses) - 1; i >= 0; i-- {
		item := t.uses[i].item
		next[i] = last[item]
		last[item] = int32(i)
	}
	// last now holds the first use of each sample.

	var r Result
	var latest byNext
	cached := make([]int32, t.items) // next use of a cached sample, 0 if it is not cached
	held, capacity, counts := 0, before, false
	// farthest returns the latest next use of all cached samples, and moves it to the top.
	farthest := func() int32 {
		// An entry is outdated if its next use is not the sample's: the sample was used in the meantime.
		for cached[latest[0].item] != latest[0].next {
			heap.Pop(&latest)
		}
		return latest[0].next
	}
	evict := func() {
		cached[latest[0].item] = 0
		heap.Pop(&latest)
		held--
		r.Evicted++
	}
	for i, u := range t.uses {
		if !counts && u.at >= at {
			r, counts, capacity = Result{}, true, after
			for held > capacity {
				farthest()
				evict()
			}
		}
		r.Uses++
		if last[u.item] == int32(i) {
			r.First++
		}
		switch {
		case cached[u.item] != 0:
			r.Hits++
		case capacity == 0:
			r.Bypassed++
			continue
		case held == capacity:
			if farthest() <= next[i] {
				r.Bypassed++
				continue
			}
			evict()
			fallthrough
		default:
			held++
			r.Stored++
		}
		cached[u.item] = next[i]
		heap.Push(&latest, reuse{next[i], u.item})
	}
	if !counts {
		return Result{}
	}
	return r
}

// reuse is a cached sample with its next use.
type reuse struct{ next, item int32 }

// byNext is a heap with the latest next use on top.
type byNext []reuse

func (h byNext) Len() int           { return len(h) }
func (h byNext) Less(i, k int) bool { return h[i].next > h[k].next }
func (h byNext) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }
func (h *byNext) Push(x any)        { *h = append(*h, x.(reuse)) }
func (h *byNext) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

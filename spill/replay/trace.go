package replay

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

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
	Dataset uint32  // from 1 on; jobs on one dataset share its samples
	Order   Order   // of its epochs
	Epochs  int64   // how many, at least 1
	Speed   float64 // samples it uses in a second, more than 0
	Start   float64 // when it begins, in seconds
	Jitter  float64 // share, below 1, by which the time of a sample is longer or shorter by chance
}

// Trace is what a mix of jobs asks for.
type Trace struct {
	jobs   []Job
	uses   []use
	items  int // different samples
	places []spill.Place
}

type use struct {
	at   spill.Time
	job  int32
	item int32
}

const maxUses = math.MaxInt32

// NewTrace computes the trace of a mix. Its randomness, that of jitter, follows from the seed. The error, a
// [schema.FieldError], says what is wrong with a job.
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

// runner is where a job is.
type runner struct {
	job    int
	served int64
	at     spill.Time
	rng    *rand.Rand
}

// runners is a heap by time, ties by number.
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

// Items is the number of different samples used.
func (t *Trace) Items() int { return t.items }

// Uses is the number of uses.
func (t *Trace) Uses() int { return len(t.uses) }

// Result is what a policy made of a trace.
type Result struct {
	Uses int64 // of samples
	// of samples that had not been used before: those nobody can have in a cache that is filled by what is used
	First    int64
	Hits     int64
	Stored   int64 // samples written to the cache
	Bypassed int64 // samples not stored after a miss
	Evicted  int64
}

// HitRate is the share of hits in the uses but the first ones.
func (r Result) HitRate() float64 {
	if r.Uses == r.First {
		return 0
	}
	return float64(r.Hits) / float64(r.Uses-r.First)
}

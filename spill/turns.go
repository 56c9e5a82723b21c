package spill

import "sync"

// Turn is the clock of [Place.Until]: how many rows all jobs together have used. It stops while the jobs do. Rows of
// removed jobs still count. So a blob to be kept for a number of rows is kept for them, however long they take.
func (f *Future) Turn() float64 {
	turn := float64(f.gone.Load())
	for _, j := range f.list() {
		turn += float64(j.served.Load() - j.opts.At)
	}
	return turn
}

// NextTurn is the turn at which the blob at a place is used next, if jobs keep the plan's order; false if no running
// job uses it. A use within the next soon turns counts as being made now, and the use after it is returned.
func (f *Future) NextTurn(at Place, soon float64) (turn float64, ok bool) {
	jobs := f.list()
	all := rowRate(jobs)
	for _, j := range jobs {
		each := all * float64(j.rowTime.Load()) // turns per row of the job
		rows, used := j.soonest(at, j.rowsInTurn)
		if used && float64(rows)*each < soon && !at.IsPage() {
			rows, used = j.soonest(at, j.rowsUntilAgain)
		}
		if !used {
			continue
		}
		if t := float64(rows) * each; !ok || t < turn {
			turn, ok = t, true
		}
	}
	return f.Turn() + turn, ok
}

// rowRate is how many rows all jobs together use per nanosecond.
func rowRate(jobs []*Job) (rate float64) {
	for _, j := range jobs {
		rate += 1 / float64(j.rowTime.Load())
	}
	return rate
}

// keeps implements turns.
func (f *Future) keeps(at Place) bool {
	turn, ok := f.NextTurn(at, 0)
	return ok && turn <= at.Until
}

// rowsUntilAgain is how many rows the job uses before it uses the sample at a position for the second time.
func (j *Job) rowsUntilAgain(position int64) (int64, bool) {
	row, _, ok := j.nextRow(position)
	if !ok {
		return 0, false
	}
	served := j.served.Load()
	epoch, index := row/j.rows, row%j.rows
	if j.repeats != nil {
		if i, ok := j.repeats.Next(epoch, position, index+1); ok {
			return max(epoch*j.rows+i-served, 0), true
		}
	}
	if epoch++; epoch*j.rows >= j.end {
		return 0, false
	}
	i, ok := j.next(epoch, position, 0)
	return max(epoch*j.rows+i-served, 0), ok
}

// Horizon is for how many turns to keep blobs of chunks so that a cache of bytes bytes is full, if chunks are read
// one by one, each when a blob of it is missing: half way through its time, a chunk has half of its blobs in the
// cache. It is 0 if all jobs together use less than bytes.
//
// The result is cached until jobs come or go, or have used a small part of it.
func (f *Future) Horizon(bytes int64) float64 {
	jobs, turn := f.jobs.Load(), f.Turn()
	h := &f.horizons
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.jobs != jobs {
		h.jobs = jobs
		clear(h.known)
	}
	if k, ok := h.known[bytes]; ok && turn-k.turn <= k.value*horizonSlack {
		return k.value
	}
	if len(h.known) >= maxHorizons || h.known == nil {
		h.known = map[int64]horizon{}
	}
	value := f.horizon(bytes)
	h.known[bytes] = horizon{turn, value}
	return value
}

const (
	// horizonSlack is the part of a horizon after which it is computed anew, and maxHorizons how many are cached.
	horizonSlack = 1.0 / 256
	maxHorizons  = 8
)

// horizons caches results of [Future.Horizon] for the running jobs.
type horizons struct {
	mu    sync.Mutex
	jobs  *[]*Job           // guarded by mu
	known map[int64]horizon // by bytes; guarded by mu
}

// horizon is a cached result, with the turn at which it was computed.
type horizon struct{ turn, value float64 }

// horizon computes Horizon by bisection of the mean size of the cached blobs.
func (f *Future) horizon(bytes int64) float64 {
	jobs := f.list()
	all := rowRate(jobs)
	type dataset struct {
		bytes float64
		per   []float64 // shares of the dataset that jobs use per turn
	}
	sets := map[uint32]*dataset{}
	longest, total := 0.0, 0.0
	for _, j := range jobs {
		if j.rows == 0 || j.served.Load() >= j.end {
			continue
		}
		turns := float64(j.rows) * all * float64(j.rowTime.Load()) // per epoch
		longest = max(longest, turns)
		for _, of := range j.of {
			d := sets[of.Dataset]
			if d == nil {
				d = &dataset{}
				sets[of.Dataset] = d
			}
			rows := min(of.Rows, of.Positions) // a sample may be used several times in an epoch
			d.bytes = max(d.bytes, float64(of.RowBytes)*float64(rows))
			d.per = append(d.per, float64(of.Rows)/float64(max(rows, 1))/turns)
		}
	}
	for _, d := range sets {
		total += d.bytes
	}
	if total <= float64(bytes) {
		return 0
	}
	// kept is the mean size of what is cached if blobs are kept for h turns: the integral, over that time, of what
	// has been used by then.
	kept := func(h float64) (sum float64) {
		const steps = 32
		for i := range steps {
			x := h * (float64(i) + 0.5) / steps
			for _, d := range sets {
				// unused is the share of the dataset that no job has used after x turns,
				// if the jobs' orders are independent.
				unused := 1.0
				for _, p := range d.per {
					unused *= max(1-p*x, 0)
				}
				sum += d.bytes * (1 - unused)
			}
		}
		return sum / steps
	}
	// kept grows with h: double the upper bound until it is enough, then bisect to a
	// relative precision of 2^-24.
	low, high := 0.0, longest
	for kept(high) < float64(bytes) && high < 64*longest {
		low, high = high, 2*high
	}
	for range 24 {
		if mid := (low + high) / 2; kept(mid) < float64(bytes) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

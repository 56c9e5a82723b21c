package scale

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"bowstring/spill"
	"bowstring/spill/replay"
)

const (
	maxSamples = 2000    // over all datasets
	minSamples = 200     // lower bound, however many jobs there are
	maxUses    = 1 << 14 // about how many uses, so that a forecast takes some 20 ms
	maxDraws   = 1 << 14 // draws of positions per dataset
	maxEpochs  = 8       // per job, from the current one on
)

// forecast is the future use of samples by the running jobs, scaled down.
type forecast struct {
	trace *replay.Trace
	now   spill.Time // on the trace's clock
	unit  float64    // bytes that a sample represents
	rates map[[2]int]float64
}

// rate returns the share of hits, in bytes, from now on, if the cache had the size before until now and has the size
// after from now on.
func (f *forecast) rate(before, after int64) float64 {
	sizes := [2]int{f.samples(before), f.samples(after)}
	rate, known := f.rates[sizes]
	if !known {
		if r := f.trace.OptimumFrom(f.now, sizes[0], sizes[1]); r.Uses > 0 {
			rate = float64(r.Hits) / float64(r.Uses)
		}
		f.rates[sizes] = rate
	}
	return rate
}

// samples is how many samples of the trace fit into a cache of that many bytes.
func (f *forecast) samples(bytes int64) int {
	return int(min(float64(bytes)/f.unit, float64(f.trace.Items())))
}

// run is the part of a job in the trace.
type run struct {
	spill.JobState
	epoch      int64   // the current one
	first, end int64   // epochs in the trace
	time       float64 // seconds per epoch
}

// newForecast returns nil if no future use is known. rowBytes is the assumed size of rows whose job does not know it;
// 0 leaves those jobs out.
func newForecast(jobs []spill.JobState, rowBytes int64) (*forecast, error) {
	var runs []run
	longest := 0.0
	for _, j := range jobs {
		if j.RowBytes == 0 {
			j.RowBytes = rowBytes
		}
		if j.Rows == 0 || j.Left == 0 || j.RowBytes == 0 {
			continue
		}
		r := run{JobState: j, epoch: j.Served / j.Rows, time: float64(j.Rows) * j.RowTime.Seconds()}
		// One past epoch fills the simulated cache.
		r.first = max(r.epoch-1, 0)
		longest = max(longest, r.time)
		runs = append(runs, r)
	}
	var epochs int64
	for i := range runs {
		r := &runs[i]
		// Until the slowest job has finished two more epochs. For a job without a known end, one more epoch is
		// assumed.
		r.end = r.epoch + 1 + int64(min(max(math.Ceil(2*longest/r.time), 2), maxEpochs-1))
		if r.Left < 0 {
			r.end = r.epoch + 2
		} else {
			r.end = min(r.end, (r.Served+r.Left+r.Rows-1)/r.Rows)
		}
		epochs += r.end - r.first
	}
	if len(runs) == 0 {
		return nil, nil
	}
	// Uses are positions times epochs.
	positions, unit := draw(runs, min(max(int(maxUses/epochs), minSamples), maxSamples))
	var mix []replay.Job
	var past []float64
	for _, r := range runs {
		o := scaledDown(&r, positions[r.Dataset])
		if o.rows == 0 {
			continue
		}
		// The longest epoch takes 1000 s: only ratios of times matter.
		epoch := max(r.time/longest*1000, 1e-5)
		mix = append(mix, replay.Job{Dataset: r.Dataset, Order: o, Epochs: r.end - r.first,
			Speed: float64(o.rows) / epoch})
		past = append(past, (float64(r.Served)/float64(r.Rows)-float64(r.first))*epoch)
	}
	if len(mix) == 0 {
		return nil, nil
	}
	// Jobs begin so that all reach their present state at the same time, now.
	now := slices.Max(past)
	for i := range mix {
		mix[i].Start = now - past[i]
	}
	trace, err := replay.NewTrace(mix, 0)
	if err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	return &forecast{trace: trace, now: spill.Time(now * 1e9), unit: unit, rates: map[[2]int]float64{}}, nil
}

// draw samples positions of each dataset in use, in proportion to its bytes, and returns them with the bytes that
// each represents. It is deterministic.
func draw(runs []run, samples int) (drawn map[uint32][]int64, unit float64) {
	drawn, bytes, total := map[uint32][]int64{}, map[uint32]float64{}, 0.0
	for _, r := range runs {
		if _, done := drawn[r.Dataset]; done {
			continue
		}
		// All jobs on the dataset, its number of positions, and the size of a row.
		var sharing []run
		var all, rowBytes int64
		for _, o := range runs {
			if o.Dataset == r.Dataset {
				sharing = append(sharing, o)
				all, rowBytes = max(all, o.Positions), max(rowBytes, o.RowBytes)
			}
		}
		var used []int64
		tried := 0
		for p := range someOf(all, uint64(r.Dataset)) {
			tried++
			// Only positions that a job uses in its current epoch count.
			if slices.ContainsFunc(sharing, func(o run) bool { _, ok := o.Order.Index(o.epoch, p); return ok }) {
				used = append(used, p)
			}
			if len(used) == samples {
				break
			}
		}
		drawn[r.Dataset] = used
		if len(used) > 0 {
			// The share of used positions is estimated from the tried ones.
			bytes[r.Dataset] = float64(all) * float64(len(used)) / float64(tried) * float64(rowBytes)
			total += bytes[r.Dataset]
			unit = max(unit, bytes[r.Dataset]/float64(len(used)))
		}
	}
	// All samples represent the same number of bytes, because the simulated cache counts
	// samples.
	unit = max(unit, total/float64(samples))
	for d, used := range drawn {
		drawn[d] = used[:min(int(math.Round(bytes[d]/unit)), len(used))]
	}
	return drawn, unit
}

// someOf yields distinct numbers below n in random order: all of them, or maxDraws.
func someOf(n int64, seed uint64) func(func(int64) bool) {
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(yield func(int64) bool) {
		if n <= maxDraws {
			for _, p := range rng.Perm(int(n)) {
				if !yield(int64(p)) {
					return
				}
			}
			return
		}
		seen := make(map[int64]bool, maxDraws)
		for len(seen) < maxDraws {
			p := rng.Int64N(n)
			if !seen[p] && !yield(p) {
				return
			}
			seen[p] = true
		}
	}
}

// order is the order of a job's epochs over the sampled positions. It is a replay.Order.
type order struct {
	rows   int64
	epochs [][]int64 // positions
}

// scaledDown returns the order in which a job uses the positions.
func scaledDown(r *run, positions []int64) *order {
	type use struct{ index, position int64 }
	uses := make([]use, 0, len(positions))
	o := &order{rows: int64(len(positions))}
	for epoch := r.first; epoch < r.end; epoch++ {
		uses = uses[:0]
		for _, p := range positions {
			if i, ok := r.Order.Index(epoch, p); ok {
				uses = append(uses, use{i, p})
			}
		}
		slices.SortFunc(uses, func(a, b use) int { return cmp.Compare(a.index, b.index) })
		at := make([]int64, len(uses))
		for i, u := range uses {
			at[i] = u.position
		}
		o.epochs = append(o.epochs, at)
		// The rows that an epoch drops differ between epochs, by less than a batch.
		o.rows = min(o.rows, int64(len(at)))
	}
	return o
}

// Rows implements replay.Order.
func (o *order) Rows() int64 { return o.rows }

// Position implements replay.Order.
func (o *order) Position(epoch, index int64) int64 { return o.epochs[epoch][index] }

// Index implements replay.Order. The optimum does not call it.
func (o *order) Index(epoch, position int64) (int64, bool) {
	i := int64(slices.Index(o.epochs[epoch][:o.rows], position))
	return i, i >= 0
}

// forecaster caches the last forecast while the jobs' progress is about the same.
type forecaster struct {
	of   string // key of the last forecast: progress in eighths of an epoch, pace, size of rows
	last *forecast
	made int // number of forecasts computed
}

// get returns the forecast for the jobs; nil if no future use is known.
func (f *forecaster) get(jobs []spill.JobState, rowBytes int64) (*forecast, error) {
	of := fmt.Appendf(nil, "%d", about(float64(rowBytes)))
	for _, j := range jobs {
		eighths := int64(0)
		if j.Rows > 0 {
			eighths = int64(8 * float64(j.Served) / float64(j.Rows))
		}
		of = fmt.Appendf(of, " %p,%d,%d,%t", j.Job, eighths, about(float64(j.RowTime)), j.Left == 0)
	}
	if f.made > 0 && f.of == string(of) {
		return f.last, nil
	}
	made, err := newForecast(jobs, rowBytes)
	if err != nil {
		return nil, err
	}
	f.of, f.last = string(of), made
	f.made++
	return made, nil
}

// about maps numbers within some 20 % of each other mostly to the same number.
func about(v float64) int64 { return int64(math.Round(2 * math.Log2(max(v, 1)))) }

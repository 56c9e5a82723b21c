package scale

import (
	"math"
	"slices"
	"testing"
	"time"

	"bowstring/spill"
)

// state is a job with a number of epochs (0: unknown) that has served some share of them, 1.5 for one and a half.
func state(o spill.Order, positions int64, epochs, served float64) spill.JobState {
	rows := float64(o.Rows())
	j := spill.JobState{
		Order: o, Dataset: 1, Positions: positions, Rows: o.Rows(), Served: int64(served * rows), Left: -1,
		RowTime: time.Millisecond, RowBytes: 1000,
	}
	if epochs > 0 {
		j.Left = int64(epochs*rows) - j.Served
	}
	return j
}

func mustForecast(t *testing.T, jobs ...spill.JobState) *forecast {
	t.Helper()
	f, err := newForecast(jobs, 0)
	if err != nil || f == nil {
		t.Fatal(f, err)
	}
	return f
}

func requireAbout(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.04 {
		t.Errorf("%s: %.3f, want about %.3f", what, got, want)
	}
}

// TestForecastOfOneJob: a job that reshuffles hits what is kept over the end of an epoch, which is the share of the
// data that is cached.
func TestForecastOfOneJob(t *testing.T) {
	r := testRand(t)
	const n = 30_000
	o := newShuffled(r, span(0, n), 6)
	f := mustForecast(t, state(o, n, 6, 2))
	for _, share := range []float64{0, 0.1, 0.25, 0.5, 0.75, 1, 2} {
		size := int64(share * n * 1000)
		requireAbout(t, "hits", f.rate(size, size), min(share, 1))
	}
	if size := int64(n * 1000); f.samples(size) != maxSamples || f.rate(0, size) >= f.rate(size, size) {
		t.Errorf("%d samples, %.3f from nothing on, %.3f with all there", f.samples(size), f.rate(0, size),
			f.rate(size, size))
	}

	// In its last epoch it uses nothing twice: what is there is hit, and more room gains nothing.
	f = mustForecast(t, state(o, n, 3, 2))
	half := int64(n * 1000 / 2)
	requireAbout(t, "hits in the last epoch", f.rate(half, half), 0.5)
	if f.rate(half, 2*half) != f.rate(half, half) || f.rate(half, half/2) >= f.rate(half, half) {
		t.Errorf("in the last epoch %.3f, with more %.3f, with less %.3f", f.rate(half, half), f.rate(half, 2*half),
			f.rate(half, half/2))
	}
	// And they are hit first: the second half of an epoch fetches what the next one begins with.
	f = mustForecast(t, state(o, n, 3, 2.5))
	requireAbout(t, "hits in the second half of the last epoch", f.rate(half, half), 0)

	// If it does not say that this is the last, it is not.
	f = mustForecast(t, state(o, n, 0, 2.5))
	if f.rate(half, 2*half) < f.rate(half, half)+0.1 {
		t.Errorf("in an epoch that may be followed by another %.3f, with more %.3f", f.rate(half, half),
			f.rate(half, 2*half))
	}
}

// TestForecastOfJobsThatShare: what one job has used, another that comes after it hits.
func TestForecastOfJobsThatShare(t *testing.T) {
	r := testRand(t)
	const n = 10_000
	o, other := newShuffled(r, span(0, n), 8), newShuffled(r, span(0, n), 8)
	tenth := int64(n * 1000 / 10)
	behind := mustForecast(t, state(o, n, 8, 2.05), state(o, n, 8, 2))
	requireAbout(t, "a job close behind one of the same plan", behind.rate(tenth, tenth), 0.5*1+0.5*0.05)
	apart := mustForecast(t, state(o, n, 8, 2), state(other, n, 8, 2))
	alone := mustForecast(t, state(o, n, 8, 2))
	if a, b, c := behind.rate(tenth, tenth), apart.rate(tenth, tenth), alone.rate(tenth, tenth); a <= b || b <= c {
		t.Errorf("close behind %.3f, of another seed %.3f, alone %.3f", a, b, c)
	}

	// Two splits do not benefit from each other, and together they are as large as the whole.
	low, high := newShuffled(r, span(0, n/2), 8), newShuffled(r, span(n/2, n), 8)
	apart = mustForecast(t, state(low, n, 8, 2), state(high, n, 8, 2))
	requireAbout(t, "two splits", apart.rate(tenth, tenth), 0.1)
	both := mustForecast(t, state(low, n, 8, 2), state(low, n, 8, 2))
	requireAbout(t, "two jobs in step on half of the data", both.rate(2*tenth, 2*tenth), 0.5+0.5*0.4)
}

// TestForecastCountsBytes: a dataset of small rows takes little of the cache, and little part in the rate.
func TestForecastCountsBytes(t *testing.T) {
	r := testRand(t)
	big := state(newShuffled(r, span(0, 5000), 8), 5000, 8, 2)
	small := state(newShuffled(r, span(0, 5000), 8), 5000, 8, 2)
	small.Dataset, small.RowBytes = 2, 250
	f := mustForecast(t, big, small)
	if total := f.unit * float64(f.trace.Items()); math.Abs(total-5000*1250) > 0.02*5000*1250 {
		t.Errorf("the forecast is of %.0f bytes, want %d", total, 5000*1250)
	}
	requireAbout(t, "half of all", f.rate(5000*1250/2, 5000*1250/2), 0.5)

	// A row of unknown size counts with the mean size of the blobs in the cache.
	unknown := big
	unknown.RowBytes = 0
	if f, err := newForecast([]spill.JobState{unknown}, 0); f != nil || err != nil {
		t.Errorf("a forecast of unknown bytes: %v, %v", f, err)
	}
	f, err := newForecast([]spill.JobState{unknown}, 1000)
	if err != nil || f == nil {
		t.Fatal(f, err)
	}
	requireAbout(t, "half of all", f.rate(2_500_000, 2_500_000), 0.5)
}

// TestForecastOfSmallSelection: a job uses some of very many positions.
func TestForecastOfSmallSelection(t *testing.T) {
	r := testRand(t)
	const n = 1_000_000
	positions := make([]int64, 0, n/100)
	for p := r.Int64N(100); p < n; p += 100 {
		positions = append(positions, p)
	}
	f := mustForecast(t, state(newShuffled(r, positions, 4), n, 4, 1.5))
	if total := f.unit * float64(f.trace.Items()); total < 0.6*1e7 || total > 1.4*1e7 {
		t.Errorf("the forecast is of %.0f bytes, want about 1e7", total)
	}
}

// TestForecastOfAnything draws jobs at random: rates are shares, and more room is never worse.
func TestForecastOfAnything(t *testing.T) {
	r := testRand(t)
	for range 60 {
		var jobs []spill.JobState
		total := int64(0)
		for range 1 + r.IntN(12) {
			n := 1 + r.Int64N(3000)
			from := r.Int64N(n)
			epochs := 1 + r.IntN(9)
			j := state(newShuffled(r, span(from, n), epochs), n, float64(epochs), r.Float64()*float64(epochs))
			j.Dataset = 1 + r.Uint32N(3)
			j.RowBytes = 1 + r.Int64N(1000)
			j.RowTime = time.Duration(math.Exp(30 * r.Float64()))
			if r.IntN(3) == 0 {
				j.Left = -1
			}
			jobs = append(jobs, j)
			total += n * 1000
		}
		f, err := newForecast(jobs, 0)
		if err != nil {
			t.Fatalf("%+v: %v", jobs, err)
		}
		if f == nil {
			continue // all have ended
		}
		if f.trace.Uses() > 2*maxUses || f.trace.Items() > maxSamples+3 { // each dataset's share is rounded
			t.Errorf("a trace of %d uses of %d samples", f.trace.Uses(), f.trace.Items())
		}
		before := r.Int64N(total)
		sizes := []int64{0, r.Int64N(total), r.Int64N(total), r.Int64N(total), 1 << 62}
		slices.Sort(sizes)
		last := 0.0
		for _, size := range sizes {
			rate := f.rate(before, size)
			if rate < last || rate > 1 {
				t.Errorf("hits of %.3f with %d bytes, of %.3f with less", rate, size, last)
			}
			last = rate
		}
	}
}

func TestForecastIsKept(t *testing.T) {
	r := testRand(t)
	j := state(newShuffled(r, span(0, 1000), 4), 1000, 4, 1.5)
	j.Job = &spill.Job{}
	var f forecaster
	get := func(j spill.JobState) int {
		t.Helper()
		if _, err := f.get([]spill.JobState{j}, 0); err != nil {
			t.Fatal(err)
		}
		return f.made
	}
	first := get(j)
	j.Served += 3
	if n := get(j); n != first {
		t.Error("the forecast was made again, though nothing has changed much")
	}
	j.Served += 300
	if n := get(j); n != first+1 {
		t.Error("the forecast was not made again, though the job has moved on")
	}
	j.RowTime *= 4
	if n := get(j); n != first+2 {
		t.Error("the forecast was not made again, though the job has become slower")
	}
	if _, err := f.get(nil, 0); err != nil || f.last != nil {
		t.Error("a forecast without jobs")
	}
}

func BenchmarkForecast(b *testing.B) {
	r := testRand(b)
	const n = 1 << 17
	var jobs []spill.JobState
	for i := range 4 {
		j := state(newShuffled(r, span(0, n), 5), n, 5, 1.1+0.4*float64(i))
		j.RowTime = time.Duration(i+1) * time.Millisecond
		jobs = append(jobs, j)
	}
	for b.Loop() {
		f, err := newForecast(jobs, 0)
		if err != nil {
			b.Fatal(err)
		}
		f.rate(n*100, n*100)
		f.rate(n*100, n*200)
	}
}

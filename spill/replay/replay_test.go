package replay

import (
	"container/list"
	"fmt"
	"math"
	"testing"

	"bowstring/spill"
)

// exhaustive is the most hits that any sequence of decisions gets, by trying all: at each miss to bypass, to
// store where there is room, or to store in the place of any one.
func exhaustive(t *Trace, capacity int) int64 {
	best := map[uint32]int64{0: 0} // by what is in the cache
	for _, u := range t.uses {
		next := map[uint32]int64{}
		offer := func(set uint32, hits int64) {
			if old, ok := next[set]; !ok || hits > old {
				next[set] = hits
			}
		}
		for set, hits := range best {
			bit := uint32(1) << u.item
			if set&bit != 0 {
				offer(set, hits+1)
				continue
			}
			offer(set, hits)
			held := 0
			for i := range t.items {
				if set&(1<<i) != 0 {
					held++
					offer(set&^(1<<i)|bit, hits)
				}
			}
			if held < capacity {
				offer(set|bit, hits)
			}
		}
		best = next
	}
	var most int64
	for _, hits := range best {
		most = max(most, hits)
	}
	return most
}

func TestOptimumIsTheMostThereIs(t *testing.T) {
	r := testRand(t)
	for range 60 {
		mix := randomMix(r, 1+r.IntN(3), 4)
		trace, err := NewTrace(mix, r.Uint64())
		if err != nil {
			t.Fatal(err)
		}
		for capacity := range trace.Items() + 1 {
			if got, want := trace.Optimum(capacity).Hits, exhaustive(trace, capacity); got != want {
				t.Fatalf("%d uses of %d samples, room for %d: %d hits, and %d can be had", trace.Uses(), trace.Items(),
					capacity, got, want)
			}
		}
	}
}

func TestNoPolicyBeatsTheOptimum(t *testing.T) {
	r := testRand(t)
	for range 40 {
		trace, err := NewTrace(randomMix(r, 1+r.IntN(4), 1+r.Int64N(60)), r.Uint64())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			capacity := r.IntN(trace.Items() + 2)
			best := trace.Optimum(capacity)
			for _, policy := range Policies {
				got, err := trace.Run(policy, Options{Capacity: capacity, Candidates: 1 + r.IntN(40), Seed: r.Uint64()})
				if err != nil {
					t.Fatal(err)
				}
				if got.Hits > best.Hits {
					t.Errorf("%s has %d hits, and the optimum %d", policy, got.Hits, best.Hits)
				}
				for name, r := range map[string]Result{policy: got, "optimum": best} {
					if r.Hits+r.Stored+r.Bypassed != r.Uses || r.Stored-r.Evicted > int64(capacity) ||
						r.Uses != int64(trace.Uses()) {
						t.Errorf("%s with room for %d: %+v does not add up", name, capacity, r)
					}
					if capacity >= trace.Items() && r.Hits != r.Uses-r.First {
						t.Errorf("%s with room for all: %+v", name, r)
					}
				}
			}
		}
	}
}

// TestOptimumFromATime compares it with the optimum of the whole, where the capacity stays, and grows and shrinks it.
func TestOptimumFromATime(t *testing.T) {
	r := testRand(t)
	for range 40 {
		trace, err := NewTrace(randomMix(r, 1+r.IntN(4), 1+r.Int64N(60)), r.Uint64())
		if err != nil {
			t.Fatal(err)
		}
		end := trace.uses[len(trace.uses)-1].at
		at := spill.Time(r.Int64N(int64(end) + 1))
		capacity, other := r.IntN(trace.Items()+2), r.IntN(trace.Items()+2)
		whole, part := trace.Optimum(capacity), trace.OptimumFrom(at, capacity, capacity)
		if again := trace.OptimumFrom(0, other, capacity); again != whole {
			t.Errorf("from the beginning on %+v, the whole %+v", again, whole)
		}
		if none := trace.OptimumFrom(end+1, capacity, other); none != (Result{}) {
			t.Errorf("after the end: %+v", none)
		}
		uses := int64(0)
		for _, u := range trace.uses {
			if u.at >= at {
				uses++
			}
		}
		if part.Uses != uses || part.Hits > whole.Hits {
			t.Errorf("%d uses from a time on: %+v, the whole %+v", uses, part, whole)
		}
		changed := trace.OptimumFrom(at, capacity, other)
		if other >= capacity && changed.Hits < part.Hits || other <= capacity && changed.Hits > part.Hits {
			t.Errorf("room for %d and then for %d: %d hits; where it stays, %d", capacity, other, changed.Hits,
				part.Hits)
		}
		if changed.Uses != part.Uses || changed.First != part.First ||
			changed.Hits+changed.Stored+changed.Bypassed != changed.Uses {
			t.Errorf("%+v does not add up, %+v where the capacity stays", changed, part)
		}
	}
}

// TestSamplesStandForAll compares lru and fifo with the same policies over an exact list.
func TestSamplesStandForAll(t *testing.T) {
	const n = 500
	r := testRand(t)
	for _, jobs := range []int{1, 4} {
		mix := make([]Job, jobs)
		for i := range mix {
			mix[i] = Job{Dataset: 1, Order: newShuffled(r, n, n, 10), Epochs: 10, Speed: 1 + r.Float64(),
				Start: r.Float64() * n}
		}
		trace, err := NewTrace(mix, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, policy := range []string{"lru", "fifo"} {
			for _, capacity := range []int{n / 10, n / 2} {
				got, err := trace.Run(policy, Options{Capacity: capacity, Seed: r.Uint64()})
				if err != nil {
					t.Fatal(err)
				}
				if want := exact(trace, capacity, policy == "lru"); math.Abs(got.HitRate()-want) > 0.025 {
					t.Errorf("%d jobs, room for %d: %s has a hit rate of %.3f, with an exact list %.3f", jobs, capacity,
						policy, got.HitRate(), want)
				}
			}
		}
	}
}

func exact(t *Trace, capacity int, lru bool) float64 {
	queue, at := list.New(), map[int32]*list.Element{}
	r := Result{Uses: int64(len(t.uses)), First: int64(t.items)}
	for _, u := range t.uses {
		if e := at[u.item]; e != nil {
			r.Hits++
			if lru {
				queue.MoveToBack(e)
			}
			continue
		}
		if queue.Len() == capacity {
			delete(at, queue.Remove(queue.Front()).(int32))
		}
		at[u.item] = queue.PushBack(u.item)
	}
	return r.HitRate()
}

// TestFutureAgainstBruteForce asks, at many times of a trace, when each sample is used next, and looks it up in the
// trace.
func TestFutureAgainstBruteForce(t *testing.T) {
	r := testRand(t)
	for range 20 {
		n := 1 + r.Int64N(30)
		mix := randomMix(r, 1+r.IntN(3), n)
		for i := range mix { // paces that are known exactly
			mix[i].Start, mix[i].Jitter, mix[i].Speed = 0, 0, 1/float64(1+r.IntN(5))
		}
		trace, err := NewTrace(mix, 0)
		if err != nil {
			t.Fatal(err)
		}
		future := &spill.Future{}
		jobs := make([]*spill.Job, len(mix))
		served := make([]int64, len(mix))
		for i, j := range mix {
			jobs[i], err = future.Add(spill.JobOptions{Dataset: j.Dataset, Order: j.Order, Epochs: j.Epochs}, 0)
			if err != nil {
				t.Fatal(err)
			}
		}
		for k, u := range trace.uses {
			rows := mix[u.job].Order.Rows()
			served[u.job]++
			jobs[u.job].Advance(served[u.job]/rows, served[u.job]%rows, u.at)
			for _, at := range trace.places {
				var want []int64 // rows until the next use, by job
				for i := range mix {
					rows, until, left := mix[i].Order.Rows(), int64(-1), int64(0)
					for _, later := range trace.uses[k+1:] {
						if int(later.job) != i {
							continue
						}
						// Uses after the end of the next epoch are not known.
						if (served[i]+left)/rows > served[i]/rows+1 {
							break
						}
						if trace.places[later.item] == at {
							until = left
							break
						}
						left++
					}
					want = append(want, until)
				}
				soonest, used := spill.Time(math.MaxInt64), false
				for i, j := range jobs {
					until, ok := int64(-1), false
					if mix[i].Dataset == at.Dataset {
						until, ok = j.RowsUntil(at.Position)
					}
					if !ok {
						until = -1
					} else {
						soonest, used = min(soonest, u.at+spill.Time(until)*spill.Time(j.RowTime())), true
					}
					if until != want[i] {
						t.Fatalf("after %d uses, job %d of %d uses %+v in %d rows, the future says %d", k+1, i,
							len(mix), at, want[i], until)
					}
				}
				if got, ok := future.NextUse(at, u.at); ok != used || ok && got != soonest {
					t.Fatalf("after %d uses, the next use of %+v is %v, %v, want %v, %v", k+1, at, got, ok, soonest,
						used)
				}
			}
		}
	}
}

// TestNextUseIsCloseToTheOptimum holds what the figures of the benchmark show, on a small scale.
func TestNextUseIsCloseToTheOptimum(t *testing.T) {
	r := testRand(t)
	const n = 500
	for _, jobs := range []int{1, 4} {
		mix := make([]Job, jobs)
		for i := range mix {
			mix[i] = Job{Dataset: 1, Order: newShuffled(r, n, n, 6), Epochs: 6, Speed: 0.5 + r.Float64(),
				Start: r.Float64() * n, Jitter: 0.5}
		}
		trace, err := NewTrace(mix, r.Uint64())
		if err != nil {
			t.Fatal(err)
		}
		for _, percent := range []int{10, 25, 50, 75} {
			capacity := n * percent / 100
			best := trace.Optimum(capacity).HitRate()
			rates := map[string]float64{}
			for _, policy := range Policies {
				got, err := trace.Run(policy, Options{Capacity: capacity, Seed: r.Uint64()})
				if err != nil {
					t.Fatal(err)
				}
				rates[policy] = got.HitRate()
			}
			what := fmt.Sprintf("%d jobs, %d %%: %v, optimum %.3f", jobs, percent, rates, best)
			t.Log(what)
			next := rates["next-use"]
			if next < 0.93*best || next <= rates["lru"] || next <= rates["fifo"] || next < rates["static"]-0.02 ||
				jobs > 1 && next <= rates["static"] {
				t.Error(what)
			}
		}
	}
}

func TestTraceRefuses(t *testing.T) {
	good := Job{Dataset: 1, Order: newShuffled(testRand(t), 4, 4, 1), Epochs: 1, Speed: 1}
	for _, change := range []func(*Job){
		func(j *Job) { j.Order = nil },
		func(j *Job) { j.Epochs = 0 },
		func(j *Job) { j.Epochs = math.MaxInt64 },
		func(j *Job) { j.Speed = 0 },
		func(j *Job) { j.Speed = math.NaN() },
		func(j *Job) { j.Start = -1 },
		func(j *Job) { j.Jitter = 1 },
	} {
		bad := good
		change(&bad)
		if _, err := NewTrace([]Job{good, bad}, 0); err == nil {
			t.Errorf("%+v was accepted", bad)
		} else {
			t.Log(err)
		}
	}
	trace, err := NewTrace([]Job{good}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trace.Run("clairvoyant", Options{}); err == nil {
		t.Error("an unknown policy was accepted")
	}
}

package spill

import (
	"math/rand/v2"
	"testing"
	"time"

	"bowstring/schema"
)

// drawn is an order in which an epoch uses some samples several times, and others never.
type drawn [][]int64 // positions, by epoch

func (d drawn) Rows() int64 { return int64(len(d[0])) }

func (d drawn) Index(epoch, position int64) (int64, bool) { return d.Next(epoch, position, 0) }

func (d drawn) Next(epoch, position, from int64) (int64, bool) {
	list := d[epoch%int64(len(d))]
	for i := from; i < int64(len(list)); i++ {
		if list[i] == position {
			return i, true
		}
	}
	return 0, false
}

// A job on several datasets, two of them perhaps the same, uses a sample when its order next has it, in either of them.
func TestFutureOfSeveralDatasets(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sources := []Source{{Dataset: 3, Positions: 20, RowBytes: 100, Rows: 30}, {Dataset: 5, Positions: 0},
		{Dataset: 9, Positions: 10, RowBytes: 50, Rows: 10}, {Dataset: 3, Positions: 20, RowBytes: 100, Rows: 10}}
	order := make(drawn, 3)
	for e := range order {
		for range 50 {
			order[e] = append(order[e], rng.Int64N(50))
		}
	}
	f := &Future{}
	j, err := f.Add(JobOptions{Order: order, Epochs: 3, RowTime: time.Second, Sources: sources}, 0)
	if err != nil {
		t.Fatal(err)
	}
	bases := map[uint32][]int64{3: {0, 30}, 9: {20}, 7: nil}
	for served := int64(0); served <= 150; served += 1 + rng.Int64N(9) {
		j.served.Store(served)
		for dataset, base := range bases {
			for at := range int64(20) {
				if dataset == 9 && at >= 10 {
					continue
				}
				// The uses of this epoch and of the next one.
				var want []int64
				for i := served; i < min((served/50+2)*50, 150); i++ {
					for _, b := range base {
						if order[i/50][i%50] == b+at {
							want = append(want, i-served)
						}
					}
				}
				got, ok := f.NextUse(Place{Dataset: dataset, Position: at}, 0)
				if ok != (len(want) > 0) || ok && got != Time(want[0])*Time(time.Second) {
					t.Fatalf("served %d: place %d of %d is used at %d (%t), want %v", served, at, dataset, got, ok, want)
				}
			}
		}
	}
	j.served.Store(7)
	states := f.Jobs()
	if len(states) != len(sources) || f.Len() != 1 {
		t.Fatalf("%d states of %d jobs", len(states), f.Len())
	}
	for i, base := range []int64{0, 20, 20, 30} {
		s := states[i]
		if s.Dataset != sources[i].Dataset || s.Positions != sources[i].Positions || s.Rows != 50 {
			t.Errorf("source %d is %+v", i, s)
		}
		for at := range s.Positions {
			want, used := order.Index(1, base+at)
			if got, ok := s.Order.Index(1, at); ok != used || got != want {
				t.Fatalf("source %d, position %d: index %d (%t), want %d (%t)", i, at, got, ok, want, used)
			}
		}
	}
}

// A page of a dataset that comes second in a job is used with the rows that it has there.
func TestPageOfASecondDataset(t *testing.T) {
	f := &Future{}
	if _, err := f.Add(JobOptions{Order: ascending(4 * schema.PageRows), Epochs: 1, RowTime: time.Second,
		Sources: []Source{{Dataset: 1, Positions: 2 * schema.PageRows}, {Dataset: 2, Positions: 2 * schema.PageRows}}}, 0); err != nil {
		t.Fatal(err)
	}
	first, ok := f.NextUse(PageAt(1, schema.PageRows), 0)
	second, ok2 := f.NextUse(PageAt(2, schema.PageRows), 0)
	if !ok || !ok2 || second <= first {
		t.Errorf("pages are used at %d (%t) and %d (%t)", first, ok, second, ok2)
	}
}

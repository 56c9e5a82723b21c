package fetch_test

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch"
	"bowstring/schema"
)

// someBuckets is bucket_by_length of what put makes, or nil.
func someBuckets(rng *rand.Rand) *schema.BucketByLength {
	if rng.IntN(2) == 0 {
		return nil
	}
	by := &schema.BucketByLength{Column: []string{"label", "image"}[rng.IntN(2)], Window: rng.Int64N(20)}
	if rng.IntN(2) == 0 {
		by.Balance = &schema.BucketBalance{Cost: []string{"label", "label * 2 + 1", "image.size ?? 0"}[rng.IntN(3)]}
		if rng.IntN(2) == 0 {
			by.Column = ""
		}
	}
	return by
}

// TestBalancedBuckets holds that each sample comes once, on any world and resumed; that a step has the samples that it has
// without balance; that the ranks of a step have about the same to do; and that the job says by how much they differ.
func TestBalancedBuckets(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 900)
	e := newEngine(t, st, fetch.Options{})
	sizes := func(by *schema.BucketByLength, world int64) (worst float64, steps map[int64][]int64, job *fetch.Job) {
		j := open(t, e, schema.Request{Dataset: "d", Columns: []string{"image.size"}, Batch: 60, Where: "image.size > 0",
			World: &schema.World{Size: world}, Shuffle: &schema.Shuffle{Seed: 4, Epoch: 1}, BucketByLength: by})
		steps = map[int64][]int64{}
		sums := map[int64][]float64{}
		for rank := range int(world) {
			s := start(t, e, j, ticket(j.Request(), rank))
			resume := false
			for b := range batches(t, s) {
				sum := 0.0
				for _, pos := range b.Positions {
					steps[b.Step] = append(steps[b.Step], pos)
					ref, _ := refAt(t, j, pos)
					sum += float64(ref.Size)
				}
				sums[b.Step] = append(sums[b.Step], sum)
				if resume {
					continue
				}
				resume = true // a ticket means the same to every reader
				again := must(schema.ParseTicket(b.Resume.Marshal()))
				other := open(t, e, again.Request)
				if other.ID() != j.ID() || !reflect.DeepEqual(other.Request(), j.Request()) {
					t.Errorf("the ticket is of %s, the job is %s", other.Request().Marshal(), j.Request().Marshal())
				}
			}
			s.Close()
		}
		var costliest, all float64
		for step, list := range sums {
			if len(steps[step]) == 60 {
				costliest += slices.Max(list)
				for _, sum := range list {
					all += sum
				}
			}
		}
		for _, list := range steps {
			slices.Sort(list)
		}
		return costliest * float64(world) / all, steps, j
	}
	cost := &schema.BucketBalance{Cost: "image.size"}
	for _, world := range []int64{2, 3, 6} {
		without, had, _ := sizes(&schema.BucketByLength{Column: "image", Window: 8}, world)
		with, has, j := sizes(&schema.BucketByLength{Column: "image", Window: 8, Balance: cost}, world)
		alone, also, _ := sizes(&schema.BucketByLength{Window: 8, Balance: cost}, world)
		if !reflect.DeepEqual(had, has) || !reflect.DeepEqual(had, also) {
			t.Errorf("%d ranks: steps have other samples", world)
		}
		t.Logf("%d ranks: the costliest has %.4f times the mean; %.4f without balance", world, with, without)
		if with > 1+(without-1)/2 || alone != with || with > 1.02 {
			t.Errorf("%d ranks: the costliest has %.4f and %.4f times the mean; %.4f without balance", world, with, alone, without)
		}
		if said := j.Bucketing(); said == nil || said.Imbalance < 1 || said.Imbalance > 1.02 {
			t.Errorf("%d ranks: the job says %+v", world, said)
		}
	}
}

// TestBucketByLength holds that batches of a column's order are made, with as many steps for every rank, and less
// padding.
func TestBucketByLength(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 900)
	padding := func(e *fetch.Engine, by *schema.BucketByLength, world int64) (share float64) {
		j := open(t, e, schema.Request{Dataset: "d", Columns: []string{"image.size"}, Batch: 30,
			World:   &schema.World{Size: world},
			Shuffle: &schema.Shuffle{Seed: 4}, BucketByLength: by})
		if by != nil && by.Window == 0 && j.Request().BucketByLength.Window != schema.DefaultBucketWindow {
			t.Errorf("the request says %+v, where it left the window out", j.Request().BucketByLength)
		}
		seen := map[int64]bool{}
		var used, all int64
		for rank := range int(world) {
			s := start(t, e, j, ticket(j.Request(), rank))
			steps := 0
			for b := range batches(t, s) {
				steps++
				longest := int64(0)
				for _, pos := range b.Positions {
					if seen[pos] {
						t.Fatalf("position %d is served twice", pos)
					}
					seen[pos] = true
					var size int64
					if ref, ok := refAt(t, j, pos); ok {
						size = ref.Size
					}
					used, longest = used+size, max(longest, size)
				}
				all += longest * int64(len(b.Positions))
			}
			s.Close()
			if steps != 30 {
				t.Errorf("rank %d of %d has %d batches", rank, world, steps)
			}
		}
		if len(seen) != 900 {
			t.Errorf("%d of 900 samples were served", len(seen))
		}
		return 1 - float64(used)/float64(all)
	}
	for i, opts := range []fetch.Options{{}, {Resident: -1}} { // manifests that are whole, and read as they are wanted
		e := newEngine(t, st, opts)
		without, with, shared := padding(e, nil, 1), padding(e, &schema.BucketByLength{Column: "image"}, 1),
			padding(e, &schema.BucketByLength{Column: "image", Window: 8}, 5)
		t.Logf("padding %.3f; by length %.3f, for 5 ranks %.3f", without, with, shared)
		if with > without/5 || shared > without/5 {
			t.Errorf("engine %d: %.3f is padding, %.3f for 5 ranks, and without buckets %.3f", i, with, shared, without)
		}
	}
}

// TestBucketByLengthRefused checks the errors for invalid requests.
func TestBucketByLengthRefused(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 50)
	e := newEngine(t, st, fetch.Options{})
	for want, change := range map[string]func(*schema.Request){
		`bucket_by_length.column: got "wide", want a column of integers, floating point or lists, or of blobs: label, image`: func(r *schema.Request) { r.BucketByLength.Column = "wide" },
		// text
		`bucket_by_length.column: got "name", want a column of integers`: func(r *schema.Request) {
			r.BucketByLength.Column = "name"
		},
		`bucket_by_length.column: got "", want the column`: func(r *schema.Request) { r.BucketByLength.Column = "" },
		`or of blobs: image`: func(r *schema.Request) {
			r.Within = &schema.Restriction{Columns: []string{"id", "name", "image"}}
		},
		`bucket_by_length.window: got -1`: func(r *schema.Request) { r.BucketByLength.Window = -1 },
		// of the default batch
		`bucket_by_length.window: got 1025, want at most`: func(r *schema.Request) { r.BucketByLength.Window = 1025 },
		`batch: got 65537, want at most 65536`:            func(r *schema.Request) { r.Batch = 65537 },
		`order: got "free", want "strict"`:                func(r *schema.Request) { r.Order = schema.OrderFree },
		`order: got "window:3", want "strict"`:            func(r *schema.Request) { r.Order = "window:3" },
		`bucket_by_length.balance.cost: got "", want a column, or an expression`: func(r *schema.Request) {
			r.BucketByLength.Balance = &schema.BucketBalance{}
		},
		`bucket_by_length.balance.cost:1:1: no column "wide"`: func(r *schema.Request) {
			r.BucketByLength.Balance = &schema.BucketBalance{Cost: "wide"}
		},
		`bucket_by_length.balance.cost:1:1: it gives a string`: func(r *schema.Request) {
			r.BucketByLength.Balance = &schema.BucketBalance{Cost: "name"}
		},
		`bucket_by_length.balance.cost: got -1 at position 9, want a number from 0 to`: func(r *schema.Request) {
			r.BucketByLength.Balance = &schema.BucketBalance{Cost: "8 - position"}
			r.Where = "position < 10"
		},
		`bucket_by_length.balance.cost: got null at position 7`: func(r *schema.Request) {
			r.BucketByLength.Balance = &schema.BucketBalance{Cost: "position == 7 ? nil : 1"}
		},
		`no column "label"`: func(r *schema.Request) {
			r.BucketByLength = &schema.BucketByLength{Balance: &schema.BucketBalance{Cost: "label + 1"}}
			r.Within = &schema.Restriction{Columns: []string{"id", "name", "image"}}
		},
		`bucket_by_length.balance: got it with assign "local"`: func(r *schema.Request) {
			r.BucketByLength.Balance, r.Assign = &schema.BucketBalance{Cost: "label"}, schema.AssignLocal
		},
	} {
		req := schema.Request{Dataset: "d", BucketByLength: &schema.BucketByLength{Column: "label"}}
		change(&req)
		j, err := e.Open(t.Context(), req)
		if err == nil {
			j.Close()
		}
		if err == nil || !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestBucketByLengthWithoutBlobs holds that metadata alone comes in the batches that the samples would: it is how a
// client asks for the schema and for counts.
func TestBucketByLengthWithoutBlobs(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 50)
	j := open(t, newEngine(t, st, fetch.Options{}), schema.Request{Dataset: "d", Columns: []string{"label"},
		BucketByLength: &schema.BucketByLength{Column: "image", Window: 4}})
	if got := j.Request().Batch; got != schema.DefaultBatch {
		t.Errorf("a batch has %d rows", got)
	}
}

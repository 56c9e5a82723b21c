package fetch_test

import (
	"errors"
	"math/rand/v2"
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
	return &schema.BucketByLength{Column: []string{"label", "image"}[rng.IntN(2)], Window: rng.Int64N(20)}
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

// TestBucketByLengthRefused holds what a request is told that cannot be.
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

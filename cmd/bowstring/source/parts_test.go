package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// For any number of parallel shards, samples come in the order of the shards, and a
// shard's error after its samples. Whenever iteration ends, all samples are released.
func TestParts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		n := rng.IntN(30)
		counts, bad, known := make([]int, n), make([]bool, n), make([]bool, n)
		for i := range n {
			counts[i], bad[i], known[i] = rng.IntN(400), rng.IntN(5) == 0, rng.IntN(4) == 0
		}
		most := -1 // samples are taken
		if rng.IntN(3) == 0 {
			most = rng.IntN(1000)
		}
		var first []string
		for _, atOnce := range []int{1, 2, 4, 16} {
			var held, running, mostRunning atomic.Int64
			var got []string
			yield := func(s Sample, err error) bool {
				got = append(got, fmt.Sprint(s.Key, s.Bad, err))
				if s.Release != nil {
					s.Release()
				}
				return most < 0 || len(got) < most
			}
			sample := func(i, j int) Sample {
				held.Add(1)
				return Sample{Key: fmt.Sprintf("%d/%d", i, j), Size: rng0(i, j), Release: func() { held.Add(-1) }}
			}
			p := parts{n: n,
				reads: func(i int) bool { return !known[i] },
				known: func(i int) bool { return yield(sample(i, -1), nil) },
				read: func(ctx context.Context, i int, yield func(Sample) bool) error {
					now := running.Add(1)
					for old := mostRunning.Load(); now > old && !mostRunning.CompareAndSwap(old, now); old = mostRunning.Load() {
					}
					defer running.Add(-1)
					for j := range counts[i] {
						if j == 7 {
							time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
						}
						if !yield(sample(i, j)) {
							return ctx.Err()
						}
					}
					if bad[i] {
						return errors.New("broken")
					}
					return nil
				},
				ended: func(i int, err error) bool {
					return err == nil || yield(Sample{Key: fmt.Sprint(i), Bad: err.Error()}, nil)
				}}
			p.yield(t.Context(), atOnce, yield)
			if held.Load() != 0 || running.Load() != 0 || mostRunning.Load() > int64(atOnce) {
				t.Fatalf("%d at once: %d samples are not released, %d shards are read, %d at most", atOnce, held.Load(),
					running.Load(), mostRunning.Load())
			}
			if first == nil {
				first = got
			}
			if !slices.Equal(first, got) {
				t.Fatalf("%d at once: %d samples, and %d of one after the other", atOnce, len(got), len(first))
			}
		}
	}
}

// rng0 returns a fixed pseudo-random size; some exceed the bound of waiting samples.
func rng0(i, j int) int64 {
	size := int64(i*7919+j*104729) % 100_000
	if j%97 == 5 {
		size *= 1000
	}
	return size
}

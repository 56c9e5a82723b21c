package fetch

import (
	"math"
	"testing"
	"time"

	"bowstring/fetch/predict"
	"bowstring/fetch/read"
)

// Measurements of streams correct the calibrated rates of a store for blobs of similar
// size, and change nothing for other blobs.
func TestSeen(t *testing.T) {
	measured := predict.Store{LatencyMS: 20, ReadsPerS: 10_000, BytesPerSec: 100e6}
	spell := func(size, rate float64) *read.Spell {
		return &read.Spell{Full: 10 * time.Second, Latency: 30 * time.Millisecond, Reads: int64(10 * rate / size),
			Bytes: int64(10 * rate)}
	}
	for _, c := range []struct {
		name       string
		known      predict.Store
		seen       *read.Spell
		size       float64
		want       predict.Store
		saysOfThis bool
	}{
		{"half as fast", measured, spell(100e3, 50e6), 100e3, predict.Store{LatencyMS: 30, ReadsPerS: 5000,
			BytesPerSec: 50e6}, true},
		{"as fast, by reads", measured, spell(1e3, 10e6), 1.5e3, predict.Store{LatencyMS: 30, ReadsPerS: 10_000,
			BytesPerSec: 100e6}, true},
		{"twice as fast", predict.Store{LatencyMS: 20, BytesPerSec: 100e6}, spell(100e3, 200e6), 100e3,
			predict.Store{LatencyMS: 30, BytesPerSec: 200e6}, true},
		{"of small blobs", measured, spell(1e3, 5e6), 100e3, measured, false},
		{"of large blobs", measured, spell(1e6, 50e6), 100e3, measured, false},
		{"nothing was known", predict.Store{}, spell(1e3, 5e6), 100e3, predict.Store{LatencyMS: 30, ReadsPerS: 5000,
			BytesPerSec: 5e6}, true},
	} {
		got, says := seenOf(c.known, c.seen, c.size)
		near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*b }
		if says != c.saysOfThis || !near(got.LatencyMS, c.want.LatencyMS) || !near(got.ReadsPerS, c.want.ReadsPerS) ||
			!near(got.BytesPerSec, c.want.BytesPerSec) {
			t.Errorf("%s: got %+v, %t; want %+v", c.name, got, says, c.want)
		}
	}
}

// Rows of both sizes are named, within bounds, and each once.
func TestSomeOf(t *testing.T) {
	var blobs []drawn
	for i := range int64(3000) {
		blobs = append(blobs, drawn{at: i / 2})
		blobs[i].ref.Size = []int64{1000, 50_000, 1 << 20}[i%3]
	}
	got := someOf(blobs, [2]int64{1000, 1 << 20})
	if len(got) != 2 || len(got[0]) != someRows || len(got[1]) != someBytes>>20 {
		t.Fatalf("%d classes: %v", len(got), got)
	}
	for _, class := range got {
		seen := map[int64]bool{}
		for _, at := range class {
			if seen[at] {
				t.Errorf("position %d is named twice", at)
			}
			seen[at] = true
		}
	}
	if got := someOf(blobs, [2]int64{}); len(got) != 1 {
		t.Errorf("of blobs of one size there are %d classes", len(got))
	}
}

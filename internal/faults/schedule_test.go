package faults

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestSchedule: a seed is one schedule; all faults come, end in time, and leave a quorum for most of it.
func TestSchedule(t *testing.T) {
	first := rand.Uint64()
	t.Logf("seeds %d and following", first)
	processes := []string{"importer-1", "reader-1"}
	const length = 10 * time.Minute
	kinds := map[Kind]int{}
	for seed := first; seed < first+20; seed++ {
		s := NewSchedule(seed, length, processes)
		if again := NewSchedule(seed, length, processes); again.String() != s.String() {
			t.Fatalf("seed %d:\n%s\nand then:\n%s", seed, s, again)
		}
		longest := map[Kind]time.Duration{}
		var gone [int(length / time.Second)]int // nodes that are away, by seconds
		for i, f := range s {
			kinds[f.Kind]++
			if i > 0 && f.At < s[i-1].At || f.At+f.For > length*9/10 {
				t.Errorf("seed %d: %v after %v", seed, f, s[max(0, i-1)])
			}
			longest[f.Kind] = max(longest[f.Kind], f.For)
			if f.Kind.impairs() {
				for at := f.At; at < f.At+f.For; at += time.Second {
					gone[at/time.Second]++
				}
			}
		}
		if longest[StopNode] < 2*time.Minute || longest[StopProcess] < 2*time.Minute {
			t.Errorf("seed %d: stops of a node take up to %s, and of a process %s", seed, longest[StopNode],
				longest[StopProcess])
		}
		without := 0
		for _, n := range gone {
			if n > 1 {
				without++
			}
		}
		if without > len(gone)/2 {
			t.Errorf("seed %d: for %d of %d s two nodes are away:\n%s", seed, without, len(gone), s)
		}
	}
	for _, k := range []Kind{KillNode, StopNode, Clock, Isolate, OneWay, Slow, Lossy, Clients, KillProcess,
		StopProcess} {
		if kinds[k] < 20 {
			t.Errorf("in 20 runs %s comes %d times", k, kinds[k])
		}
	}
}

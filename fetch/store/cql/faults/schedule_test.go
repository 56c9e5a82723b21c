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
	longest := time.Duration(0)
	for seed := first; seed < first+20; seed++ {
		s := NewSchedule(seed, length, processes)
		if again := NewSchedule(seed, length, processes); again.String() != s.String() {
			t.Fatalf("seed %d:\n%s\nand then:\n%s", seed, s, again)
		}
		var gone [int(length / time.Second)]int // nodes that are away, by seconds
		for i, f := range s {
			kinds[f.Kind]++
			if i > 0 && f.At < s[i-1].At || f.At+f.For > length*9/10 {
				t.Errorf("seed %d: %v after %v", seed, f, s[max(0, i-1)])
			}
			if f.Kind == StopNode || f.Kind == StopProcess {
				longest = max(longest, f.For)
			}
			if f.Kind.impairs() {
				for at := f.At; at < f.At+f.For; at += time.Second {
					gone[at/time.Second]++
				}
			}
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
	for _, k := range []Kind{KillNode, StopNode, Clock, Isolate, OneWay, Slow, Lossy, Clients, KillProcess, StopProcess} {
		if kinds[k] < 20 {
			t.Errorf("in 20 runs %s comes %d times", k, kinds[k])
		}
	}
	if longest < time.Minute {
		t.Errorf("nothing is stopped for longer than %s", longest)
	}
}

package operators

import (
	"testing"
	"time"
)

// TestWorth holds the rule by figures that were measured: of photographs of 500 x 375 pixels and utterances of 14 s.
func TestWorth(t *testing.T) {
	const us = time.Microsecond
	for name, c := range map[string]struct {
		whole, tail, head time.Duration
		bytes             int64
		want              way
	}{
		"log-mel, then SpecAugment":                 {6000 * us, 500 * us, 5800 * us, 448_000, split},
		"decoded at full size, then a resized crop": {2200 * us, 1100 * us, 3000 * us, 562_500, atOnce},
		"resized to 256, then a crop":               {3600 * us, 100 * us, 3600 * us, 262_000, split},
		"a tail that costs more than the whole":     {300 * us, 400 * us, 900 * us, 10, atOnce},
		"a head that no next use gives back":        {2000 * us, 400 * us, 3500 * us, 1000, atOnce},
	} {
		w := &worth{}
		for range firstTrials {
			if how, lookup := w.next(4); how != trial || !lookup {
				t.Fatalf("%s: the first cells are made by way %d", name, how)
			}
			w.tried(c.whole, c.tail, c.head, c.bytes, 4)
		}
		how, lookup := w.next(4)
		if how != c.want || lookup != (c.want == split) {
			t.Errorf("%s: way %d, lookup %t; want way %d", name, how, lookup, c.want)
		}
		trials := 0
		for range 10 * trialEvery {
			if how, _ := w.next(4); how == trial {
				trials++
				w.tried(c.whole, c.tail, 0, c.bytes, 4)
			}
		}
		if trials != 10 {
			t.Errorf("%s: %d of %d later cells were made both ways", name, trials, 10*trialEvery)
		}
		// Slow trials of the past are forgotten.
		for range 20 * trialMemory {
			w.tried(c.whole, c.whole, c.head, c.bytes, 4)
		}
		if how := w.paysLocked(4); how != atOnce {
			t.Errorf("%s: it is taken to pay when it has ceased to", name)
		}
	}
}

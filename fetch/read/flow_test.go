package read

import (
	"testing"
	"time"
)

// TestFlowStart: what is in flight at first grows with the distance, and nodes divide it among them.
func TestFlowStart(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		latency      time.Duration
		sharers      int
		first, later int
	}{
		{0, 1, 8, 8},
		{ms / 4, 1, 64, 64},
		{ms, 1, 256, 256},
		{20 * ms, 1, 256, 256},
		{100 * ms, 1, 341, 256},
		{150 * ms, 1, 512, 256},
		{time.Second, 1, 512, 256},
		{150 * ms, 4, 128, 256},
	} {
		var f flow
		f.init(4096, func() int { return c.sharers })
		f.latency = c.latency
		if got := f.floor(); got != c.first {
			t.Errorf("to a store at %s, which %d share, %d reads may be in flight at first, want %d", c.latency,
				c.sharers, got, c.first)
		}
		if f.startup = false; f.floor() != c.later {
			t.Errorf("to a store at %s, %d reads may be in flight whatever was measured, want %d", c.latency, f.floor(),
				c.later)
		}
	}
}

// TestFlowStartEnds: the start ends when the rate stands still, at once if reads take longer, too. While the rate grows
// they may: connections open their windows.
func TestFlowStartEnds(t *testing.T) {
	const rtt = 100 * time.Millisecond
	for name, c := range map[string]struct {
		quickest time.Duration // of each round
		rates    []int64       // of each round, in bytes a second
		rounds   int           // until the start has ended; 0: it has not
	}{
		"grows":                {rtt, []int64{1e6, 2e6, 4e6, 8e6, 16e6}, 0},
		"grows, slower":        {2 * rtt, []int64{1e6, 2e6, 4e6, 8e6, 16e6}, 0},
		"stands still":         {rtt, []int64{1e6, 2e6, 2e6, 2e6, 2e6}, 5},
		"stands still, slower": {2 * rtt, []int64{1e6, 2e6, 2e6, 2e6, 2e6}, 3},
		"grows little, slower": {2 * rtt, []int64{1e6, 1.2e6, 2e6, 4e6, 8e6}, 2},
	} {
		var f flow
		f.init(4096, func() int { return 1 })
		f.latency = rtt
		ended := 0
		for i, rate := range c.rates {
			f.quickest = c.quickest
			if f.fill(float64(rate)); !f.startup {
				ended = i + 1
				break
			}
		}
		if ended != c.rounds {
			t.Errorf("%s: the start ends after %d rounds, want %d", name, ended, c.rounds)
		}
	}
}

package tiers

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

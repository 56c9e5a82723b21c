package command

import (
	"testing"
	"time"

	"bowstring/cmd/bowstring/cluster"
)

// A server that was told to stop has ended by its drain timeout, the handover of its cache in it: whoever started it
// kills it soon after. Of 15 seconds on, there is time for a handover.
func TestDeadlines(t *testing.T) {
	told := time.Now()
	for _, timeout := range []time.Duration{0, time.Second, 15 * time.Second, time.Hour} {
		c := ServeCmd{serveFlags: serveFlags{runFlags: runFlags{DrainTimeout: timeout}}}
		handover, end := c.deadlines(told)
		if end.Sub(told) != timeout || handover.After(end) || handover.Before(told) {
			t.Errorf("of %s: %s for the handover, %s in all", timeout, handover.Sub(told), end.Sub(told))
		}
		if enough := handover.Sub(told) >= cluster.LeastHandover; enough != (timeout >= 15*time.Second) {
			t.Errorf("of %s: %s for the handover, which takes %s at least", timeout, handover.Sub(told),
				cluster.LeastHandover)
		}
	}
}

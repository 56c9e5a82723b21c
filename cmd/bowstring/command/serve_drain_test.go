package command

import (
	"testing"
	"time"

	"bowstring/cmd/bowstring/cluster"
)

// A stopped server has ended by its drain timeout, which includes the handover of its
// cache: its supervisor kills it soon after. With 15 seconds or more, there is time for a
// handover.
func TestDeadlines(t *testing.T) {
	stopped := time.Now()
	for _, timeout := range []time.Duration{0, time.Second, 15 * time.Second, time.Hour} {
		c := ServeCmd{serveFlags: serveFlags{runFlags: runFlags{DrainTimeout: timeout}}}
		handover, end := c.deadlines(stopped)
		if end.Sub(stopped) != timeout || handover.After(end) || handover.Before(stopped) {
			t.Errorf("of %s: %s for the handover, %s in all", timeout, handover.Sub(stopped), end.Sub(stopped))
		}
		if enough := handover.Sub(stopped) >= cluster.LeastHandover; enough != (timeout >= 15*time.Second) {
			t.Errorf("of %s: %s for the handover, which takes %s at least", timeout, handover.Sub(stopped),
				cluster.LeastHandover)
		}
	}
}

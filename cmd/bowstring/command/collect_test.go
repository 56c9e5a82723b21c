package command

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestNowAndThen: once in each period, and not at the same moment of each.
func TestNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, periods = time.Hour, 100
		ctx, cancel := context.WithTimeout(t.Context(), periods*every)
		defer cancel()
		start, in := time.Now(), [periods]int{}
		within := map[time.Duration]bool{}
		nowAndThen(ctx, every, func(context.Context) {
			since := time.Since(start)
			in[since/every]++
			within[since%every] = true
		})
		for i, n := range in {
			if n != 1 {
				t.Errorf("period %d: %d times", i, n)
			}
		}
		if len(within) < periods/2 {
			t.Errorf("%d different moments in %d periods", len(within), periods)
		}
	})
}

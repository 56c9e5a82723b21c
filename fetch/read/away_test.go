package read_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/read"
)

// A read that another node is at, as long as that takes for a store with a queue, is not made a second time here; one
// that the other node never ends is.
func TestAwayIsLeftAlone(t *testing.T) {
	for _, test := range []struct {
		takes time.Duration
		tier  int
	}{{4 * time.Second, 0}, {time.Hour, 1}} {
		synctest.Test(t, func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			near.traits.Remote = true
			near.do = func(ctx context.Context, _ int64, b []byte) ([]byte, error) {
				timer := time.NewTimer(test.takes)
				defer timer.Stop()
				select {
				case <-timer.C:
					return b, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			r := newReader(t, read.Options{NoHedge: true}, peer{near}, read.Store(far))
			to := newTold()
			_, ref := content(0)
			want(t, r, read.Want{Ref: ref, To: to})
			requireBlob(t, to.next(t), 0, test.tier)
			r.Close()
			if got := far.gets.Load(); got != int64(test.tier) {
				t.Errorf("what another node brings after %s was read %d times here, want %d", test.takes, got,
					test.tier)
			}
		})
	}
}

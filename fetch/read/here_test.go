package read_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"bowstring/fetch/read"
	"bowstring/schema"
)

// A read that another node waits for does not wait for that node: what the store has lost is lost for both.
func TestHereWaitsForNobody(t *testing.T) {
	other, far := newFake(t), newFake(t)
	other.traits, other.do = read.Traits{Remote: true}, hang
	far.do = func(context.Context, int64, []byte) ([]byte, error) {
		return nil, fmt.Errorf("%w: it was there once", schema.ErrDataLoss)
	}
	r := newReader(t, read.Options{NoHedge: true}, peer{other}, read.Store(far))
	_, ref := content(1)
	own, loan := newTold(), newTold()
	want(t, r, read.Want{Ref: ref, To: own})
	until(t, "the other node is asked", func() bool { return other.gets.Load() == 1 })
	want(t, r, read.Want{Ref: ref, To: loan, Here: true})
	for _, to := range []told{own, loan} {
		if o := to.next(t); !errors.Is(o.Err, schema.ErrDataLoss) {
			t.Errorf("told of %v, want ErrDataLoss", o.Err)
		}
	}
}

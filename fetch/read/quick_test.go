package read_test

import (
	"context"
	"testing"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
)

// mapped is a fake whose blobs lie in files of this node, so that they may be checked late.
type mapped struct{ *fake }

func (mapped) Traits() store.Traits { return store.Traits{Mapped: true, Replicas: 1} }

// Of attempts for which hardly any goroutine is woken, those that prove slow hold up none of the others.
func TestQuickThatAreSlowHoldUpNone(t *testing.T) {
	const reads, slow = 8, 3
	for round := range 50 {
		f := newFake(t)
		free := make(chan struct{})
		f.do = func(ctx context.Context, n int64, data []byte) ([]byte, error) {
			if n >= slow {
				return data, nil
			}
			select {
			case <-free:
				return data, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		r := newReader(t, read.Options{NoHedge: true}, read.Store(mapped{f}))
		to := newTold()
		for i := range reads {
			_, ref := content(i)
			want(t, r, read.Want{Ref: ref, To: to, Late: true})
		}
		for range reads - slow {
			o := to.next(t)
			if o.Err != nil || !o.Blob.Unchecked() {
				t.Errorf("round %d: error %v; unchecked: %t", round, o.Err, o.Blob.Unchecked())
			}
			o.Blob.Release()
		}
		close(free)
		for range slow {
			o := to.next(t)
			o.Blob.Release()
		}
		r.Close()
	}
}

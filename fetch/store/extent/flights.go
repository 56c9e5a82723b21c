package extent

import (
	"context"
	"sync"
)

// flights has a value be made once for all calls that ask for it at the same time.
type flights[K comparable, V any] struct {
	s     *Store
	mu    sync.Mutex
	under map[K]*flight[V]
}

// flight is a value that is being made. It is cancelled when no call waits for it any
// more.
type flight[V any] struct {
	waiting int // under the mutex of flights
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when value and err are there
	value   V
	err     error
}

// do returns the value of a key. It is made on behalf of the first caller, and goes on for the others if that one leaves.
func (f *flights[K, V]) do(ctx context.Context, key K, produce func(context.Context) (V, error)) (V, error) {
	f.mu.Lock()
	one := f.under[key]
	if one == nil {
		one = f.beginLocked(ctx, key, produce)
	}
	one.waiting++
	f.mu.Unlock()
	select {
	case <-one.done:
		return one.value, one.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.waiting--; one.waiting == 0 {
		one.cancel(context.Cause(ctx))
		if f.under[key] == one {
			delete(f.under, key) // the next call begins anew
		}
	}
	var none V
	return none, context.Cause(ctx)
}

func (f *flights[K, V]) beginLocked(ctx context.Context, key K, produce func(context.Context) (V, error)) *flight[V] {
	if f.under == nil {
		f.under = map[K]*flight[V]{}
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	one := &flight[V]{cancel: cancel, done: make(chan struct{})}
	f.under[key] = one
	stop := context.AfterFunc(f.s.ctx, func() { cancel(context.Cause(f.s.ctx)) })
	f.s.goAfter(func() {
		one.value, one.err = produce(own)
		stop()
		f.mu.Lock()
		if f.under[key] == one {
			delete(f.under, key)
		}
		f.mu.Unlock()
		close(one.done)
		cancel(nil)
	})
	return one
}

package extent

import (
	"context"
	"sync"
)

// flights makes each value once for all calls that ask for its key at the same time. An
// error is returned to all of them and is not kept: the next call tries again.
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

// do returns the value of a key. The value is made with the values of the first caller's
// context, but not with its end: if that caller leaves, the value is still made for the
// others. When the last one leaves, it is cancelled.
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

// beginLocked starts making a value. The goroutine also ends with the store, which waits
// for it.
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

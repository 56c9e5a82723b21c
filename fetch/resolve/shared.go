package resolve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"bowstring/schema"
)

// held is something that is kept as long as somebody has a hold of it.
type held interface {
	Retain()
	Release()
}

// computations makes what several callers want once. A computation belongs to no
// single call: it ends early only when nobody waits for it any more. It is safe
// for concurrent use.
type computations[V held] struct {
	logger  *slog.Logger
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool                       // guarded by mu
	byKey  map[string]*computation[V] // guarded by mu: those that may be joined
}

// computation is under way, or has waiters that have not yet taken its value.
type computation[V held] struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when value and err are there
	value  V             // the computation has a hold of it until its last waiter has left
	err    error

	waiters  int  // guarded by computations.mu
	finished bool // value and err are there; guarded by computations.mu
}

// errUnwanted ends a computation that nobody waits for.
var errUnwanted = errors.New("nobody waits for it any more")

func errClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// do returns what compute returns, with a hold for the caller. Callers that come
// together share one computation; its context carries the values of the first
// caller's. compute returns its value with one hold. It may go on when that call
// has ended: of what it reads, reads, it has a hold of its own until it has
// ended. A panic in it is an error.
func (c *computations[V]) do(ctx context.Context, key string, reads held,
	compute func(context.Context) (V, error)) (v V, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return v, errClosing()
	}
	p := c.byKey[key]
	if p == nil {
		own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		p = &computation[V]{cancel: cancel, done: make(chan struct{})}
		if c.byKey == nil {
			c.byKey = map[string]*computation[V]{}
		}
		c.byKey[key] = p
		reads.Retain()
		c.running.Go(func() {
			defer reads.Release()
			c.run(own, key, p, compute)
		})
	}
	p.waiters++
	c.mu.Unlock()
	defer c.leave(key, p)
	select {
	case <-p.done:
		if p.err != nil {
			return v, p.err
		}
		p.value.Retain()
		return p.value, nil
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

func (c *computations[V]) run(ctx context.Context, key string, p *computation[V],
	compute func(context.Context) (V, error)) {
	defer p.cancel(nil)
	value, err := c.recovered(ctx, compute)
	c.mu.Lock()
	p.value, p.err, p.finished = value, err, true
	if c.byKey[key] == p {
		delete(c.byKey, key)
	}
	unwanted := p.waiters == 0
	c.mu.Unlock()
	close(p.done)
	if unwanted && err == nil {
		value.Release()
	}
}

// recovered runs compute, whose panic must not end the process.
func (c *computations[V]) recovered(ctx context.Context, compute func(context.Context) (V, error)) (v V, err error) {
	defer recovered(ctx, c.logger, &err)
	err = schema.Guard(func() (err error) {
		v, err = compute(ctx)
		return err
	})
	return v, err
}

// recovered, deferred, makes an error of a panic, and logs it.
func recovered(ctx context.Context, logger *slog.Logger, err *error) {
	if p := recover(); p != nil {
		*err = schema.Recovered(p).Log(ctx, logger, "panic while a request was resolved")
	}
}

// leave counts a waiter out. The last one ends the computation, or lets go of its
// value.
func (c *computations[V]) leave(key string, p *computation[V]) {
	c.mu.Lock()
	p.waiters--
	last, finished := p.waiters == 0, p.finished
	if last && c.byKey[key] == p {
		delete(c.byKey, key) // who comes now begins anew
	}
	c.mu.Unlock()
	switch {
	case !last:
	case !finished:
		p.cancel(errUnwanted)
	case p.err == nil:
		p.value.Release()
	}
}

// close ends all computations, and waits until they have ended.
func (c *computations[V]) close() {
	c.mu.Lock()
	c.closed = true
	for _, p := range c.byKey {
		p.cancel(errClosing())
	}
	c.mu.Unlock()
	c.running.Wait()
}

// nothing is what a computation reads that needs no hold.
type nothing struct{}

func (nothing) Retain()  {}
func (nothing) Release() {}

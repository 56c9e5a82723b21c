package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"bowstring/schema"
)

// each calls f for 0 to n-1, at most limit at once, and returns when all calls have
// returned. After an error it begins no other call, cancels the running ones, and returns
// the first error.
func each(ctx context.Context, env Env, limit, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var failed error
	next := 0
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil && ctx.Err() != nil {
			failed = context.Cause(ctx)
		}
		next++
		return next - 1, failed == nil && next <= n
	}
	work := func() {
		for i, ok := take(); ok; i, ok = take() {
			if err := f(ctx, i); err != nil {
				mu.Lock()
				if failed == nil {
					failed = err
				}
				mu.Unlock()
				cancel(err)
			}
		}
	}
	var g group
	for range min(limit, n) - 1 {
		g.start(env, work)
	}
	work()
	g.wait(env)
	return failed
}

// group counts running calls or goroutines, and lets one caller at a time wait until
// there are none. Unlike sync.WaitGroup it waits through Env.
type group struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // closed when n falls to 0; nil if no caller waits
}

// add counts one more; done ends it.
func (g *group) add() {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
}

// done ends one, and wakes the caller that waits.
func (g *group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.ended != nil {
		close(g.ended)
		g.ended = nil
	}
}

// start runs f in a goroutine that the group counts.
func (g *group) start(env Env, f func()) {
	g.add()
	env.Go(func() {
		defer g.done()
		f()
	})
}

// wait returns when nothing is running.
func (g *group) wait(env Env) {
	for {
		g.mu.Lock()
		if g.n == 0 {
			g.mu.Unlock()
			return
		}
		if g.ended == nil {
			g.ended = make(chan struct{})
		}
		ended := g.ended
		g.mu.Unlock()
		_ = env.Wait(context.Background(), ended, -1) // never an error: this context has no end
	}
}

// turns is a set of mutexes by key. Unlike sync.Mutex, take ends with a context, and
// waits through Env.
type turns[K comparable] struct {
	mu   sync.Mutex
	busy map[K]chan struct{} // by key; closed when it is free again
}

// take waits until the key is free, and takes it. The caller calls give. If ctx ends
// first, take returns its cause.
func (t *turns[K]) take(ctx context.Context, env Env, key K) error {
	for {
		t.mu.Lock()
		other, busy := t.busy[key]
		if !busy {
			if t.busy == nil {
				t.busy = map[K]chan struct{}{}
			}
			t.busy[key] = make(chan struct{})
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		if err := env.Wait(ctx, other, -1); err != nil {
			return err
		}
	}
}

// give frees the key. All waiting callers try again, and one of them gets it.
func (t *turns[K]) give(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[key])
	delete(t.busy, key)
}

// within returns a context that also ends after d, by Env's clock. The caller calls
// cancel.
func (s *Store) within(ctx context.Context, d time.Duration) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	s.tasks.start(s.env, func() {
		if s.env.Wait(ctx, nil, d) == nil {
			end(context.DeadlineExceeded)
		}
	})
	return ctx, func() { end(nil) }
}

// backoff waits before the n-th repetition of something, counted from 0. The bound
// doubles up to half a second. The wait is random below it, so that processes that
// collided do not collide again.
func (s *Store) backoff(ctx context.Context, n int) error {
	const first, most = 2 * time.Millisecond, 500 * time.Millisecond
	d := most
	if n < 8 {
		d = min(d, first<<n)
	}
	return s.env.Wait(ctx, nil, time.Duration(s.env.Rand()%uint64(d)))
}

// unavailable returns a schema.ErrUnavailable with a cause: the same call may succeed
// later.
func unavailable(err error) error { return &temporary{err} }

// temporary is a schema.ErrUnavailable with a cause.
type temporary struct{ cause error }

func (t *temporary) Error() string   { return schema.ErrUnavailable.Error() + ": " + t.cause.Error() }
func (t *temporary) Unwrap() []error { return []error{schema.ErrUnavailable, t.cause} }

// Env is what the protocol uses besides its database: time, randomness and goroutines.
// Time only determines when to try or look again; no decision of the protocol depends on
// it. The protocol waits through Env alone, and holds no lock while it waits. So a
// simulation can run its steps in any order.
type Env interface {
	Now() time.Time
	// Wait returns when the channel is closed or d has passed. If ctx ends first, it
	// returns the cause of ctx. A nil channel is never closed, and a negative d never
	// passes.
	Wait(ctx context.Context, ch <-chan struct{}, d time.Duration) error
	// Go runs f concurrently.
	Go(f func())
	// Rand returns 64 random bits.
	Rand() uint64
}

// System is the Env of a real process.
func System() Env { return SystemAt(time.Now) }

// SystemAt is System with another clock.
func SystemAt(clock func() time.Time) Env { return system{clock} }

// system is the Env that New gets outside of tests.
type system struct{ clock func() time.Time }

func (s system) Now() time.Time { return s.clock() }

func (system) Wait(ctx context.Context, ch <-chan struct{}, d time.Duration) error {
	var after <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-ch:
	case <-after:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

func (system) Go(f func()) { go f() }

func (system) Rand() uint64 { return rand.Uint64() }

// newID returns a name that is unique without coordination: 128 random bits.
func newID(env Env) string { return fmt.Sprintf("%016x%016x", env.Rand(), env.Rand()) }

package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Env is what the protocol has besides its database: time, chance and
// goroutines. Time only says when to look again; no decision of the protocol
// rests upon it. The protocol waits through Env alone, and holds no lock while
// it does, so that a simulation can have its steps in any order, each at will.
type Env interface {
	Now() time.Time
	// Wait returns when the channel is closed or d is over, or with the cause
	// when the context is done. A nil channel is never closed, a negative d
	// never over.
	Wait(ctx context.Context, ch <-chan struct{}, d time.Duration) error
	// Go runs f at the same time.
	Go(f func())
	// Rand returns 64 bits of chance.
	Rand() uint64
}

// System is the Env of a process as it is.
func System() Env { return SystemAt(time.Now) }

// SystemAt is System with another clock.
func SystemAt(clock func() time.Time) Env { return system{clock} }

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

// newID returns a name that nothing else has.
func newID(env Env) string { return fmt.Sprintf("%016x%016x", env.Rand(), env.Rand()) }

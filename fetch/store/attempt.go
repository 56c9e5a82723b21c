package store

import "context"

// AttemptFrom returns how many reads of the same blob were begun, for the same
// purpose, before the one that ctx was given to: 0 for the first one. A Store
// with several replicas asks another one for each, as those before may hang.
func AttemptFrom(ctx context.Context) int {
	n, _ := ctx.Value(attemptKey{}).(int)
	return n
}

// WithAttempt returns the context of the n-th attempt, counted from 0.
func WithAttempt(ctx context.Context, n int) context.Context {
	if n == 0 {
		return ctx
	}
	return &attempt{ctx, n}
}

type attemptKey struct{}

// attempt is the context of any attempt but the first.
type attempt struct {
	context.Context
	n int
}

// Value implements context.Context.
func (a *attempt) Value(key any) any {
	if _, ok := key.(attemptKey); ok {
		return a.n
	}
	return a.Context.Value(key)
}

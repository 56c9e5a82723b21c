package store

import "context"

// Caller is the client on whose behalf a call is made. The zero value is the one user of
// a server without authentication.
type Caller struct {
	Principal string   // name of the caller; "" if it has none
	Groups    []string // that the principal is in; not to be changed
	Tenant    string   // on whose account
	Trace     string   // names the call in logs, here and elsewhere
}

type callerKey struct{}

// WithCaller returns a context that carries the caller, down to [Store.Get].
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom returns the caller that ctx carries. A blob that several callers
// wait for is read on behalf of the one who wanted it first.
func CallerFrom(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

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

// Package readtest is the conformance suite of read.Tier and read.CachingTier: the
// properties of each tier, wherever its blobs are.
//
// A tier's own tests call [Run]. [Cases] returns the same as functions. By them, tests
// check that the suite finds the faults of a wrong tier.
package readtest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// Subject is a tier under test, with its environment.
type Subject struct {
	Tier read.Tier
	// At is the place of all requested blobs.
	At spill.Place
	// Put stores a blob; the tier has it when Put returns.
	Put func(ctx context.Context, data []byte) (schema.BlobRef, error)
	// Close closes the tier's dependencies. It is called once.
	Close func() error

	// Churn makes the tier change as much as it can: it evicts, collects, moves. It is nil if the tier has no such
	// changes.
	Churn func() error
	// Spoil damages the bytes of all stored blobs. It is nil if that is impossible; a tier that is Checked should
	// have it.
	Spoil func() error
	// Hang blocks whatever the tier waits for, until the returned function is called. That function may be called
	// repeatedly. Hang is nil if the tier waits for nothing.
	Hang func() (release func())
}

// Opener opens an empty tier.
type Opener func() (Subject, error)

// Case is one property of a tier. Check returns an error if the tier lacks it, and leaves no tier open. ctx bounds
// calls that do not end.
type Case struct {
	Name  string
	Check func(ctx context.Context, open Opener) error
}

// Cases returns the suite. A run leaves out what a tier cannot do.
func Cases() []Case {
	var cases []Case
	add := func(name string, check func(*bench)) {
		cases = append(cases, Case{name, func(ctx context.Context, open Opener) error { return run(ctx, open, check) }})
	}
	add("name and traits", traits)
	add("blobs that are there", there)
	add("blobs that are not there", notThere)
	add("held blobs stay", held)
	add("fetch ends with its context", ends)
	add("cells together", together)
	add("cells are released one by one", leftAlone)
	add("has does not wait", hasDoesNotWait)
	add("concurrent fetches", concurrent)
	add("checked bytes are right", checked)
	add("offers are released once", offersReleased)
	add("offers are found", offersFound)
	add("offers do not wait", offersDoNotWait)
	add("misses do not disturb", missed)
	return cases
}

// patience is how long a case may take. Only a tier that hangs reaches it.
const patience = time.Minute

// Run tests a tier. fresh makes an Opener, whose tiers live at most until the end of its test.
func Run(t *testing.T, fresh func(t testing.TB) Opener) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := c.Check(ctx, fresh(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// bench is the state of a case that tests a tier. Its methods end the case at the first
// fault by a panic, which run recovers. Only the goroutine of the case may call them.
type bench struct {
	Subject
	ctx     context.Context  //nolint:containedctx // of this call to Check
	caching read.CachingTier // the tier, if it is one
	closed  bool
	stuck   bool // whether a call has not ended, and may use the tier for ever
}

// failure is the panic value that ends a case.
type failure struct{ err error }

// run opens a tier, runs a check, and closes the tier. A tier with a call that does not
// end is not closed, because Close would wait for the call.
func run(ctx context.Context, open Opener, check func(*bench)) (err error) {
	s, err := open()
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	b := &bench{ctx: ctx, Subject: s}
	b.caching, _ = s.Tier.(read.CachingTier)
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			err = f.err
		default:
			err = fmt.Errorf("panic: %v\n%s", f, debug.Stack())
		}
		if !b.closed && !b.stuck {
			err = errors.Join(err, b.Close())
		}
	}()
	check(b)
	return nil
}

func (b *bench) failf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// ok requires that there is no error.
func (b *bench) ok(err error, doing string, args ...any) {
	if err != nil {
		b.failf("%s: %w", fmt.Sprintf(doing, args...), err)
	}
}

// that requires a condition.
func (b *bench) that(ok bool, format string, args ...any) {
	if !ok {
		b.failf(format, args...)
	}
}

// ends requires that do returns no error, and does not panic, before the case's context
// ends. It runs do in a goroutine, because a tier that hangs could not be interrupted.
func (b *bench) ends(doing string, do func() error) {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		done <- do()
	}()
	select {
	case err := <-done:
		b.ok(err, "%s", doing)
	case <-b.ctx.Done():
		b.stuck = true
		b.failf("%s does not return", doing)
	}
}

// close closes the tier.
func (b *bench) close() {
	b.closed = true
	b.ends("close", b.Close)
}

// Package storetest is the conformance suite of store.Store: the behaviour of every store, whatever its
// implementation.
//
// A store's own tests call [Run]. [Cases] returns the same as functions, so that tests can check that the suite finds
// a store's faults.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"testing"

	"bowstring/fetch/store"
)

// Opener opens the store under test. Later calls open the same data again, after the previous store was closed.
// The data belongs to the test that makes the Opener.
type Opener func() (store.Store, error)

// Case is one property of a store. Check returns an error if the store lacks it, and leaves no store open.
type Case struct {
	Name  string
	Check func(ctx context.Context, open Opener) error
}

// Cases returns the suite. Each case needs an empty store.
func Cases() []Case {
	var cases []Case
	add := func(name string, check func(*bench)) {
		cases = append(cases, Case{name, func(ctx context.Context, open Opener) error { return run(ctx, open, check) }})
	}
	add("empty store", emptyStore)
	add("commit and read back", commitAndRead)
	add("blob sizes", blobSizes)
	add("put keeps nothing of its argument", putCopies)
	add("dedup", dedup)
	add("concurrent puts of one blob", dedupConcurrent)
	add("nothing is visible before commit", invisible)
	add("what commit refuses", commitRefuses)
	add("names", names)
	add("conflict", conflict)
	add("numbers are never reused", numbering)
	add("concurrent committers", concurrentCommitters)
	add("reopen", reopen)
	add("drop", drop)
	add("tags", tags)
	add("selections", selections)
	add("selections expire", selectionsExpire)
	add("selections are limited", selectionsAreLimited)
	add("runs", runs)
	add("concurrent changes of a run", concurrentRuns)
	add("gc removes expired runs", gcRuns)
	add("gc frees what is dead", gcFrees)
	add("gc dry run", gcDryRun)
	add("gc spares open ingests", gcOpenIngest)
	add("gc spares snapshots in use", gcInUse)
	add("gc spares selections", gcSelections)
	add("gc removes expired selections", gcExpires)
	add("gc under pinned readers", gcPinned)
	add("gc during imports", gcDuringImports)
	add("gc spares what the parent refers to", gcParent)
	add("gc during alterations", gcDuringAlterations)
	add("gc spares object sets", gcSets)
	add("proofs", proofs)
	add("concurrent provers", concurrentProvers)
	add("gc spares proofs", gcProofs)
	add("snapshots are restored", restore)
	add("ingests adopt", adopt)
	add("repair", repair)
	add("selections are listed", listSelections)
	add("cancelled context", cancelled)
	add("close", closing)
	add("close during calls", closeDuringCalls)
	add("stress", stress)
	return cases
}

// Run tests a store. fresh makes an Opener of an empty store, which lives until the end of its test.
func Run(t *testing.T, fresh func(t testing.TB) Opener) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Check(t.Context(), fresh(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// bench is the state of a case that tests a store. Its methods end the case at the first fault. Only the goroutine of
// the case may call them.
type bench struct {
	ctx context.Context // of this call to Check
	// store is nil while none is open. puts has the addresses of all blobs of the case.
	opener Opener
	store  store.Store
	puts   puts
}

// failure is the panic value that ends a case.
type failure struct{ err error }

// run opens a store, runs a check and closes the store, also after a fault or a panic.
func run(ctx context.Context, open Opener, check func(*bench)) (err error) {
	b := &bench{ctx: ctx, opener: open}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			err = f.err
		default:
			err = fmt.Errorf("panic: %v\n%s", f, debug.Stack())
		}
		if b.store != nil {
			err = errors.Join(err, b.store.Close())
		}
	}()
	b.open()
	check(b)
	return nil
}

// open opens the store. A store of segments is wrapped, so that the suite learns the
// addresses of its blobs.
func (b *bench) open() {
	s, err := b.opener()
	b.ok(err, "open")
	b.store = s
	if s.Traits().Segments {
		b.store = &recorded{s, &b.puts}
	}
}

// reopen closes the store and opens its data again.
func (b *bench) reopen() {
	s := b.store
	b.store = nil
	b.ok(s.Close(), "close")
	b.open()
}

// failf ends the case. run recovers the panic.
func (b *bench) failf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// ok requires that there is no error.
func (b *bench) ok(err error, doing string, args ...any) {
	if err != nil {
		b.failf("%s: %w", fmt.Sprintf(doing, args...), err)
	}
}

// fails requires an error of a kind.
func (b *bench) fails(err, kind error, doing string, args ...any) {
	doing = fmt.Sprintf(doing, args...)
	switch {
	case err == nil:
		b.failf("%s: no error, want %q", doing, kind)
	case !errors.Is(err, kind):
		b.failf("%s: got the error %q, want one that wraps %q", doing, err, kind)
	}
}

// that requires a condition.
func (b *bench) that(ok bool, format string, args ...any) {
	if !ok {
		b.failf(format, args...)
	}
}

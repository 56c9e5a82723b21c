package resolve

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/layout"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// While the table of slots that a job shares its batches out by is being made, other jobs end.
func TestJobsEndWhileOneIsShared(t *testing.T) {
	rv := &Resolver{sharings: map[string]*sharing{}, computing: computations[*result]{logger: slog.New(slog.DiscardHandler)}}
	rv.results = results{ledger: admission.NewLedger(admission.Limits{Evaluation: 1 << 20}), kept: map[string]*result{}}
	snap := &openSnapshot{key: snapshotKey{"d", 1}}
	name := resultKey(snap.key, "slots\x000")
	other := &sharing{jobs: rv, key: "other", refs: 1, table: rv.results.add("other", &result{})}
	rv.sharings["other"] = other

	finish, made := make(chan struct{}), make(chan error, 1)
	go func() {
		r, err := rv.computing.do(t.Context(), name, nothing{}, func(context.Context) (*result, error) {
			<-finish
			return rv.results.add(name, &result{slots: newSlotTable(4, 0)}), nil
		})
		if err == nil {
			r.Release()
		}
		made <- err
	}()
	waiters := func() int {
		rv.computing.mu.Lock()
		defer rv.computing.mu.Unlock()
		if p := rv.computing.byKey[name]; p != nil {
			return p.waiters
		}
		return 0
	}
	await := func(n int) {
		for waiters() < n {
			time.Sleep(time.Millisecond)
		}
	}
	await(1)
	p, err := plan.New(plan.Config{Selection: plan.All(4), Batch: 2, World: 1})
	if err != nil {
		t.Fatal(err)
	}
	o := &Resolved{Request: schema.Request{Dataset: "d", Snapshot: 1, Batch: 2}, Plan: p,
		local: &local{layout: layout.Lone(), nodes: []int32{0}}}
	shared := make(chan *sharing, 2)
	for range cap(shared) {
		go func() {
			s, err := rv.share(t.Context(), snap, o)
			if err != nil {
				t.Error(err)
			}
			shared <- s
		}()
	}
	await(2)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		other.release()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("a job that ends waits for the table of another one")
	}
	close(finish)
	a, b := <-shared, <-shared
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if a != b || a.refs != 2 {
		t.Errorf("two jobs of the same rows have %p and %p, %d holds", a, b, a.refs)
	}
	a.release()
	b.release()
	<-ended
	if n := len(rv.sharings); n != 0 {
		t.Errorf("%d sharings are left", n)
	}
	rv.results.close()
	if a := rv.results.ledger.Accounts()[admission.Evaluation]; a.Used != 0 {
		t.Errorf("%d bytes are not given back", a.Used)
	}
}

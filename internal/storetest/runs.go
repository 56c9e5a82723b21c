package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// errStop is an error of a change itself.
var errStop = errors.New("no change")

// runFor is a run that lives for a while.
func runFor(dataset, name, owner string, lifetime time.Duration) *store.Run {
	now := time.Now().UTC().Truncate(time.Second)
	return &store.Run{Dataset: dataset, Name: name, Owner: owner, Request: json.RawMessage(`{"batch":8}`), Created: now,
		Expires: now.Add(lifetime)}
}

// beginRun has a run be there.
func (b *bench) beginRun(run *store.Run) error {
	_, err := b.store.ChangeRun(b.ctx, run.Dataset, run.Name, func(old *store.Run) (*store.Run, error) {
		if old != nil {
			return nil, nil //nolint:nilnil // it is there
		}
		return run, nil
	})
	return err
}

// steered is a run with one more change, which a call names.
func steered(old *store.Run, id string) (*store.Run, error) {
	for i := range old.Steered {
		if old.Steered[i].ID == id {
			return nil, nil //nolint:nilnil // it was made
		}
	}
	run := *old
	run.Steered = append(run.Steered[:len(old.Steered):len(old.Steered)], store.Steer{ID: id, By: "ann",
		MixtureChange: schema.MixtureChange{Step: old.Settled, Weights: map[string]float64{id: 1}}})
	return &run, nil
}

// runs are kept beside their dataset, and changed as a whole.
func runs(b *bench) {
	b.ingest("r", 0, blobsOf("r", 3, 100))
	b.ingest("other", 0, blobsOf("r", 3, 100))
	_, err := b.store.Run(b.ctx, "r", "llama")
	b.fails(err, schema.ErrNotFound, "a run that is not there")
	_, err = b.store.Run(b.ctx, "absent", "llama")
	b.fails(err, schema.ErrNotFound, "a run beside a dataset that is not there")
	b.fails(b.beginRun(runFor("absent", "llama", "", time.Hour)), schema.ErrNotFound, "begin one there")
	b.fails(b.beginRun(runFor("r", "a/b", "", time.Hour)), schema.ErrInvalid, "begin one whose name is none")
	_, err = b.store.ChangeRun(b.ctx, "r", "llama", func(old *store.Run) (*store.Run, error) {
		b.that(old == nil, "there is %+v", old)
		return nil, nil //nolint:nilnil // no change
	})
	b.fails(err, schema.ErrNotFound, "leave one alone that is not there")
	b.ok(b.beginRun(runFor("r", "llama", "ann", time.Hour)), "begin a run")
	b.ok(b.beginRun(runFor("r", "llama", "bob", time.Hour)), "begin it again")
	b.ok(b.beginRun(runFor("other", "llama", "bob", time.Hour)), "begin one of that name beside another dataset")

	run, err := b.store.ChangeRun(b.ctx, "r", "llama", func(old *store.Run) (*store.Run, error) {
		b.that(old.Owner == "ann" && string(old.Request) == `{"batch":8}`, "the run is %+v", old)
		next := *old
		next.Settled = 64
		return &next, nil
	})
	b.ok(err, "settle")
	b.that(run.Settled == 64, "the run is %+v", run)
	run, err = b.store.ChangeRun(b.ctx, "r", "llama", func(old *store.Run) (*store.Run, error) {
		return steered(old, "x")
	})
	b.ok(err, "steer")
	_, err = b.store.ChangeRun(b.ctx, "r", "llama", func(*store.Run) (*store.Run, error) { return nil, errStop })
	b.fails(err, errStop, "a change that fails")
	for range 2 {
		got, err := b.store.Run(b.ctx, "r", "llama")
		b.ok(err, "run")
		b.that(got.Settled == 64 && len(got.Steered) == 1 && got.Steered[0].Step == 64 && got.Steered[0].Weights["x"] == 1 &&
			got.Steered[0].By == "ann" && got.Expires.Equal(run.Expires) && got.Created.Equal(run.Created),
			"the run is %+v", got)
		list, err := b.store.Runs(b.ctx, "r")
		b.ok(err, "list")
		b.that(len(list) == 1 && list[0].Name == "llama" && list[0].Settled == 64, "the runs are %+v", list)
		b.reopen()
	}
	_, err = b.store.Run(b.ctx, "r", "lama")
	b.that(err != nil && strings.Contains(err.Error(), `did you mean "llama"`), "a slip of a run: %v", err)

	b.ok(b.beginRun(runFor("r", "over", "ann", -time.Minute)), "begin one that has expired")
	_, err = b.store.Run(b.ctx, "r", "over")
	b.fails(err, schema.ErrNotFound, "a run that has expired")
	b.ok(b.beginRun(runFor("r", "over", "bob", time.Hour)), "begin it anew")
	run, err = b.store.Run(b.ctx, "r", "over")
	b.ok(err, "the new one")
	b.that(run.Owner == "bob", "it is still %s's", run.Owner)

	// Limits protect the catalog from one client.
	large := runFor("r", "large", "ann", time.Hour)
	large.Request = json.RawMessage(`"` + strings.Repeat("x", store.MaxRunBytes) + `"`)
	b.fails(b.beginRun(large), schema.ErrLimit, "begin one that takes too much")
	for i := 1; i < store.MaxRuns; i++ {
		b.ok(b.beginRun(runFor("r", fmt.Sprint("n", i), "ann", time.Hour)), "begin another one")
	}
	b.fails(b.beginRun(runFor("r", "more", "ann", time.Hour)), schema.ErrLimit, "begin one too many")
	b.ok(b.beginRun(runFor("r", "more", "bob", time.Hour)), "begin another's")

	b.ok(b.store.Drop(b.ctx, "other", 0), "drop a dataset")
	b.ingest("other", 0, blobsOf("r", 3, 100))
	_, err = b.store.Run(b.ctx, "other", "llama")
	b.fails(err, schema.ErrNotFound, "a run beside a dataset that was dropped")
}

// concurrentRuns: a change is made once, and none is lost.
func concurrentRuns(b *bench) {
	const callers, each = 4, 8
	b.ingest("r", 0, blobsOf("r", 3, 100))
	b.ok(b.beginRun(runFor("r", "llama", "", time.Hour)), "begin a run")
	var g errgroup.Group
	for caller := range callers {
		g.Go(func() error {
			for i := range each {
				if _, err := b.store.ChangeRun(b.ctx, "r", "llama", func(old *store.Run) (*store.Run, error) {
					if i%2 == 0 {
						return steered(old, fmt.Sprintf("%d-%d", caller, i))
					}
					next := *old
					next.Settled++
					return &next, nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.ok(g.Wait(), "change")
	run, err := b.store.Run(b.ctx, "r", "llama")
	b.ok(err, "run")
	b.that(len(run.Steered) == callers*each/2, "%d changes were made, want %d", len(run.Steered), callers*each/2)
	b.that(run.Settled >= callers*each/2, "%d steps are settled, want %d", run.Settled, callers*each/2)
	// Changes are in the order of their steps.
	seen, last := map[string]bool{}, int64(0)
	for _, s := range run.Steered {
		b.that(!seen[s.ID] && s.Step >= last, "change %s is at step %d, after one at %d", s.ID, s.Step, last)
		seen[s.ID], last = true, s.Step
	}
}

// gcRuns: a collection removes runs that expired more than an hour ago.
func gcRuns(b *bench) {
	b.ingest("r", 0, blobsOf("r", 3, 100))
	b.ok(b.beginRun(runFor("r", "over", "", -2*store.ExpiredGrace)), "begin a run")
	b.ok(b.beginRun(runFor("r", "lives", "", time.Hour)), "begin another")
	b.gc(store.GCOptions{})
	list, err := b.store.Runs(b.ctx, "r")
	b.ok(err, "list")
	b.that(len(list) == 1 && list[0].Name == "lives", "the runs are %+v", list)
}

package resolve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// A training run by a mixture goes on for long, and its weights may be changed from outside meanwhile. The store
// has a record of it: the changes, and how many steps are settled. Streams serve settled steps alone, and changes
// are made at steps that are not. Where a stream comes to the last settled step, it has more be settled by one swap
// of the record; if a change was made meanwhile, it ends there, and what goes on knows of the change. So all
// streams of a run, on whatever node, serve the same, and a ticket means the same whatever changes come later.

// ErrSteered says that the weights of a job's run were changed from a step on at which the job is to go on: it has
// to be opened again.
var ErrSteered = errors.New("the run's weights were changed")

const (
	// runLifetime is for how long a run is kept after it was used last, to runRenewed.
	runLifetime = 360 * 24 * time.Hour
	runRenewed  = 24 * time.Hour
	// settleWithin is how long the catalog may take to settle steps.
	settleWithin = time.Minute
)

// run is the run of a job.
type run struct {
	store   store.Store
	dataset string
	name    string
	request json.RawMessage
	steered []schema.MixtureChange // as the job has them
	// conflict is why nothing is served: the record is of another run.
	conflict error
	// settled is how many steps the job may serve, -1 before it is to serve any. over says that it is never more:
	// then the weights change.
	settled atomic.Int64
	over    atomic.Bool
}

// RunRequest is what requests of a run have in common: what steps hold follows from it, and from changes from
// outside. Which columns a rank reads does not count, and what operators make of them. The request has its defaults
// filled in.
func RunRequest(req *schema.Request) schema.Request {
	leaves := req.Mixture.Leaves()
	for i := range leaves {
		leaves[i].Operators = nil
	}
	r := schema.Request{Mixture: req.Mixture.Unsteered().WithLeaves(leaves), Batch: req.Batch,
		Remainder: cmp.Or(req.Remainder, schema.RemainderUneven)}
	if req.Shuffle != nil {
		shuffle := *req.Shuffle
		shuffle.Epoch = 0
		r.Shuffle = &shuffle
	}
	return r
}

// joinRun gives a request for a mixture the changes that the record of its run has, as far as it does not know
// them. The request has its defaults filled in. It returns nil for one that names no run.
func (rv *Resolver) joinRun(ctx context.Context, req schema.Request) (schema.Request, *run, error) {
	if req.Mixture == nil || req.Mixture.Run == "" {
		return req, nil, nil
	}
	r := &run{store: rv.store, dataset: req.Mixture.Leaves()[0].Dataset, name: req.Mixture.Run,
		request: RunRequest(&req).Marshal(), steered: req.Mixture.Steered}
	r.settled.Store(-1)
	record, err := rv.store.Run(ctx, r.dataset, r.name)
	switch {
	case errors.Is(err, schema.ErrNotFound):
		return req, r, nil // it begins with the first stream
	case err != nil:
		return req, nil, err
	}
	if r.conflict = r.check(record); r.conflict != nil {
		return req, r, nil //nolint:nilerr // reported when it is to serve: a ticket alone says what it has served
	}
	mixture := *req.Mixture
	mixture.Steered = record.Changes()
	req.Mixture, r.steered = &mixture, mixture.Steered
	return req, r, nil
}

// check fails unless the record is of this run, and has all changes that the job knows.
func (r *run) check(record *store.Run) error {
	if !bytes.Equal(record.Request, r.request) {
		return &schema.FieldError{Field: "mixture.run",
			Got:  schema.Quote(r.name) + ", a run with other sources, snapshots, weights, seed or batches",
			Want: "a name of its own for each run, whose sources name their snapshots"}
	}
	have := record.Changes()
	if len(r.steered) > len(have) || len(r.steered) > 0 && !reflect.DeepEqual(r.steered, have[:len(r.steered)]) {
		return &schema.FieldError{Field: "mixture.steered",
			Got:  fmt.Sprintf("%d changes that run %s does not have", len(r.steered), schema.Quote(r.name)),
			Want: "tickets of this run: it was begun anew"}
	}
	return nil
}

// settle allows the job to serve the steps before need. If these are not settled yet, it
// settles more steps beyond them, so that not every step costs a swap.
func (r *run) settle(ctx context.Context, need, more int64) error {
	switch {
	case r.conflict != nil:
		return r.conflict
	case r.over.Load() || r.settled.Load() >= need:
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, fmt.Errorf("%w: the catalog has not answered for %s",
		schema.ErrUnavailable, settleWithin))
	defer cancel()
	record, err := r.store.Run(ctx, r.dataset, r.name)
	if errors.Is(err, schema.ErrNotFound) || err == nil && (record.Settled < need || r.stale(record)) {
		record, err = r.store.ChangeRun(ctx, r.dataset, r.name, func(old *store.Run) (*store.Run, error) {
			return r.advance(ctx, old, need, more)
		})
	}
	if err != nil {
		return fmt.Errorf("settling steps of run %s: %w", schema.Quote(r.name), cmp.Or(causeOf(ctx, err), err))
	}
	return r.take(record)
}

// causeOf is why a context ended, if that is why a call failed.
func causeOf(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return nil
}

// stale reports whether the record is to live longer.
func (r *run) stale(record *store.Run) bool {
	return time.Until(record.Expires) < runLifetime-runRenewed
}

// advance is the record with as many steps settled; nil if it need not be changed.
func (r *run) advance(ctx context.Context, old *store.Run, need, more int64) (*store.Run, error) {
	now := time.Now().UTC().Truncate(time.Second)
	if old == nil {
		run := &store.Run{Dataset: r.dataset, Name: r.name, Owner: store.CallerFrom(ctx).Principal, Request: r.request,
			Created: now, Expires: now.Add(runLifetime), Settled: addSat(need, more)}
		for _, c := range r.steered {
			run.Steered = append(run.Steered, store.Steer{MixtureChange: c})
		}
		return run, nil
	}
	if err := r.check(old); err != nil || old.Settled >= need && !r.stale(old) {
		return nil, err
	}
	run := *old
	run.Expires = now.Add(runLifetime)
	if run.Settled < need {
		run.Settled = addSat(need, more)
	}
	return &run, nil
}

// addSat is a sum of numbers from 0, or the most that one can be.
func addSat(x, y int64) int64 {
	if y > math.MaxInt64-x {
		return math.MaxInt64
	}
	return x + y
}

// take updates the run from its record. A change that the job does not know ends the job at the step of the change.
// That step was not settled before.
func (r *run) take(record *store.Run) error {
	if err := r.check(record); err != nil {
		return err
	}
	settled, over := record.Settled, false
	for _, c := range record.Changes()[len(r.steered):] {
		if c.Step <= settled {
			settled, over = c.Step, true
		}
	}
	for {
		known := r.settled.Load()
		if known >= settled || r.settled.CompareAndSwap(known, settled) {
			break
		}
	}
	if over {
		r.over.Store(true)
	}
	return nil
}

// Settle has the job be let serve the steps before one, counted over all epochs, if a change of weights from
// outside does not come before; and some more, if it has to ask for these. A job without a run serves any step.
func (j *Job) Settle(ctx context.Context, before, more int64) error {
	if j.run == nil {
		return nil
	}
	return j.run.settle(ctx, before, more)
}

// Settled is how many steps the job may serve, counted over all epochs; math.MaxInt64 for
// a job without a run.
func (j *Job) Settled() int64 {
	if j.run == nil {
		return math.MaxInt64
	}
	if n := j.run.settled.Load(); n >= 0 {
		return n
	}
	return math.MaxInt64
}

// Steerable reports whether weights may be changed from outside.
func (j *Job) Steerable() bool { return j.run != nil }

// Steered reports whether weights change at the step that is not Settled.
func (j *Job) Steered() bool { return j.run != nil && j.run.over.Load() }

// RunStep is which step of the mixture a step of a plan is, counted over all epochs; that is 0 without a run.
func (j *Job) RunStep(p *plan.Plan, step int64) int64 {
	if j.run == nil {
		return 0
	}
	return p.MixtureStep(step)
}

// Steer changes the weights of a run from outside: from a step on, nil for the first one that is not settled. It
// returns the run, and the step. The call has checked that the run's mixture may have such weights.
func (rv *Resolver) Steer(ctx context.Context, dataset, name string, c schema.MixtureChange,
	from *int64) (*store.Run, int64, error) {
	id := rand.Text()
	record, err := rv.store.ChangeRun(ctx, dataset, name, func(old *store.Run) (*store.Run, error) {
		if old == nil {
			return nil, nil //nolint:nilnil // there is nothing to change
		}
		if madeBy(old, id) != nil {
			return nil, nil //nolint:nilnil // it is there
		}
		mixture, err := MixtureOf(old)
		if err != nil {
			return nil, err
		}
		c := c
		switch {
		case from == nil:
			c.Step = mixture.Steerable(old.Settled)
		case *from < old.Settled:
			return nil, &schema.FieldError{Field: "from_step", Got: strconv.FormatInt(*from, 10),
				Want: fmt.Sprintf("%d or more, as the steps before are settled", old.Settled)}
		default:
			c.Step = *from
		}
		if _, err := mixture.Steer(c); err != nil {
			return nil, err
		}
		run, now := *old, time.Now().UTC().Truncate(time.Second)
		run.Steered = append(slices.Clip(old.Steered), store.Steer{MixtureChange: c, ID: id,
			By: store.CallerFrom(ctx).Principal, At: now})
		run.Expires = now.Add(runLifetime)
		return &run, nil
	})
	if err != nil {
		return nil, 0, err
	}
	made := madeBy(record, id)
	if made == nil {
		return nil, 0, fmt.Errorf("%w: run %q was begun anew meanwhile", schema.ErrConflict, name)
	}
	return record, made.Step, nil
}

// madeBy is the change that a call has made; nil if it has made none.
func madeBy(run *store.Run, id string) *store.Steer {
	for i := range run.Steered {
		if run.Steered[i].ID == id {
			return &run.Steered[i]
		}
	}
	return nil
}

// MixtureOf is the mixture of a run, with all changes.
func MixtureOf(run *store.Run) (*schema.Mixture, error) {
	req, err := schema.ParseRequest(run.Request)
	if err != nil || req.Mixture == nil {
		return nil, fmt.Errorf("%w: the record of run %q has no mixture: %w", schema.ErrDataLoss, run.Name, err)
	}
	mixture := *req.Mixture
	mixture.Steered = run.Changes()
	return &mixture, nil
}

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

// A training run with a mixture takes long, and its weights may be changed from outside
// meanwhile. The store has a record of the run: the changes, and how many steps are
// settled. Streams serve settled steps only, and changes are made only at steps that are
// not settled.
//
// A stream that comes to the last settled step settles more steps by one swap of the
// record. If a change was made meanwhile, the stream ends there, and its successor knows
// of the change. So all streams of a run, on all nodes, serve the same steps, and a
// ticket keeps its meaning whatever changes come later.

// ErrSteered says that the weights of the job's run change at a step that the job is to
// serve. The caller opens the job again, with the change.
var ErrSteered = errors.New("the run's weights were changed")

const (
	// runLifetime is for how long a run is kept after it was used last, to runRenewed.
	runLifetime = 360 * 24 * time.Hour
	runRenewed  = 24 * time.Hour
	// settleWithin is how long the catalog may take to settle steps.
	settleWithin = time.Minute
)

// run is the training run that a job of a mixture belongs to. The job owns it. settled
// and over change while the job is used; everything else is set when the job is opened.
type run struct {
	store   store.Store
	dataset string
	name    string
	request json.RawMessage
	// steered are the changes of weights that the job was opened with.
	steered []schema.MixtureChange // as the job has them
	// conflict, if not nil, is why the job serves nothing: the record belongs to another
	// run.
	conflict error
	// settled is how many steps the job may serve, and -1 until settle has succeeded
	// once. over says that it does not grow any more, because the weights change at that
	// step.
	settled atomic.Int64
	over    atomic.Bool
}

// RunRequest returns what the requests of a run have in common: with the changes from
// outside, it determines the samples of each step. Columns and operators are left out,
// because ranks may read different ones. req has its defaults filled in.
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

// joinRun adds the changes of its run's record to a request for a mixture, and returns
// the run; nil if the request names none. req has its defaults filled in. If the record
// does not exist yet, the first stream that settles steps makes it.
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

// check returns an error unless the record belongs to this run and has all changes that
// the job was opened with.
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
	// Reading costs less than a swap, and most streams find that another one has settled
	// the steps. The record has every change that was answered before, and Settled only
	// grows, so an outdated record allows too few steps and never too many.
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

// causeOf returns why ctx ended, if that is why a call failed; else nil.
func causeOf(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return nil
}

// stale reports whether the record's expiry has to be moved.
func (r *run) stale(record *store.Run) bool {
	return time.Until(record.Expires) < runLifetime-runRenewed
}

// advance returns the record with need+more steps settled, and a later expiry; nil if it
// need not change. It is called again if another swap came first.
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

// addSat adds numbers that are not negative, up to math.MaxInt64.
func addSat(x, y int64) int64 {
	if y > math.MaxInt64-x {
		return math.MaxInt64
	}
	return x + y
}

// take updates the run from its record. If the record has a change that the job was not
// opened with, the job ends at the step of that change. Such a step was not settled
// before, so the job has not served it.
func (r *run) take(record *store.Run) error {
	if err := r.check(record); err != nil {
		return err
	}
	settled, over := record.Settled, false
	// check has compared the changes that the job knows. The first of the others ends the
	// job.
	for _, c := range record.Changes()[len(r.steered):] {
		if c.Step <= settled {
			settled, over = c.Step, true
		}
	}
	// Several streams of the job may take different records at once. The largest number
	// wins, because it only grows.
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

// Settle lets the job serve the steps before one, counted over all epochs. If they are
// not settled yet, it settles more steps beyond them. If a change of weights comes first,
// fewer steps are allowed: see Settled and Steered. A job without a run may serve any
// step.
func (j *Job) Settle(ctx context.Context, before, more int64) error {
	if j.run == nil {
		return nil
	}
	return j.run.settle(ctx, before, more)
}

// Settled is how many steps the job may serve, counted over all epochs. It is
// math.MaxInt64 for a job without a run, and also until Settle has succeeded once: a
// caller that serves a run calls Settle first.
func (j *Job) Settled() int64 {
	if j.run == nil {
		return math.MaxInt64
	}
	if n := j.run.settled.Load(); n >= 0 {
		return n
	}
	return math.MaxInt64
}

// Steerable reports whether the job's weights can be changed from outside.
func (j *Job) Steerable() bool { return j.run != nil }

// Steered reports whether the weights change at step Settled, so that the job ends there.
func (j *Job) Steered() bool { return j.run != nil && j.run.over.Load() }

// RunStep returns the number of a plan's step, counted over all epochs of the mixture; 0
// for a job without a run.
func (j *Job) RunStep(p *plan.Plan, step int64) int64 {
	if j.run == nil {
		return 0
	}
	return p.MixtureStep(step)
}

// Steer changes the weights of a run from a step on, or, if from is nil, from the first
// step that is not settled. It returns the run and the step. The caller has checked that
// the run's mixture may have such weights.
func (rv *Resolver) Steer(ctx context.Context, dataset, name string, c schema.MixtureChange,
	from *int64) (*store.Run, int64, error) {
	// An attempt whose answer was lost is recognized by its id. The same change by
	// another call has another id, and is made as well.
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

// madeBy returns the change that a call has made; nil if it has made none.
func madeBy(run *store.Run, id string) *store.Steer {
	for i := range run.Steered {
		if run.Steered[i].ID == id {
			return &run.Steered[i]
		}
	}
	return nil
}

// MixtureOf returns the mixture of a run with all of its changes.
func MixtureOf(run *store.Run) (*schema.Mixture, error) {
	req, err := schema.ParseRequest(run.Request)
	if err != nil || req.Mixture == nil {
		return nil, fmt.Errorf("%w: the record of run %q has no mixture: %w", schema.ErrDataLoss, run.Name, err)
	}
	mixture := *req.Mixture
	mixture.Steered = run.Changes()
	return &mixture, nil
}

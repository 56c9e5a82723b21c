package store

import (
	"context"
	"fmt"
	"time"

	"bowstring/schema"
)

// listFactor is how many times as long a list of all datasets may take: a store looks at each.
const listFactor = 4

// Patient returns a store whose lookups in the catalog end within a limit each, with an
// ErrUnavailable that names the slow lookup: its calls end with their context, and a
// request may have no deadline. Changes of the catalog are left to the store, which knows
// whether a change that was cut off was made. So are reads of blobs, which the engine
// bounds.
func Patient(s Store, limit time.Duration) Store { return patient{s, limit} }

type patient struct {
	Store
	limit time.Duration
}

// Below returns the store whose looks are bounded.
func (p patient) Below() Store { return p.Store }

// within calls look with a context that ends within the limit.
func within[T any](ctx context.Context, p *patient, limit time.Duration, what string,
	lookup func(context.Context) (T, error)) (T, error) {
	silent := fmt.Errorf("%w: %s: %s has not answered for %s; check that it answers and the network to it, or raise the "+
		"read timeout", schema.ErrUnavailable, what, p.Where(), limit)
	bounded, cancel := context.WithTimeoutCause(ctx, limit, silent)
	defer cancel()
	v, err := lookup(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = silent
	}
	return v, err
}

// Datasets implements Store.
func (p patient) Datasets(ctx context.Context) ([]Dataset, error) {
	return within(ctx, &p, listFactor*p.limit, "list the datasets", p.Store.Datasets)
}

// Snapshot implements Store.
func (p patient) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	return within(ctx, &p, p.limit, fmt.Sprintf("look up dataset %q", dataset),
		func(ctx context.Context) (*schema.Snapshot, error) { return p.Store.Snapshot(ctx, dataset, number) })
}

// Selection implements Store.
func (p patient) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	return within(ctx, &p, p.limit, fmt.Sprintf("look up a selection of dataset %q", dataset),
		func(ctx context.Context) (*schema.Selection, error) { return p.Store.Selection(ctx, dataset, name) })
}

// Run implements Store.
func (p patient) Run(ctx context.Context, dataset, name string) (*Run, error) {
	return within(ctx, &p, p.limit, fmt.Sprintf("look up a run beside dataset %q", dataset),
		func(ctx context.Context) (*Run, error) { return p.Store.Run(ctx, dataset, name) })
}

// Tagged implements Store.
func (p patient) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	return within(ctx, &p, p.limit, fmt.Sprintf("look up a tag of dataset %q", dataset),
		func(ctx context.Context) (int64, error) { return p.Store.Tagged(ctx, dataset, name) })
}

// Names implements Store.
func (p patient) Names(ctx context.Context) ([]string, error) {
	return within(ctx, &p, listFactor*p.limit, "list the names of the datasets", p.Store.Names)
}

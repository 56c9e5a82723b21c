package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// View is the part of a snapshot that exists for a caller. It is immutable and holds no
// resources.
type View struct {
	Snap   *schema.Snapshot
	Within *schema.Restriction
	// Rows counts the visible rows.
	Rows   int64
	Splits []resolve.SeenSplit

	catalog *Catalog
}

// View returns a snapshot as Snapshot does, with the counts of its visible rows. If a rule
// hides rows, it opens a job to count them, which is more expensive.
func (c *Catalog) View(ctx context.Context, ref Ref, right policy.Right) (*View, error) {
	snap, d, err := c.snapshot(ctx, ref, right)
	if err != nil {
		return nil, err
	}
	v := &View{Snap: snap, Within: d.Restriction, catalog: c}
	if !d.Restriction.HidesRows() { // the record of the snapshot is enough
		v.Rows, v.Splits = snap.Rows(), resolve.SeenSplits(snap, nil)
		return v, nil
	}
	job, err := c.engine.Open(ctx, within(d, snap, schema.PositionColumn))
	if err != nil {
		return nil, c.notFor(ctx, d, snap.Dataset, snap.Number, err)
	}
	defer job.Close()
	v.Rows, v.Splits = job.Seen(), job.Splits()
	return v, nil
}

// Proof returns how many of the blobs that had no checksum when they were attached have one
// now. It returns nil if all had one. It also returns nil if something is hidden from the
// caller, because the counts would reveal it.
func (v *View) Proof(ctx context.Context) (*store.Proof, error) {
	if v.Within != nil || !slices.ContainsFunc(v.Snap.Sets, func(set schema.SetRef) bool { return set.Unproven.Blobs > 0 }) {
		return nil, nil
	}
	proof, err := store.ProverOf(v.catalog.engine.Store()).Proof(ctx, v.Snap)
	if err != nil {
		return nil, err
	}
	return &proof, nil
}

// Filter selects datasets by name: one dataset, or with Wild all whose names begin with
// Name. Number or Tag select one snapshot of a single dataset.
type Filter struct {
	Name   string
	Wild   bool
	Number int64
	Tag    string
}

// Match reports whether the filter selects a dataset.
func (f Filter) Match(name string) bool {
	if f.Wild {
		return strings.HasPrefix(name, f.Name)
	}
	return f.Name == name
}

// Each calls visit with a view of each dataset that the filter selects and that exists for
// the caller. The view has the snapshot that the filter names, or the newest one. A dataset
// that is dropped during the call is skipped.
func (c *Catalog) Each(ctx context.Context, f Filter, visit func(store.Dataset, *View) error) error {
	datasets, err := c.Datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range datasets {
		if !f.Match(d.Name) || len(d.Snapshots) == 0 {
			continue
		}
		ref := Ref{d.Name, f.Number, f.Tag}
		pinned := ref.Snapshot != 0 || ref.Tag != ""
		if !pinned {
			ref.Snapshot = d.Snapshots[len(d.Snapshots)-1]
		}
		v, err := c.View(ctx, ref, policy.List)
		if !pinned && errors.Is(err, schema.ErrNotFound) {
			continue
		}
		if err == nil {
			err = visit(d, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// HasSplit returns schema.ErrNotFound if a split does not exist for the caller. The message
// names those that do.
func (v *View) HasSplit(name string) error {
	if name == "" {
		return nil
	}
	var have []string
	for _, sp := range v.Splits {
		if sp.Name == name {
			return nil
		}
		have = append(have, sp.Name)
	}
	return fmt.Errorf("%w: dataset %s@%d has no split %q; it has %s", schema.ErrNotFound, v.Snap.Dataset, v.Snap.Number,
		name, cmp.Or(schema.ShownList(have), "none"))
}

// Schema returns the schema of the batches of a request.
func (v *View) Schema(ctx context.Context, req schema.Request) (*arrow.Schema, error) {
	req.Within = v.Within
	return v.catalog.engine.Schema(ctx, v.Snap, req)
}

// ResolveSplit resolves a request for a split, or for all rows if split is "". It also
// returns the size of their blobs in bytes, -1 if that is unknown.
func (v *View) ResolveSplit(ctx context.Context, split string) (*fetch.Resolved, int64, error) {
	engine := v.catalog.engine
	req := schema.Request{Dataset: v.Snap.Dataset, Snapshot: v.Snap.Number, Split: split, Within: v.Within}
	if v.Within.HidesRows() {
		job, err := engine.Open(ctx, req)
		if err != nil {
			return nil, 0, err
		}
		defer job.Close()
		return &fetch.Resolved{Request: job.Request(), ID: job.ID(), Plan: job.Plan(), Projection: job.Projection()}, -1,
			nil
	}
	o, err := engine.Resolve(ctx, v.Snap, req)
	if err != nil {
		return nil, 0, err
	}
	bytes, ok := engine.KnownBytes(o)
	if !ok {
		bytes = -1
	}
	return o, bytes, nil
}

// BlobBytes returns the total size of a column's visible blobs. ordinal is the index among
// the blob columns. If the caller sees all rows, the record of the snapshot has the sum;
// otherwise BlobBytes opens a job.
func (v *View) BlobBytes(ctx context.Context, ordinal int, name string) (int64, error) {
	if !v.Within.HidesRows() {
		var sum int64
		for _, chunk := range v.Snap.Chunks {
			sum += chunk.BlobBytes[ordinal]
		}
		return sum, nil
	}
	engine := v.catalog.engine
	job, err := engine.Open(ctx, within(policy.Decision{Restriction: v.Within}, v.Snap, name))
	if err != nil {
		return 0, err
	}
	defer job.Close()
	sum, err := engine.TotalBytes(ctx, job)
	if err != nil {
		return 0, fmt.Errorf("column %q: %w", name, err)
	}
	return sum, nil
}

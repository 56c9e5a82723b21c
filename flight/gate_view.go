package flight

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// seen is a snapshot as far as it exists for a caller.
type seen struct {
	snap   *schema.Snapshot
	within *schema.Restriction
	schema *arrow.Schema // what is visible of the snapshot's
	rows   int64
	splits []resolve.SeenSplit
}

// view counts what the caller may see of a snapshot. Where not all rows are, they are
// looked at; otherwise its record is enough.
func (s *Server) view(ctx context.Context, snap *schema.Snapshot, d policy.Decision) (*seen, error) {
	v := &seen{snap: snap, within: d.Restriction, schema: d.Restriction.Visible(snap.Schema)}
	if !d.Restriction.HidesRows() {
		v.rows, v.splits = snap.Rows(), resolve.SeenSplits(snap, nil)
		return v, nil
	}
	job, err := s.engine.Open(ctx, schema.Request{Dataset: snap.Dataset, Snapshot: snap.Number,
		Columns: []string{schema.PositionColumn}, Within: d.Restriction})
	if err != nil {
		return nil, s.notFor(ctx, d, snap.Dataset, snap.Number, err)
	}
	defer job.Close()
	v.rows, v.splits = job.Seen(), job.Splits()
	return v, nil
}

// hasSplit fails if a split does not exist for the caller.
func (v *seen) hasSplit(name string) error {
	if name == "" {
		return nil
	}
	var have []string
	for _, sp := range v.splits {
		if sp.Name == name {
			return nil
		}
		have = append(have, sp.Name)
	}
	return noSplit(v.snap, name, have)
}

// eachNewest calls visit with the newest snapshot of each dataset that the filter
// matches and that exists for the caller, or with the one that the filter names. A
// dataset that is dropped meanwhile is passed over.
func (s *Server) eachNewest(ctx context.Context, f datasetFilter, visit func(store.Dataset, *seen) error) error {
	datasets, err := s.datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range datasets {
		if !f.match(d.Name) || len(d.Snapshots) == 0 {
			continue
		}
		ref := snapshotRef{d.Name, f.number, f.tag}
		pinned := ref.Snapshot != 0 || ref.Tag != ""
		if !pinned {
			ref.Snapshot = d.Snapshots[len(d.Snapshots)-1]
		}
		snap, decision, err := s.snapshot(ctx, ref, policy.List)
		var v *seen
		if err == nil {
			v, err = s.view(ctx, snap, decision)
		}
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

// schemaOf is what batches of a request look like for who sees that much of a snapshot.
func (s *Server) schemaOf(ctx context.Context, snap *schema.Snapshot, within *schema.Restriction,
	req schema.Request) (*arrow.Schema, error) {
	req.Within = within
	return s.engine.Schema(ctx, snap, req)
}

// outline says what a request for all of a split, or all rows, means, and its bytes where
// that is known, or else -1.
func (s *Server) outline(ctx context.Context, v *seen, split string) (*fetch.Resolved, int64, error) {
	req := schema.Request{Dataset: v.snap.Dataset, Snapshot: v.snap.Number, Split: split, Within: v.within}
	if v.within.HidesRows() {
		job, err := s.engine.Open(ctx, req)
		if err != nil {
			return nil, 0, err
		}
		defer job.Close()
		return &fetch.Resolved{Request: job.Request(), ID: job.ID(), Plan: job.Plan(), Projection: job.Projection()}, -1,
			nil
	}
	o, err := s.engine.Resolve(ctx, v.snap, req)
	if err != nil {
		return nil, 0, err
	}
	bytes, ok := s.engine.KnownBytes(o)
	if !ok {
		bytes = -1
	}
	return o, bytes, nil
}

// blobBytes adds up the blobs of a column that the caller may see. Where he sees all
// rows, the record of the snapshot tells.
func (s *Server) blobBytes(ctx context.Context, v *seen, ordinal int, name string) (int64, error) {
	if !v.within.HidesRows() {
		var sum int64
		for _, chunk := range v.snap.Chunks {
			sum += chunk.BlobBytes[ordinal]
		}
		return sum, nil
	}
	job, err := s.engine.Open(ctx, schema.Request{Dataset: v.snap.Dataset, Snapshot: v.snap.Number,
		Columns: []string{name}, Within: v.within})
	if err != nil {
		return 0, err
	}
	defer job.Close()
	sum, err := s.engine.TotalBytes(ctx, job)
	if err != nil {
		return 0, fmt.Errorf("column %q: %w", name, err)
	}
	return sum, nil
}

// datasetOf returns a dataset's entry in the catalog, an empty one if it does not exist
// for the caller.
func (s *Server) datasetOf(ctx context.Context, dataset string) (store.Dataset, error) {
	datasets, err := s.datasets(ctx)
	if err != nil {
		return store.Dataset{}, err
	}
	found := store.Dataset{Name: dataset, Snapshots: []int64{}}
	for _, d := range datasets {
		if d.Name == dataset {
			found.Snapshots, found.Tags = d.Snapshots, d.Tags
		}
	}
	found.Tags = append([]store.Tag{}, found.Tags...) // a list in JSON, though it be empty
	return found, nil
}

// statistics are the store's and the engine's, which tell of all that is done: they are
// for who has the right admin to the server. Others get zeroes.
func (s *Server) statistics(ctx context.Context) (store.Stats, fetch.Stats, bool) {
	if !s.rules().Server(whoOf(fetch.CallerFrom(ctx))).May(policy.Admin) {
		return store.Stats{}, noStats(), false
	}
	stored, engine := s.counters()
	return stored, engine, true
}

// noStats are an engine's for those who may not see them.
func noStats() fetch.Stats {
	return fetch.Stats{Windows: []fetch.WindowStats{}, Memory: []admission.Account{}, Jobs: []fetch.JobStats{}}
}

// counters are the store's and the engine's, whoever asks.
func (s *Server) counters() (store.Stats, fetch.Stats) {
	return s.engine.Store().Stats(), s.engine.Stats()
}

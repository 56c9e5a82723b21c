package catalog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/predict"
	"bowstring/fetch/store"
	"bowstring/flight/audit"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// Counters returns the counters of the store and the engine. They cover the work of all
// callers, and are for callers that may see the whole server.
func (s *Source) Counters() (store.Stats, fetch.Stats) {
	return s.engine.Store().Stats(), s.engine.Stats()
}

// Counters returns the counters of the store and the engine if the caller may see all of
// them, and zeros otherwise.
func (c *Catalog) Counters() (store.Stats, fetch.Stats) {
	if !c.SeesAll() {
		return store.Stats{}, NoStats()
	}
	return c.source.Counters()
}

// NoStats returns the engine's counters for callers that may not see them. The lists are
// not nil, so that JSON has lists.
func NoStats() fetch.Stats {
	return fetch.Stats{Windows: []fetch.WindowStats{}, Memory: []admission.Account{}, Jobs: []fetch.JobStats{}}
}

// SetTerms sets the limits and weights of tenants. nil gives all tenants the same.
func (s *Source) SetTerms(terms func(tenant string) fetch.Terms) { s.engine.SetTerms(terms) }

// Conditions returns the inputs of the prediction for an open job. The contents of the
// cache reveal the jobs of others: HeldBytes is 0 unless the caller may see those.
func (c *Catalog) Conditions(ctx context.Context, job *fetch.Job) (predict.Job, error) {
	total, err := c.engine.TotalBytes(ctx, job)
	if err != nil {
		return predict.Job{}, err
	}
	found := c.engine.Conditions(job, total)
	if !c.SeesAll() {
		found.HeldBytes = 0
	}
	return found, nil
}

// RatesAt returns the engine's rates at a time, for a job. Every caller may see predictions
// made from them. The rates themselves are for callers that see the whole server.
func (c *Catalog) RatesAt(at time.Time, job *predict.Job) (fetch.Rates, fetch.RatesFrom) {
	return c.engine.Rates(at, job.RowBytes/max(job.RowReads, 1))
}

// Rates returns the current rates. It requires the right admin on the server.
func (c *Catalog) Rates() (fetch.Rates, error) {
	if err := c.MayAdmin("rates"); err != nil {
		return fetch.Rates{}, err
	}
	r, _ := c.RatesAt(time.Now(), &predict.Job{})
	return r, nil
}

// Reads returns how many blobs the jobs of a group have read so far, and how many of them
// came from the spill.
func (c *Catalog) Reads(group string) (all, spill int64) {
	st := c.engine.Stats()
	for i := range st.Jobs {
		if j := &st.Jobs[i]; j.Job == group {
			all += j.WindowReads + j.SpillReads + j.PeerReads + j.StoreReads
			spill += j.SpillReads
		}
	}
	return all, spill
}

// Calibrate measures rates by reading a dataset, by default the largest one, and makes the
// engine use them. It slows down everything that uses the store, so it requires the right
// admin on the server. name is the snapshot that was read.
func (c *Catalog) Calibrate(ctx context.Context, dataset string,
	opts fetch.CalibrateOptions) (found *fetch.Calibration, name string, err error) {
	if err := c.MayAdmin("measuring rates"); err != nil {
		return nil, "", err
	}
	if dataset == "" {
		if dataset, err = c.largest(ctx); err != nil {
			return nil, "", err
		}
	}
	job, err := c.Open(ctx, schema.Request{Dataset: dataset, Shuffle: &schema.Shuffle{}}, policy.Read)
	if err != nil {
		return nil, "", err
	}
	defer job.Close()
	if job.Plan().Rows() == 0 {
		return nil, "", fmt.Errorf("%w: %s has no row to read", schema.ErrInvalid, job.SnapshotName())
	}
	err = c.Change(ctx, Change{Event: audit.Measure, Dataset: dataset, Snapshot: job.Request().Snapshot},
		func(what *Change) (err error) {
			if found, err = c.engine.Calibrate(ctx, job, opts); err == nil {
				what.Rows, what.Bytes = found.Reads, found.Bytes
				c.engine.SetRates(found.Rates)
			}
			return err
		})
	return found, job.SnapshotName(), err
}

// SetRates makes the engine use rates that were measured elsewhere.
func (c *Catalog) SetRates(ctx context.Context, r fetch.Rates) error {
	if err := c.MayAdmin("setting rates"); err != nil {
		return err
	}
	if err := r.Check("rates."); err != nil {
		return err
	}
	return c.Change(ctx, Change{Event: audit.Measure}, func(*Change) error {
		c.engine.SetRates(r)
		return nil
	})
}

// largest returns the dataset with the most rows among those that have blobs.
func (c *Catalog) largest(ctx context.Context) (string, error) {
	list, err := c.Datasets(ctx)
	if err != nil {
		return "", err
	}
	name, most := "", int64(0)
	for _, d := range list {
		snap, err := c.engine.Store().Snapshot(ctx, d.Name, 0)
		if err == nil && snap.Rows() > most && slices.ContainsFunc(snap.Schema.Fields(), schema.IsBlob) {
			name, most = d.Name, snap.Rows()
		}
	}
	if name == "" {
		return "", fmt.Errorf("%w: no dataset has blobs to read", schema.ErrNotFound)
	}
	return name, nil
}

// Extents returns the extents in buckets of some blobs of a job that the caller has
// opened.
func (c *Catalog) Extents(ctx context.Context, job *fetch.Job) (fetch.Extents, error) {
	return c.engine.Extents(ctx, job)
}

// Mixing returns how well the order of an open job mixes classes.
func (c *Catalog) Mixing(ctx context.Context, job *fetch.Job) (*fetch.Mixing, error) {
	return c.engine.Mixing(ctx, job)
}

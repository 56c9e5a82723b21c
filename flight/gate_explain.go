package flight

import (
	"context"
	"fmt"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/predict"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// conditions is what a model is told of a job that the caller has opened. What the cache
// holds tells what others do: it is for who may see that.
func (s *Server) conditions(ctx context.Context, job *fetch.Job) (predict.Job, error) {
	total, err := s.engine.TotalBytes(ctx, job)
	if err != nil {
		return predict.Job{}, err
	}
	c := s.engine.Conditions(job, total)
	if !s.seesAll(ctx) {
		c.HeldBytes = 0
	}
	return c, nil
}

// seesAll reports whether the caller may see what all callers do.
func (s *Server) seesAll(ctx context.Context) bool {
	return s.rules().Server(whoOf(fetch.CallerFrom(ctx))).May(policy.Admin)
}

// ratesAt are the engine's rates at a time, for a job. What is predicted by them is for all, and
// they themselves for who sees all.
func (s *Server) ratesAt(at time.Time, c *predict.Job) (fetch.Rates, fetch.RatesFrom) {
	return s.engine.Rates(at, c.RowBytes/max(c.RowReads, 1))
}

// jobReads are the blobs that the spill's jobs of a group have got so far, and those of them
// that came from the spill.
func (s *Server) jobReads(group string) (all, spill int64) {
	st := s.engine.Stats()
	for i := range st.Jobs {
		if j := &st.Jobs[i]; j.Job == group {
			all += j.WindowReads + j.SpillReads + j.PeerReads + j.StoreReads
			spill += j.SpillReads
		}
	}
	return all, spill
}

// runCalibration measures, which takes from all who use the store: it is for who runs the
// server.
func (s *Server) runCalibration(ctx context.Context, dataset string,
	opts fetch.CalibrateOptions) (found *fetch.Calibration, name string, err error) {
	if err := s.mayServer(ctx, policy.Admin, "measuring rates"); err != nil {
		return nil, "", err
	}
	if dataset == "" {
		if dataset, err = s.largest(ctx); err != nil {
			return nil, "", err
		}
	}
	job, err := s.open(ctx, schema.Request{Dataset: dataset, Shuffle: &schema.Shuffle{}}, policy.Read)
	if err != nil {
		return nil, "", err
	}
	defer job.Close()
	if job.Plan().Rows() == 0 {
		return nil, "", fmt.Errorf("%w: %s has no row to read", schema.ErrInvalid, job.SnapshotName())
	}
	err = s.audited(ctx, change{event: auditMeasure, dataset: dataset, snapshot: job.Request().Snapshot},
		func(c *change) (err error) {
			if found, err = s.engine.Calibrate(ctx, job, opts); err == nil {
				c.rows, c.bytes = found.Reads, found.Bytes
				s.engine.SetRates(found.Rates)
			}
			return err
		})
	return found, job.SnapshotName(), err
}

// setRates has the engine go by rates that were measured elsewhere.
func (s *Server) setRates(ctx context.Context, r fetch.Rates) error {
	if err := s.mayServer(ctx, policy.Admin, "setting rates"); err != nil {
		return err
	}
	if err := r.Check("rates."); err != nil {
		return err
	}
	return s.audited(ctx, change{event: auditMeasure}, func(*change) error {
		s.engine.SetRates(r)
		return nil
	})
}

// largest is the name of the dataset with most rows.
func (s *Server) largest(ctx context.Context) (string, error) {
	list, err := s.datasets(ctx)
	if err != nil {
		return "", err
	}
	name, most := "", int64(0)
	for _, d := range list {
		snap, err := s.engine.Store().Snapshot(ctx, d.Name, 0)
		if err == nil && snap.Rows() > most && slices.ContainsFunc(snap.Schema.Fields(), schema.IsBlob) {
			name, most = d.Name, snap.Rows()
		}
	}
	if name == "" {
		return "", fmt.Errorf("%w: no dataset has blobs to read", schema.ErrNotFound)
	}
	return name, nil
}

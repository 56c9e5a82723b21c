package flight

import (
	"context"
	"time"

	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/catalog"
	"bowstring/schema"
)

// runInfo is the JSON of a run.
type runInfo struct {
	Dataset string `json:"dataset"`
	Run     string `json:"run"`
	Owner   string `json:"owner,omitempty"`
	// Step is the one from which on weights were changed by this call.
	Step    *int64    `json:"step,omitempty"`
	Settled int64     `json:"settled"`
	Sources []runPart `json:"sources"`
	// Changes are those that weights have gone through, or will: of the schedule, and from outside.
	Changes []schema.MixtureChange `json:"changes"`
	Steered []steerInfo            `json:"steered"`
	Created time.Time              `json:"created"`
	Expires time.Time              `json:"expires"`
}

// runPart is a source of a run, with the weight that it began with.
type runPart struct {
	Name     string   `json:"name"`
	Dataset  string   `json:"dataset,omitempty"`
	Snapshot int64    `json:"snapshot,omitempty"`
	Weight   *float64 `json:"weight"`
}

// steerInfo is a change from outside.
type steerInfo struct {
	schema.MixtureChange
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

func runInfoOf(run *store.Run) (runInfo, error) {
	mixture, err := resolve.MixtureOf(run)
	if err != nil {
		return runInfo{}, err
	}
	info := runInfo{Dataset: run.Dataset, Run: run.Name, Owner: run.Owner, Settled: run.Settled,
		Changes: append([]schema.MixtureChange{}, mixture.Changes()...), Steered: []steerInfo{}, Created: run.Created,
		Expires: run.Expires}
	var add func([]schema.MixtureSource)
	add = func(sources []schema.MixtureSource) {
		for i := range sources {
			s := &sources[i]
			info.Sources = append(info.Sources, runPart{s.Called(), s.Dataset, s.Snapshot, s.Weight})
			add(s.Sources)
		}
	}
	add(mixture.Sources)
	for _, s := range run.Steered {
		info.Steered = append(info.Steered, steerInfo{s.MixtureChange, s.By, s.At})
	}
	return info, nil
}

// steer changes the weights of a run while it goes on.
func (s actionHandler) steer(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Dataset string             `json:"dataset"`
		Run     string             `json:"run"`
		Weights map[string]float64 `json:"weights"`
		Over    int64              `json:"over"`
		Pieces  int64              `json:"pieces"`
		From    *int64             `json:"from_step"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if err := schema.CheckName("dataset", req.Dataset); err != nil {
		return err
	}
	if err := schema.CheckName("run", req.Run); err != nil {
		return err
	}
	run, step, err := s.catalog(ctx).Steer(ctx, catalog.Steering{Dataset: req.Dataset, Run: req.Run, From: req.From,
		Change: schema.MixtureChange{Weights: req.Weights, Over: req.Over, Pieces: req.Pieces}})
	if err != nil {
		return err
	}
	info, err := runInfoOf(run)
	if err != nil {
		return err
	}
	info.Step = &step
	return sendJSON(send, info)
}

// runs lists the runs that are kept beside a dataset.
func (s actionHandler) runs(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Dataset string `json:"dataset"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if err := schema.CheckName("dataset", req.Dataset); err != nil {
		return err
	}
	list, err := s.catalog(ctx).Runs(ctx, req.Dataset)
	if err != nil {
		return err
	}
	for _, run := range list {
		info, err := runInfoOf(run)
		if err != nil {
			return err
		}
		if err := sendJSON(send, info); err != nil {
			return err
		}
	}
	return nil
}

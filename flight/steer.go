package flight

import (
	"context"
	"time"

	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/catalog"
	"bowstring/schema"
)

// runInfo is the JSON of a run: a mixture whose weights can change while streams read it.
type runInfo struct {
	Dataset string `json:"dataset"`
	Run     string `json:"run"`
	Owner   string `json:"owner,omitempty"`
	// Step is the first step with the weights of this call. Only the action steer sets it.
	Step    *int64    `json:"step,omitempty"`
	Settled int64     `json:"settled"`
	Sources []runPart `json:"sources"`
	// Changes are all changes of weights, past and future. They include those of the
	// schedule and those of the action steer.
	Changes []schema.MixtureChange `json:"changes"`
	Steered []steerInfo            `json:"steered"`
	Created time.Time              `json:"created"`
	Expires time.Time              `json:"expires"`
}

// runPart is a source of a run, with its initial weight. Groups of sources are listed
// before their members and have no dataset.
type runPart struct {
	Name     string   `json:"name"`
	Dataset  string   `json:"dataset,omitempty"`
	Snapshot int64    `json:"snapshot,omitempty"`
	Weight   *float64 `json:"weight"`
}

// steerInfo is a change by the action steer, with the caller and the time.
type steerInfo struct {
	schema.MixtureChange
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

// runInfoOf returns the JSON of a run. Its lists are never nil, so that JSON has lists.
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

// steer implements the action: it changes the weights of a run while streams read it.
// Without from_step the catalog chooses the first step that no stream may have served.
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

// runs implements the action: it lists the runs that are stored with a dataset.
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

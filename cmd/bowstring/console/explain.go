package console

import (
	"net/http"

	"bowstring/schema"
)

// explainBody is the body of the action explain.
type explainBody struct {
	schema.Request
	PaceMS float64 `json:"pace_ms,omitempty"`
	Epochs int64   `json:"epochs,omitempty"`
	Nodes  int64   `json:"nodes,omitempty"`
	LookMS int64   `json:"look_ms"`
}

// lookMS is for how long a job that runs is looked at.
const lookMS = 1000

// explain says how a job will run, and how one runs.
func (q *query) explain() error {
	req, err := q.request()
	if err != nil {
		return err
	}
	body := explainBody{Request: req, LookMS: lookMS}
	var ranks, pace int64
	for name, to := range map[string]*int64{"batch": &body.Batch, "ranks": &ranks, "epochs": &body.Epochs,
		"nodes": &body.Nodes, "pace_ms": &pace} {
		if *to, err = q.number(name, 0, schema.MaxBatch); err != nil {
			return err
		}
	}
	if q.form.Get("seed") != "" {
		n, err := q.number("seed", 0, 1<<62)
		if err != nil {
			return err
		}
		body.Shuffle = &schema.Shuffle{Seed: uint64(n)}
	}
	if ranks > 1 {
		body.World = &schema.World{Size: ranks}
	}
	body.PaceMS = float64(pace)
	result, err := q.one("explain", body, nil)
	if err != nil {
		return err
	}
	answer(q.w, http.StatusOK, result)
	return nil
}

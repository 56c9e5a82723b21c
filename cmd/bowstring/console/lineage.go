package console

import (
	"encoding/json"
	"net/http"
	"strconv"

	"bowstring/schema"
)

// lineageBody is the body of the action lineage.
type lineageBody struct {
	Job   string  `json:"job,omitempty"`
	Epoch *uint64 `json:"epoch,omitempty"`
	Step  *int64  `json:"step,omitempty"`
	Rank  *int64  `json:"rank,omitempty"`
}

// lineage is the jobs on record, or what a step of one held.
func (q *query) lineage() error {
	body := lineageBody{Job: q.form.Get("job")}
	for name, to := range map[string]**int64{"step": &body.Step, "rank": &body.Rank} {
		if q.form.Get(name) == "" {
			continue
		}
		n, err := q.number(name, 0, 1<<62)
		if err != nil {
			return err
		}
		*to = &n
	}
	if text := q.form.Get("epoch"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return &schema.FieldError{Field: "epoch", Got: schema.Quote(text), Want: "a number from 0 to 2^64-1"}
		}
		body.Epoch = &n
	}
	results, err := q.act("lineage", body)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		results = []json.RawMessage{json.RawMessage("{}")}
	}
	more := len(results) > maxDatasets
	answer(q.w, http.StatusOK, map[string]any{"record": results[0], "found": results[1:], "more": more})
	return nil
}

// cluster is what the server knows of its cluster; null where it is in none, or the viewer may not know.
func (q *query) cluster() error {
	var stats struct {
		Cluster json.RawMessage `json:"cluster"`
		Engine  struct {
			StoodIn   int64 `json:"stood_in"`
			PeerReads int64 `json:"peer_reads"`
		} `json:"engine"`
	}
	if _, err := q.one("stats", struct{}{}, &stats); err != nil {
		return err
	}
	answer(q.w, http.StatusOK, map[string]any{"cluster": stats.Cluster, "stood_in": stats.Engine.StoodIn,
		"peer_reads": stats.Engine.PeerReads})
	return nil
}

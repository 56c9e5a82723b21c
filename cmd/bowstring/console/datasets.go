package console

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

const (
	maxDatasets = 5000 // that are listed
	maxPage     = 200  // samples that are shown at once
	maxCell     = 2000 // bytes of a text that is shown
	maxExact    = 1 << 53
)

// snapshotBody is the body of actions that take a snapshot.
type snapshotBody struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot,omitempty"`
}

func (q *query) datasets() error {
	results, err := q.act("list", struct{}{})
	if err != nil {
		return err
	}
	more := len(results) > maxDatasets
	if more {
		results = results[:maxDatasets]
	}
	answer(q.w, http.StatusOK, map[string]any{"datasets": results, "more": more})
	return nil
}

func (q *query) dataset() error {
	n, err := q.number("snapshot", 0, 1<<62)
	if err != nil {
		return err
	}
	result, err := q.one("describe", snapshotBody{q.form.Get("dataset"), n}, nil)
	if err != nil {
		return err
	}
	answer(q.w, http.StatusOK, result)
	return nil
}

// samples is a page of the samples that a request has, in order of position.
func (q *query) samples() error {
	size, err := q.number("size", 48, maxPage)
	if err != nil {
		return err
	}
	page, err := q.number("page", 0, 1<<40)
	if err != nil {
		return err
	}
	size = max(size, 1)
	req, err := q.request(append([]string{schema.PositionColumn}, q.form["column"]...)...)
	if err != nil {
		return err
	}
	total, err := q.count(req)
	if err != nil {
		return err
	}
	rows := []export.Object{}
	if page*size < total {
		req.Batch = size
		stop := page + 1
		err = q.read(schema.Ticket{Request: req, Step: page, Stop: &stop}, func(rec arrow.Record) (bool, error) {
			for i := range int(rec.NumRows()) {
				rows = append(rows, row(rec, i))
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	answer(q.w, http.StatusOK, map[string]any{"total": total, "page": page, "size": size, "rows": rows})
	return nil
}

// row is a row as the page shows it: texts cut short, and numbers that JavaScript or JSON
// do not have as texts.
func row(rec arrow.Record, i int) export.Object {
	var o export.Object
	for at, f := range rec.Schema().Fields() {
		o.Add(f.Name, shown(export.Value(f, rec.Column(at), i)))
	}
	return o
}

func shown(v any) any {
	switch v := v.(type) {
	case string:
		return short(v)
	case []byte:
		return v[:min(len(v), maxCell)]
	case int64:
		if v > maxExact || v < -maxExact {
			return strconv.FormatInt(v, 10)
		}
	case uint64:
		if v > maxExact {
			return strconv.FormatUint(v, 10)
		}
	case map[string]any: // a struct
		for name, of := range v {
			v[name] = shown(of)
		}
	case json.RawMessage:
		if len(v) > maxCell {
			return short(string(v))
		}
	}
	return v
}

func short(text string) string {
	if len(text) <= maxCell {
		return text
	}
	return strings.ToValidUTF8(text[:maxCell], "") + "…"
}

package fetch_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch"
	"bowstring/schema"
)

// Operators of a request are checked before anything is read, and errors name the field.
func TestOperatorErrors(t *testing.T) {
	st := newStore(t)
	made(t, st, 3, content)
	e := newEngine(t, st, withOperators(fetch.Options{}))
	for body, want := range map[string]string{
		`"operators":{"image":[{"Decode":{}},{"Crop":{"size":0}}]}`:                                                   "operators.image[1].Crop.size: want 1 or more bytes",
		`"operators":{"image":{"kind":"image","steps":[{"Reverse":{}}]}}`:                                             "operators.image.steps[0].Reverse: want Decode",
		`"operators":{"imag":[{"Decode":{}}]}`:                                                                        `did you mean "image"?`,
		`"operators":{"image":{"kind":"video","steps":[{"Decode":{}}]}}`:                                              "operators.image.kind",
		`"operators":{"image":[{"Decode":{},"Crop":{}}]}`:                                                             "operators.image[0]",
		`"operators":{"image":[{"Decode":[]}]}`:                                                                       "operators.image[0].Decode",
		`"operators":{"image":[]}`:                                                                                    "operators.image: got 0 steps",
		`"operators":{"image":"Decode"}`:                                                                              "operators.image",
		`"operators":{}`:                                                                                              "operators: got 0 columns",
		`"operators":{"image":{"step":[]}}`:                                                                           `did you mean "steps"?`,
		`"operators":{"mask":{"follows":"image"}}`:                                                                    "operators.mask.follows",
		`"operators":{"image":[{"Decode":{}}]},"place":"client","columns":["image","image.params"]`:                   `columns[1]: got "image.params" with place "client"`,
		`"operators":{"image":[{"Decode":{}}]},"place":"client","on_error":"skip"`:                                    `on_error: got "skip" with place "client"`,
		`"place":"client"`:                                                                                            "place",
		`"operators":{"image":[{"Decode":{}}]},"place":"auto"`:                                                        "between them clients decide",
		`"operators":{"image":[{"Decode":{}}]},"place":"there"`:                                                       "place",
		`"place":"server"`:                                                                                            "place",
		`"operators":{"image":{"contract":"test/99","steps":[{"Decode":{}}]}}`:                                        `operators.image.contract: got "test/99"`,
		`"operators":{"image":[{"Decode":{}}]},"layout":"huggingface"`:                                                "layout",
		`"operators":{"image":[{"Decode":{}}]},"columns":["mask"]`:                                                    "operators.image",
		`"columns":["image.params"]`:                                                                                  "columns[0]",
		`"operators":{"image":[{"Decode":{}},{"Crop":{"size":4}}]},"columns":["image.length"]`:                        "columns[0]",
		`"operators":{"image":[{"Decode":{}},{"RandomBytes":{}}],"mask":{"follows":"image","steps":[{"Decode":{}}]}}`: "operators.mask.steps: got 1",
		`"operators":{"image":[{"Decode":{}},{"Crop":{"size":2000000000}}]}`:                                          "operators.image",
		`"operators":{"image":[{"Decode":{}},{"Crop":{"size":"` + strings.Repeat("x", schema.MaxOperatorsBytes) +
			`"}}]}`: "operators: got",
	} {
		req, err := schema.ParseRequest([]byte(`{"dataset":"d",` + body + `}`))
		var j *fetch.Job
		if err == nil {
			if j, err = e.Open(t.Context(), req); err == nil {
				j.Close()
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, schema.ErrInvalid) &&
			!errors.Is(err, schema.ErrLimit) {
			t.Errorf("%.100s: %v, want %s", body, err, want)
		}
	}
}

// The same operators written in two ways are the same plan; a ticket has them in full, and total bytes are those of
// what is made, where they are known.
func TestOperatorsInTicketsAndTotals(t *testing.T) {
	st := newStore(t)
	made(t, st, 30, func(i int) []byte {
		if i == 3 {
			return nil
		}
		return content(i)
	})
	e := newEngine(t, st, withOperators(fetch.Options{}))
	short := must(schema.ParseRequest([]byte(`{"dataset":"d","columns":["image"],"operators":{"image":[{"Decode":{}},{"Crop":{ "size" : 100}}]}}`)))
	long := must(schema.ParseRequest([]byte(`{"dataset":"d","columns":["image"],"place":"server","operators":{"image":{"kind":"image","steps":[{"Decode":{}},{"Crop":{"size":100}}]}}}`)))
	a, b := open(t, e, short), open(t, e, long)
	if a.ID() != b.ID() || a.Request().Operators["image"].Contract != "test/1" {
		t.Errorf("%s, %s: %+v", a.ID(), b.ID(), a.Request())
	}
	if id := must(e.PlanID(t.Context(), short)); id != a.ID() {
		t.Errorf("the plan is %s by name and %s opened", id, a.ID())
	}
	if id := must(e.PlanID(t.Context(),
		must(schema.ParseTicket(ticket(a.Request(), 0).Marshal())).Request)); id != a.ID() {
		t.Errorf("the plan of the ticket is %s, of the job %s", id, a.ID())
	}
	if n := must(e.TotalBytes(t.Context(), a)); n != 29*100 {
		t.Errorf("%d bytes", n)
	}
	ragged := short
	ragged.Operators = schema.Operators{"image": {Steps: steps("Decode")}}
	if n := must(e.TotalBytes(t.Context(), open(t, e, ragged))); n != -1 {
		t.Errorf("%d bytes", n)
	}
	ragged.Columns = []string{"image.length", "image"}
	j := open(t, e, ragged)
	s := start(t, e, j, ticket(j.Request(), 0))
	defer s.Close()
	for b := range batches(t, s) {
		column(t, b, "image.length", func(a arrow.Array) {
			for row, pos := range b.Positions {
				if got := a.(*array.Int64).Value(row); a.IsValid(row) != (pos != 3) || a.IsValid(row) &&
					got != int64(len(content(int(pos)))) {
					t.Errorf("position %d has length %d", pos, got)
				}
			}
		})
	}
	if f := a.Projection().Schema.Field(0); !slices.Contains(f.Metadata.Values(), "arrow.fixed_shape_tensor") ||
		f.Type.String() != "fixed_size_list<item: uint8, nullable>[100]" {
		t.Errorf("%s", f)
	}
}

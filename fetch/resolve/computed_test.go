package resolve_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

func expressed(name, text string) schema.Operators {
	return schema.Operators{name: {Expression: text}}
}

// An error in an expression that makes a column names its place, and what would be right.
func TestExpressionErrors(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 20)
	for name, c := range map[string]struct {
		request string // as JSON, beside the dataset
		want    string
	}{
		"another name": {`"operators": {"made": {"expression": "lable + 1"}}`,
			`operators.made.expression:1:1: no column "lable" (did you mean "label"?)`},
		"another type": {`"operators": {"made": {"expression": "label + name"}}`,
			`operators.made.expression:1:7: invalid operation`},
		"no column's type": {`"operators": {"made": {"expression": "[label]"}}`, "it gives a list, which no column can have"},
		"a blob":           {`"operators": {"made": {"expression": "image"}}`, `image.size and image.key`},
		"a stored column":  {`"operators": {"label": {"expression": "label + 1"}}`, "want the name of a new column"},
		"a virtual one":    {`"operators": {"position": {"expression": "label"}}`, "neither id, position nor split"},
		"a part of a blob": {`"operators": {"image.size": {"expression": "label"}}`, "want the name of a new column"},
		"not shown": {`"columns": ["label"], "operators": {"made": {"expression": "label"}}`,
			"a column that columns does not name"},
		"shown, not there": {`"columns": ["made"]`, `columns[0]`},
		"beside steps": {`"operators": {"made": {"expression": "label", "steps": [{"Decode": {}}]}}`,
			"an expression makes a column of metadata"},
		"a kind": {`"operators": {"made": {"expression": "label", "kind": "image"}}`, "want one of them"},
		"empty":  {`"operators": {"made": {"expression": " "}}`, "want an expression over metadata columns"},
		"no text": {`"operators": {"made": {"expression": 7}}`,
			"operators.made.expression: got 7, want an expression over metadata columns"},
		"another contract": {`"operators": {"made": {"expression": "label", "contract": "expression/0"}}`,
			`operators.made.contract: got "expression/0", want "expression/2"`},
		"another field": {`"operators": {"made": {"expresion": "label"}}`, `did you mean "expression"?`},
	} {
		req, err := schema.ParseRequest([]byte(`{"dataset": "d", ` + c.request + `}`))
		if err == nil {
			_, err = f.Open(t.Context(), req)
		}
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// An expression sees what its caller may see, and a name that is hidden is free.
func TestExpressionsUnderRestrictions(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 20)
	within := &schema.Restriction{Columns: []string{"id", "label"}}
	open := func(operators schema.Operators) (*resolve.Job, error) {
		j, err := f.Open(t.Context(), schema.Request{Dataset: "d", Operators: operators, Within: within})
		if err == nil {
			t.Cleanup(j.Close)
		}
		return j, err
	}
	for text, want := range map[string]string{"lower(name)": `no column "name"`, "image.size": `no column "image"`} {
		if _, err := open(expressed("made", text)); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "blob") {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	j, err := open(expressed("name", "label * 2"))
	if err != nil {
		t.Fatal(err)
	}
	if got := j.Projection().Schema; got.NumFields() != 3 || got.Field(2).Name != "name" ||
		got.Field(2).Type.String() != "int64" {
		t.Errorf("the columns are %v", got)
	}
}

// Sizes are reported where all are known, and plans have ids of their own.
func TestExpressionsInPlans(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 20)
	of := func(operators schema.Operators) *resolve.Job {
		return f.open(t, schema.Request{Dataset: "d", Columns: []string{"made", "label"}, Operators: operators})
	}
	for text, want := range map[string]int64{"label > 3": 20 * 9, "label": -1, "name": -1} {
		j := of(expressed("made", text))
		total, err := f.TotalBytes(t.Context(), j)
		if err != nil || total != want {
			t.Errorf("%s: %d bytes, %v; want %d", text, total, err, want)
		}
		if id, err := f.ID(t.Context(), j.Request()); err != nil || id != j.ID() {
			t.Errorf("%s: the plan is %s by its request, %v; opened %s", text, id, err, j.ID())
		}
		if p := j.Request().Operators["made"]; p.Contract == "" || p.Expression != text {
			t.Errorf("%s: a ticket has %+v", text, p)
		}
		if len(j.Operators().Forms()) > 0 || j.Request().Batch != schema.DefaultMetaBatch {
			t.Errorf("%s: operators on blobs, or batches of %d", text, j.Request().Batch)
		}
	}
	if of(expressed("made", "label")).ID() == of(expressed("made", "label + 0")).ID() {
		t.Error("two expressions have the same plan")
	}
	// The layout of the datasets library takes them, as nothing is decoded.
	j := f.open(t, schema.Request{Dataset: "d", Layout: schema.LayoutHuggingFace, Operators: expressed("made", "label")})
	if md := j.Projection().Schema.Metadata(); !strings.Contains(md.Values()[0],
		`"made": {"dtype": "int64", "_type": "Value"}`) {
		t.Errorf("features are %v", md)
	}
}

// Expressions are compiled in turns that all requests share, and compiling ends with the
// call.
func TestExpressionsAreCompiledInRotation(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 20)
	made := schema.Request{Dataset: "d", Operators: expressed("made", "label * 2")}
	matching := schema.Request{Dataset: "d", Where: "label * 2 > 3"}
	snap := f.open(t, schema.Request{Dataset: "d"}).Manifest().Snapshot()
	for name, open := range map[string]func(context.Context) error{
		"a column": func(ctx context.Context) error { return opened(f.Open(ctx, made)) },
		"where":    func(ctx context.Context) error { return opened(f.Open(ctx, matching)) },
		"its resolution": func(ctx context.Context) error {
			_, err := f.Resolve(ctx, snap, made)
			return err
		},
		"its schema": func(ctx context.Context) error {
			_, err := f.Schema(ctx, snap, made)
			return err
		},
		"its name": func(ctx context.Context) error {
			_, err := f.ID(ctx, made)
			return err
		},
	} {
		end := f.busy(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- open(ctx) }()
		select {
		case err := <-waits:
			t.Errorf("%s: it is compiled while others have all turns: %v", name, err)
			cancel(nil)
		case <-time.After(20 * time.Millisecond): // time enough to be wrong
			cancel(errGone)
			if err := <-waits; !errors.Is(err, errGone) {
				t.Errorf("%s: %v, want that it ends with the call", name, err)
			}
		}
		end()
		if err := open(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// opened closes a job at once.
func opened(j *resolve.Job, err error) error {
	if err == nil {
		j.Close()
	}
	return err
}

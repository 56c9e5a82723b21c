package fetch_test

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// imageSteps are operators for the column image, which says nothing of what it holds.
func imageSteps(names ...string) schema.Operators {
	return schema.Operators{"image": {Kind: "image", Steps: steps(names...)}}
}

// A sample of a mixture is processed by its source's operators, and then by the mixture's. The result does not depend on
// ranks, nor on where a stream begins.
func TestMixtureOperatorsBySource(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	st := newStore(t)
	sizes := map[string]int{"a": 60, "b": 90, "c": 30}
	putColumns(t, st, "a", 60, 0, "label", "image")
	putColumns(t, st, "b", 90, 0, "image", "label")
	putColumns(t, st, "c", 30, 0, "label")
	e := newEngine(t, st, withOperators(fetch.Options{}))
	own := map[string][]string{"a": {"Decode", "Crop=16"}, "b": {"Decode", "Reverse", "RandomBytes"}}
	last := []string{"RandomBytes", "Crop=8"}
	req := schema.Request{Columns: []string{"source", "image"}, Batch: 20, Shuffle: &schema.Shuffle{Seed: seed},
		Operators: schema.Operators{"image": {Steps: steps(last...)}},
		Mixture: &schema.Mixture{EpochSize: 240, Sources: []schema.MixtureSource{
			{Dataset: "a", Weight: weigh(2), Operators: imageSteps(own["a"]...)}, {Dataset: "c", Weight: weigh(1)},
			{Dataset: "b", Weight: weigh(1), Operators: imageSteps(own["b"]...)}}}}
	j := open(t, e, req)
	full := j.Request()
	again := open(t, e, full)
	if again.ID() != j.ID() || !reflect.DeepEqual(again.Request(), full) {
		t.Errorf("what the server wrote in full is another job: %s and %s", full.Marshal(), again.Request().Marshal())
	}
	if parsed, err := schema.ParseRequest(full.Marshal()); err != nil || !reflect.DeepEqual(parsed, full) {
		t.Errorf("%s: %v", full.Marshal(), err)
	}
	if got := len(full.Operators["image"].Steps); got != len(last) || full.Operators["image"].Contract == "" {
		t.Errorf("the mixture's own operators are %+v", full.Operators)
	}
	rows := 0
	served := map[string]int{} // rows of a source
	read := func(tk schema.Ticket) {
		s := start(t, e, j, tk)
		defer s.Close()
		for b := range batches(t, s) {
			var sources []string
			column(t, b, "source", func(a arrow.Array) {
				for i := range a.Len() {
					sources = append(sources, a.(*array.String).Value(i))
				}
			})
			column(t, b, "image", func(a arrow.Array) {
				for i, got := range cellsOf(t, a) {
					name := sources[i]
					epoch := served[name] / sizes[name]
					served[name]++
					if name == "c" {
						if got != nil {
							t.Fatalf("row %d of c, which has no images, has one", i)
						}
						continue
					}
					pos := b.Positions[i]
					source, there := j.Locate(pos)
					if j.Source(source).Name != name {
						t.Fatalf("position %d is of %s", pos, j.Source(source).Name)
					}
					want, _ := wantedOf(t, steps(slices.Concat(own[name], last)...), "image", plan.SourceSeed(seed, name),
						uint64(epoch), there, cell(name, "image", int(there)))
					if !bytes.Equal(got, want) {
						t.Fatalf("row %d of %s at %d: %x, want %x", i, name, there, got, want)
					}
				}
			})
			rows += b.Rows
		}
	}
	first := ticket(full, 0)
	first.Stop = new(int64(5))
	read(first)
	rest := ticket(full, 0)
	rest.Step = 5
	read(rest)
	if rows != 240 {
		t.Errorf("%d rows, want 240", rows)
	}
}

// Errors in a source's operators name the source, and so do errors of operators that do not fit together.
func TestMixtureOperatorsErrors(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 20, 0, "label", "image")
	putColumns(t, st, "b", 20, 0, "image", "mask", "label")
	e := newEngine(t, st, withOperators(fetch.Options{}))
	for _, try := range []struct {
		a, b, all schema.Operators
		columns   []string
		want      []string
	}{
		{a: imageSteps("Decode", "Crop=8"), b: imageSteps("Decode", "Crop=9"), want: []string{`column "image"`, `source "a"`, `source "b"`,
			`"shape":[8]`, `"shape":[9]`}},
		{a: imageSteps("Decode", "Crop=8"), want: []string{`column "image"`, `source "a"`, `bytes as they are in source "b"`}},
		{a: imageSteps("Decode", "Crop=8"), b: imageSteps("Decode", "Crap=8"), want: []string{`source "b"`, "operators.image.steps[1].Crap"}},
		{a: imageSteps("Decode"), all: imageSteps("Reverse"), want: []string{`source "b"`, "want Decode as the first step"}},
		{a: schema.Operators{"mask": {Kind: "image", Steps: steps("Decode")}}, want: []string{`source "a"`, `got "mask"`}},
		{b: schema.Operators{"mask": {Kind: "image", Steps: steps("Decode")}}, columns: []string{"image"}, want: []string{`source "b"`,
			"operators.mask: got a column that columns does not name"}},
		{a: imageSteps("Decode"), all: schema.Operators{"nothing": {Kind: "image", Steps: steps("Decode")}}, want: []string{`got "nothing"`}},
		{a: schema.Operators{"image": {Kind: "image", Steps: steps("Decode")}}, all: schema.Operators{"image": {Kind: "audio",
			Steps: steps("Reverse")}}, want: []string{`source "a"`, "operators.image.kind"}},
		{a: schema.Operators{"sum": {Expression: "label + 1"}}, want: []string{"mixture.sources[0].operators.sum",
			"new columns are made by the operators of the mixture"}},
		{a: schema.Operators{}, want: []string{"mixture.sources[0].operators: got 0 columns"}},
	} {
		req := schema.Request{Columns: try.columns, Batch: 10, Shuffle: &schema.Shuffle{}, Operators: try.all,
			Mixture: &schema.Mixture{Sources: []schema.MixtureSource{{Dataset: "a", Weight: weigh(1), Operators: try.a},
				{Dataset: "b", Weight: weigh(1), Operators: try.b}}}}
		j, err := e.Open(t.Context(), req)
		if err == nil {
			j.Close()
			t.Errorf("%s was opened", req.Marshal())
			continue
		}
		for _, want := range try.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", req.Marshal(), err, want)
			}
		}
	}
}

// Ranks of a run may read other columns, and leave out the operators of those that they do not read.
func TestRunOfRanksWithOtherColumns(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 60, 0, "label", "image")
	putColumns(t, st, "b", 90, 0, "image", "label")
	e := newEngine(t, st, withOperators(fetch.Options{}))
	read := func(column string, of schema.Operators) (positions []int64) {
		t.Helper()
		j := open(t, e, schema.Request{Columns: []string{column}, Batch: 20, Shuffle: &schema.Shuffle{Seed: 1},
			Mixture: &schema.Mixture{Run: "r", EpochSize: 240, Sources: []schema.MixtureSource{
				{Dataset: "a", Snapshot: 1, Weight: weigh(2), Operators: of},
				{Dataset: "b", Snapshot: 1, Weight: weigh(1), Operators: of}}}})
		s := start(t, e, j, ticket(j.Request(), 0))
		defer s.Close()
		for b := range batches(t, s) {
			positions = append(positions, b.Positions...)
		}
		return positions
	}
	images := read("image", imageSteps("Decode", "Crop=8"))
	if labels := read("label", nil); !slices.Equal(images, labels) || len(labels) != 240 {
		t.Errorf("a rank that reads labels gets samples %v, another one %v", labels, images)
	}
}

package fetch_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// someSample is a sample of what put makes.
func someSample(rng *rand.Rand) *schema.Sample {
	replacement := rng.IntN(2) == 0
	return []*schema.Sample{
		{Weights: "label"},
		{Weights: "label + 1", Replacement: &replacement},
		{Weights: "label < 3", Replacement: &replacement},
		{Balance: "label"},
		{Balance: "label", Shares: map[string]float64{"0": 3, "1": 1, "2": 0, "3": .5, "4": 1, "5": 1, "6": 0, "7": 2, "8": 1,
			"9": 1}},
	}[rng.IntN(5)]
}

// putWeighed makes a dataset without blobs whose rows have weights: null where a value is NaN. Names are the parity of
// the row.
func putWeighed(tb testing.TB, st store.Store, dataset string, weights []float64) {
	tb.Helper()
	sch := must(schema.NewSchema([]arrow.Field{{Name: "w", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "even", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "big", Type: arrow.PrimitiveTypes.Uint64}, {Name: "small", Type: arrow.PrimitiveTypes.Int8},
		{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Int8), Nullable: true}}, nil))
	w := must(ingest.New(tb.Context(), st, ingest.Options{Dataset: dataset, Source: "test", Schema: sch,
		Mode: ingest.Replace, PageRows: 50}))
	defer w.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
	defer b.Release()
	var ids []schema.ID
	for i, v := range weights {
		ids = append(ids, sampleID(dataset, i))
		if math.IsNaN(v) {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.Float64Builder).Append(v)
		}
		b.Field(1).(*array.StringBuilder).Append([]string{"even", "odd"}[i%2])
		b.Field(2).(*array.BooleanBuilder).Append(i%2 == 0)
		b.Field(3).(*array.Uint64Builder).Append(math.MaxUint64 - uint64(i%3))
		b.Field(4).(*array.Int8Builder).Append(int8(i%5 - 2))
		b.Field(5).AppendNull()
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(tb.Context(), "train", ids, rec, nil); err != nil {
		tb.Fatal(err)
	}
	if _, _, err := w.Commit(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// servedCounts reads all ranks of a request, and counts positions.
func servedCounts(t *testing.T, e *fetch.Engine, req schema.Request) map[int64]int {
	t.Helper()
	j := open(t, e, req)
	counts := map[int64]int{}
	for rank := range int(req.WorldSize()) {
		s := start(t, e, j, ticket(j.Request(), rank))
		for b := range batches(t, s) {
			for _, pos := range b.Positions {
				counts[pos]++
			}
		}
		s.Close()
	}
	return counts
}

// TestSampleByWeight holds that samples are served by a column or an expression, of selected rows alone, and with any
// number of ranks the same.
func TestSampleByWeight(t *testing.T) {
	st := newStore(t)
	weights := make([]float64, 300)
	for i := range weights {
		weights[i] = float64(i % 4)
	}
	weights[77] = math.NaN() // null, where nothing selects it
	putWeighed(t, st, "d", weights)
	no := false
	for i, opts := range []fetch.Options{{}, {Resident: -1}} {
		e := newEngine(t, st, opts)
		for _, c := range []struct {
			sample schema.Sample
			weight func(i int64) float64
		}{
			{schema.Sample{Weights: "w"}, func(i int64) float64 { return weights[i] }},
			{schema.Sample{Weights: "w", Replacement: &no}, func(i int64) float64 { return weights[i] }},
			{schema.Sample{Weights: "w * w + 1", Replacement: &no}, func(i int64) float64 { return weights[i]*weights[i] + 1 }},
			{schema.Sample{Weights: "even", Replacement: &no}, func(i int64) float64 { return float64(1 - i%2) }},
			{schema.Sample{Weights: "even", Replacement: &no}, func(i int64) float64 { return float64(1 - i%2) }},
			{schema.Sample{Weights: "even and w > 1", Replacement: &no}, func(i int64) float64 {
				return map[bool]float64{true: 1}[i%2 == 0 && weights[i] > 1]
			}},
			{schema.Sample{Weights: "small + 3", Replacement: &no}, func(i int64) float64 { return float64(i%5 + 1) }},
			{schema.Sample{Weights: "big", Replacement: &no}, func(int64) float64 { return 1 }},
			{schema.Sample{Weights: "w ?? 9", Replacement: &no}, func(i int64) float64 { return weights[i] }},
		} {
			req := schema.Request{Dataset: "d", Columns: []string{"position"}, Where: "position != 77", Batch: 64,
				Shuffle: &schema.Shuffle{Seed: 5}, Sample: &c.sample}
			c.sample.EpochSize = 4000
			var sum float64
			for i := range int64(300) {
				if i != 77 {
					sum += c.weight(i)
				}
			}
			one := servedCounts(t, e, req)
			req.World = &schema.World{Size: 3}
			if three := servedCounts(t, e, req); fmt.Sprint(one) != fmt.Sprint(three) {
				t.Errorf("engine %d, %+v: three ranks serve something else", i, c.sample)
			}
			for i := range int64(300) {
				want := 4000 * c.weight(i) / sum
				if i == 77 {
					want = 0
				}
				far := 7*math.Sqrt(want) + 1
				if !c.sample.Replaces() {
					far = 1
				}
				if got := float64(one[i]); math.Abs(got-want) >= far || want == 0 && got > 0 {
					t.Errorf("engine %d, %+v: position %d comes %g times, want %g", i, c.sample, i, got, want)
				}
			}
		}
	}
}

// TestSampleByClass holds that classes of any kind of column come in their shares.
func TestSampleByClass(t *testing.T) {
	st := newStore(t)
	putWeighed(t, st, "d", make([]float64, 250))
	e := newEngine(t, st, fetch.Options{})
	for _, c := range []struct {
		sample schema.Sample
		class  func(i int64) string
		shares map[string]float64
	}{
		{schema.Sample{Balance: "name"}, func(i int64) string { return []string{"even", "odd"}[i%2] },
			map[string]float64{"even": .5, "odd": .5}},
		{schema.Sample{Balance: "even", Shares: map[string]float64{"true": 9, "false": 1}},
			func(i int64) string { return fmt.Sprint(i%2 == 0) }, map[string]float64{"true": .9, "false": .1}},
		{schema.Sample{Balance: "big"}, func(i int64) string { return fmt.Sprint(math.MaxUint64 - uint64(i%3)) },
			map[string]float64{"18446744073709551615": 1. / 3, "18446744073709551614": 1. / 3, "18446744073709551613": 1. / 3}},
		{schema.Sample{Balance: "small", Shares: map[string]float64{"-2": .3, "-1": 0, "0": .25, "1": .25, "2": .2}},
			func(i int64) string { return fmt.Sprint(i%5 - 2) }, map[string]float64{"-2": .3, "0": .25, "1": .25, "2": .2}},
	} {
		req := schema.Request{Dataset: "d", Columns: []string{"position"}, Split: "train", Batch: 50,
			Shuffle: &schema.Shuffle{Seed: 5}, Sample: &c.sample}
		c.sample.EpochSize = 1000
		got := map[string]float64{}
		for pos, n := range servedCounts(t, e, req) {
			got[c.class(pos)] += float64(n)
		}
		for class, share := range c.shares {
			if math.Abs(got[class]-1000*share) >= 1 {
				t.Errorf("%+v: class %s comes %g times", c.sample, class, got[class])
			}
		}
		if len(got) != len(c.shares) {
			t.Errorf("%+v: classes %v", c.sample, got)
		}
		s := open(t, e, req).Sampling()
		var classes []string
		for _, x := range s.Classes {
			classes = append(classes, x.Class)
		}
		if s.Rows != 1000 || s.Selected != 250 || s.Distinct > 250 || c.sample.Balance == "small" &&
			!slices.Equal(classes, []string{"-2", "-1", "0", "1", "2"}) {
			t.Errorf("%+v: %+v", c.sample, s)
		}
	}
}

// TestSampleRefused checks the errors for invalid requests.
func TestSampleRefused(t *testing.T) {
	st := newStore(t)
	weights := make([]float64, 200)
	for i := range weights {
		weights[i] = 1
	}
	weights[120], weights[150], weights[180] = -1, math.Inf(1), math.NaN()
	putWeighed(t, st, "d", weights)
	e := newEngine(t, st, fetch.Options{Resident: -1})
	w, by := func(text string) func(*schema.Request) {
		return func(r *schema.Request) { r.Sample.Weights = text }
	}, func(name string, shares map[string]float64) func(*schema.Request) {
		return func(r *schema.Request) { r.Sample = &schema.Sample{Balance: name, Shares: shares} }
	}
	for _, c := range []struct {
		want   string
		change func(*schema.Request)
	}{
		{"sample.weights: got -1 at position 120, want a number from 0", w("w")},
		{"sample.weights: got +Inf at position 150", func(r *schema.Request) { r.Where = "position > 120" }},
		{"sample.weights: got null at position 180", func(r *schema.Request) { r.Where = "position > 150" }},
		{"sample.weights: got -2 at position 120", w("2.0 * w")},
		{"sample.weights: got NaN at position 0", w("float(small) * 0 / 0")},
		{"sample.weights:1:3: position 0: ", w("1 % (small + 2)")},
		{"sample.weights:1:1: position 0: ", w("name ?? 1")},
		{`sample.weights:1:1: no column "wight"`, w("wight")},
		{"sample.weights:1:1: it gives a string; wanted is a number", w("name")},
		{"sample.weights:1:1: it gives a list", w("list")},
		{`sample.weights: got " ", want a column or an expression`, func(r *schema.Request) { r.Sample.Weights = " " }},
		{"sample.weights: got a weight of 0 for each of 200 rows, want a row", w("small - small")},
		{"sample: got both weights and balance", func(r *schema.Request) { r.Sample.Balance = "name" }},
		{"sample: got neither weights nor balance", func(r *schema.Request) { r.Sample = &schema.Sample{} }},
		{"sample: got it without shuffle", func(r *schema.Request) { r.Shuffle = nil }},
		{"sample: got it with shuffle.block", func(r *schema.Request) { r.Shuffle.Block = "8MiB" }},
		{"sample: got it with bucket_by_length", func(r *schema.Request) {
			r.BucketByLength = &schema.BucketByLength{Column: "w"}
		}},
		{"sample.epoch_size: got -1, want an integer from 1", func(r *schema.Request) { r.Sample.EpochSize = -1 }},
		{`sample.balance: got "w", want a column of integers, texts or bools: name, even, big, small`, by("w", nil)},
		{`sample.shares: got no share for class "odd" of column "name"`, by("name", map[string]float64{"even": 1})},
		{`sample.shares.none: got a share for a class without rows, want classes that selected rows have: even, odd`,
			by("name", map[string]float64{"even": 1, "odd": 1, "none": 1})},
		{"sample.shares: got nothing but 0", by("name", map[string]float64{"even": 0, "odd": 0})},
		{"sample.shares.odd: got NaN", by("name", map[string]float64{"even": 0, "odd": math.NaN()})},
		{"sample.shares: got it without balance", func(r *schema.Request) { r.Sample.Shares = map[string]float64{"a": 1} }},
		{"sample.replacement: got it without weights", func(r *schema.Request) {
			no := false
			r.Sample = &schema.Sample{Balance: "name", Replacement: &no}
		}},
	} {
		req := schema.Request{Dataset: "d", Columns: []string{"position"}, Shuffle: &schema.Shuffle{},
			Sample: &schema.Sample{Weights: "w"}}
		c.change(&req)
		j, err := e.Open(t.Context(), req)
		if err == nil {
			j.Close()
		}
		if err == nil || !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestSampleOfWhatIsVisible holds that nothing of a sample depends on rows and columns that its caller may not see.
func TestSampleOfWhatIsVisible(t *testing.T) {
	st := newStore(t)
	weights := make([]float64, 200)
	for i := range weights {
		weights[i] = 1 + float64(i%3)
	}
	putWeighed(t, st, "plain", weights[:100])
	weights[150], weights[160] = -1, math.NaN()
	putWeighed(t, st, "d", weights)
	e := newEngine(t, st, fetch.Options{})
	within := &schema.Restriction{Where: "position < 100"}
	for _, sample := range []schema.Sample{{Weights: "w"}, {Weights: "w + 1"}, {Balance: "name"}} {
		req := schema.Request{Dataset: "d", Columns: []string{"position"}, Shuffle: &schema.Shuffle{Seed: 3},
			Sample: &sample, Within: within}
		same := req
		same.Dataset, same.Within = "plain", nil
		if a, b := servedCounts(t, e, req), servedCounts(t, e, same); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%+v: hidden rows change what is served", sample)
		}
		req.Within = &schema.Restriction{Columns: []string{"id", "even"}}
		j, err := e.Open(t.Context(), req)
		if err == nil {
			j.Close()
			t.Errorf("%+v: a hidden column is used", sample)
		} else if strings.Contains(err.Error(), "position 1") || strings.Contains(err.Error(), "small") {
			t.Errorf("%+v: %v names hidden columns", sample, err)
		}
	}
}

// TestSampleIsComputedOnce holds that jobs share what samples are drawn by, epochs too, that it is counted while it is
// used, and that a job is refused for which there is no room.
func TestSampleIsComputedOnce(t *testing.T) {
	st := newStore(t)
	weights := make([]float64, 5000)
	for i := range weights {
		weights[i] = 1
	}
	putWeighed(t, st, "d", weights)
	e := newEngine(t, st, fetch.Options{})
	used := func(e *fetch.Engine) int64 {
		for _, a := range e.Stats().Memory {
			if a.Use == admission.Evaluation.String() {
				return a.Used
			}
		}
		t.Fatal("no account of evaluations")
		return 0
	}
	req := schema.Request{Dataset: "d", Columns: []string{"position"}, Shuffle: &schema.Shuffle{Seed: 3},
		Sample: &schema.Sample{Weights: "w"}}
	var group sync.WaitGroup
	jobs := make([]*fetch.Job, 8)
	for i := range jobs {
		group.Go(func() {
			r := req
			r.Shuffle = &schema.Shuffle{Seed: uint64(i), Epoch: uint64(i)}
			jobs[i], _ = e.Open(t.Context(), r)
		})
	}
	group.Wait()
	if n := used(e); n < 4*5000 || n > 200_000 {
		t.Errorf("%d bytes are counted for 8 jobs", n)
	}
	for _, j := range jobs {
		j.Close()
	}
	small := newEngine(t, st, fetch.Options{Memory: admission.Limits{Evaluation: 10_000}})
	for _, sample := range []schema.Sample{{Weights: "w"}, {Balance: "name"}} {
		req.Sample = &sample
		if j, err := small.Open(t.Context(), req); !errors.Is(err, schema.ErrLimit) {
			if err == nil {
				j.Close()
			}
			t.Errorf("%+v without room: %v", sample, err)
		}
	}
	if n := used(small); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// TestSampleOfNothing holds that where nothing is selected, nothing is served.
func TestSampleOfNothing(t *testing.T) {
	st := newStore(t)
	putWeighed(t, st, "d", make([]float64, 50))
	e := newEngine(t, st, fetch.Options{})
	for _, sample := range []schema.Sample{{Weights: "w"}, {Balance: "name"}} {
		j := open(t, e, schema.Request{Dataset: "d", Columns: []string{"position"}, Shuffle: &schema.Shuffle{},
			Sample: &sample, Where: "position > 99"})
		if j.Plan().Rows() != 0 || j.Sampling().Distinct != 0 {
			t.Errorf("%+v: %d rows of nothing", sample, j.Plan().Rows())
		}
	}
}

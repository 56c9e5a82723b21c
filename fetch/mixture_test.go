package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/lineage"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

func weigh(w float64) *float64 { return &w }

// someMixture is of the datasets d, e and f, of which the least has 150 samples, and none of whose sources is less than a
// batch of 120.
func someMixture(rng *rand.Rand) *schema.Mixture {
	sources := []schema.MixtureSource{{Dataset: "d"}, {Dataset: "e", Where: "label < 6"}, {Dataset: "f"},
		{Name: "again", Dataset: "d", Split: "train"}}
	rng.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
	m := &schema.Mixture{Sources: sources[:1+rng.IntN(len(sources))],
		Pick: []string{"", schema.PickRandom, schema.PickExact, schema.PickOneSource}[rng.IntN(4)]}
	weighted := rng.IntN(3) > 0
	for i := range m.Sources {
		switch s := &m.Sources[i]; {
		case weighted:
			s.Weight = weigh(float64(1+rng.IntN(9)) / 10)
		case rng.IntN(2) == 0:
			s.Repeat = 0.5 + 2*rng.Float64()
		default:
			s.Choose = 100 + rng.Int64N(300)
		}
	}
	if weighted && rng.IntN(2) == 0 {
		m.EpochSize = 200 + rng.Int64N(500)
	}
	if weighted && len(m.Sources) > 1 && rng.IntN(2) == 0 {
		first := &m.Sources[0]
		m.Schedule = []schema.MixtureChange{{Step: rng.Int64N(8), Weights: map[string]float64{first.Called(): rng.Float64() + 0.1},
			Over: rng.Int64N(5)}}
	}
	return m
}

// putColumns commits n samples with columns of those that there are: label, an int64; name, a text; image and mask, blobs.
func putColumns(tb testing.TB, st store.Store, dataset string, n, pageRows int, columns ...string) *schema.Snapshot {
	tb.Helper()
	var meta, blobs []arrow.Field
	for _, name := range columns {
		switch name {
		case "label":
			meta = append(meta, arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64})
		case "name":
			meta = append(meta, arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true})
		default:
			blobs = append(blobs, schema.BlobField(name, "", true))
		}
	}
	sch, err := schema.NewSchema(meta, blobs)
	if err != nil {
		tb.Fatal(err)
	}
	w, err := ingest.New(tb.Context(), st, ingest.Options{Dataset: dataset, Source: "test", Schema: sch, Mode: ingest.Replace,
		PageRows: pageRows})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(meta, nil))
	defer b.Release()
	var ids []schema.ID
	cells := make([][][]byte, len(blobs))
	for i := range n {
		ids = append(ids, sampleID(dataset, i))
		for c, f := range meta {
			if f.Name == "label" {
				b.Field(c).(*array.Int64Builder).Append(int64(i % 10))
			} else {
				b.Field(c).(*array.StringBuilder).Append(fmt.Sprintf("%s-%d", dataset, i))
			}
		}
		for c, f := range blobs {
			cells[c] = append(cells[c], cell(dataset, f.Name, i))
		}
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(tb.Context(), "train", ids, rec, cells); err != nil {
		tb.Fatal(err)
	}
	snap, _, err := w.Commit(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return snap
}

// cell is the blob of a sample.
func cell(dataset, column string, i int) []byte {
	return fmt.Appendf(nil, "%s %s %d", dataset, column, i)
}

// rowsOf reads a stream to its end, as texts: each row the values of its columns.
func rowsOf(tb testing.TB, e *fetch.Engine, j *fetch.Job, tk schema.Ticket) (rows [][]string) {
	tb.Helper()
	s := start(tb, e, j, tk)
	defer s.Close()
	for b := range batches(tb, s) {
		rec, err := b.Record(memory.DefaultAllocator)
		if err != nil {
			tb.Fatal(err)
		}
		for i := range int(rec.NumRows()) {
			row := make([]string, rec.NumCols())
			for c := range row {
				switch col := rec.Column(c); {
				case col.IsNull(i):
					row[c] = "null"
				case col.DataType().ID() == arrow.LARGE_BINARY:
					row[c] = string(col.(*array.LargeBinary).Value(i))
				case col.DataType().ID() == arrow.FIXED_SIZE_BINARY:
					row[c] = schema.FormatID(schema.ID(col.(*array.FixedSizeBinary).Value(i)))
				default:
					row[c] = col.ValueStr(i)
				}
			}
			rows = append(rows, row)
		}
		rec.Release()
	}
	return rows
}

// Sources with other columns are served together: cells are those of the sample in its own snapshot, null where that has no
// such column, and each row says where it comes from. Manifests are in memory, or not.
func TestMixtureOfOtherColumns(t *testing.T) {
	for _, resident := range []int64{0, -1} {
		st := newStore(t)
		putColumns(t, st, "a", 120, 16, "label", "name", "image")
		putColumns(t, st, "b", 80, 7, "name", "mask", "image")
		putColumns(t, st, "c", 50, 9, "label")
		has := map[string]string{"a": "label name image", "b": "name mask image", "c": "label"}
		e := newEngine(t, st, fetch.Options{Resident: resident})
		req := schema.Request{Batch: 16, Shuffle: &schema.Shuffle{Seed: 3},
			Columns: []string{"id", "source", "position", "label", "name", "image", "mask", "mask.size"},
			Mixture: &schema.Mixture{Sources: []schema.MixtureSource{{Dataset: "a", Weight: weigh(5)},
				{Name: "second", Dataset: "b", Weight: weigh(3)}, {Dataset: "c", Weight: weigh(2)}}}}
		j := open(t, e, req)
		rows := rowsOf(t, e, j, ticket(req, 0))
		if int64(len(rows)) != j.Plan().Rows() || len(rows) != 250 {
			t.Fatalf("%d rows of %d", len(rows), j.Plan().Rows())
		}
		counts := map[string]int{}
		for k, row := range rows {
			pos := j.Plan().Position(int64(k))
			source, at := j.Locate(pos)
			of := j.Source(source)
			cellOf := func(column, value string) string {
				if !slices.Contains(strings.Fields(has[of.Dataset]), column) {
					return "null"
				}
				return value
			}
			i := int(at)
			mask := cellOf("mask", string(cell(of.Dataset, "mask", i)))
			size := "null"
			if mask != "null" {
				size = fmt.Sprint(len(mask))
			}
			want := []string{schema.FormatID(sampleID(of.Dataset, i)), of.Name, fmt.Sprint(i), cellOf("label", fmt.Sprint(i%10)),
				cellOf("name", fmt.Sprintf("%s-%d", of.Dataset, i)), cellOf("image", string(cell(of.Dataset, "image", i))), mask, size}
			if !slices.Equal(row, want) {
				t.Fatalf("resident %d, row %d: %q, want %q", resident, k, row, want)
			}
			counts[row[1]]++
		}
		if counts["a"] != 125 || counts["second"] != 75 || counts["c"] != 50 {
			t.Errorf("rows by source: %v", counts)
		}
	}
}

// Rows of a source that a rule hides appear in no row and in no count. The rule does not change other sources.
func TestMixtureHidesRows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	st := newStore(t)
	putColumns(t, st, "a", 200, 16, "label", "name", "image")
	putColumns(t, st, "b", 100, 7, "label", "name", "image")
	for range 30 {
		resident := []int64{0, -1}[rng.IntN(2)]
		e := must(fetch.NewEngine(st, fetch.Options{Resident: resident, Logger: quiet}))
		least := 1 + rng.IntN(9)
		hidden := &schema.Restriction{Where: fmt.Sprintf("label < %d", least)}
		if rng.IntN(2) == 0 {
			hidden.Columns = []string{"id", "name", "image"}
		}
		m := &schema.Mixture{Sources: []schema.MixtureSource{{Dataset: "a", Within: hidden}, {Dataset: "b"}},
			Pick: []string{"", schema.PickExact}[rng.IntN(2)]}
		weighted := rng.IntN(2) == 0
		for i := range m.Sources {
			if weighted {
				m.Sources[i].Weight = weigh(1 + float64(rng.IntN(4)))
			} else {
				m.Sources[i].Repeat = 1 + float64(rng.IntN(3))
			}
		}
		req := schema.Request{Mixture: m, Columns: []string{"source", "position", "label", "name", "image"}, Batch: 1 + rng.Int64N(40),
			Shuffle: &schema.Shuffle{Seed: rng.Uint64()}, Order: []string{"", "free"}[rng.IntN(2)]}
		j := resolve(t, e, req)
		if want := int64(20*least + 100); j.Seen() != want {
			t.Errorf("%d samples can be seen, want %d", j.Seen(), want)
		}
		if got := j.Samples(0); got != int64(20*least) {
			t.Errorf("source a has %d samples, want %d", got, 20*least)
		}
		got := map[string]int{}
		for _, row := range rowsOf(t, e, j, ticket(j.Request(), 0)) {
			var i int
			_, _ = fmt.Sscan(row[1], &i)
			if row[0] == "a" && i%10 >= least {
				t.Fatalf("row %q is hidden", row)
			}
			if hides := row[0] == "a" && hidden.Columns != nil; (row[2] == "null") != hides || row[3] == "null" || row[4] == "null" {
				t.Fatalf("row %q: its label is null, and hidden is %t", row, hides)
			}
			got[row[0]]++
		}
		if !weighted {
			for i, s := range m.Sources {
				if want := int(s.Repeat) * int(j.Samples(i)); got[s.Dataset] != want {
					t.Errorf("%d rows of %s, want %d", got[s.Dataset], s.Dataset, want)
				}
			}
		}
		for pos := range int64(200) {
			if j.Sees(pos) != (int(pos)%10 < least) {
				t.Fatalf("position %d of a can be seen: %t", pos, j.Sees(pos))
			}
		}
		j.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Errors of a mixture name the source that they are of.
func TestMixtureNamesWhatIsWrong(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	putColumns(t, st, "b", 50, 0, "name", "image")
	e := newEngine(t, st, fetch.Options{})
	for name, c := range map[string]struct {
		change func(r *schema.Request)
		want   string
	}{
		"no dataset":   {func(r *schema.Request) { r.Mixture.Sources[1].Dataset = "nope" }, `mixture, source "nope"`},
		"no split":     {func(r *schema.Request) { r.Mixture.Sources[1].Split = "nope" }, `mixture, source "b.nope"`},
		"no such tag":  {func(r *schema.Request) { r.Mixture.Sources[0].Tag = "prod" }, `mixture, source "d"`},
		"a bad where":  {func(r *schema.Request) { r.Mixture.Sources[1].Where = "label > 2" }, `mixture, source "b": `},
		"a bad column": {func(r *schema.Request) { r.Columns = []string{"lable"} }, `did you mean "label"?`},
		"by a text":    {func(r *schema.Request) { r.Mixture.By = "name" }, `mixture, source`},
		"local":        {func(r *schema.Request) { r.Assign = schema.AssignLocal }, `assign`},
	} {
		req := schema.Request{Mixture: &schema.Mixture{Sources: []schema.MixtureSource{{Dataset: "d", Weight: weigh(1)},
			{Dataset: "b", Weight: weigh(1)}}}}
		c.change(&req)
		if j, err := e.Open(t.Context(), req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
			if err == nil {
				j.Close()
			}
		}
	}
}

// By a column, the sums of the column are in the ratios of the weights.
func TestMixtureByColumn(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 400, 0, "label", "image")
	putColumns(t, st, "b", 400, 0, "label", "image")
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Columns: []string{"source", "label"}, Batch: 10, Mixture: &schema.Mixture{By: "label", EpochSize: 3000,
		Sources: []schema.MixtureSource{{Dataset: "a", Where: "label >= 5", Weight: weigh(1)},
			{Dataset: "b", Where: "label < 5", Weight: weigh(1)}}}, Shuffle: &schema.Shuffle{Seed: 1}}
	j := open(t, e, req)
	sums := map[string]int{}
	for _, row := range rowsOf(t, e, j, ticket(req, 0)) {
		var label int
		_, _ = fmt.Sscan(row[1], &label)
		sums[row[0]] += label
	}
	if ratio := float64(sums["a"]) / float64(sums["b"]); ratio < 0.97 || ratio > 1.03 {
		t.Errorf("the sums are %v", sums)
	}
}

// Weights by samples are exact: of each prefix of an epoch, each source has its part to within a row.
func TestMixtureIsExact(t *testing.T) {
	st := newStore(t)
	weights := map[string]float64{"a": 0.6, "b": 0.3, "c": 0.1}
	for name := range weights {
		putColumns(t, st, name, 100, 0, "label")
	}
	e := newEngine(t, st, fetch.Options{})
	m := &schema.Mixture{EpochSize: 1000}
	for _, name := range []string{"a", "b", "c"} {
		m.Sources = append(m.Sources, schema.MixtureSource{Dataset: name, Weight: weigh(weights[name])})
	}
	req := schema.Request{Mixture: m, Columns: []string{"source"}, Batch: 10, Shuffle: &schema.Shuffle{Seed: 5}}
	j := open(t, e, req)
	counts := map[string]int{}
	for k, row := range rowsOf(t, e, j, ticket(req, 0)) {
		counts[row[0]]++
		for name, w := range weights {
			if off := float64(counts[name]) - w*float64(k+1); off > 1.001 || off < -1.001 {
				t.Fatalf("after %d rows source %s is off by %.2f", k+1, name, off)
			}
		}
	}
}

// A substitute is a sample of the same source, and faults say of which source in which snapshot they are.
func TestMixtureSubstitutes(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 60, 0, "label", "image")
	putColumns(t, st, "b", 60, 0, "label", "image")
	broken := schema.RefOf(cell("b", "image", 7))
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Columns: []string{"source", "position", "image"}, Batch: 10, OnError: schema.OnErrorSkip,
		Shuffle: &schema.Shuffle{Seed: 2}, Mixture: &schema.Mixture{Sources: []schema.MixtureSource{{Dataset: "a", Weight: weigh(1)},
			{Dataset: "b", Weight: weigh(1)}}}}
	j := open(t, e, req)
	st.inject(func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
		if ref == broken {
			return nil, fmt.Errorf("%w: it is gone", schema.ErrNotFound)
		}
		return nil, nil
	})
	var faults []fetch.Fault
	var positions []int64
	s := start(t, e, j, ticket(req, 0))
	defer s.Close()
	for b := range batches(t, s) {
		faults, positions = append(faults, b.Faults...), append(positions, b.Positions...)
	}
	if len(faults) != 1 {
		t.Fatalf("%d faults", len(faults))
	}
	if f := faults[0]; f.Source != "b" || f.Position != 7 || f.Substitute == nil || *f.Substitute >= 60 {
		t.Errorf("the fault is %+v", f)
	}
	b := 0
	for _, pos := range positions {
		if source, _ := j.Locate(pos); source == 1 {
			b++
		}
	}
	if b != 60 {
		t.Errorf("%d rows of b, want 60: a substitute is of the same source", b)
	}
}

// The lineage of a mixture has the delivered samples with their sources and the sources' epochs, in any order.
func TestMixtureLineage(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 40, 0, "label", "image")
	putColumns(t, st, "b", 90, 0, "label", "image")
	log := must(lineage.Open(lineage.Options{Dir: t.TempDir(), Logger: quiet}))
	defer log.Close()
	e := newEngine(t, st, fetch.Options{Lineage: log})
	for _, order := range []string{schema.OrderStrict, schema.OrderFree} {
		req := schema.Request{Columns: []string{"image"}, Batch: 12, Order: order, Shuffle: &schema.Shuffle{Seed: 9},
			Mixture: &schema.Mixture{EpochSize: 120, Sources: []schema.MixtureSource{
				{Dataset: "a", Weight: weigh(3), Within: &schema.Restriction{Where: "label < 5"}}, {Dataset: "b", Weight: weigh(1)}}}}
		j := open(t, e, req)
		tk := ticket(j.Request(), 0)
		tk.Epochs = 2
		var want []int64
		s := start(t, e, j, tk)
		for {
			b, err := s.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, b.Positions...)
			b.Release()
		}
		s.Close()
		pieces, ok, err := e.Recorded(t.Context(), func(h *fetch.PieceHead) bool { return h.Job == j.Course() })
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		var got []int64
		for epoch := range uint64(2) {
			for step := range int64(10) {
				shares, err := e.Lineage(t.Context(), pieces, epoch, step, -1)
				if err != nil {
					t.Fatal(err)
				}
				for _, share := range shares {
					if !share.Stands { // the other order's, which is of the same course
						continue
					}
					got = append(got, share.Positions...)
					if len(share.SourceEpochs) != len(share.Positions) {
						t.Fatalf("%d epochs of %d samples", len(share.SourceEpochs), len(share.Positions))
					}
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("order %s: %v on record, %v were handed out", order, got, want)
		}
	}
}

// A mixture and a job on one of its sources share what the spill has; and the spill knows when a mixture uses a sample next,
// which it may do several times in an epoch.
func TestMixtureInTheSpill(t *testing.T) {
	st := newStore(t)
	a := putColumns(t, st, "a", 300, 0, "label", "image")
	b := putColumns(t, st, "b", 300, 0, "label", "image")
	far := newCounted(st, a, b)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	req := schema.Request{Columns: []string{"image"}, Batch: 32, Shuffle: &schema.Shuffle{Seed: 4},
		Mixture: &schema.Mixture{EpochSize: 900, Sources: []schema.MixtureSource{{Dataset: "a", Weight: weigh(2)},
			{Dataset: "b", Weight: weigh(1)}}}}
	j := open(t, e, req)
	last := warm(t, e, req)
	if !last.Done || last.Failed > 0 || last.Stored < 600 {
		t.Fatalf("warmed %+v", last)
	}
	read := far.reads.Load()
	if read > 600 {
		t.Errorf("%d reads for 600 blobs", read)
	}
	for _, name := range []string{"a", "b"} {
		alone := schema.Request{Dataset: name, Columns: []string{"image"}, Batch: 32, Shuffle: &schema.Shuffle{Seed: 1}}
		if got := len(rowsOf(t, e, open(t, e, alone), ticket(alone, 0))); got != 300 {
			t.Fatalf("%d rows of %s", got, name)
		}
	}
	if got := far.reads.Load(); got != read {
		t.Errorf("jobs on the sources read %d blobs again", got-read)
	}

	// When what is used, by the plans of this epoch and of the next one. The job that was warmed is taken to begin soon.
	states := future.Jobs()
	at := slices.IndexFunc(states, func(s spill.JobState) bool { return s.Rows == 900 })
	if at < 0 {
		t.Fatalf("the mixture is not among the jobs: %+v", states)
	}
	job := states[at].Job
	served := job.Served()
	for pos := range j.Manifest().Rows() {
		var want int64 = -1
		for i := served; i < 1800 && want < 0; i++ {
			if p := j.PlanOf(i / 900); p.Position(i%900) == pos {
				want = i - served
			}
		}
		got, ok := job.RowsUntil(pos)
		if ok != (want >= 0) || ok && got != want {
			t.Fatalf("position %d is used in %d rows (%t), want %d", pos, got, ok, want)
		}
	}
}

// A source that is dropped while a mixture is served is served to the end, and cannot be opened again.
func TestMixtureOutlivesItsSources(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 300, 16, "label", "image")
	putColumns(t, st, "b", 300, 16, "label", "image")
	e := newEngine(t, st, fetch.Options{WindowBytes: 20_000, Resident: -1})
	req := schema.Request{Columns: []string{"source", "image"}, Batch: 20, Shuffle: &schema.Shuffle{Seed: 4},
		Mixture: &schema.Mixture{Sources: []schema.MixtureSource{{Dataset: "a", Weight: weigh(1)}, {Dataset: "b", Weight: weigh(1)}}}}
	j := open(t, e, req)
	s := start(t, e, j, ticket(j.Request(), 0))
	defer s.Close()
	rows := 0
	for b := range batches(t, s) {
		if rows += b.Rows; rows == b.Rows {
			if err := e.Drop(t.Context(), "a", 0); err != nil {
				t.Fatal(err)
			}
			if _, err := e.GC(t.Context(), store.GCOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rows != 600 {
		t.Errorf("%d rows, want 600", rows)
	}
	if j, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrNotFound) || !strings.Contains(err.Error(), `source "a"`) {
		t.Errorf("a mixture of what was dropped: %v", err)
		if err == nil {
			j.Close()
		}
	}
}

// A mixture has a last epoch, as its rows are counted. A ticket for more epochs than there are is refused, and what looks
// ahead of the last one finds no fault.
func TestMixtureLastEpoch(t *testing.T) {
	st := newStore(t)
	putColumns(t, st, "a", 60, 0, "label", "image")
	putColumns(t, st, "b", 90, 0, "image", "label")
	e := newEngine(t, st, fetch.Options{})
	j := open(t, e, schema.Request{Columns: []string{"label", "image"}, Batch: 8, Shuffle: &schema.Shuffle{Seed: 1},
		Mixture: &schema.Mixture{EpochSize: schema.MaxEpochSize, Sources: []schema.MixtureSource{
			{Dataset: "a", Weight: weigh(2)}, {Dataset: "b", Weight: weigh(1)}}}})
	tk := ticket(j.Request(), 0)
	tk.Step = j.Plan().Steps() - 1
	rows := 0
	s := start(t, e, j, tk)
	defer s.Close()
	for b := range batches(t, s) {
		rows += b.Rows
	}
	if want := schema.MaxEpochSize % 8; rows != want {
		t.Errorf("the last step has %d rows, want %d", rows, want)
	}
	tk.Epochs = 2
	s, err := e.Stream(t.Context(), j, tk)
	if err == nil {
		s.Close()
	}
	if f, ok := errors.AsType[*schema.FieldError](err); !ok || f.Field != "epochs" {
		t.Errorf("more epochs than there are: %v", err)
	}
	if p := j.PlanOf(1); p.Rows() != j.Plan().Rows() {
		t.Errorf("the plan after the last one has %d rows", p.Rows())
	}
}

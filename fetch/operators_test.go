package fetch_test

import (
	"bytes"
	"context"
	"encoding/json"
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
	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/operatorstest"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
	"bowstring/spill"
)

// steps is a list of operators without parameters, but for Crop.
func steps(names ...string) []schema.Step {
	var list []schema.Step
	for _, n := range names {
		name, size, sized := strings.Cut(n, "=")
		params := json.RawMessage("{}")
		if sized {
			params = json.RawMessage(`{"size":` + size + `}`)
		}
		list = append(list, schema.Step{Name: name, Params: params})
	}
	return list
}

// made is a dataset whose images operators may have trouble with.
func made(tb testing.TB, st *probe, n int, cell func(i int) []byte) {
	tb.Helper()
	ctx := tb.Context()
	sch := must(schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", "image", true),
		schema.BlobField("mask", "image", true)}))
	w := must(ingest.New(ctx, st, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace}))
	defer w.Close()
	var ids []schema.ID
	var images, masks [][]byte
	for i := range n {
		ids = append(ids, sampleID("d", i))
		images, masks = append(images, cell(i)), append(masks, content(i+1_000_000))
	}
	rec := array.NewRecord(arrow.NewSchema(nil, nil), nil, int64(n))
	defer rec.Release()
	if err := w.Write(ctx, "train", ids, rec, [][][]byte{images, masks}); err != nil {
		tb.Fatal(err)
	}
	if _, _, err := w.Commit(ctx); err != nil {
		tb.Fatal(err)
	}
}

func withOperators(o fetch.Options) fetch.Options {
	o.Kinds = operatorstest.Kinds()
	return o
}

// wanted is what a list of operators makes of a cell, by the program alone.
func wantedOf(tb testing.TB, list []schema.Step, column string, seed, epoch uint64, pos int64,
	cell []byte) ([]byte, program.Outcome) {
	tb.Helper()
	in := make([]program.Step, len(list))
	for i, s := range list {
		in[i] = program.Step{Name: s.Name, Params: s.Params}
	}
	p := must(operatorstest.Compile(program.Form{Kind: program.Encoded}, in))
	var out []byte
	o, err := p.Run(cell, program.Draws{Key: draw.Key{Seed: seed, Epoch: epoch, Position: uint64(pos)}, Column: column},
		func(n int) []byte {
			out = make([]byte, n)
			return out
		})
	if err != nil {
		tb.Fatal(err)
	}
	return out, o
}

// cellsOf reads the tensors or blobs of a column, nil for null.
func cellsOf(tb testing.TB, col arrow.Array) [][]byte {
	tb.Helper()
	var out [][]byte
	for row := range col.Len() {
		var b []byte
		switch c := col.(type) {
		case *array.FixedSizeList:
			lo, hi := c.ValueOffsets(row)
			b = c.ListValues().(*array.Uint8).Uint8Values()[lo:hi]
		case *array.Struct:
			data := c.Field(0).(*array.List)
			lo, hi := data.ValueOffsets(row)
			b = data.ListValues().(*array.Uint8).Uint8Values()[lo:hi]
			if shape := c.Field(1).(*array.FixedSizeList).ListValues().(*array.Int32).Value(row); !c.IsNull(row) &&
				int64(shape) != hi-lo {
				tb.Fatalf("row %d has shape %d and %d elements", row, shape, hi-lo)
			}
		case *array.LargeBinary:
			b = c.Value(row)
		default:
			tb.Fatalf("a column of type %T", col)
		}
		if col.IsNull(row) {
			b = nil
		} else {
			b = append([]byte{}, b...)
		}
		out = append(out, b)
	}
	return out
}

// column finds a column of a batch by name, and calls f with it.
func column(tb testing.TB, b *fetch.Batch, name string, f func(arrow.Array)) {
	tb.Helper()
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(tb, 0)
	rec := must(b.Record(mem))
	defer rec.Release()
	f(rec.Column(rec.Schema().FieldIndices(name)[0]))
}

// What is made of a sample depends on seed, epoch and position alone: not on ranks, order,
// where a stream was resumed, workers, the memory there is, nor on whether it was asked for by position.
func TestOperatorsAreAPureFunction(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	st := newStore(t)
	const n = 150
	made(t, st, n, func(i int) []byte {
		if i%50 == 49 {
			return nil
		}
		return content(i)
	})
	pipelines := [][]schema.Step{
		steps("Decode", "Reverse", "RandomBytes", "Crop=700"), steps("Decode", "RandomBytes", "RandomRepeat"),
		steps("Decode", "RandomRepeat", "Encode"), steps("Decode", "Crop=5000"),
	}
	for round := range 12 {
		opts := withOperators(fetch.Options{Operators: operators.Options{Workers: 1 + rng.IntN(4)}})
		opts.WindowBytes = []int64{40_000, 200_000, 64 << 20}[rng.IntN(3)]
		list := pipelines[rng.IntN(len(pipelines))]
		world := int64(1 + rng.IntN(3))
		req := schema.Request{
			Dataset: "d", Columns: []string{"image", "image.params"},
			Operators: schema.Operators{"image": {Steps: list}},
			Batch:     int64(1 + rng.IntN(40)), World: &schema.World{Size: world},
			Order:   []string{"", "window:2", "free"}[rng.IntN(3)],
			Shuffle: &schema.Shuffle{Seed: rng.Uint64(), Epoch: uint64(rng.IntN(3))},
		}
		t.Run(fmt.Sprintf("%d,%v,workers=%d,window=%d,world=%d,order=%s", round, list, opts.Operators.Workers,
			opts.WindowBytes, world, req.Order), func(t *testing.T) {
			e := newEngine(t, st, opts)
			j := open(t, e, req)
			seen := map[int64]bool{}
			check := func(b *fetch.Batch) {
				var params []string
				column(t, b, "image.params", func(a arrow.Array) {
					for row := range a.Len() {
						params = append(params, strings.Clone(a.(*array.String).Value(row)))
					}
				})
				column(t, b, "image", func(a arrow.Array) {
					for row, got := range cellsOf(t, a) {
						pos := b.Positions[row]
						if pos%50 == 49 {
							if got != nil {
								t.Fatalf("position %d is no null", pos)
							}
							continue
						}
						want, o := wantedOf(t, list, "image", req.Shuffle.Seed, req.Shuffle.Epoch, pos,
							content(int(pos)))
						if !bytes.Equal(got, want) {
							t.Fatalf("position %d: %d bytes %.20x, want %d %.20x", pos, len(got), got, len(want), want)
						}
						var drawn []struct {
							Step   int
							Name   string
							Values map[string]float64
						}
						if err := json.Unmarshal([]byte(params[row]), &drawn); err != nil ||
							len(drawn) != len(o.Drawn) {
							t.Fatalf("position %d: params %s: %v", pos, params[row], err)
						}
						for i, d := range o.Drawn {
							if v := d.Values[0]; drawn[i].Step != d.Step || drawn[i].Name != list[d.Step].Name ||
								drawn[i].Values[v.Name] != v.Number {
								t.Fatalf("position %d: params %s, want %v", pos, params[row], o.Drawn)
							}
						}
					}
				})
			}
			for rank := range int(world) {
				tick := ticket(j.Request(), rank)
				for more := true; more; {
					s := start(t, e, j, tick)
					more = false
					for b := range batches(t, s) {
						check(b)
						for _, pos := range b.Positions {
							if seen[pos] {
								t.Fatalf("position %d is served twice", pos)
							}
							seen[pos] = true
						}
						if tick, more = must(schema.ParseTicket(b.Resume.Marshal())), rng.IntN(4) == 0; more {
							break // and go on in another stream
						}
					}
					s.Close()
				}
			}
			if len(seen) != n {
				t.Fatalf("%d of %d samples were served", len(seen), n)
			}
			// The same by position, repeats included.
			some := []int64{7, 3, 7, 149, int64(rng.IntN(n))}
			s := must(e.Take(t.Context(), j, some))
			defer s.Close()
			for b := range batches(t, s) {
				check(b)
			}
		})
	}
}

// A column that follows another draws what is drawn there.
func TestOperatorsFollow(t *testing.T) {
	st := newStore(t)
	made(t, st, 20, content)
	e := newEngine(t, st, withOperators(fetch.Options{}))
	list := steps("Decode", "RandomBytes")
	req := schema.Request{Dataset: "d", Columns: []string{"mask", "image"},
		Operators: schema.Operators{"image": {Steps: list}, "mask": {Follows: "image"}}}
	j := open(t, e, req)
	s := start(t, e, j, ticket(j.Request(), 0))
	defer s.Close()
	for b := range batches(t, s) {
		column(t, b, "mask", func(a arrow.Array) {
			for row, got := range cellsOf(t, a) {
				if want, _ := wantedOf(t, list, "image", 0, 0, b.Positions[row],
					content(int(b.Positions[row])+1_000_000)); !bytes.Equal(got, want) {
					t.Fatalf("position %d: the mask is another than that of its image's numbers", b.Positions[row])
				}
			}
		})
	}
}

// What cannot be made is a fault of its sample: it ends the stream, or is null, or another takes its place.
func TestOperatorFaults(t *testing.T) {
	st := newStore(t)
	const n = 60
	bad := map[int]string{5: "bad", 17: "bomb", 40: "panic"}
	made(t, st, n, func(i int) []byte {
		if b, ok := bad[i]; ok {
			return []byte(fmt.Sprintf("%s %d", b, i)) // each is a blob of its own
		}
		return content(i)
	})
	e := newEngine(t, st, withOperators(fetch.Options{}))
	for _, list := range [][]schema.Step{steps("Decode", "Reverse"), steps("Decode", "Reverse", "Crop=64")} {
		req := schema.Request{Dataset: "d", Columns: []string{"image"},
			Operators: schema.Operators{"image": {Steps: list}}, Batch: 13}
		for pos, sentinel := range map[int]error{5: schema.ErrDataLoss, 17: schema.ErrLimit, 40: schema.ErrDataLoss} {
			j := open(t, e, req)
			s := must(e.Take(t.Context(), j, []int64{1, int64(pos), 2}))
			_, err := s.Next()
			if !errors.Is(err, sentinel) || !strings.Contains(err.Error(), fmt.Sprintf("position %d of d@1", pos)) ||
				!strings.Contains(err.Error(), "Decode") {
				t.Errorf("%s: %v", bad[pos], err)
			}
			s.Close()
		}
		for _, on := range []string{schema.OnErrorNull, schema.OnErrorSkip} {
			req.OnError = on
			j := open(t, e, req)
			s := start(t, e, j, ticket(j.Request(), 0))
			faults := map[int64]fetch.Fault{}
			row := int64(0)
			for b := range batches(t, s) {
				for _, f := range b.Faults {
					faults[f.Position] = f
				}
				column(t, b, "image", func(a arrow.Array) {
					for i, got := range cellsOf(t, a) {
						pos := b.Positions[i]
						_, is := bad[int(row)]
						if is == (pos == row) && on == schema.OnErrorSkip {
							t.Errorf("row %d has position %d", row, pos)
						}
						var want []byte
						if _, still := bad[int(pos)]; !still {
							want, _ = wantedOf(t, list, "image", 0, 0, pos, content(int(pos)))
						}
						if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
							t.Errorf("row %d, %s: other bytes", row, on)
						}
						row++
					}
				})
			}
			s.Close()
			if row != n || len(faults) != len(bad) {
				t.Errorf("%s: %d rows, %d faults", on, row, len(faults))
			}
			for pos := range bad {
				f := faults[int64(pos)]
				if f.Operator != "Decode" || f.Column != "image" || f.Cause == "" ||
					(f.Substitute != nil) != (on == schema.OnErrorSkip) {
					t.Errorf("%s: %+v", on, f)
				}
			}
		}
	}
	if st := e.Stats().Operators; st.Panics == 0 || st.Faults == 0 || st.Running != 0 || st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
}

// Results that are much larger than was guessed do not stop streams that share little memory, and the
// ledger is empty in the end.
func TestOperatorsInLittleMemory(t *testing.T) {
	st := newStore(t)
	const n = 60
	// The first cells make the guess small, the later ones are four times what is guessed.
	made(t, st, n, func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 500+i*20) })
	opts := withOperators(fetch.Options{WindowBytes: 48_000, Operators: operators.Options{Workers: 3}})
	e := newEngine(t, st, opts)
	list := steps("Decode", "RandomRepeat")
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Operators: schema.Operators{"image": {Steps: list}},
		Shuffle: &schema.Shuffle{Seed: 3}}
	errs := make(chan error, 6)
	for i := range cap(errs) {
		r := req
		r.Order = []string{"", "free"}[i%2]
		r.Shuffle = &schema.Shuffle{Seed: uint64(i)}
		j := open(t, e, r)
		go func() {
			errs <- func() error {
				s, err := e.Stream(t.Context(), j, ticket(j.Request(), 0))
				if err != nil {
					return err
				}
				defer s.Close()
				for rows := 0; ; {
					b, err := s.Next()
					if errors.Is(err, io.EOF) {
						if rows != n {
							return fmt.Errorf("%d rows", rows)
						}
						return nil
					}
					if err != nil {
						return err
					}
					rows += b.Rows
					b.Release()
				}
			}()
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for use, a := range e.Ledger().Accounts() {
		if u := admission.Use(use); u != admission.Windows && u != admission.Making {
			continue
		}
		if a.Used != 0 || a.Most > a.Limit {
			t.Errorf("%s: %d bytes are still counted, %d of %d were at most", a.Use, a.Used, a.Most, a.Limit)
		}
	}
}

// A stream that is given up while cells are being made leaves nothing behind.
func TestOperatorsGivenUp(t *testing.T) {
	st := newStore(t)
	made(t, st, 100, content)
	e := newEngine(t, st, withOperators(fetch.Options{}))
	req := schema.Request{Dataset: "d", Columns: []string{"image"},
		Operators: schema.Operators{"image": {Steps: steps("Decode", "RandomRepeat")}}, Batch: 5}
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		j := open(t, e, req)
		s := must(e.Stream(ctx, j, ticket(j.Request(), 0)))
		b := must(s.Next())
		cancel()
		s.Close()
		b.Release()
	}
	if used := e.Ledger().Accounts()[0].Used; used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

// What a request wants is checked before anything is read, and errors say where.
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

// Results that draw nothing are kept in the spill where that pays, and are found there by the next epoch and by the
// next engine, byte for byte. What draws is made anew.
func TestOperatorResultsAreKept(t *testing.T) {
	st := newStore(t)
	const n = 80
	made(t, st, n, content)
	cache := must(spill.Open(spill.Options{Dir: t.TempDir(), Bytes: 64 << 20, KeepFree: 1, Logger: quiet}))
	defer cache.Close()
	cost := 1e-9 // whatever it saves
	round := func(list []schema.Step, epoch uint64) operators.Stats {
		t.Helper()
		e := must(fetch.NewEngine(st, withOperators(fetch.Options{Spill: cache, Logger: quiet,
			Operators: operators.Options{KeepNanosPerByte: cost}})))
		defer func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}()
		j := must(e.Open(t.Context(), schema.Request{Dataset: "d", Columns: []string{"image"},
			Operators: schema.Operators{"image": {Steps: list}}, Shuffle: &schema.Shuffle{Seed: 1, Epoch: epoch}}))
		defer j.Close()
		s := must(e.Stream(t.Context(), j, ticket(j.Request(), 0)))
		defer s.Close()
		rows := 0
		for b := range batches(t, s) {
			rows += b.Rows
			column(t, b, "image", func(a arrow.Array) {
				for row, got := range cellsOf(t, a) {
					if want, _ := wantedOf(t, list, "image", 1, epoch, b.Positions[row],
						content(int(b.Positions[row]))); !bytes.Equal(got, want) {
						t.Fatalf("position %d: other bytes", b.Positions[row])
					}
				}
			})
		}
		if rows != n {
			t.Fatalf("%d rows", rows)
		}
		return e.Stats().Operators
	}
	for _, list := range [][]schema.Step{steps("Decode", "Reverse", "Crop=900"), steps("Decode", "Reverse"),
		steps("Decode", "Reverse", "Encode")} {
		if s := round(list, 0); s.Kept != n || s.Found != 0 {
			t.Errorf("%v: %+v", list, s)
		}
		if s := round(list, 1); s.Found != n || s.Kept != 0 {
			t.Errorf("%v, again: %+v", list, s)
		}
	}
	if s := round(steps("Decode", "RandomBytes"), 0); s.Kept != 0 || s.Found != 0 {
		t.Errorf("what draws was kept: %+v", s)
	}
	cost = 1e12
	if s := round(steps("Decode", "Crop=901"), 0); s.Kept != 0 {
		t.Errorf("what saves too little was kept: %+v", s)
	}
}

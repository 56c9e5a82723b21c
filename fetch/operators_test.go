package fetch_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
	"bowstring/internal/operatorstest"
	"bowstring/schema"
)

// steps is a list of operators without parameters, except Crop.
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
	p := must(operatorstest.Compile(in))
	var out []byte
	o, err := p.Run(tb.Context(), cell, program.Draws{Key: draw.Key{Seed: seed, Epoch: epoch, Position: uint64(pos)}, Column: column},
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

// The operators' result for a sample depends only on seed, epoch and position. It does not depend on ranks, order,
// resumption, workers or memory, nor on whether the sample was requested by position.
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

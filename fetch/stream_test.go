package fetch_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/schema"
)

func open(tb testing.TB, e *fetch.Engine, req schema.Request) *fetch.Job {
	tb.Helper()
	j, err := e.Open(tb.Context(), req)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(j.Close)
	return j
}

// start opens a stream, which the caller closes.
func start(tb testing.TB, e *fetch.Engine, j *fetch.Job, t schema.Ticket) *fetch.Stream {
	tb.Helper()
	s, err := e.Stream(tb.Context(), j, t)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// batches yields the batches of a stream to its end, and releases each.
func batches(tb testing.TB, s *fetch.Stream) iter.Seq[*fetch.Batch] {
	return func(yield func(*fetch.Batch) bool) {
		tb.Helper()
		for {
			b, err := s.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				tb.Fatal(err)
			}
			more := yield(b)
			b.Release()
			if !more {
				return
			}
		}
	}
}

// served is what a stream sent.
type served struct {
	positions []int64
	resumes   []schema.Ticket // after each batch
	rows      []int           // of each batch
	faults    []fetch.Fault
}

// drain reads a stream to its end, comparing every cell with what was put.
func drain(tb testing.TB, e *fetch.Engine, j *fetch.Job, t schema.Ticket) served {
	tb.Helper()
	s := start(tb, e, j, t)
	defer s.Close()
	return consume(tb, j, s)
}

func consume(tb testing.TB, j *fetch.Job, s *fetch.Stream) served {
	tb.Helper()
	var got served
	for b := range batches(tb, s) {
		compare(tb, j, b)
		got.positions = append(got.positions, b.Positions...)
		got.resumes = append(got.resumes, b.Resume)
		got.rows = append(got.rows, b.Rows)
		got.faults = append(got.faults, b.Faults...)
	}
	return got
}

// compare checks a batch of a dataset made by put, of the columns id, label
// and image, if shown.
func compare(tb testing.TB, j *fetch.Job, b *fetch.Batch) {
	tb.Helper()
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(tb, 0)
	rec, err := b.Record(mem)
	if err != nil {
		tb.Fatal(err)
	}
	defer rec.Release()
	if int(rec.NumRows()) != len(b.Positions) {
		tb.Fatalf("%d rows for %d positions", rec.NumRows(), len(b.Positions))
	}
	for c, f := range rec.Schema().Fields() {
		for row, pos := range b.Positions {
			source, at := j.Locate(pos)
			dataset, i := j.Source(source).Dataset, int(at)
			switch col := rec.Column(c).(type) {
			case *array.FixedSizeBinary:
				if want := sampleID(dataset, i); !bytes.Equal(col.Value(row), want[:]) {
					tb.Fatalf("position %d: id %x, want %x", pos, col.Value(row), want)
				}
			case *array.Int64:
				if want := int64(i % 10); f.Name == "label" && col.Value(row) != want {
					tb.Fatalf("position %d: label %d, want %d", pos, col.Value(row), want)
				}
			case *array.LargeBinary:
				if null := i%100 == 99; col.IsNull(row) != null {
					tb.Fatalf("position %d: null is %t, want %t", pos, col.IsNull(row), null)
				} else if !null && !bytes.Equal(col.Value(row), content(i)) {
					tb.Fatalf("position %d: the image's bytes are not those that were put", pos)
				}
			}
		}
	}
}

func ticket(req schema.Request, rank int) schema.Ticket {
	return schema.Ticket{Request: req, Rank: rank}
}

// Every position is served exactly once over all ranks, in the plan's order
// within each step, whatever the number of ranks and the cut into batches.
func TestStreamServesThePlan(t *testing.T) {
	st := newStore(t)
	const n = 700
	put(t, st, "d", n)
	e := newEngine(t, st, fetch.Options{})
	for _, world := range []int64{1, 2, 3, 8} {
		for _, batchBytes := range []int64{0, 10_000, 1} {
			for _, shuffle := range []*schema.Shuffle{nil, {Seed: 3, Epoch: 5}} {
				t.Run(fmt.Sprintf("world=%d,bytes=%d,shuffle=%t", world, batchBytes, shuffle != nil),
					func(t *testing.T) {
						req := schema.Request{Dataset: "d", Batch: 50, BatchBytes: batchBytes, Shuffle: shuffle,
							World: &schema.World{Size: world}}
						j := open(t, e, req)
						var all []int64
						for rank := range int(world) {
							got := drain(t, e, j, ticket(req, rank))
							var want []int64
							for step := range j.Plan().Steps() {
								lo, hi := j.Plan().Share(step, rank)
								for i := lo; i < hi; i++ {
									want = append(want, j.Plan().Position(i))
								}
							}
							if !slices.Equal(got.positions, want) {
								t.Fatalf("rank %d served %v, want %v", rank, got.positions, want)
							}
							all = append(all, got.positions...)
						}
						slices.Sort(all)
						for i, pos := range all {
							if pos != int64(i) {
								t.Fatalf("position %d is served %s", i,
									map[bool]string{true: "never", false: "twice"}[pos > int64(i)])
							}
						}
						if len(all) != n {
							t.Fatalf("%d rows served, want %d", len(all), n)
						}
					})
			}
		}
	}
}

// A batch is bounded by bytes: it is over only if it is a single sample.
func TestBatchBytes(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{})
	const most = 8_000
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 300, BatchBytes: most}
	j := open(t, e, req)
	s := start(t, e, j, ticket(req, 0))
	defer s.Close()
	batch, row := 0, int64(0)
	for b := range batches(t, s) {
		var size int
		for _, i := range b.Positions {
			if i%100 != 99 {
				size += len(content(int(i)))
			}
		}
		if b.Rows > 1 && size > most {
			t.Errorf("batch %d has %d bytes in %d rows", batch, size, b.Rows)
		}
		if b.Row != row || b.Step != 0 {
			t.Errorf("batch %d begins at step %d row %d, want step 0 row %d", batch, b.Step, b.Row, row)
		}
		row += int64(b.Rows)
		if b.Last != (row == 300) {
			t.Errorf("batch %d, which ends at row %d of 300, says last=%t", batch, row, b.Last)
		}
		batch++
	}
	if batch < 20 {
		t.Errorf("only %d batches", batch)
	}
}

// A resume ticket serves the same rows as the stream would have after the batch that
// carried it, wherever the stream stopped and whatever the stride.
func TestResume(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	st := newStore(t)
	put(t, st, "d", 400)
	e := newEngine(t, st, fetch.Options{})
	for range 12 {
		req := schema.Request{
			Dataset: "d", Columns: []string{"id", "label", "image"}, Batch: 1 + rng.Int64N(90),
			BatchBytes: 1 + rng.Int64N(30_000),
			World:      &schema.World{Size: 1 + rng.Int64N(4)}, Shuffle: &schema.Shuffle{Seed: rng.Uint64()},
			Remainder: []string{"", schema.RemainderDrop, schema.RemainderPad}[rng.IntN(3)],
		}
		j := open(t, e, req)
		tk := ticket(req, int(rng.Int64N(req.WorldSize())))
		tk.Stride = 1 + rng.Int64N(3)
		tk.Step = rng.Int64N(tk.Stride)
		if rng.IntN(2) == 0 {
			stop := tk.Step + rng.Int64N(j.Plan().Steps()+3)
			tk.Stop = &stop
		}
		whole := drain(t, e, j, tk)
		served := 0
		for i, resume := range whole.resumes {
			served += whole.rows[i]
			parsed, err := schema.ParseTicket(resume.Marshal())
			if err != nil {
				t.Fatal(err)
			}
			rest := drain(t, e, j, parsed)
			if !slices.Equal(rest.positions, whole.positions[served:]) {
				t.Fatalf("request %s\nafter batch %d, ticket %s serves\n%v, want\n%v", req.Marshal(), i,
					resume.Marshal(), rest.positions, whole.positions[served:])
			}
		}
	}
}

// A world that changes at step k goes on with exactly the samples of steps k
// and after.
func TestElastic(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 500)
	e := newEngine(t, st, fetch.Options{})
	serve := func(world, from, stop int64) []int64 {
		req := schema.Request{Dataset: "d", Columns: []string{"id"}, Batch: 48, World: &schema.World{Size: world},
			Shuffle: &schema.Shuffle{Seed: 9}}
		j := open(t, e, req)
		var all []int64
		for rank := range int(world) {
			tk := ticket(req, rank)
			tk.Step, tk.Stop = from, &stop
			all = append(all, drain(t, e, j, tk).positions...)
		}
		return all
	}
	const k, steps = 4, 11
	all := append(serve(8, 0, k), serve(6, k, steps)...)
	slices.Sort(all)
	if len(all) != 500 || len(slices.Compact(all)) != 500 {
		t.Fatalf("8 ranks to step %d and 6 from there served %d samples, %d different; want 500", k, len(all),
			len(slices.Compact(all)))
	}
}

// A stream reads ahead no more than its window and the batch to deliver next.
func TestWindowBoundsPrefetch(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	synctest.Test(t, func(t *testing.T) {
		const window, batch = 40_000, 10
		e := must(fetch.NewEngine(st, fetch.Options{WindowBytes: window}))
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: batch}
		j, err := e.Open(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		s := start(t, e, j, ticket(req, 0))
		var held []*fetch.Batch
		for range 5 {
			synctest.Wait() // until every reader waits for room
			var inBatches, next int64
			for _, b := range held {
				for _, p := range b.Positions {
					inBatches += int64(len(content(int(p))))
				}
			}
			first := int64(len(held) * batch)
			for p := first; p < first+batch; p++ {
				next += int64(len(content(int(p))))
			}
			used := e.Stats().WindowUsed
			if used < next+inBatches {
				t.Errorf("with %d batches out, %d bytes are held: the next batch is not read", len(held), used)
			}
			if most := max(window, inBatches) + next; used > most {
				t.Errorf("with %d batches out, %d bytes are held, more than %d", len(held), used, most)
			}
			b, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, b)
		}
		for _, b := range held {
			b.Release()
		}
		s.Close()
		j.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A request that names no blob column reads no blob.
func TestMetadataReadsNoBlob(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Columns: []string{"id", "label", "name", "position", "split"},
		Where: "label < 5"}
	j := open(t, e, req)
	before := st.Stats().BlobReads
	if got := drain(t, e, j, ticket(req, 0)); len(got.positions) != 150 || len(got.rows) != 1 {
		t.Errorf("%d rows in %d batches, want 150 in one", len(got.positions), len(got.rows))
	}
	if n := st.Stats().BlobReads - before; n != 0 {
		t.Errorf("%d blobs were read", n)
	}
}

func TestTake(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{})
	j := open(t, e, schema.Request{Dataset: "d", BatchBytes: 9_000})
	want := []int64{7, 299, 7, 0, 99, 150, 150, 12, 13, 14, 15, 16, 17, 18, 19}
	s, err := e.Take(t.Context(), j, want)
	if err != nil {
		t.Fatal(err)
	}
	got := consume(t, j, s)
	s.Close()
	if !slices.Equal(got.positions, want) {
		t.Errorf("took %v, want %v", got.positions, want)
	}
	if len(got.rows) < 2 {
		t.Errorf("%d batches, want several", len(got.rows))
	}
	for _, pos := range []int64{-1, 300} {
		_, err := e.Take(t.Context(), j, []int64{0, pos})
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "position[1]") ||
			!strings.Contains(err.Error(), fmt.Sprint(pos)) {
			t.Errorf("taking position %d: %v, want an error that names it", pos, err)
		}
	}
}

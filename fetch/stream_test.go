package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/store"
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
	dataset := j.Request().Dataset
	for c, f := range rec.Schema().Fields() {
		for row, pos := range b.Positions {
			i := int(pos)
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

// What a resume ticket serves is what the stream would have served after the
// batch that carried it, wherever it stopped and whatever the stride.
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
func TestWindowBoundsReadAhead(t *testing.T) {
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

// A consumer that stands still costs the others nothing but its share.
func TestStalledConsumerHoldsNobodyBack(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	e := newEngine(t, st, fetch.Options{WindowBytes: 60_000, MaxReads: 4})
	req := schema.Request{Dataset: "d", Batch: 10}
	j := open(t, e, req)
	var stalled []*fetch.Stream
	for range 5 {
		s := start(t, e, j, ticket(req, 0))
		defer s.Close()
		stalled = append(stalled, s)
	}
	if got := drain(t, e, j, ticket(req, 0)); len(got.positions) != 600 {
		t.Fatalf("%d rows beside stalled streams, want 600", len(got.positions))
	}
	for _, s := range stalled {
		if got := consume(t, j, s); len(got.positions) != 600 {
			t.Fatalf("a stream that had stood still served %d rows, want 600", len(got.positions))
		}
	}
}

// Closing a stream in the middle frees what it had read (newStore checks).
func TestCloseInTheMiddle(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Batch: 16}
	j := open(t, e, req)
	for after := range 5 {
		ctx, cancel := context.WithCancelCause(t.Context())
		s, err := e.Stream(ctx, j, ticket(req, 0))
		if err != nil {
			t.Fatal(err)
		}
		for range after {
			b, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		gone := errors.New("the client is gone")
		if after%2 == 0 {
			cancel(gone)
			if _, err := s.Next(); !errors.Is(err, gone) {
				t.Errorf("Next after the context's end: %v, want its cause", err)
			}
		}
		s.Close()
		s.Close()
		cancel(nil)
	}
	if n := e.Stats().LiveStreams; n != 0 {
		t.Errorf("%d streams are live", n)
	}
}

func TestEngineCloseEndsStreams(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	e := must(fetch.NewEngine(st, fetch.Options{}))
	req := schema.Request{Dataset: "d", Batch: 16}
	j, err := e.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, e, j, ticket(req, 0))
	j.Close() // the stream keeps the snapshot open
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Close() })
	for {
		b, err := s.Next()
		if errors.Is(err, schema.ErrUnavailable) {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("Next while the engine closes: %v", err)
		}
		if err == nil {
			b.Release()
		}
	}
	s.Close()
	wg.Wait()
	if _, err := e.Open(t.Context(), req); err == nil {
		t.Error("a closed engine opened a job")
	}
}

// Streams read a dropped snapshot to its end though garbage is collected; then
// its blobs are free.
func TestDropAndCollectUnderStream(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{WindowBytes: 20_000})
	req := schema.Request{Dataset: "d", Batch: 10}
	j, err := e.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, e, j, ticket(req, 0))
	j.Close()
	if err := st.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	report, err := e.GC(t.Context(), store.GCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.DeadBlobs != 0 {
		t.Errorf("%d blobs of a snapshot that is being read were taken for dead", report.DeadBlobs)
	}
	if _, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("opening the dropped dataset: %v, want not found", err)
	}
	if got := consume(t, j, s); len(got.positions) != 300 {
		t.Errorf("%d rows of the dropped snapshot, want 300", len(got.positions))
	}
	s.Close()
	if report, err = e.GC(t.Context(), store.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if report.LiveBlobs != 0 || report.DeadBlobs == 0 {
		t.Errorf("after the stream: %+v, want no live blob", report)
	}
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

// faulty fails reads of the images of the given positions, by an error or by a
// flipped bit.
func faulty(t *testing.T, j *fetch.Job, flip bool,
	positions ...int64) func(context.Context, schema.BlobRef) (func([]byte) []byte, error) {
	t.Helper()
	bad := map[schema.Key]bool{}
	for _, p := range positions {
		ref, ok := refAt(t, j, p)
		if !ok {
			t.Fatalf("position %d has no image", p)
		}
		bad[ref.Key] = true
	}
	return func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
		switch {
		case !bad[ref.Key]:
			return nil, nil
		case flip:
			return func(b []byte) []byte { b[len(b)/2] ^= 4; return b }, nil
		default:
			return nil, fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
		}
	}
}

func TestOnErrorFail(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Batch: 10}
	j := open(t, e, req)
	for _, flip := range []bool{false, true} {
		st.inject(faulty(t, j, flip, 57))
		s := start(t, e, j, ticket(req, 0))
		b, err := s.Next()
		for ; err == nil; b, err = s.Next() {
			b.Release()
		}
		ref, _ := refAt(t, j, 57)
		for _, part := range []string{schema.FormatID(sampleID("d", 57)), "position 57", `"image"`, ref.Key.String()} {
			if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), part) {
				t.Errorf("flip=%t: error %v, want a data loss that names %s", flip, err, part)
			}
		}
		if errors.Is(err, schema.ErrNotFound) {
			t.Errorf("flip=%t: %v: a lost blob is not the client's not found", flip, err)
		}
		if _, again := s.Next(); again == nil || again.Error() != err.Error() {
			t.Errorf("Next after the failure: %v, want it again", again)
		}
		s.Close()
	}
}

func TestOnErrorNull(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 10, OnError: schema.OnErrorNull}
	j := open(t, e, req)
	st.inject(faulty(t, j, true, 57, 58, 203))
	s := start(t, e, j, ticket(req, 0))
	defer s.Close()
	var nulls, reported []int64
	for b := range batches(t, s) {
		rec, err := b.Record(memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		for row, pos := range b.Positions {
			if rec.Column(0).IsNull(row) && pos%100 != 99 {
				nulls = append(nulls, pos)
			}
		}
		for _, f := range b.Faults {
			reported = append(reported, f.Position)
			if f.Column != "image" || f.ID != schema.FormatID(sampleID("d", int(f.Position))) || f.Cause == "" ||
				f.Substitute != nil {
				t.Errorf("fault %+v", f)
			}
		}
		rec.Release()
	}
	slices.Sort(reported)
	if want := []int64{57, 58, 203}; !slices.Equal(nulls, want) || !slices.Equal(reported, want) {
		t.Errorf("null at %v, reported %v; want %v", nulls, reported, want)
	}
}

func TestOnErrorSkip(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Split: "train", Batch: 10, OnError: schema.OnErrorSkip,
		Shuffle: &schema.Shuffle{Seed: 4}}
	j := open(t, e, req)
	bad := []int64{5, 57, 58, 203}
	st.inject(faulty(t, j, false, bad...))
	first := drain(t, e, j, ticket(req, 0)) // compares every substitute's own cells too
	if len(first.positions) != 270 || len(first.faults) != len(bad) {
		t.Fatalf("%d rows and %d faults, want 270 and %d", len(first.positions), len(first.faults), len(bad))
	}
	for _, f := range first.faults {
		index, _ := j.Plan().Index(f.Position)
		if f.Substitute == nil || slices.Contains(bad, *f.Substitute) || *f.Substitute >= 270 ||
			first.positions[index] != *f.Substitute {
			t.Errorf("fault %+v, where position %d was served", f, first.positions[index])
		}
	}
	if again := drain(t, e, j, ticket(req, 0)); !slices.Equal(again.positions, first.positions) {
		t.Error("served again, the substitutes are others")
	}

	// Where nothing can be read, nothing can take its place.
	st.inject(func(context.Context, schema.BlobRef) (func([]byte) []byte, error) { return nil, io.ErrUnexpectedEOF })
	s := start(t, e, j, ticket(req, 0))
	defer s.Close()
	if _, err := s.Next(); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "substitute") {
		t.Errorf("with every read failing: %v", err)
	}
}

package fetch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
)

// Whatever the order, however reads come back and wherever a stream is cut off
// and resumed: each sample of each epoch is served exactly once, batches have
// the sizes of the plan, and no sample moves further than it may.
func TestEveryOrderServesEachSampleOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	store := newStore(t)
	n, rounds := 700, 40
	if testing.Short() {
		rounds = 5
	}
	putPages(t, store, "d", n, 7)
	putPages(t, store, "e", 300, 11)
	putPages(t, store, "f", 150, 64)
	for range rounds {
		req := schema.Request{
			Dataset: "d", Columns: []string{"id", "label", "image"}, Batch: 1 + rng.Int64N(120),
			World: &schema.World{Size: 1 + rng.Int64N(3)}, Shuffle: &schema.Shuffle{Seed: rng.Uint64(),
				Epoch: rng.Uint64N(9)},
			Order: []string{schema.OrderStrict, schema.OrderFree, schema.OrderWindow, "window:1",
				"window:3"}[rng.IntN(5)],
			Remainder: []string{"", schema.RemainderDrop}[rng.IntN(2)],
		}
		if rng.IntN(2) == 0 {
			req.BatchBytes = 1 + rng.Int64N(40_000)
		}
		if rng.IntN(4) == 0 {
			req.Shuffle = nil
		}
		switch {
		case rng.IntN(3) == 0:
			req.Dataset, req.Mixture = "", someMixture(rng)
		case req.Shuffle != nil && rng.IntN(2) == 0:
			req.Sample = someSample(rng)
			req.Sample.EpochSize = rng.Int64N(1500)
		case req.Order == schema.OrderStrict:
			req.BucketByLength = someBuckets(rng)
		}
		tk := ticket(req, int(rng.Int64N(req.WorldSize())))
		tk.Stride = 1 + rng.Int64N(3)
		tk.Step = rng.Int64N(tk.Stride)
		tk.Epochs = 1 + rng.Int64N(3)
		window := []int64{0, 30_000, 300_000}[rng.IntN(3)]
		jitter := rand.New(rand.NewPCG(rng.Uint64(), 0))
		name := fmt.Sprintf("%s, window %d", tk.Marshal(), window)

		// Read whole when it is opened, or as streams come to its rows, with memory for a few pages.
		opts := fetch.Options{WindowBytes: window, Logger: quiet}
		if rng.IntN(3) > 0 {
			opts.Resident, opts.Memory.Manifests = -1, 20_000+rng.Int64N(100_000)
		}
		name += fmt.Sprintf(", manifest %d of %d", opts.Resident, opts.Memory.Manifests)
		r := newRemote(store, time.Millisecond, 0)
		far(t, r, opts, func(t *testing.T, e *fetch.Engine) {
			j := resolve(t, e, req)
			defer j.Close()
			r.hook = func(ctx context.Context, _ schema.BlobRef, _ int) error {
				r.mu.Lock()
				d := time.Duration(jitter.ExpFloat64() * float64(10*time.Millisecond))
				if jitter.IntN(100) == 0 { // the rows after it are served long before it
					d += time.Second
				}
				r.mu.Unlock()
				return pause(ctx, d)
			}
			want := expected(t, j, tk)
			whole := follow(t, e, j, tk, -1)
			check(t, name, j, tk, want, whole)

			// Cut off again and again, the rest is exactly the rest. A stream that is
			// cut off before it has planned as far as the one before it had served
			// must not forget what its own ticket said: hence the smaller window,
			// and streams that are cut off after one batch, or before the first.
			small := must(fetch.NewEngine(r, fetch.Options{WindowBytes: 10_000, Logger: quiet, Resident: opts.Resident,
				Memory: opts.Memory}))
			for range 4 {
				var parts []seen
				next, story := tk, name
				for cuts := 0; cuts < 8; cuts++ {
					on, most := []*fetch.Engine{e, small}[rng.IntN(2)], rng.IntN(4)
					if cuts == 0 {
						on, most = e, rng.IntN(len(whole)+1)
					}
					j := resolve(t, on, next.Request)
					part := follow(t, on, j, next, most)
					j.Close()
					if parts = append(parts, part...); len(part) > 0 {
						resume, err := schema.ParseTicket(part[len(part)-1].resume.Marshal())
						if err != nil {
							t.Fatalf("%s: resume ticket: %v", name, err)
						}
						next = resume
					}
					story += fmt.Sprintf(", cut after %d batches and resumed by %s", len(part), next.Marshal())
				}
				j2 := resolve(t, small, next.Request)
				rest := follow(t, small, j2, next, -1)
				j2.Close()
				check(t, story, j, tk, want, append(parts, rest...))
			}
			if err := small.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// seen is a batch that was served.
type seen struct {
	epoch     uint64
	step, row int64
	last      bool
	positions []int64
	resume    schema.Ticket
}

// follow reads a stream to its end, or some batches of it.
func follow(t *testing.T, e *fetch.Engine, j *fetch.Job, tk schema.Ticket, most int) (got []seen) {
	t.Helper()
	s := start(t, e, j, tk)
	defer s.Close()
	if most == 0 {
		return nil
	}
	for b := range batches(t, s) {
		compare(t, j, b)
		got = append(got, seen{b.Epoch, b.Step, b.Row, b.Last, b.Positions, b.Resume})
		if len(got) == most {
			break
		}
	}
	return got
}

// slot is one share of a step, and where its samples are in the stream.
type slot struct {
	epoch     uint64
	step      int64
	positions []int64
}

// expected lists the shares that a ticket is to serve.
func expected(t *testing.T, j *fetch.Job, tk schema.Ticket) (slots []slot) {
	t.Helper()
	for offset := range uint64(tk.Epochs) {
		req := tk.Request
		if req.Shuffle != nil {
			req.Shuffle = &schema.Shuffle{Seed: req.Shuffle.Seed, Epoch: req.Shuffle.Epoch + offset}
		}
		epoch := uint64(0)
		if req.Shuffle != nil {
			epoch = req.Shuffle.Epoch
		}
		p := j.Plan()
		cfg := p.Config()
		cfg.Epoch = epoch
		p = mustPlan(t, cfg)
		for step := tk.Step % tk.Stride; step < p.Steps(); step += tk.Stride {
			lo, hi := p.Share(step, tk.Rank)
			if lo == hi {
				continue
			}
			s := slot{epoch: epoch, step: step}
			for i := lo; i < hi; i++ {
				s.positions = append(s.positions, p.Position(i))
			}
			slots = append(slots, s)
		}
	}
	return slots
}

// check compares what was served with the shares that were to be.
func check(t *testing.T, name string, j *fetch.Job, tk schema.Ticket, want []slot, got []seen) {
	t.Helper()
	mode, reach := tk.OrderOf()
	perEpoch := len(want) / int(tk.Epochs)
	at := 0
	for i, sl := range want {
		first := i / perEpoch * perEpoch // of the epoch
		rows := 0
		for rows < len(sl.positions) {
			if at == len(got) {
				t.Fatalf("%s: ends after %d batches, in epoch %d step %d", name, at, sl.epoch, sl.step)
			}
			b := got[at]
			at++
			if b.row != int64(rows) || b.step != sl.step || tk.Shuffle != nil && b.epoch != sl.epoch {
				t.Fatalf("%s: batch %d is of epoch %d step %d row %d, want epoch %d step %d row %d", name, at-1,
					b.epoch, b.step, b.row, sl.epoch, sl.step, rows)
			}
			rows += len(b.positions)
			if b.last != (rows == len(sl.positions)) || rows > len(sl.positions) {
				t.Fatalf("%s: batch %d ends at row %d of %d, last=%t", name, at-1, rows, len(sl.positions), b.last)
			}
			for _, pos := range b.positions {
				moved := int64(len(want)) // by as little as it may have been: a sample may come several times
				for k, s := range want[first : first+perEpoch] {
					if by := int64(first + k - i); max(by, -by) < max(moved, -moved) && slices.Contains(s.positions, pos) {
						moved = by
					}
				}
				if mode == schema.OrderStrict && moved != 0 || mode == schema.OrderWindow &&
					max(moved, -moved) > reach {
					t.Fatalf("%s: position %d moved by %d steps", name, pos, moved)
				}
			}
			if mode == schema.OrderStrict && !slices.Equal(b.positions, sl.positions[rows-len(b.positions):rows]) {
				t.Fatalf("%s: batch %d has %v, want %v", name, at-1, b.positions,
					sl.positions[rows-len(b.positions):rows])
			}
		}
		if i == first+perEpoch-1 {
			var all, served []int64
			for _, s := range want[first : i+1] {
				all = append(all, s.positions...)
			}
			for _, b := range got[:at] {
				served = append(served, b.positions...)
			}
			served = served[len(served)-len(all):]
			slices.Sort(all)
			slices.Sort(served)
			if !slices.Equal(all, served) {
				t.Fatalf("%s: epoch %d served %d samples, not exactly those that it should", name, sl.epoch,
					len(served))
			}
		}
	}
	if at != len(got) {
		t.Fatalf("%s: %d batches too many", name, len(got)-at)
	}
	_ = j
}

// Which sample takes the place of one that cannot be read depends on its epoch,
// not on where the stream began.
func TestSubstitutesOfLaterEpochs(t *testing.T) {
	store := newStore(t)
	put(t, store, "d", 300)
	e := newEngine(t, store, fetch.Options{})
	serve := func(epoch uint64, epochs int64) (got []fetch.Fault) {
		req := schema.Request{Dataset: "d", Batch: 10, OnError: schema.OnErrorSkip,
			Shuffle: &schema.Shuffle{Seed: 4, Epoch: epoch}}
		j := open(t, e, req)
		store.inject(faulty(t, j, false, 5, 57, 203))
		tk := ticket(req, 0)
		tk.Epochs = epochs
		return drain(t, e, j, tk).faults
	}
	both, second := serve(7, 2), serve(8, 1)
	if len(both) != 6 || len(second) != 3 {
		t.Fatalf("%d and %d faults, want 6 and 3", len(both), len(second))
	}
	for i, f := range second {
		if g := both[3+i]; g.Position != f.Position || *g.Substitute != *f.Substitute {
			t.Errorf("position %d is replaced by %d in an epoch by itself, by %d after another", f.Position,
				*f.Substitute, *g.Substitute)
		}
	}
}

// A read that does not return blocks a loose stream only when more rows follow it than a
// resume ticket has bits for. Then the arrived rows are served, and the others when they
// arrive.
func TestLooseStreamSkipsASlowRead(t *testing.T) {
	store := newStore(t)
	put(t, store, "d", 3000)
	for _, order := range []string{schema.OrderFree, "window:40"} {
		r := newRemote(store, time.Millisecond, 0)
		far(t, r, fetch.Options{NoHedge: true, MaxPrefetch: 1024}, func(t *testing.T, e *fetch.Engine) {
			req := schema.Request{Dataset: "d", Columns: []string{"id", "label", "image"}, Batch: 100, Order: order}
			j := resolve(t, e, req)
			defer j.Close()
			slow, _ := refAt(t, j, 130)
			began := time.Now()
			r.hook = func(ctx context.Context, ref schema.BlobRef, _ int) error {
				if ref == slow {
					return pause(ctx, time.Until(began.Add(20*time.Second)))
				}
				return nil
			}
			s := start(t, e, j, ticket(req, 0))
			defer s.Close()
			served := map[int64]bool{}
			before := 0
			for b := range batches(t, s) {
				for _, p := range b.Positions {
					if served[p] {
						t.Fatalf("%s: position %d twice", order, p)
					}
					served[p] = true
				}
				if !served[130] {
					before = len(served)
				}
			}
			if len(served) != 3000 || before < 500 || before > 1400 {
				t.Errorf("%s: %d rows, %d of them before the one that was slow", order, len(served), before)
			}
		})
	}
}

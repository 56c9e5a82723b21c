package fetch_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
	"bowstring/spill"
)

// Tenants share evenly what the store gives, however many jobs one has.
func TestTenantsShareEvenly(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	far(t, newRemote(st, 20*time.Millisecond, 4e6), fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		got := map[string]*atomic.Int64{"few": {}, "many": {}}
		var wg sync.WaitGroup
		for i := range 21 {
			tenant := "many"
			if i == 0 {
				tenant = "few"
			}
			req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64,
				Shuffle: &schema.Shuffle{Seed: uint64(i)}}
			j := resolve(t, e, req)
			defer j.Close()
			tk := ticket(req, 0)
			tk.Epochs = 100
			s, err := e.Stream(fetch.WithCaller(t.Context(), fetch.Caller{Tenant: tenant}), j, tk)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer s.Close()
				bytes, _ := pull(t, s, 3*time.Second, 15*time.Second)
				got[tenant].Add(bytes)
			})
		}
		wg.Wait()
		few, many := float64(got["few"].Load()), float64(got["many"].Load())
		if share := min(few, many) / (few + many) * 2; share < 0.9 {
			t.Errorf("one job got %.0f bytes, twenty of another tenant %.0f: the slower has %.2f of an even share", few,
				many, share)
		}
	})
}

// Streams that stop reading one after another, however large the batches that
// they asked for, never hold more than there is, and leave enough to the next.
func TestMemoryIsABound(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 2000)
	synctest.Test(t, func(t *testing.T) {
		const limit = 400_000
		e := must(fetch.NewEngine(st, fetch.Options{WindowBytes: limit, Logger: quiet}))
		bound := func() {
			t.Helper()
			synctest.Wait()
			if n := e.Stats().WindowUsed; n > limit {
				t.Fatalf("%d bytes are held, of %d", n, limit)
			}
		}
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 1000, BatchBytes: 1 << 30}
		j := resolve(t, e, req)
		var stalled []*fetch.Stream
		var held []*fetch.Batch
		for range 40 {
			s := start(t, e, j, ticket(req, 0))
			stalled = append(stalled, s)
			bound()
			for range 2 { // what a transport takes
				b, err := s.Next()
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, b)
				bound()
			}
		}
		var positions int
		s := start(t, e, j, ticket(req, 0))
		for b := range batches(t, s) {
			positions += len(b.Positions)
			bound()
		}
		s.Close()
		if positions != 2000 {
			t.Errorf("with idle streams, one served %d rows, want 2000", positions)
		}
		for _, b := range held {
			b.Release()
		}
		for i, s := range stalled {
			rows := 0
			for b := range batches(t, s) {
				rows += len(b.Positions)
			}
			s.Close()
			for _, b := range held[2*i : 2*i+2] {
				rows += len(b.Positions)
			}
			if rows != 2000 {
				t.Errorf("stream %d, which was idle, served %d rows, want 2000", i, rows)
			}
		}
		j.Close()
		if n := e.Stats().WindowUsed; n != 0 {
			t.Errorf("in the end %d bytes are held", n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A sample that is larger than all memory is refused by name, and no stream waits
// for ever.
func TestSampleBeyondAllMemory(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	e := newEngine(t, st, fetch.Options{WindowBytes: 500})
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 10}
	j := open(t, e, req)
	s := start(t, e, j, ticket(req, 0))
	defer s.Close()
	var err error
	for err == nil {
		var b *fetch.Batch
		if b, err = s.Next(); err == nil {
			b.Release()
		}
	}
	if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), "WindowBytes") ||
		!strings.Contains(err.Error(), "may take 500") {
		t.Errorf("%v", err)
	}
	if _, again := s.Next(); !errors.Is(again, schema.ErrLimit) {
		t.Errorf("again: %v", again)
	}
}

// The next step that has rows for a rank is computed: a ticket for a rank that has
// none for billions of steps is answered at once.
func TestStretchesWithoutRows(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 2000)
	e := newEngine(t, st, fetch.Options{})
	for _, tt := range []struct{ batch, world, rows int64 }{
		{4, 6, 0}, // rank 3 never has a row
		{7, 9, 1}, // only in the last step, which has 2000 mod 7 = 5 rows
	} {
		req := schema.Request{Dataset: "d", Columns: []string{"id", "image"}, Batch: tt.batch,
			World: &schema.World{Size: tt.world}}
		j := open(t, e, req)
		for rank := range int(tt.world) {
			var want int64
			for step := range j.Plan().Steps() {
				lo, hi := j.Plan().Share(step, rank)
				want += hi - lo
			}
			for _, stride := range []int64{1, 2, 3} {
				tk := ticket(req, rank)
				tk.Stride = stride
				got := int64(0)
				for tk.Step = range stride {
					got += int64(len(drain(t, e, j, tk).positions))
				}
				if got != want {
					t.Errorf("%+v: rank %d with stride %d served %d rows, want %d", tt, rank, stride, got, want)
				}
			}
		}
		tk := ticket(req, 3)
		tk.Epochs = math.MaxInt32
		s := start(t, e, j, tk)
		if b, err := s.Next(); err == nil {
			if tt.rows == 0 {
				t.Error("a rank without rows has a batch")
			}
			b.Release()
		}
		s.Close()
	}
}

// Where nothing is shuffled, a job of several epochs goes on from one to the
// next, also when it is resumed: what the spill evicts by says so.
func TestJobWithoutShuffleAdvances(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, st, fetch.Options{Spill: cache, Future: future, NoHedge: true, WindowBytes: 64 << 10})
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 50}
	j := open(t, e, req)
	tk := ticket(req, 0)
	tk.Epochs = 4
	at := func(epoch, row int64) {
		t.Helper()
		jobs := e.Stats().Jobs
		if len(jobs) != 1 || int64(jobs[0].Epoch)*jobs[0].Rows+jobs[0].Row < epoch*300+row {
			t.Fatalf("the jobs are %+v, want one in epoch %d, at row %d or beyond", jobs, epoch, row)
		}
	}
	read := func(s *fetch.Stream, rows int) {
		t.Helper()
		for rows > 0 {
			b, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			tk = b.Resume
			rows -= len(b.Positions)
			b.Release()
		}
	}
	s := start(t, e, j, tk)
	t.Cleanup(s.Close)
	read(s, 400)
	at(1, 100)
	s.Close()
	s = start(t, e, j, tk)
	t.Cleanup(s.Close)
	at(1, 100)
	read(s, 300)
	at(2, 100)
}

// Short streams of ever other seeds leave a bounded number of jobs behind.
func TestJobsAreBounded(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, st, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	for seed := range uint64(400) {
		begin(t, e, schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 50,
			Shuffle: &schema.Shuffle{Seed: seed}}, 0, 0).Close()
	}
	if n := len(e.Stats().Jobs); n > 256 || n != future.Len() {
		t.Errorf("%d jobs are known, %d to the spill", n, future.Len())
	}
	if jobs := fmt.Sprint(e.Stats().Jobs); strings.Contains(jobs, "streams:1") {
		t.Error(jobs)
	}
}

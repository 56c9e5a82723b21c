package fetch_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"bowstring/fetch"
	"bowstring/schema"
)

// A ticket that says which rows were served is honoured where no blob is read,
// too: what was served with the images is not served again without them.
func TestServedWithoutBlobs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	store := newStore(t)
	put(t, store, "d", 300)
	e := newEngine(t, store, fetch.Options{})
	for range 30 {
		req := schema.Request{Dataset: "d", Columns: []string{"position"}, Batch: 1 + rng.Int64N(70),
			BatchBytes: 1 + rng.Int64N(3000),
			Order:      schema.OrderFree, Shuffle: &schema.Shuffle{Seed: rng.Uint64()}}
		j := open(t, e, req)
		tk := ticket(req, 0)
		tk.Step = rng.Int64N(j.Plan().Steps())
		whole := drain(t, e, j, tk).positions
		tk.Served = make([]byte, 1+rng.IntN((len(whole)+7)/8))
		for i := range tk.Served {
			tk.Served[i] = byte(rng.Uint32())
		}
		tk.Served[len(tk.Served)-1] = 1 // the last bit is of a row that there is
		var want []int64
		for i, pos := range whole {
			if i>>3 >= len(tk.Served) || tk.Served[i>>3]>>(i&7)&1 == 0 {
				want = append(want, pos)
			}
		}
		got := drain(t, e, j, tk)
		if !slices.Equal(got.positions, want) {
			t.Fatalf("ticket %s serves\n%v, want\n%v", tk.Marshal(), got.positions, want)
		}
		served := 0
		for i, resume := range got.resumes {
			served += got.rows[i]
			parsed, err := schema.ParseTicket(resume.Marshal())
			if err != nil {
				t.Fatal(err)
			}
			if rest := drain(t, e, j, parsed).positions; !slices.Equal(rest, want[served:]) {
				t.Fatalf("after batch %d, ticket %s serves\n%v, want\n%v", i, resume.Marshal(), rest, want[served:])
			}
		}
	}
}

// A bit for a row that the epoch does not have is a mistake, not a row served.
func TestServedBehindTheEnd(t *testing.T) {
	store := newStore(t)
	put(t, store, "d", 100)
	e := newEngine(t, store, fetch.Options{})
	req := schema.Request{Dataset: "d", Batch: 10, Order: schema.OrderFree}
	j := open(t, e, req)
	tk := ticket(req, 0)
	tk.Step, tk.Row, tk.Served = 9, 8, []byte{2}
	if got := drain(t, e, j, tk); !slices.Equal(got.positions, []int64{98}) {
		t.Errorf("served %v, want [98]", got.positions)
	}
	tk.Served = []byte{4}
	_, err := e.Stream(t.Context(), j, tk)
	var field *schema.FieldError
	if !errors.As(err, &field) || field.Field != "served" {
		t.Errorf("a bit for row 100 of 100: %v", err)
	}
}

// A ticket has rows that were served long before their turn. A stream that is cut off
// before it has planned as far keeps them in its tickets, however often that happens.
func TestServedFurtherThanIsPlanned(t *testing.T) {
	store := newStore(t)
	const n = 3000
	put(t, store, "d", n)
	for _, req := range []schema.Request{
		{Order: schema.OrderFree, Batch: 100},
		{Order: "window:30", Batch: 100, Shuffle: &schema.Shuffle{Seed: 5, Epoch: 2}},
		{Order: schema.OrderFree, Batch: 700, BatchBytes: 50_000, World: &schema.World{Size: 2}},
		{Order: schema.OrderFree, Batch: 200, Columns: []string{"position"}},
	} {
		req.Dataset = "d"
		e := newEngine(t, store, fetch.Options{WindowBytes: 30_000}) // of about 20 rows
		j := open(t, e, req)
		tk := ticket(req, int(req.WorldSize()-1))
		tk.Epochs = 2
		strict := tk
		strict.Order = ""
		exact := drain(t, e, open(t, e, strict.Request), strict).positions
		perEpoch := len(exact) / 2
		want := slices.Clone(exact)
		tk.Served = make([]byte, perEpoch/8-10) // a bit at its end, and some before
		for _, bit := range []int{3, 300, 301, 700, 8*len(tk.Served) - 1} {
			tk.Served[bit>>3] |= 1 << (bit & 7)
			want[bit] = -1
		}
		want = slices.DeleteFunc(want, func(p int64) bool { return p < 0 })

		var got []int64
		for streams := 0; ; streams++ {
			s := start(t, e, j, tk)
			b, err := s.Next()
			if errors.Is(err, io.EOF) {
				s.Close()
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b.Positions...)
			if tk, err = schema.ParseTicket(b.Resume.Marshal()); err != nil {
				t.Fatalf("after %d streams: %v", streams, err)
			}
			b.Release()
			s.Close()
			if j = open(t, e, tk.Request); len(got) > len(want) {
				break
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d rows were served, want %d, each once", req.Marshal(), len(got), len(want))
		}
	}
}

// A ticket may say that all the rows were served that a stream may read ahead,
// or all of its first epoch: then what comes after them is served.
func TestServedIsAllThatMayBePlanned(t *testing.T) {
	store := newStore(t)
	put(t, store, "d", 1000)
	synctest.Test(t, func(t *testing.T) {
		e := must(fetch.NewEngine(store, fetch.Options{Logger: quiet, MaxPrefetch: 512}))
		for _, rows := range []int{512, 768, 1000} {
			req := schema.Request{Dataset: "d", Batch: 100, Order: schema.OrderFree, Columns: []string{"id", "image"}}
			j := resolve(t, e, req)
			tk := ticket(req, 0)
			tk.Epochs = 2
			tk.Served = bytes.Repeat([]byte{0xff}, rows/8)
			s, err := e.Stream(t.Context(), j, tk)
			if err != nil {
				t.Fatal(err)
			}
			got := consume(t, j, s).positions
			times := map[int64]int{}
			for _, pos := range got {
				times[pos]++
			}
			for pos := range int64(1000) {
				want := 1
				if pos >= int64(rows) {
					want = 2
				}
				if times[pos] != want {
					t.Fatalf("of 2 epochs without the first %d rows, position %d came %d times, want %d", rows, pos,
						times[pos], want)
				}
			}
			s.Close()
			j.Close()
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// More rows whose last step has come than the window has room for come batch by
// batch: only those that the next batch takes are waited for.
func TestDueRowsBeyondTheWindow(t *testing.T) {
	store := newStore(t)
	put(t, store, "d", 1000)
	synctest.Test(t, func(t *testing.T) {
		e := must(fetch.NewEngine(store, fetch.Options{Logger: quiet, WindowBytes: 4000}))
		req := schema.Request{Dataset: "d", Batch: 100, BatchBytes: 20_000, Order: "window:1",
			Columns: []string{"id", "image"}}
		j := resolve(t, e, req)
		tk := ticket(req, 0)
		tk.Served = append(make([]byte, 13), bytes.Repeat([]byte{0xff}, 12)...) // rows of step 1, and none of step 0
		s := start(t, e, j, tk)
		got := consume(t, j, s).positions
		if slices.Sort(got); len(got) != 1000-8*12 || len(slices.Compact(got)) != len(got) {
			t.Errorf("%d rows were served", len(got))
		}
		s.Close()
		j.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

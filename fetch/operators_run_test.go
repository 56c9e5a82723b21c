package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/schema"
	"bowstring/spill"
)

// A failed operator is a fault of its sample: it ends the stream, gives a null, or a substitute replaces the sample.
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
						if _, faulty := bad[int(pos)]; !faulty {
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

// A stream that is cancelled while operators run leaks nothing.
func TestOperatorsCancelled(t *testing.T) {
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

// Results without random numbers are cached in the spill if that pays. The next epoch and the next engine find them
// there, byte for byte. Results with random numbers are made again.
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

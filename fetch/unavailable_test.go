package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/operators/program"
	"bowstring/internal/operatorstest"
	"bowstring/schema"
)

// engineless is a program that has no engine for some cells.
type engineless struct {
	program.Program
	unavailable func(cell []byte) bool
}

func (p engineless) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	if p.unavailable(cell) {
		return program.Outcome{}, fmt.Errorf("%w: no process", program.ErrUnavailable)
	}
	return p.Program.Run(ctx, cell, by, alloc)
}

func withoutEngine(unavailable func(cell []byte) bool) fetch.Options {
	o := withOperators(fetch.Options{})
	kind := operatorstest.Kinds()["image"]
	kind.Compile = func(list []program.Step) (program.Program, error) {
		p, err := operatorstest.Compile(list)
		return engineless{p, unavailable}, err
	}
	o.Kinds["image"] = kind
	return o
}

// An unavailable engine is no fault of a sample: whatever on_error is, the stream ends as unavailable, and a client that
// resumes with its last ticket gets the sample.
func TestNoEngineIsNoFault(t *testing.T) {
	st := newStore(t)
	const n, wanting = 200, 157
	made(t, st, n, content)
	for _, onError := range []string{schema.OnErrorFail, schema.OnErrorNull, schema.OnErrorSkip} {
		t.Run(onError, func(t *testing.T) {
			var there atomic.Bool
			e := newEngine(t, st, withoutEngine(func(cell []byte) bool {
				return !there.Load() && bytes.Equal(cell, content(wanting))
			}))
			j := open(t, e, schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 10, OnError: onError,
				Operators: schema.Operators{"image": {Steps: steps("Decode", "Crop=100")}}})
			tick := ticket(j.Request(), 0)
			s := start(t, e, j, tick)
			var all []int64
			b, err := s.Next()
			for ; err == nil; b, err = s.Next() {
				all, tick = append(all, b.Positions...), b.Resume
				if len(b.Faults) > 0 {
					t.Errorf("faults %+v", b.Faults)
				}
				b.Release()
			}
			s.Close()
			if !errors.Is(err, schema.ErrUnavailable) || slices.Contains(all, wanting) {
				t.Fatalf("after %d rows: %v", len(all), err)
			}
			there.Store(true)
			s = start(t, e, j, tick)
			defer s.Close()
			for b := range batches(t, s) {
				all = append(all, b.Positions...)
				if len(b.Faults) > 0 {
					t.Errorf("faults %+v", b.Faults)
				}
			}
			slices.Sort(all)
			if len(all) != n || all[0] != 0 || all[n-1] != n-1 || len(slices.Compact(all)) != n {
				t.Errorf("%d rows came, of %d", len(all), n)
			}
		})
	}
}

// Nor is it one of what is to take the place of a damaged sample.
func TestNoEngineForASubstitute(t *testing.T) {
	st := newStore(t)
	const n = 40
	made(t, st, n, func(i int) []byte {
		if i == 0 {
			return []byte("bad one")
		}
		return content(i)
	})
	// The ticket has the damaged sample alone: what is made after it are its substitutes.
	var gone atomic.Bool
	e := newEngine(t, st, withoutEngine(func(cell []byte) bool {
		if bytes.HasPrefix(cell, []byte("bad")) {
			gone.Store(true)
			return false
		}
		return gone.Load()
	}))
	j := open(t, e, schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 1, OnError: schema.OnErrorSkip,
		Operators: schema.Operators{"image": {Steps: steps("Decode", "Crop=100")}}})
	tick := ticket(j.Request(), 0)
	stop := int64(1)
	tick.Stop = &stop
	s := start(t, e, j, tick)
	defer s.Close()
	if _, err := s.Next(); !errors.Is(err, schema.ErrUnavailable) || errors.Is(err, schema.ErrDataLoss) {
		t.Error(err)
	}
}

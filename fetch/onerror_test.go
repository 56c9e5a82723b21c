package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/schema"
)

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

package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"bowstring/schema"
)

// checkSelection compares a selection with the list of its positions, in both
// directions and beyond the ends.
func checkSelection(t *testing.T, s Selection, want []int64) {
	t.Helper()
	if s.Len() != int64(len(want)) {
		t.Fatalf("%T: Len() = %d, want %d", s, s.Len(), len(want))
	}
	next := int64(0)
	absent := func(end int64) {
		for pos := next; pos < end; pos++ {
			if i, ok := s.Index(pos); ok || i != 0 {
				t.Fatalf("%T: Index(%d) = %d, %v: it is not selected", s, pos, i, ok)
			}
		}
	}
	for i, pos := range want {
		absent(pos)
		next = pos + 1
		if got := s.At(int64(i)); got != pos {
			t.Fatalf("%T: At(%d) = %d, want %d", s, i, got, pos)
		}
		if got, ok := s.Index(pos); !ok || got != int64(i) {
			t.Fatalf("%T: Index(%d) = %d, %v, want %d", s, pos, got, ok, i)
		}
	}
	absent(next + 200)
	for _, pos := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if _, ok := s.Index(pos); ok {
			t.Fatalf("%T: Index(%d) is selected", s, pos)
		}
	}
	mustPanic(t, "At(-1)", func() { s.At(-1) })
	mustPanic(t, "At(Len())", func() { s.At(s.Len()) })
}

// randomRanges returns ranges and their positions.
func randomRanges(rng *rand.Rand) (ranges []schema.Range, positions []int64) {
	var at int64
	for range rng.IntN(12) {
		at += rng.Int64N(100) * rng.Int64N(2)
		r := schema.Range{Start: at, End: at + rng.Int64N(150)*rng.Int64N(2)}
		ranges = append(ranges, r)
		for at = r.Start; at < r.End; at++ {
			positions = append(positions, at)
		}
	}
	return ranges, positions
}

func TestSelections(t *testing.T) {
	rng := testRand(t)
	checkSelection(t, All(0), nil)
	checkSelection(t, All(3), []int64{0, 1, 2})
	for range 300 {
		ranges, want := randomRanges(rng)
		s, err := FromRanges(ranges)
		if err != nil {
			t.Fatalf("%v: %v", ranges, err)
		}
		checkSelection(t, s, want)
	}
}

func TestSelectionsOfAllThereCanBe(t *testing.T) {
	s, err := FromRanges([]schema.Range{{Start: 0, End: 1}, {Start: 2, End: math.MaxInt64}})
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Len(); n != math.MaxInt64-1 || s.At(n-1) != math.MaxInt64-1 {
		t.Errorf("Len() = %d, the last is %d", n, s.At(n-1))
	}
	if i, ok := s.Index(math.MaxInt64 - 1); !ok || i != math.MaxInt64-2 {
		t.Errorf("Index of the last = %d, %v", i, ok)
	}
}

func TestImpossibleSelections(t *testing.T) {
	for _, ranges := range [][]schema.Range{
		{{Start: -1, End: 3}},
		{{Start: 3, End: 2}},
		{{Start: 0, End: 5}, {Start: 4, End: 9}},
		{{Start: 5, End: 9}, {Start: 0, End: 2}},
		{{Start: 5, End: 9}, {Start: 5, End: 9}},
	} {
		s, err := FromRanges(ranges)
		checkField(t, err, "ranges["+string(rune('0'+len(ranges)-1))+"]")
		if s != nil {
			t.Errorf("%v: a selection besides the error", ranges)
		}
	}
}

// checkField checks that err is about a field of the request.
func checkField(t *testing.T, err error, field string) {
	t.Helper()
	var fe *schema.FieldError
	if !errors.As(err, &fe) || fe.Field != field || fe.Want == "" || !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("error %v, want a FieldError on %s", err, field)
	}
}

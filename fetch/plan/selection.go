package plan

import (
	"fmt"
	"slices"

	"bowstring/schema"
)

// Selection is the set of positions a job trains on, in ascending order, with
// the way back from a position to its place in it. It is immutable, safe for
// concurrent use, and allocates nothing when asked. There are those of [All],
// [FromRanges] and [Bitmap].
type Selection interface {
	// Len is the number of positions.
	Len() int64
	// At returns the i-th position in ascending order. It panics unless
	// 0 <= i < Len().
	At(i int64) int64
	// Index is the inverse of At: which of the selected positions pos is. ok is
	// false if pos is not selected.
	Index(pos int64) (i int64, ok bool)
	// CountIn returns how many of the selected positions lie in [start, end).
	CountIn(start, end int64) int64

	// intersect sets the bits of out, of the same n as b, that are set in b and
	// selected too.
	intersect(b, out *Bitmap)
}

// All selects every position of a snapshot of n samples.
func All(n int64) Selection { return span{0, n} }

// FromRanges selects the positions of ranges, which must be disjoint and in
// ascending order, as those of a split are. Empty ranges are allowed. Both ways
// cost a binary search over the ranges. The error is a [schema.FieldError].
func FromRanges(in []schema.Range) (Selection, error) {
	s := &rangeSet{}
	var end, n int64
	for i, r := range in {
		if r.Start < end || r.End < r.Start {
			return nil, &schema.FieldError{
				Field: fmt.Sprintf("ranges[%d]", i),
				Got:   fmt.Sprintf("[%d, %d)", r.Start, r.End),
				Want:  fmt.Sprintf("a range that starts at %d or later and does not end before it starts", end),
			}
		}
		if r.Start == r.End {
			continue
		}
		if len(s.starts) == 0 || r.Start > end {
			s.starts = append(s.starts, r.Start)
			s.first = append(s.first, n)
		}
		n += r.End - r.Start
		end = r.End
	}
	switch len(s.starts) {
	case 0:
		return span{}, nil
	case 1:
		return span{s.starts[0], end}, nil
	}
	s.first = append(s.first, n)
	return s, nil
}

// span is the positions [start, end).
type span struct{ start, end int64 }

func (s span) Len() int64 { return s.end - s.start }

func (s span) At(i int64) int64 {
	if i < 0 || i >= s.end-s.start {
		panic(outside(i, s.Len()))
	}
	return s.start + i
}

func (s span) Index(pos int64) (int64, bool) {
	if pos < s.start || pos >= s.end {
		return 0, false
	}
	return pos - s.start, true
}

func (s span) CountIn(start, end int64) int64 { return max(min(end, s.end)-max(start, s.start), 0) }

func (s span) intersect(b, out *Bitmap) { b.copyRange(out, s.start, s.end) }

// rangeSet is two or more ranges with gaps between them.
type rangeSet struct {
	starts []int64 // of each range, ascending
	first  []int64 // index of each range's first position, then Len
}

func (s *rangeSet) Len() int64 { return s.first[len(s.first)-1] }

func (s *rangeSet) At(i int64) int64 {
	if i < 0 || i >= s.Len() {
		panic(outside(i, s.Len()))
	}
	k := lastAtMost(s.first, i)
	return s.starts[k] + i - s.first[k]
}

func (s *rangeSet) Index(pos int64) (int64, bool) {
	k := lastAtMost(s.starts, pos)
	if k < 0 || pos-s.starts[k] >= s.first[k+1]-s.first[k] {
		return 0, false
	}
	return s.first[k] + pos - s.starts[k], true
}

func (s *rangeSet) CountIn(start, end int64) int64 {
	if start >= end {
		return 0
	}
	return s.below(end) - s.below(start)
}

// below is how many of the positions are less than pos.
func (s *rangeSet) below(pos int64) int64 {
	k := lastAtMost(s.starts, pos)
	if k < 0 {
		return 0
	}
	return min(s.first[k]+pos-s.starts[k], s.first[k+1])
}

func (s *rangeSet) intersect(b, out *Bitmap) {
	for k, start := range s.starts {
		b.copyRange(out, start, start+s.first[k+1]-s.first[k])
	}
}

// lastAtMost returns the index of the last element of s, ascending and without
// repeats, that is at most v; -1 if there is none.
func lastAtMost(s []int64, v int64) int {
	k, found := slices.BinarySearch(s, v)
	if !found {
		k--
	}
	return k
}

func outside(i, n int64) string {
	return fmt.Sprintf("plan: index %d in a selection of %d", i, n)
}

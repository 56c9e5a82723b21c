package manifest

import (
	"sort"

	"bowstring/schema"
)

// starts says where runs of rows begin: the first position of each, then the number of rows.
type starts struct {
	at      []int64
	uniform int64 // rows of every run but the last, 0 if they differ
}

func newStarts(chunks []schema.Chunk) starts {
	s := starts{at: make([]int64, 1, len(chunks)+1)}
	for i := range chunks {
		rows := chunks[i].Rows
		switch {
		case i == 0:
			s.uniform = rows
		case s.uniform != 0 && (rows > s.uniform || s.at[i]%s.uniform != 0):
			s.uniform = 0
		}
		s.at = append(s.at, s.at[i]+rows)
	}
	return s
}

// of returns the run that has a position.
func (s *starts) of(pos int64) int {
	if s.uniform != 0 {
		return int(pos / s.uniform)
	}
	return sort.Search(len(s.at), func(i int) bool { return s.at[i] > pos }) - 1
}

// index is the pages of a chunk. It is immutable.
type index struct {
	pages []schema.Chunk
	starts
}

func newIndex(pages []schema.Chunk) *index { return &index{pages, newStarts(pages)} }

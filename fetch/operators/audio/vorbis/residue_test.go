package vorbis

import (
	"slices"
	"testing"
)

// If there is one class, a word may name the classes of far more partitions than exist. A
// decoder that counted them all would not end here.
func TestWordOfManyClasses(t *testing.T) {
	one := func(dims int, values ...float32) *codebook {
		b := &codebook{dims: dims, lengths: []uint8{1}, used: 1, vectors: values}
		if why := b.words(); why != "" {
			t.Fatal(why)
		}
		return b
	}
	res := &residue{kind: 1, end: 8, size: 2, classes: 1, class: one(1 << 40),
		books: [][8]*codebook{{one(2, 0.5, -0.25)}}}
	got := make([]float32, 8)
	room := &residueRoom{classes: []uint8{9, 9, 9, 9}, entries: make([]int32, 8)}
	res.decode(&bitReader{data: []byte{0}}, [][]float32{got}, room)
	if want := []float32{0.5, -0.25, 0.5, -0.25, 0.5, -0.25, 0.5, -0.25}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

package manifest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"bowstring/schema"
)

// A page that is larger than half of all memory for pages can be read, alone.
func TestLargePage(t *testing.T) {
	w := makeWorld(t, rand.New(rand.NewPCG(1, 2)), 2000, 1024)
	m, _, err := w.tryOpen(t, w.pages[0].Size+10, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, position := range []int64{0, 1999, 0} {
		rows, err := m.At(t.Context(), []int64{position})
		if err != nil || len(rows) != 1 {
			t.Fatalf("position %d: %v, %v", position, rows, err)
		}
	}
}

// The index of a chunk is not accepted as a page, even if a broken record says that it is
// one.
func TestIndexIsNoPage(t *testing.T) {
	w := makeWorld(t, rand.New(rand.NewPCG(1, 2)), 2000, 16)
	for _, c := range w.snap.Chunks {
		if c.Pages > 1 {
			d := c
			d.Pages, d.PageBytes = 0, 0
			w.snap.Chunks = []schema.Chunk{c, d}
			break
		}
	}
	w.snap.Splits = nil
	m, _, err := w.tryOpen(t, 8<<20, -1)
	if err != nil {
		t.Fatal(err)
	}
	rows := w.snap.Chunks[0].Rows
	if _, err := m.At(t.Context(), []int64{0}); err != nil {
		t.Error(err)
	}
	if _, err := m.At(t.Context(), []int64{rows + 1}); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("got %v, want data loss", err)
	}
}

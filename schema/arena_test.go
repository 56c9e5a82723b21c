package schema

import "testing"

// TestSmallBatchesAreSmall: hundreds of consumers may each hold many batches of a
// row, beside which their blocks must not count.
func TestSmallBatchesAreSmall(t *testing.T) {
	for _, c := range []struct{ rows, most int }{{1, 4 << 10}, {few, 4 << 10}, {few + 1, 64<<10 + 64}} {
		a := newArena(c.rows)
		a.bytes(100)
		got := 0
		for _, b := range a.blocks {
			got += len(b)
		}
		if got > c.most {
			t.Errorf("a batch of %d rows takes %d bytes, want at most %d", c.rows, got, c.most)
		}
		a.release()
	}
}

// TestArenaKinds: an arena goes back to those of its kind.
func TestArenaKinds(t *testing.T) {
	small := newArena(1)
	small.bytes(fewRows.keep + 1)
	small.release() // not kept: it has grown
	for range 100 {
		small, large := newArena(1), newArena(1000)
		if small.kind != &fewRows || large.kind != &manyRows {
			t.Fatal("an arena came from the wrong pool")
		}
		for _, a := range []*arena{small, large} {
			for _, b := range a.blocks {
				if a.kind == &fewRows && len(b) > fewRows.keep {
					t.Fatalf("a small arena keeps a block of %d bytes", len(b))
				}
			}
			a.bytes(10)
			a.release()
		}
	}
}

package spill

import (
	"math"
	"testing"
	"time"

	"bowstring/schema"
)

// The horizon fills a cache on average: a job that uses each blob once an epoch has half of the blobs that it uses in
// that time. The clock counts rows, however long they take, and never goes back.
func TestTurns(t *testing.T) {
	f := &Future{}
	if f.Turn() != 0 || f.Horizon(1) != 0 {
		t.Error("without a job there is a turn")
	}
	j, err := f.Add(JobOptions{Dataset: 3, Order: ascending(1000), RowBytes: 100, RowTime: time.Second}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ part, epochs float64 }{{0.1, 0.2}, {0.25, 0.5}, {0.5, 1}, {0.75, 2}} {
		if h := f.Horizon(int64(c.part * 1000 * 100)); math.Abs(h/1000-c.epochs) > 0.02*c.epochs {
			t.Errorf("with room for %g it is %g epochs, want %g", c.part, h/1000, c.epochs)
		}
	}
	if h := f.Horizon(1000 * 100); h != 0 {
		t.Errorf("with room for all it is %g", h)
	}
	j.Advance(0, 100, 1e9)
	requireTurn := func(position int64, soon, want float64) {
		t.Helper()
		if turn, ok := f.NextTurn(Place{Dataset: 3, Position: position}, soon); !ok || math.Abs(turn-want) > 1e-6*want {
			t.Errorf("position %d is used at turn %g, %t, want %g", position, turn, ok, want)
		}
	}
	requireTurn(150, 0, 150)
	requireTurn(50, 0, 1050)
	requireTurn(105, 10, 1105) // it is being used
	if _, ok := f.NextTurn(Place{Dataset: 4, Position: 105}, 0); ok {
		t.Error("what no job uses has a turn")
	}
	// With a second job that takes twice as long per row, each of its rows is three turns, and each row of the first
	// is 1.5.
	if _, err = f.Add(JobOptions{Dataset: 4, Order: ascending(1000), RowBytes: 100, RowTime: 2 * j.RowTime()}, 0); err != nil {
		t.Fatal(err)
	}
	requireTurn(150, 0, 100+50*1.5)
	if turn, ok := f.NextTurn(Place{Dataset: 4, Position: 20}, 0); !ok || math.Abs(turn-160) > 1 {
		t.Errorf("of the slower job: %g, %t", turn, ok)
	}
	f.Remove(j)
	if f.Turn() != 100 {
		t.Errorf("after a job that used 100 rows the turn is %g", f.Turn())
	}
}

// A blob with an Until is not displaced by another one with an Until, however soon that is used. It displaces blobs
// without one. If its use comes after its Until, it makes room.
func TestKeptUntil(t *testing.T) {
	r := testRand(t)
	const size, budget = 50_000, MinBytes + 8<<20
	future := &Future{}
	opts := testOptions(t.TempDir())
	opts.Bytes, opts.Oracle, opts.SegmentBytes = budget, future, 1<<20
	c := openCache(t, opts)
	number := c.Dataset("d@1")
	j, err := future.Add(JobOptions{Dataset: number, Order: ascending(1_000_000), RowBytes: size}, 0)
	if err != nil {
		t.Fatal(err)
	}
	put := func(position int, until float64) (ref schema.BlobRef, stored bool) {
		data, ref := fill(r, size)
		return ref, c.Put(ref, Place{Dataset: number, Position: int64(position), Until: until}, 0, data)
	}
	for i := 0; c.Room() > 2*size; i++ {
		put(10+i, 0)
	}
	var kept []schema.BlobRef
	for i := range 40 {
		ref, stored := put(5000+i, 6000)
		if !stored {
			t.Fatalf("blob %d is not stored, though what was there may go", i)
		}
		kept = append(kept, ref)
	}
	for i := range 2000 {
		before := c.NotKept()
		if _, stored := put(4000-i, 6000); !stored {
			if c.NotKept() != before+1 {
				t.Errorf("%d blobs have found no room, want %d", c.NotKept(), before+1)
			}
			break
		}
		if i == 1999 {
			t.Error("there is room for everything")
		}
	}
	for range 500 {
		put(2, 0)
		put(3, 6000)
	}
	for i, ref := range kept {
		if !c.Has(ref) {
			t.Errorf("blob %d is not kept", i)
		}
	}
	if !c.Keep(kept[0], 10_000) || c.Keep(schema.BlobRef{Key: schema.Key{1}}, 10_000) {
		t.Error("what is there is not to be kept, or what is not is")
	}
	j.Advance(0, 5500, 1e9) // they are used, and not again by then
	gone := func() (n int) {
		for _, ref := range kept {
			if !c.Has(ref) {
				n++
			}
		}
		return n
	}
	for i := 0; i < 20_000 && gone() < len(kept)/2; i++ {
		put(5600+i, 20_000)
	}
	if gone() < len(kept)/2 {
		t.Errorf("%d of %d blobs made room when they had been used", gone(), len(kept))
	}
}

package prefetch

import (
	"math/rand/v2"
	"testing"

	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The bitmap says what a plain set says, whatever is added, removed and forgotten,
// and what a ticket carries is read back as it was.
func TestBitmap(t *testing.T) {
	for range 100 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		var m bitmap
		set := map[int64]bool{}
		first, most := int64(0), 1+rng.Int64N(700)
		for range 300 {
			row := first + rng.Int64N(most)
			switch rng.IntN(10) {
			case 0, 1:
				m.remove(row)
				delete(set, row)
			case 2:
				first += rng.Int64N(most/4 + 1)
				m.forget(first)
				for r := range set {
					if r < first {
						delete(set, r)
					}
				}
			default:
				m.add(row)
				set[row] = true
			}
			from := first + rng.Int64N(most)
			in, out := int64(-1), from
			for r := from; r < first+2*most && in < 0; r++ {
				if set[r] {
					in = r
				}
			}
			for set[out] {
				out++
			}
			if got := m.nextIn(from); got != in {
				t.Fatalf("seed %d: the first row from %d on is %d, want %d", seed, from, got, in)
			}
			if got := m.nextOut(from); got != out {
				t.Fatalf("seed %d: the first row from %d on that is not in is %d, want %d", seed, from, got, out)
			}
			again := bitmapOf(m.from(from))
			for r := range 2 * most {
				if again.has(r) != set[from+r] || m.has(from+r) != set[from+r] {
					t.Fatalf("seed %d: row %d is in: %t, %t, want %t", seed, from+r, m.has(from+r), again.has(r),
						set[from+r])
				}
			}
		}
	}
}

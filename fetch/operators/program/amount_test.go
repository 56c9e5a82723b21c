package program_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"bowstring/fetch/operators/program"
)

// TestAmount compares amounts with numbers that cannot overflow.
func TestAmount(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	most := big.NewInt(math.MaxInt64)
	draw := func() int64 { return int64(random.Uint64()>>1) >> random.IntN(64) }
	for range 10_000 {
		a, b := draw(), draw()
		for what, got := range map[string]program.Amount{
			"sum":     program.Count(a).Plus(program.Count(b)),
			"product": program.Count(a).Times(b),
		} {
			want := new(big.Int)
			if what == "sum" {
				want.Add(big.NewInt(a), big.NewInt(b))
			} else {
				want.Mul(big.NewInt(a), big.NewInt(b))
			}
			if want.Cmp(most) > 0 {
				want = most
			}
			if got.Int64() != want.Int64() || got.Beyond(want.Int64()) || want.Sign() > 0 && !got.Beyond(want.Int64()-1) {
				t.Fatalf("the %s of %d and %d is %v; want %v", what, a, b, got, want)
			}
		}
	}
	for what, got := range map[string]program.Amount{
		"a negative count":          program.Count(-1),
		"a negative factor":         program.Product(3, -1),
		"a negative multiple":       program.Count(3).Times(math.MinInt64),
		"a product that has no int": program.Product(math.MaxInt, math.MaxInt, 2),
		"the most and one":          program.Most.Plus(program.Count(1)),
	} {
		if got != program.Most {
			t.Errorf("%s is %v; want the most", what, got)
		}
	}
	if got := program.Product(); got.Int64() != 1 {
		t.Errorf("the empty product is %v", got)
	}
}

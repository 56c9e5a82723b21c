package plan

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// randomWeights are those of some sources: of like size, of very different sizes, in simple ratios, and some 0.
func randomWeights(rng *rand.Rand, n int) []uint64 {
	weights := make([]uint64, n)
	kind := rng.IntN(5)
	for sum := uint64(0); sum == 0; {
		for j := range weights {
			switch kind {
			case 0:
				weights[j] = 1 + rng.Uint64N(9)
			case 1:
				weights[j] = 1 << rng.IntN(40)
			case 2:
				weights[j] = rng.Uint64N(1 << 40)
			case 3:
				weights[j] = 1
			case 4:
				weights[j] = uint64(math.Exp(rng.Float64() * 30))
			}
			if rng.IntN(6) == 0 {
				weights[j] = 0
			}
			sum += weights[j]
		}
	}
	return weights
}

// target is what a source is due after some places.
func target(weights []uint64, j int, places int64) *big.Rat {
	sum := new(big.Int)
	for _, w := range weights {
		sum.Add(sum, new(big.Int).SetUint64(w))
	}
	due := new(big.Int).Mul(new(big.Int).SetUint64(weights[j]), big.NewInt(places))
	return new(big.Rat).SetFrac(due, sum)
}

// A sequence is walked through, place after place: each place has one source, whose turns are counted without a gap;
// the way back agrees; and no count is off by more than the bound.
func TestTurns(t *testing.T) {
	rng := testRand(t)
	worst, beyond, trees := 0.0, 0, 0
	for range 400 {
		weights := randomWeights(rng, 1+rng.IntN(9))
		if rng.IntN(20) == 0 {
			weights = randomWeights(rng, MaxSources)
		}
		s := newSharing(weights, make([]int64, len(weights)), rng.Uint64(), rng.IntN(3) > 0)
		trees++
		if s.bound > 1 {
			beyond++
		}
		worst = max(worst, s.bound)
		sum := 0.0
		for _, w := range weights {
			sum += float64(w)
		}
		counts := make([]uint64, len(weights))
		for place := range uint64(2000) {
			for j := range weights {
				off := float64(counts[j]) - float64(place)*float64(weights[j])/sum
				if math.Abs(off) > max(s.bound, 1)+1e-5 {
					t.Fatalf("weights %d: after %d places source %d has %d turns, off by %g, and the bound is %g", weights, place, j,
						counts[j], off, s.bound)
				}
				if got := s.count(j, place); got != counts[j] {
					t.Fatalf("weights %d: before place %d source %d has %d turns, want %d", weights, place, j, got, counts[j])
				}
			}
			j, turn := s.at(place)
			if turn != counts[j] || weights[j] == 0 {
				t.Fatalf("weights %d: place %d is turn %d of source %d, which had %d", weights, place, turn, j, counts[j])
			}
			if back := s.place(j, turn); back != place {
				t.Fatalf("weights %d: turn %d of source %d is at %d, and found at %d", weights, turn, j, place, back)
			}
			counts[j]++
		}
	}
	t.Logf("the largest bound is %.4f; %d of %d are above 1", worst, beyond, trees)
}

// Far places are as near ones.
func TestTurnsFarAway(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		weights := randomWeights(rng, 1+rng.IntN(9))
		s := newSharing(weights, make([]int64, len(weights)), rng.Uint64(), true)
		for range 50 {
			place := rng.Uint64N(1<<rng.IntN(62) + 1)
			var all uint64
			for j := range weights {
				n := s.count(j, place)
				all += n
				off := new(big.Rat).Sub(target(weights, j, int64(place)), new(big.Rat).SetInt64(int64(n)))
				if f, _ := off.Float64(); math.Abs(f) > max(s.bound, 1)+1e-5 {
					t.Fatalf("weights %d: before place %d source %d is off by %g", weights, place, j, f)
				}
			}
			if all != place {
				t.Fatalf("weights %d: before place %d there are %d turns", weights, place, all)
			}
			j, turn := s.at(place)
			if turn != s.count(j, place) || s.place(j, turn) != place || s.count(j, place+1) != turn+1 {
				t.Fatalf("weights %d: place %d is turn %d of source %d, which is found at %d", weights, place, turn, j,
					s.place(j, turn))
			}
		}
		for j := range weights {
			if weights[j] == 0 && s.place(j, 0) != never {
				t.Fatalf("weights %d: source %d has a turn", weights, j)
			}
			if s.place(j, never) != never || s.place(j, math.MaxUint64) != never {
				t.Fatalf("weights %d: source %d has a turn after 2^62", weights, j)
			}
		}
	}
}

// Up to four sources are within one turn whatever their weights. The most that climbing over weights found is 1.025 for
// five and 1.064 for seven.
func TestBounds(t *testing.T) {
	rng := testRand(t)
	for _, c := range []struct {
		n     int
		bound float64
	}{{2, 1}, {3, 1}, {4, 1}, {5, 1.03}, {8, 1.2}, {16, 1.2}, {64, 1.2}} {
		n, worst, beyond := c.n, 0.0, 0
		const trees = 300
		for range trees {
			weights := make([]uint64, n)
			for j := range weights {
				weights[j] = 1 + rng.Uint64N(1000)
			}
			s := newSharing(weights, make([]int64, n), 0, false)
			if s.bound > 1 {
				beyond++
			}
			worst = max(worst, s.bound)
		}
		t.Logf("%d sources: the largest bound is %.4f; %d of %d are above 1", n, worst, beyond, trees)
		if worst > c.bound {
			t.Errorf("%d sources are off by %g, want at most %g", n, worst, c.bound)
		}
	}
}

// Rank after rank of a small batch gets turns of every source, as turns come at random.
func TestTurnsAreAtRandom(t *testing.T) {
	rng := testRand(t)
	for _, weights := range [][]uint64{{1, 1}, {7, 3}, {99, 1}, {1, 1, 1}, {5, 3, 2}} {
		s := newSharing(weights, make([]int64, len(weights)), rng.Uint64(), true)
		var sum uint64
		for _, w := range weights {
			sum += w
		}
		seen := map[string]int{}
		for place := range 200 * sum {
			j, _ := s.at(place)
			seen[fmt.Sprint(j, place%sum)]++
		}
		for j, w := range weights {
			places := 0
			for p := range sum {
				if seen[fmt.Sprint(j, p)] > 0 {
					places++
				}
			}
			if places <= int(w) {
				t.Errorf("weights %d: source %d comes at %d of %d places of a period", weights, j, places, sum)
			}
		}
	}
}

func TestWeightsAreExact(t *testing.T) {
	for _, c := range []struct {
		shares []string
		want   []uint64
	}{
		{[]string{"0.5", "0.3", "0.2"}, []uint64{5, 3, 2}},
		{[]string{"1", "1", "0"}, []uint64{1, 1, 0}},
		{[]string{"1/3", "1/7"}, []uint64{7, 3}},
		{[]string{"0", "0"}, []uint64{0, 0}},
	} {
		var shares []*big.Rat
		for _, s := range c.shares {
			r, _ := new(big.Rat).SetString(s)
			shares = append(shares, r)
		}
		if got := Weights(shares); fmt.Sprint(got) != fmt.Sprint(c.want) {
			// Only ratios count.
			for j := range got {
				for i := range got {
					if got[i]*c.want[j] != got[j]*c.want[i] {
						t.Errorf("%v: %d, want %d", c.shares, got, c.want)
					}
				}
			}
		}
	}
	long, _ := new(big.Rat).SetString("1e-30")
	got := Weights([]*big.Rat{big.NewRat(1, 3), long, new(big.Rat)})
	if got[0] < never/4 || got[0]+got[1] >= never || got[1] != 1 || got[2] != 0 {
		t.Errorf("weights beyond 2^62: %d", got)
	}
}

package scale

import (
	"flag"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, to repeat a run; 0 draws one")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRand returns the random numbers of a test, whose seed it logs.
func testRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -args -seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// shuffled is the order of some shuffled epochs of part of the positions, kept as tables. Later epochs repeat them.
type shuffled struct {
	rows  int64
	index [][]int64 // by position, -1 if it is not used
}

func newShuffled(r *rand.Rand, positions []int64, epochs int) *shuffled {
	s := &shuffled{rows: int64(len(positions))}
	most := int64(0)
	for _, p := range positions {
		most = max(most, p)
	}
	for range epochs {
		index := make([]int64, most+1)
		for p := range index {
			index[p] = -1
		}
		for i, k := range r.Perm(len(positions)) {
			index[positions[k]] = int64(i)
		}
		s.index = append(s.index, index)
	}
	return s
}

func (s *shuffled) Rows() int64 { return s.rows }

func (s *shuffled) Index(epoch, position int64) (int64, bool) {
	index := s.index[epoch%int64(len(s.index))]
	if position >= int64(len(index)) || index[position] < 0 {
		return 0, false
	}
	return index[position], true
}

// span is the positions from one to below another.
func span(from, to int64) []int64 {
	s := make([]int64, to-from)
	for i := range s {
		s[i] = from + int64(i)
	}
	return s
}

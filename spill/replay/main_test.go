package replay

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

// shuffled is the order of some shuffled epochs, of part of the positions, kept as tables.
type shuffled struct {
	at, index [][]int64
}

func newShuffled(r *rand.Rand, n, rows, epochs int64) shuffled {
	var s shuffled
	for range epochs + 1 {
		at := make([]int64, 0, rows)
		index := make([]int64, n)
		for i := range index {
			index[i] = -1
		}
		for _, pos := range r.Perm(int(n))[:rows] {
			index[pos] = int64(len(at))
			at = append(at, int64(pos))
		}
		s.at, s.index = append(s.at, at), append(s.index, index)
	}
	return s
}

func (s shuffled) Rows() int64 { return int64(len(s.at[0])) }

func (s shuffled) Position(epoch, index int64) int64 { return s.at[epoch][index] }

func (s shuffled) Index(epoch, position int64) (int64, bool) {
	i := s.index[epoch][position]
	return i, i >= 0
}

// randomMix draws a mix of jobs.
func randomMix(r *rand.Rand, jobs int, n int64) []Job {
	mix := make([]Job, jobs)
	for i := range mix {
		epochs := 1 + r.Int64N(4)
		rows := 1 + r.Int64N(n)
		mix[i] = Job{
			Dataset: 1 + r.Uint32N(2), Order: newShuffled(r, n, rows, epochs), Epochs: epochs,
			Speed: 0.5 + r.Float64(), Start: r.Float64() * float64(n), Jitter: r.Float64() * 0.9,
		}
	}
	return mix
}

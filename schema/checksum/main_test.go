package checksum

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

// randomBytes returns n bytes that begin somewhere in a line of the cache.
func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n+stripe)[r.IntN(stripe):]
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b[:n:n]
}

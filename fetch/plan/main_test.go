package plan

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

// mustPanic checks that f panics.
func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

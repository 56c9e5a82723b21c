package extent_test

import (
	"math/rand/v2"
	"os"
	"testing"

	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) {
	status := leaktest.Run(m)
	if proven.dir != "" {
		_ = os.RemoveAll(proven.dir)
	}
	os.Exit(status)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// random is a source whose seed is in the log.
func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

package hostile

import (
	"os"
	"testing"

	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveEnv); dir != "" {
		if err := serveUntilSignal(dir); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

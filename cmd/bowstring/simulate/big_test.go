package simulate

import (
	"os"
	"testing"
)

func TestFile(t *testing.T) {
	b, err := os.ReadFile(os.Getenv("SIMFILE"))
	if err != nil {
		t.Skip()
	}
	simulated(t, string(b))
}

package leaktest

import (
	"testing"
	"time"
)

// passed is tests that passed.
type passed func()

func (p passed) Run() int { p(); return 0 }

// TestLateEnd: a goroutine that ends a second after the tests, for which goleak alone does not wait, is no leak.
func TestLateEnd(t *testing.T) {
	if status := Run(passed(func() { go time.Sleep(time.Second) })); status != 0 {
		t.Errorf("the status is %d, want 0", status)
	}
}

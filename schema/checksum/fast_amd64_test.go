package checksum

import "testing"

// The code for CPUs without these instructions passes the same tests.
func TestWithout(t *testing.T) {
	if !fast {
		t.Skip("this processor is one of them")
	}
	fast = false
	defer func() { fast = true }()
	t.Run("Of", TestOf)
	t.Run("Copy", TestCopy)
}

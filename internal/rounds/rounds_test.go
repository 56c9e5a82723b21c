package rounds

import "testing"

func TestCount(t *testing.T) {
	for set, want := range map[string]int{"": 3, "all": 7} {
		t.Setenv(Variable, set)
		if got := Count(3, 7); got != want {
			t.Errorf("%s=%q: %d rounds, want %d", Variable, set, got, want)
		}
	}
}

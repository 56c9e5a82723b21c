package read

import "testing"

// Where there is always something due, what was taken makes room for what comes.
func TestDueDoesNotGrow(t *testing.T) {
	const waiting = 10
	var d due
	for i := range 100_000 {
		d.add(Attempt{read: &read{}, nth: i})
		if i < waiting {
			continue
		}
		if a := d.take(); a.nth != i-waiting {
			t.Fatalf("attempt %d is taken, want %d: the oldest is first", a.nth, i-waiting)
		}
	}
	if n := cap(d.list); n > 8*waiting {
		t.Errorf("there is room for %d attempts where %d wait", n, waiting)
	}
	for range waiting {
		d.take()
	}
	if a := d.take(); a.read != nil || len(d.list) != 0 {
		t.Errorf("%v is taken of an empty queue of %d", a, len(d.list))
	}
}

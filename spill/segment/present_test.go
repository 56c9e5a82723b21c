package segment

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPresence looks at pages that are in memory, and at ones that are not.
func TestPresence(t *testing.T) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	mem[0] = 1
	there, gone := mem[:page], mem[page:]
	var p presence
	for i := range presentRun {
		if !p.holds(there) {
			t.Fatalf("read %d: a page that is in memory is said not to be", i)
		}
		if i%1000 == 0 && p.holds(gone) {
			t.Fatalf("read %d: a page that is not in memory is said to be", i)
		}
	}
	for range presentRun {
		p.holds(there)
	}
	// From here on one blob in presentEach is checked, and the first that is not in memory ends that.
	asked := 0
	for p.holds(gone) {
		if asked++; asked == presentEach {
			t.Fatalf("none of %d reads was looked at", asked)
		}
	}
	for i := range presentEach {
		if p.holds(gone) {
			t.Fatalf("read %d after one that found no page was not looked at", i)
		}
	}
}

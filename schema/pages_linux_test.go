package schema

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Pages that were not touched are not there until they are populated, whatever part of them is asked for.
func TestPopulate(t *testing.T) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 300*page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	part := mem[page-1 : 298*page+1] // of 299 pages
	if Resident(part) {
		t.Error("pages are said to be there that were never touched")
	}
	if err := Populate(part); err != nil {
		t.Skipf("the kernel populates no mapping: %v", err)
	}
	if !Resident(part) || !Resident(mem[:299*page]) {
		t.Error("pages that were populated are said to be gone")
	}
	if Resident(mem) {
		t.Error("the page beyond is said to be there")
	}
	if _, n := pagesOf(mem[page+1 : page+2]); n != uintptr(page) {
		t.Errorf("one byte is in pages of %d bytes", n)
	}
	small := make([]byte, 512) // of Go's heap
	small[0] = 1
	if err := Populate(small); err != nil || !Resident(small) {
		t.Errorf("memory that was written is said to be gone: %v", err)
	}
}

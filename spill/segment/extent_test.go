package segment

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// requireExtent requires that the file has the blob's bytes at the blob's extent.
func requireExtent(t *testing.T, b schema.Blob, want []byte) {
	t.Helper()
	e, ok := b.Extent()
	if !ok || e.Length != int64(len(want)) {
		t.Fatalf("a blob of %d bytes is at %+v, %t", len(want), e, ok)
	}
	got := make([]byte, e.Length)
	if _, err := e.File.ReadAt(got, e.Offset); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has other bytes at %+v: %v", e, err)
	}
}

// The extent of a blob holds while the blob is held, whatever becomes of its segment and of the set.
func TestExtent(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprint("direct=", direct), func(t *testing.T) {
			s, _ := newSet(t, Options{MaxBytes: 1 << 20, Direct: direct})
			var held []schema.Blob
			var contents [][]byte
			for i, n := range []int{1, 64, 4096, 110_000, 600_000, 500_000} { // in two segments
				data := content(fmt.Sprint(i), n)
				loc := appendBlob(t, s, data)
				b, err := s.Get(loc)
				if err != nil {
					t.Fatal(err)
				}
				if e, _ := b.Extent(); e.Offset != loc.Offset {
					t.Errorf("%+v has the extent %+v", loc, e)
				}
				requireExtent(t, b, data)
				held, contents = append(held, b), append(contents, data)
			}
			s.Roll()
			for _, g := range s.Segments() {
				if err := s.Retire(g.ID()); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			for i, b := range held {
				requireExtent(t, b, contents[i])
				b.Release()
			}
		})
	}
}

// A slice outside the mapping has no extent, however near it is.
func TestExtentOfOthers(t *testing.T) {
	memory := make([]byte, 100)
	mem := memory[20:80:80]
	for _, c := range []struct {
		b  []byte
		at int64
		ok bool
	}{
		{mem, 0, true},
		{mem[59:], 59, true},
		{mem[10:20], 10, true},
		{mem[10:10], 0, false},
		{nil, 0, false},
		{memory[19:30], 0, false},
		{memory[70:81], 0, false},
		{memory[80:90], 0, false},
		{memory[:20], 0, false},
		{make([]byte, 10), 0, false},
	} {
		if at, ok := offsetIn(mem, c.b); at != c.at || ok != c.ok {
			t.Errorf("%d bytes: %d, %t; want %d, %t", len(c.b), at, ok, c.at, c.ok)
		}
	}
}

// A process that was passed a segment's file has nothing of it any more once the segment was retired and its last
// blob released: neither a descriptor nor a mapping keeps disk space, with the lock or without. The files of clients
// of an earlier process stay as they are until those unlock them.
func TestRetiredSegmentsTakeNoSpace(t *testing.T) {
	for _, c := range []struct{ locked, earlier, stays bool }{
		{true, false, false}, {false, false, false}, {true, true, true}, {false, true, false},
	} {
		t.Run(fmt.Sprintf("locked=%t,earlier=%t", c.locked, c.earlier), func(t *testing.T) {
			s, dir := newSet(t, Options{MaxBytes: 1 << 20})
			data := content("x", 200_000)
			loc := appendBlob(t, s, data)
			s.Roll()
			b, err := s.Get(loc)
			if err != nil {
				t.Fatal(err)
			}
			e, ok := b.Extent()
			if !ok {
				t.Fatal("the blob has no extent")
			}
			theirs, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", e.File.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			if c.locked {
				if err := unix.Flock(int(theirs.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
					t.Fatal(err)
				}
			}
			mapped, err := unix.Mmap(int(theirs.Fd()), 0, int(loc.Offset)+len(data), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Munmap(mapped) }()
			if c.earlier {
				end := s.Segment(loc.Segment).Size()
				b.Release()
				s.Close()
				s = NewSet(dir, Options{MaxBytes: 1 << 20})
				defer s.Close()
				if _, err := s.Attach(loc.Segment, end, end, false); err != nil {
					t.Fatal(err)
				}
				if b, err = s.Get(loc); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Retire(loc.Segment); err != nil {
				t.Fatal(err)
			}
			if got := mapped[loc.Offset:]; !bytes.Equal(got, data) || !bytes.Equal(b.Bytes(), data) {
				t.Error("the blob is gone that is held")
			}
			b.Release()
			var st unix.Stat_t
			if err := unix.Fstat(int(theirs.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			if stays := st.Blocks > 0; stays != c.stays {
				t.Errorf("of a segment that is gone %d blocks are kept", st.Blocks)
			}
			if c.stays && !bytes.Equal(mapped[loc.Offset:], data) {
				t.Error("a client of an earlier process has lost what it reads")
			}
		})
	}
}

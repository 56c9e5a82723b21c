package spill

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// handOut is a file as another process has it that was handed the blob's.
func handOut(t *testing.T, b *schema.Blob) (f *os.File, e schema.Extent) {
	t.Helper()
	e, ok := b.Extent()
	if !ok || e.Limit < e.Offset+e.Length {
		t.Fatalf("a blob lies in %+v, %t", e, ok)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", e.File.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return f, e
}

func requireThere(t *testing.T, f *os.File, e schema.Extent, want []byte) {
	t.Helper()
	got := make([]byte, e.Length)
	if _, err := f.ReadAt(got, e.Offset); err != nil || !bytes.Equal(got, want) {
		t.Errorf("who has the file reads other bytes at %d: %v", e.Offset, err)
	}
}

// What is pinned is there for who was handed the file, whatever is stored and evicted meanwhile, by many at once.
func TestHandedOutIsNotEvicted(t *testing.T) {
	c := openCache(t, testOptions(t.TempDir()))
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for k := range 30 {
				i := w*1000 + k
				put(c, i)
				data, ref := content(i)
				b, ok := c.Get(ref, Place{Position: int64(i)})
				if !ok || len(data) == 0 {
					b.Release()
					continue
				}
				f, e := handOut(t, &b)
				for n := range 4 { // what displaces it, if anything could
					put(c, w*1000+200+(k*4+n)%700)
				}
				requireThere(t, f, e, data)
				_ = f.Close()
				b.Release()
			}
		})
	}
	all.Wait()
	if n := c.Stats().Evicted; n == 0 {
		t.Error("nothing was evicted")
	}
	c.Trim()
}

// A file that was handed out by an earlier process keeps what it has until whoever has it lets go. Meanwhile it is
// handed to nobody, or that would never be.
func TestElsewhere(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions(dir)
	c := openCache(t, opts)
	const n = 60
	for i := range n {
		put(c, i)
	}
	var kept int
	var f *os.File
	var e schema.Extent
	for i := range n {
		_, ref := content(i)
		if ref.Size < 10_000 {
			continue
		}
		if b, ok := c.Get(ref, Place{Position: int64(i)}); ok {
			kept = i
			f, e = handOut(t, &b)
			b.Release()
			break
		}
	}
	if f == nil {
		t.Fatal("nothing was kept")
	}
	want, ref := content(kept)
	closeCache(t, c)

	c = openCache(t, opts)
	if len(c.elsewhere.segments) != 1 {
		t.Fatalf("%d segments are taken for handed out, want 1", len(c.elsewhere.segments))
	}
	b, ok := c.Get(ref, Place{Position: int64(kept)})
	if !ok {
		t.Fatal("what lies there is lost")
	}
	if at, ok := b.Extent(); !ok || at.Limit != 0 {
		t.Errorf("it may be handed out again: %+v", at)
	}
	b.Release()
	for i := range 400 {
		put(c, 1000+i)
	}
	if c.Stats().Evicted == 0 {
		t.Error("nothing was evicted")
	}
	requireThere(t, f, e, want)
	closeCache(t, c)
	requireThere(t, f, e, want)

	c = openCache(t, opts)
	_ = f.Close()
	for i := 0; c.Has(ref); i++ { // a watcher looks from time to time; then it is evicted like others
		put(c, 2000+i%400)
		if i%400 == 399 {
			time.Sleep(time.Millisecond)
		}
	}
}

// A segment that was handed out gives its space back when it is removed, though somebody has the file still.
func TestRetiredGivesSpaceBack(t *testing.T) {
	opts := testOptions(t.TempDir())
	opts.Bytes, opts.SegmentBytes = MinBytes+(2<<20), 256<<10
	c := openCache(t, opts)
	data, ref := content(1)
	if len(data) < 4096 || !put(c, 1) {
		t.Fatal("no blob to begin with")
	}
	b, ok := c.Get(ref, Place{Position: 1})
	if !ok {
		t.Fatal("it is not there")
	}
	f, e := handOut(t, &b)
	defer f.Close()
	requireThere(t, f, e, data)
	b.Release()
	for i := 2; ; i++ {
		put(c, 2+i%300)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if st.Nlink == 0 {
			if st.Blocks != 0 {
				t.Errorf("a removed segment keeps %d bytes", st.Blocks*512)
			}
			return
		}
	}
}

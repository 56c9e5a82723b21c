package spill

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// evictNow evicts a blob that is in the cache, as if room were needed.
func evictNow(t *testing.T, c *Cache, ref schema.BlobRef) {
	t.Helper()
	c.mu.Lock()
	i, s := c.table.find(&ref.Key)
	if s == nil || s.state != live {
		c.mu.Unlock()
		t.Error("there is nothing to evict")
		return
	}
	c.drop(i, s) // unlocks
}

// handOut is a file as another process has it that was handed the blob's.
func handOut(t *testing.T, b *schema.Blob) (f *os.File, e schema.Extent) {
	t.Helper()
	e, ok := b.Extent()
	if !ok || e.Limit < e.Offset+e.Length {
		t.Fatalf("a blob is at %+v, %t", e, ok)
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

// A pinned blob stays readable for the processes that have its file, even if many goroutines evict it at once.
func TestHandedOutIsNotEvicted(t *testing.T) {
	c := openCache(t, testOptions(t.TempDir()))
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for k := range 20 {
				i := w*100 + k
				data, ref := content(i)
				if len(data) == 0 || !put(c, i) {
					continue
				}
				b, ok := c.Get(ref, Place{Position: int64(i)})
				if !ok {
					continue // another worker's has displaced it
				}
				f, e := handOut(t, &b)
				evictNow(t, c, ref)
				put(c, i) // once more, elsewhere
				requireThere(t, f, e, data)
				_ = f.Close()
				b.Release()
			}
		})
	}
	all.Wait()
}

// A file that an earlier process has passed on keeps its content until the last process closes it. Until then it is
// not passed on again, or that would never end.
func TestElsewhere(t *testing.T) {
	opts := testOptions(t.TempDir())
	c := openCache(t, opts)
	want, ref := fill(testRand(t), 50_000)
	if !c.Put(ref, Place{Position: 1}, 1e6, want) {
		t.Fatal("nothing was stored")
	}
	if !put(c, 2) { // the segment stays when the other is evicted
		t.Fatal("nothing else was stored")
	}
	b, ok := c.Get(ref, Place{Position: 1})
	if !ok {
		t.Fatal("nothing was kept")
	}
	f, e := handOut(t, &b)
	seen, err := os.Open(e.File.Name()) // without a lock
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Close()
	b.Release()
	closeCache(t, c)

	c = openCache(t, opts)
	b, ok = c.Get(ref, Place{Position: 1})
	if !ok {
		t.Fatal("its content is lost")
	}
	if at, ok := b.Extent(); !ok || at.Limit != 0 {
		t.Errorf("it may be handed out again: %+v", at)
	}
	if n := c.Stats().ElsewhereBytes; n < int64(len(want)) {
		t.Errorf("%d bytes are said to be kept by others, want the blob's %d at least", n, len(want))
	}
	b.Release()
	evictNow(t, c, ref)
	requireThere(t, f, e, want)
	closeCache(t, c)
	requireThere(t, f, e, want)

	c = openCache(t, opts)
	requireThere(t, f, e, want)
	if c.Has(ref) {
		t.Error("what was evicted is back")
	}
	_ = f.Close()
	closeCache(t, c)

	openCache(t, opts) // finds no process, and releases the space
	got := make([]byte, 4096)
	if _, err := seen.ReadAt(got, (e.Offset+e.Length/2)&^4095); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
		t.Errorf("no process has the file, and its space was not released: %v", err)
	}
}

// When the processes with a file of an earlier process have closed it, its blobs are evicted and passed on like all
// others.
func TestElsewhereEnds(t *testing.T) {
	opts := testOptions(t.TempDir())
	c := openCache(t, opts)
	want, ref := fill(testRand(t), 50_000)
	if !c.Put(ref, Place{Position: 1}, 1e6, want) {
		t.Fatal("nothing was stored")
	}
	b, ok := c.Get(ref, Place{Position: 1})
	if !ok {
		t.Fatal("nothing was kept")
	}
	f, _ := handOut(t, &b)
	b.Release()
	closeCache(t, c)
	c = openCache(t, opts)
	_ = f.Close()
	<-c.elsewhere.over
	if b, ok = c.Get(ref, Place{Position: 1}); !ok {
		t.Fatal("its content is lost")
	}
	again, _ := handOut(t, &b)
	_ = again.Close()
	b.Release()
	c.mu.Lock()
	_, s := c.table.find(&ref.Key)
	pins := s.pins.Load()
	c.mu.Unlock()
	if pins != 0 {
		t.Errorf("it has %d pins without readers", pins)
	}
	if n := c.Stats().ElsewhereBytes; n != 0 {
		t.Errorf("%d bytes are reported as in use after all were released", n)
	}
}

// A segment that was handed out gives its space back when it is removed, though somebody has the file still.
func TestRetiredGivesSpaceBack(t *testing.T) {
	c := openCache(t, testOptions(t.TempDir()))
	data, ref := fill(testRand(t), 50_000)
	if !c.Put(ref, Place{Position: 1}, 1e6, data) {
		t.Fatal("nothing was stored")
	}
	b, ok := c.Get(ref, Place{Position: 1})
	if !ok {
		t.Fatal("it is not there")
	}
	f, e := handOut(t, &b)
	defer f.Close()
	requireThere(t, f, e, data)
	b.Release()
	if err := c.space.roll(); err != nil {
		t.Fatal(err)
	}
	evictNow(t, c, ref)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Nlink != 0 || st.Blocks != 0 {
		t.Errorf("a removed segment has %d names, and keeps %d bytes", st.Nlink, st.Blocks*512)
	}
}

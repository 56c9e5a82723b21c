package cluster_test

import (
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
)

// What lies damaged in an owner's spill reaches nobody, though the owner does not look at what it sends: who asks does,
// and has it look. It reads those blobs from the store, and stays trusted.
func TestOwnersRot(t *testing.T) {
	const n = 200
	s := newStore(t, n)
	root := t.TempDir()
	c := newNodes(t, s, 2, clusterOptions{})
	asks, owns := c.list[0], c.list[1]
	for _, n := range c.list {
		n.dir.owners.Store(&[]string{owns.name})
	}
	read := func(epoch uint64) {
		t.Helper()
		if err := asks.epoch(t, 7, epoch, 0, 1, make([]atomic.Int32, n), nil); err != nil {
			t.Fatal(err)
		}
	}
	read(0)
	for owns.spill.Stats().Entries < n { // what was offered is stored by the spill's own goroutines
		if runtime.Gosched(); t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
	before := s.blobs.Load()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(root), "*", "spill", "*", "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no segments of spills: %v", err)
	}
	for _, name := range files {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := f.Stat(); err != nil || st.Size() > 200<<10 {
			if _, err := f.WriteAt(make([]byte, 100<<10), 4<<10); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	read(1)
	damaged, reads := owns.spill.Stats().Damaged, s.blobs.Load()-before
	if damaged == 0 || reads == 0 || reads > n/4 {
		t.Errorf("%d blobs were found damaged, %d were read from the store", damaged, reads)
	}
	if st := asks.tier.Stats(); len(st) != 1 || st[0].Wrong != 0 || st[0].Silent {
		t.Errorf("the owner is known as %+v", st)
	}
}

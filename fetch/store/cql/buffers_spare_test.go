package cql

import "testing"

// TestBuffersReady: memory that was touched in advance is used first, and stays mapped.
func TestBuffersReady(t *testing.T) {
	a := newArena(t)
	if err := a.touch(4*smallSlab + 1); err != nil {
		t.Fatal(err)
	}
	want := func(mapped, idle, maps int64) {
		t.Helper()
		if s := a.stats(); s.mapped != mapped*smallSlab || s.idle != idle*smallSlab || s.maps != maps {
			t.Errorf("%+v, want %d slabs, %d of them idle, and %d mapped since", s, mapped, idle, maps)
		}
	}
	want(4, 4, 0)
	var list []*buffer
	use := func(n int, size int64) {
		for range n {
			list = append(list, a.mustTake(t, size))
		}
	}
	release := func() {
		for _, b := range list {
			b.Unpin()
		}
		list = nil
	}
	use(3*16, smallSlab/16-smallPage)
	want(4, 1, 0)
	use(2*16, smallSlab/16-smallPage)
	want(5, 0, 1)
	release()
	for range 3 {
		a.tick()
	}
	want(4, 4, 1)
	if a.timer != nil {
		t.Error("what stays is looked at every period")
	}
	use(2*32, smallSlab/32-smallPage) // of another class
	want(4, 2, 1)
	release()
}

// TestBuffersToSpare: sizes that are used in turn do not evict each other's memory, nor
// does memory that was touched for other sizes.
func TestBuffersToSpare(t *testing.T) {
	ready := newArena(t)
	ready.spare = arenaSpare
	if err := ready.touch(64 * smallSlab); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		for _, size := range []int64{3 << 20, 900_000, 20 << 20} {
			ready.mustTake(t, size).Unpin()
		}
		ready.tick()
	}
	if s := ready.stats(); s.maps != 3 || s.mapped > 64*smallSlab || len(ready.touched) == 0 {
		t.Errorf("%+v, with %d slabs touched, want 3 mapped since, and no more memory", s, len(ready.touched))
	}
	a := newArena(t)
	a.spare = arenaSpare
	for range 100 {
		for _, size := range []int64{10_000, 100_000, 20 << 20} {
			a.mustTake(t, size).Unpin()
		}
		a.tick()
	}
	if n := a.stats().maps; n > 4 {
		t.Errorf("%d slabs were mapped, want 3 or 4", n)
	}
	a.tick()
	a.tick()
	if n := a.stats().mapped; n != 0 {
		t.Errorf("%d bytes are mapped that were unused for two periods", n)
	}
}

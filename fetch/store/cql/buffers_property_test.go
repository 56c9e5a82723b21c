package cql

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// TestBuffersCount takes and releases buffers of all sizes at random, while periods end,
// with memory that was touched in advance and with spare memory. No buffer overlaps
// another, the arena's counts are right, and no more stays mapped than is allowed.
func TestBuffersCount(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 12 {
		a := newArena(t)
		a.spare = r.Int64N(2) * r.Int64N(16<<20)
		if r.IntN(3) > 0 {
			if err := a.touch(r.Int64N(24 << 20)); err != nil {
				t.Fatal(err)
			}
		}
		var live []*buffer // by address
		var pinned, used, kept int64
		most := 1 + r.IntN(60)
		for range 600 {
			switch what := r.IntN(100); {
			case what < 2:
				kept = a.keep(0) // until the next period ends
				a.tick()
			case what < 50 && len(live) < most:
				n := randomSize(r)
				if r.IntN(60) == 0 {
					n = 60<<20 + r.Int64N(8<<20) // some of which are in no class
				}
				b := a.mustTake(t, n)
				i, _ := slices.BinarySearchFunc(live, at(b), func(o *buffer, begin uintptr) int { return cmp.Compare(at(o), begin) })
				if i > 0 && at(live[i-1])+uintptr(len(live[i-1].memory)) > at(b) ||
					i < len(live) && at(b)+uintptr(len(b.memory)) > at(live[i]) {
					t.Fatalf("a buffer of %d bytes overlaps another", n)
				}
				live = slices.Insert(live, i, b)
				pinned += n
				b.data[0], b.data[n-1] = byte(n), byte(n)
			case len(live) > 0:
				i := r.IntN(len(live))
				b := live[i]
				n := len(b.data)
				if b.data[0] != byte(n) || b.data[n-1] != byte(n) {
					t.Fatalf("a buffer of %d bytes has other bytes", n)
				}
				pinned -= int64(n)
				live = slices.Delete(live, i, i+1)
				b.Unpin()
			}
			used = 0
			var between int64
			seen := map[*slab]bool{}
			for _, b := range live {
				if !seen[b.slab] {
					seen[b.slab] = true
					used += b.slab.size
					for _, f := range b.slab.free {
						if !f.absent {
							between += int64(len(f.memory))
						}
					}
				}
			}
			idle := int64(len(a.touched)) * smallSlab
			for c := range a.classes {
				for s := a.classes[c].idle.first; s != nil; s = s.next {
					idle += s.size
				}
			}
			if a.buffers != int64(len(live)) || a.bytes != pinned || a.used != used || a.between != between ||
				a.mapped != used+idle {
				t.Fatalf("%d buffers of %d bytes in %d, with %d between, %d mapped; want %d, %d, %d, %d and %d", a.buffers,
					a.bytes, a.used, a.between, a.mapped, len(live), pinned, used, between, used+idle)
			}
			if most := max(kept, a.keep(0)); a.mapped > most {
				t.Fatalf("%d bytes are mapped, of which %d are used; %d may be", a.mapped, used, most)
			}
		}
		for _, b := range live {
			b.Unpin()
		}
		a.tick()
		a.tick()
		a.tick()
		if n := a.stats(); n.buffers != 0 || n.bytes != 0 || n.mapped > a.ready || n.mapped != n.idle {
			t.Errorf("when no caller has any, and after three periods: %+v; %d may stay", n, a.ready)
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
		if n := a.stats(); n.mapped != 0 {
			t.Errorf("closed: %+v", n)
		}
	}
}

// at is the address of a buffer.
func at(b *buffer) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b.memory))) }

package cql

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"bowstring/schema"
)

// newArena returns an arena without spare memory, whose periods end only when a test ends
// them.
func newArena(t testing.TB) *arena {
	t.Helper()
	a := &arena{period: time.Hour}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *arena) mustTake(t testing.TB, n int64) *buffer {
	t.Helper()
	b, err := a.take(n)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b.data)) != n {
		t.Fatalf("a buffer of %d bytes, want %d", len(b.data), n)
	}
	return b
}

func TestBufferClasses(t *testing.T) {
	last := 0
	for n := int64(1); n < 1<<27; n += 1 + n/50 {
		class, size := classOf(n)
		if class == alone {
			if n <= 1<<mostBits || size != n {
				t.Fatalf("%d bytes have no class, or %d bytes", n, size)
			}
			continue
		}
		if size < n || class >= classes {
			t.Fatalf("%d bytes go into class %d of %d bytes", n, class, size)
		}
		if class < last || n > 1<<leastBits && size > n+n/4+1 {
			t.Fatalf("%d bytes go into class %d (after %d) of %d bytes", n, class, last, size)
		}
		last = class
		slab, count := slabOf(size)
		if waste := slab - int64(count)*size; waste < 0 || waste > slab/8 {
			t.Errorf("a slab of %d bytes holds %d buffers of %d: %d bytes are wasted", slab, count, size, waste)
		}
	}
	if last != classes-1 {
		t.Errorf("the last class is %d of %d", last, classes)
	}
}

// randomSize favours no order of magnitude.
func randomSize(r *rand.Rand) int64 {
	return 1 + r.Int64N(int64(1)<<(1+r.IntN(22)))
}

// TestBuffersDoNotOverlap takes and releases buffers at random. Pinned ones are compared
// by their addresses, and by the bytes that were written to each.
func TestBuffersDoNotOverlap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	a := newArena(t)
	type held struct {
		b    *buffer
		name uint64
	}
	var live []held
	var total int64
	mark := func(h held) {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], h.name)
		copy(h.b.data, word[:])
		copy(h.b.data[max(0, len(h.b.data)-8):], word[:])
	}
	check := func(h held) {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], h.name)
		n := min(8, len(h.b.data))
		if !bytes.Equal(h.b.data[len(h.b.data)-n:], word[:n]) || len(h.b.data) >= 16 &&
			!bytes.Equal(h.b.data[:8], word[:]) {
			t.Fatalf("buffer %d of %d bytes was written to by another", h.name, len(h.b.data))
		}
	}
	for step := range 20_000 {
		if len(live) < 300 && r.IntN(100) < 50+len(live)%7 {
			n := randomSize(r)
			h := held{a.mustTake(t, n), uint64(step)}
			begin := uintptr(unsafe.Pointer(unsafe.SliceData(h.b.data)))
			for _, other := range live {
				o := uintptr(unsafe.Pointer(unsafe.SliceData(other.b.data)))
				if begin < o+uintptr(len(other.b.data)) && o < begin+uintptr(n) {
					t.Fatalf("step %d: a buffer of %d bytes overlaps one of %d", step, n, len(other.b.data))
				}
			}
			mark(h)
			live = append(live, h)
			total += n
		} else if len(live) > 0 {
			i := r.IntN(len(live))
			h := live[i]
			check(h)
			total -= int64(len(h.b.data))
			h.b.Unpin()
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		if r.IntN(500) == 0 {
			a.tick()
		}
		if s := a.stats(); s.bytes != total || s.buffers != int64(len(live)) || s.idle < 0 || s.mapped < s.bytes {
			t.Fatalf("step %d: %+v, but %d buffers of %d bytes live", step, s, len(live), total)
		}
	}
	for _, h := range live {
		check(h)
		h.b.Unpin()
	}
	for range 3 {
		a.tick()
	}
	if s := a.stats(); s.mapped != 0 || s.buffers != 0 || s.bytes != 0 {
		t.Errorf("with nothing pinned for two periods there is %+v", s)
	}
}

// TestBuffersAtOnce is for the race detector.
func TestBuffersAtOnce(t *testing.T) {
	a := newArena(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	given := make(chan *buffer, 64)
	var takers, givers sync.WaitGroup
	for w := range uint64(4) {
		takers.Go(func() {
			r := rand.New(rand.NewPCG(seed, w))
			for range 2_000 {
				b, err := a.take(randomSize(r)/16 + 1)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range b.data {
					b.data[i] = byte(w)
				}
				given <- b
				if r.IntN(100) == 0 {
					a.tick()
				}
			}
		})
		givers.Go(func() {
			for b := range given {
				for _, c := range b.data {
					if c != b.data[0] {
						t.Error("two wrote to one buffer")
						break
					}
				}
				b.Unpin()
			}
		})
	}
	takers.Wait()
	close(given)
	givers.Wait()
	if s := a.stats(); s.buffers != 0 || s.bytes != 0 {
		t.Errorf("%+v, with nothing pinned", s)
	}
}

func TestUnpinTwice(t *testing.T) {
	a := newArena(t)
	b := a.mustTake(t, 1000)
	b.Unpin()
	defer func() {
		if recover() == nil {
			t.Error("it was not noticed")
		}
	}()
	b.Unpin()
}

// TestBuffersAreUsedAgain: the one that was used last comes first, and small
// ones share memory.
func TestBuffersAreUsedAgain(t *testing.T) {
	a := newArena(t)
	first, second := a.mustTake(t, 50_000), a.mustTake(t, 51_000)
	if a.stats().mapped != smallSlab {
		t.Errorf("two buffers of 50 kB have %d bytes mapped", a.stats().mapped)
	}
	first.Unpin()
	second.Unpin()
	if b := a.mustTake(t, 52_000); b != second {
		t.Error("the buffer that was used last does not come first")
	} else {
		b.Unpin()
	}
	for range 100 {
		b := a.mustTake(t, 20<<20)
		b.Unpin()
	}
	if n := a.stats().maps; n != 2 {
		t.Errorf("%d slabs were mapped, want 2", n)
	}
}

// TestBuffersAreKept for as long as as many were needed two periods ago.
func TestBuffersAreKept(t *testing.T) {
	a := newArena(t)
	fill := func(n int, size int64) {
		t.Helper()
		var list []*buffer
		for range n {
			list = append(list, a.mustTake(t, size))
		}
		for _, b := range list {
			b.Unpin()
		}
	}
	fill(4*16, smallSlab/16-smallPage) // four slabs, with the frames
	want := func(slabs, maps int64) {
		t.Helper()
		if s := a.stats(); s.mapped != slabs*smallSlab || s.maps != maps {
			t.Errorf("%d bytes are mapped, after %d times, want %d after %d", s.mapped, s.maps, slabs*smallSlab, maps)
		}
	}
	want(4, 4)
	a.tick()
	fill(16, smallSlab/16-smallPage)
	a.tick()
	want(4, 4) // four were needed in the period before
	fill(16, smallSlab/16-smallPage)
	a.tick()
	want(1, 4)
	a.tick()
	fill(2*16, smallSlab/16-smallPage)
	want(2, 5)
	// Buffers of another size replace those that are not needed.
	fill(32, smallSlab/32-smallPage)
	want(2, 5)
	for range 3 {
		a.tick()
	}
	want(0, 5)
}

// TestBuffersBetweenOthers: pinned buffers may be spread over many slabs. Free memory between them is released,
// except the spare, and comes back when it is needed.
func TestBuffersBetweenOthers(t *testing.T) {
	a := newArena(t)
	a.spare = 8 << 20
	const size, n = 100_000, 2000
	var all []*buffer
	for range n {
		b := a.mustTake(t, size)
		clear(b.data)
		all = append(all, b)
	}
	most := a.bytes/betweenShare + a.spare/2
	for i, b := range all {
		if i%16 != 0 {
			b.Unpin()
		}
	}
	if a.between > most || a.between < a.spare/2 {
		t.Errorf("%d bytes are free between %d that are pinned, want at most %d", a.between, a.bytes, most)
	}
	for i := range all {
		if i%16 != 0 {
			all[i] = a.mustTake(t, size)
			all[i].data[size-1]++
		}
	}
	for _, b := range all {
		b.Unpin()
	}
	if a.between != 0 || a.bytes != 0 {
		t.Errorf("in the end %d bytes are pinned, and %d are free between them", a.bytes, a.between)
	}
}

// TestBuffersOutliveTheArena: pinned buffers stay valid after close.
func TestBuffersOutliveTheArena(t *testing.T) {
	a := newArena(t)
	b, c := a.mustTake(t, 5000), a.mustTake(t, 5000)
	big := a.mustTake(t, 1<<mostBits+1) // has no class
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*buffer{b, c, big} {
		for i := 0; i < len(b.data); i += 4096 {
			b.data[i] = 1
		}
		b.Unpin()
	}
	if s := a.stats(); s.mapped != 0 {
		t.Errorf("%d bytes are still mapped", s.mapped)
	}
}

// TestFrames: a large blob has a frame of its own.
func TestFrames(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	a := newArena(t)
	sizes := []int64{1, leastFramed - 1, leastFramed, 110_000, schema.FrameSize(200_000) - schema.FrameMargin,
		1<<mostBits + 1}
	for range 200 {
		sizes = append(sizes, randomSize(r))
	}
	var taken []*buffer
	for _, n := range sizes {
		b := a.mustTake(t, n)
		taken = append(taken, b)
		frame := b.Frame()
		if frame == nil {
			if n >= leastFramed {
				t.Errorf("a blob of %d bytes is in no frame", n)
			}
			continue
		}
		if int64(len(frame)) != schema.FrameSize(n) || &frame[schema.FrameMargin] != &b.data[0] {
			t.Fatalf("a blob of %d bytes is in a frame of %d, not at its place", n, len(frame))
		}
		if uintptr(unsafe.Pointer(&frame[0]))%schema.FrameBlock != 0 {
			t.Fatalf("a frame of %d bytes begins within a block", len(frame))
		}
	}
	for i, b := range taken { // all of a frame is the buffer's own
		whole := b.data
		if frame := b.Frame(); frame != nil {
			whole = frame
		}
		for j := range whole {
			whole[j] = byte(i)
		}
	}
	for i, b := range taken {
		whole := b.data
		if frame := b.Frame(); frame != nil {
			whole = frame
		}
		if bytes.Count(whole, []byte{byte(i)}) != len(whole) {
			t.Fatalf("the frame of buffer %d was written to by another", i)
		}
		b.Unpin()
	}
}

func BenchmarkBuffer(b *testing.B) {
	a := newArena(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a.mustTake(b, 110_000).Unpin()
		}
	})
}

// arenaStats is the state of an arena, in bytes except for buffers and maps.
type arenaStats struct {
	buffers, bytes int64 // pinned
	mapped, idle   int64 // slabs, and those of them without a pinned buffer
	maps           int64 // slabs ever mapped
}

func (a *arena) stats() arenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return arenaStats{buffers: a.buffers, bytes: a.bytes, mapped: a.mapped, idle: a.mapped - a.used, maps: a.maps}
}

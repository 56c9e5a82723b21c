package checksum

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
)

// prefetchBytes is how many of the next bytes are prefetched.
const prefetchBytes = 4 * block

// sizes are those at which something else begins: code for many bytes, a block, a stripe, what is worked through at
// once.
func sizes(r *rand.Rand) []int {
	list := []int{0, 1, 2, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025}
	for _, n := range []int{
		fastBytes, fastBytes + 3*stripe, fastBytes + block, 2 * fastBytes,
		256 * block, 257 * block, 260 * block, 261 * block, 512 * block, 513 * block,
	} {
		for _, off := range []int{-stripe - 1, -stripe, -1, 0, 1, stripe - 1, stripe, stripe + 1} {
			list = append(list, n+off)
		}
	}
	for range 200 {
		list = append(list, fastBytes+r.IntN(200_000))
	}
	return list
}

// The checksum is XXH3, whichever code computes it, and at any alignment of the bytes.
func TestOf(t *testing.T) {
	r := testRand(t)
	for _, n := range sizes(r) {
		b, next := randomBytes(r, n), randomBytes(r, r.IntN(3*prefetchBytes))
		if got, want := Sum(b, next), xxh3.Hash(b); got != want {
			t.Errorf("%d bytes: %016x, want %016x", n, got, want)
		}
	}
}

// Copy writes what it is given, and nothing beside, wherever in a line of the cache it begins, and returns the XXH3 of
// it.
func TestCopy(t *testing.T) {
	r := testRand(t)
	for _, n := range sizes(r) {
		from, next := randomBytes(r, n), randomBytes(r, r.IntN(3*prefetchBytes))
		checkCopy(t, from, next, r.IntN(stripe), r.IntN(stripe))
	}
	from := randomBytes(r, fastBytes+1000)
	for at := range stripe {
		checkCopy(t, from, nil, at, stripe-at)
	}
}

func checkCopy(t *testing.T, from, next []byte, before, behind int) {
	t.Helper()
	const filler = 0xA5
	all := bytes.Repeat([]byte{filler}, stripe+before+len(from)+behind)
	to := all[stripe+before:]
	if got, want := Copy(to, from, next), xxh3.Hash(from); got != want {
		t.Errorf("%d bytes to %p: %016x, want %016x", len(from), to, got, want)
	}
	if !bytes.Equal(to[:len(from)], from) {
		t.Errorf("%d bytes to %p: other bytes were written", len(from), to)
	}
	if bytes.Count(all[:stripe+before], []byte{filler}) != stripe+before ||
		bytes.Count(to[len(from):], []byte{filler}) != behind {
		t.Errorf("%d bytes to %p: bytes beside were written", len(from), to)
	}
}

// A bit that flips anywhere makes another checksum: of what was written, too.
func TestFlip(t *testing.T) {
	r := testRand(t)
	b := randomBytes(r, fastBytes+r.IntN(5*block))
	to, want := make([]byte, len(b)), Sum(b, nil)
	for range 500 {
		at, bit := r.IntN(len(b)), byte(1)<<r.IntN(8)
		b[at] ^= bit
		if Sum(b, nil) == want || Copy(to, b, nil) == want {
			t.Errorf("bit %08b of byte %d of %d has no part in the checksum", bit, at, len(b))
		}
		b[at] ^= bit
	}
}

// Copying and checking cost no allocation.
func TestAllocations(t *testing.T) {
	b, to := make([]byte, 10*fastBytes), make([]byte, 10*fastBytes)
	if n := testing.AllocsPerRun(100, func() { Sum(b, to); Copy(to, b, b) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// A copy that is too short is a mistake of the caller.
func TestTooShort(t *testing.T) {
	for _, n := range []int{10, 2 * fastBytes} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic where %d bytes have room for %d", n, n-1)
				}
			}()
			Copy(make([]byte, n-1), make([]byte, n), nil)
		}()
	}
}

func FuzzCopy(f *testing.F) {
	f.Add([]byte("seed"), uint16(40_000), uint8(3))
	f.Add([]byte{0}, uint16(fastBytes), uint8(63))
	f.Fuzz(func(t *testing.T, pattern []byte, size uint16, at uint8) {
		if len(pattern) == 0 {
			return
		}
		from := bytes.Repeat(pattern, int(size)/len(pattern)+1)[:size]
		if got, want := Sum(from, pattern), xxh3.Hash(from); got != want {
			t.Errorf("%016x, want %016x", got, want)
		}
		checkCopy(t, from, pattern, int(at%stripe), int(at/4))
	})
}

// The rate at which bytes that are not in the cache are checked, copied and checked, and the same by the library.
func BenchmarkCopy(b *testing.B) {
	const n, size = 2000, 110_000
	memory, ring := make([]byte, n*size), make([]byte, 64<<20)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	blob := func(i int) []byte { return memory[order[i%n]*size:][:size] }
	run := func(name string, work func(to, from, next []byte)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for i, at := 0, 0; b.Loop(); i, at = i+1, at+size {
				if at+size > len(ring) {
					at = 0
				}
				work(ring[at:], blob(i), blob(i+1))
			}
		})
	}
	run("of", func(_, from, next []byte) { Sum(from, next) })
	run("library", func(_, from, _ []byte) { xxh3.Hash(from) })
	run("copy", func(to, from, next []byte) { Copy(to, from, next) })
	run("copy then library", func(to, from, _ []byte) { xxh3.Hash(to[:copy(to, from)]) })
}

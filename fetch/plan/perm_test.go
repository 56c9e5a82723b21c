package plan

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/bits"
	"slices"
	"testing"
)

// checkBijection goes through the whole of [0, n).
func checkBijection(t *testing.T, n, seed, epoch uint64) {
	t.Helper()
	p := NewPerm(n, seed, epoch)
	seen := make([]bool, n)
	for i := range n {
		v := p.At(i)
		if v >= n || seen[v] {
			t.Fatalf("n=%d seed=%d epoch=%d: At(%d) = %d is out of range or comes twice", n, seed, epoch, i, v)
		}
		seen[v] = true
		if got := p.Index(v); got != i {
			t.Fatalf("n=%d seed=%d epoch=%d: Index(At(%d)) = %d", n, seed, epoch, i, got)
		}
	}
}

func TestPermIsABijection(t *testing.T) {
	rng := testRand(t)
	for n := range uint64(2001) {
		checkBijection(t, n, rng.Uint64(), rng.Uint64N(100))
	}
	sizes := []uint64{4095, 4096, 4097, 65535, 65536, 65537, 99991, 131072}
	if !testing.Short() {
		sizes = append(sizes, 524289, 1_000_000)
	}
	for _, n := range sizes {
		checkBijection(t, n, rng.Uint64(), rng.Uint64())
	}
}

func TestPermRoundTripsInLargeDomains(t *testing.T) {
	rng := testRand(t)
	sizes := []uint64{1e9, 1e12, 1<<40 + 1, 1 << 62, 1<<62 + 1, math.MaxInt64, 1 << 63, math.MaxUint64}
	for range 100 {
		sizes = append(sizes, rng.Uint64()>>rng.IntN(54)|tableSize<<1)
	}
	for _, n := range sizes {
		seed, epoch := rng.Uint64(), rng.Uint64()
		p := NewPerm(n, seed, epoch)
		if p.Len() != n {
			t.Fatalf("Len() = %d, want %d", p.Len(), n)
		}
		check := func(i uint64) {
			v := p.At(i)
			if v >= n || p.Index(v) != i {
				t.Fatalf("n=%d seed=%d epoch=%d: At(%d) = %d, Index of which is %d", n, seed, epoch, i, v, p.Index(v))
			}
			if w := p.Index(i); w >= n || p.At(w) != i {
				t.Fatalf("n=%d seed=%d epoch=%d: Index(%d) = %d, At of which is %d", n, seed, epoch, i, w, p.At(w))
			}
		}
		for k := range uint64(16) {
			check(k)
			check(n - 1 - k)
		}
		for range 500 {
			check(rng.Uint64N(n))
		}
	}
}

func TestPermWalksLittle(t *testing.T) {
	rng := testRand(t)
	for range 1000 {
		n := rng.Uint64()>>rng.IntN(54) | tableSize<<1
		p := NewPerm(n, 0, 0)
		b := p.mask + 1
		hi, lo := bits.Mul64(p.a, b)
		excess, carry := bits.Sub64(lo, n, 0)
		if hi != carry || excess >= b || b > 1<<32 || float64(b)*float64(b) > 2*float64(n) {
			t.Fatalf("n=%d: network of %d by %d", n, p.a, b)
		}
	}
}

func TestPermPanicsOutside(t *testing.T) {
	for _, n := range []uint64{0, 1, 10, tableSize, tableSize + 1, 1 << 40} {
		p := NewPerm(n, 1, 1)
		mustPanic(t, "At", func() { p.At(n) })
		mustPanic(t, "Index", func() { p.Index(n) })
		mustPanic(t, "At", func() { p.At(math.MaxUint64) })
	}
}

// goldenPerms must never be edited: tickets that clients keep depend on them.
var goldenPerms = []struct {
	n, seed, epoch uint64
	first          []uint64 // At(0), At(1) …
	crc            uint32   // CRC-32C of At(0) to At(min(n, 4096)-1) as little-endian 64-bit words
}{
	{1, 0, 0, []uint64{0}, 0x8c28b28a},
	{2, 0, 0, []uint64{0, 1}, 0x0b4ce7cd},
	{2, 1, 0, []uint64{0, 1}, 0x0b4ce7cd},
	{10, 42, 7, []uint64{4, 5, 3, 7, 0, 2}, 0x2306e1e8},
	{256, 42, 7, []uint64{38, 71, 121, 223, 4, 157}, 0x3b1e9dde},
	{257, 42, 7, []uint64{210, 200, 94, 46, 246, 24}, 0x60ed68b2},
	{1000, 0, 0, []uint64{169, 981, 883, 53, 2, 175}, 0xc35881ce},
	{50000, 1, 3, []uint64{22279, 32551, 13260, 36872, 37913, 23029}, 0xafcbbcad},
	{1281167, 42, 0, []uint64{178571, 599511, 579243, 1000594, 74773, 1021613}, 0xd571bedf},
	{1281167, 42, 1, []uint64{112309, 912604, 876422, 913439, 366380, 804746}, 0x4e4281c0},
	{1281167, 43, 0, []uint64{1257338, 123941, 272549, 246992, 160838, 773270}, 0x2f6ff2bc},
	{1000000000, 9223372036854775808, 899, []uint64{449844156, 538628720, 252967184, 855370285, 373989704, 196381844},
		0x73f97243},
	{1000000000000, 42, 0, []uint64{83796517811, 424781388334, 606246174606, 528233410412, 312091485655, 127607490813},
		0xe50416f9},
	{9223372036854775807, 18446744073709551615, 18446744073709551615, []uint64{245786785433419561, 1461730396628926336,
		7941480088492692612, 4867790775888845890, 4118696375438309739, 5514800105707929578}, 0xaecbc366},
}

func TestPermNeverChanges(t *testing.T) {
	for _, g := range goldenPerms {
		p := NewPerm(g.n, g.seed, g.epoch)
		var first []uint64
		var all []byte
		for i := range min(g.n, 4096) {
			if len(first) < 6 {
				first = append(first, p.At(i))
			}
			all = binary.LittleEndian.AppendUint64(all, p.At(i))
		}
		crc := crc32.Checksum(all, crc32.MakeTable(crc32.Castagnoli))
		if !slices.Equal(first, g.first) || crc != g.crc {
			t.Errorf("the order of n=%d seed=%d epoch=%d has changed: {%[1]d, %[2]d, %[3]d, %#[4]v, %#08[5]x},",
				g.n, g.seed, g.epoch, first, crc)
		}
	}
}

func FuzzPerm(f *testing.F) {
	for _, n := range []uint64{1, 2, 255, 256, 257, 1000, 1 << 32, 1<<32 + 1, math.MaxInt64} {
		f.Add(n, uint64(1), uint64(0), n/2)
	}
	f.Fuzz(func(t *testing.T, n, seed, epoch, i uint64) {
		if n == 0 {
			return
		}
		i %= n
		p := NewPerm(n, seed, epoch)
		if v := p.At(i); v >= n || p.Index(v) != i {
			t.Fatalf("n=%d seed=%d epoch=%d: At(%d) = %d, Index of which is %d", n, seed, epoch, i, v, p.Index(v))
		}
		if w := p.Index(i); w >= n || p.At(w) != i {
			t.Fatalf("n=%d seed=%d epoch=%d: Index(%d) = %d, At of which is %d", n, seed, epoch, i, w, p.At(w))
		}
	})
}

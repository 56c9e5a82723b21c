package plan

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomBitmap sets each position with a chance, and makes runs if there are to
// be any.
func randomBitmap(rng *rand.Rand, n int64, chance float64, runs int) (*Bitmap, []int64) {
	b := NewBitmap(n)
	set := make([]bool, n)
	for pos := range n {
		if rng.Float64() < chance {
			b.Set(pos)
			set[pos] = true
		}
	}
	for range runs {
		start := rng.Int64N(n + 1)
		end := start + rng.Int64N(n-start+1)/2
		for pos := start; pos < end; pos++ {
			b.Set(pos)
			set[pos] = true
		}
	}
	var want []int64
	for pos, ok := range set {
		if ok {
			want = append(want, int64(pos))
		}
	}
	return b, want
}

func TestBitmapMatchesTheList(t *testing.T) {
	rng := testRand(t)
	sizes := []int64{0, 1, 63, 64, 65, 511, 512, 513, 1024, 4096, 20_000, 70_000}
	for range 40 {
		sizes = append(sizes, rng.Int64N(3000))
	}
	for _, n := range sizes {
		for _, chance := range []float64{0, .002, .5, 1} {
			b, want := randomBitmap(rng, n, chance, rng.IntN(3))
			checkSelection(t, b.Freeze(), want)
			if b.Freeze() != b {
				t.Fatal("frozen twice, it is another")
			}
			again, err := BitmapFromBytes(n, b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			checkSelection(t, again, want)
			if !slices.Equal(again.Words(), b.Words()) {
				t.Fatal("the bytes do not give the same words")
			}
		}
	}
}

func TestBitmapSelectAcrossGaps(t *testing.T) {
	// Ones far apart and samples that fall on block borders.
	b := NewBitmap(4 << 20)
	var want []int64
	for _, start := range []int64{0, 1 << 20, 3<<20 - 7} {
		for pos := start; pos < start+sampleEvery; pos++ {
			b.Set(pos)
			want = append(want, pos)
		}
	}
	b.Set(4<<20 - 1)
	want = append(want, 4<<20-1)
	b.Freeze()
	for i, pos := range want {
		if got := b.At(int64(i)); got != pos {
			t.Fatalf("At(%d) = %d, want %d", i, got, pos)
		}
		if got, ok := b.Index(pos); !ok || got != int64(i) {
			t.Fatalf("Index(%d) = %d, %v, want %d", pos, got, ok, i)
		}
	}
}

func TestSelectInWord(t *testing.T) {
	rng := testRand(t)
	words := []uint64{1, 1 << 63, 1<<63 | 1, math.MaxUint64, 0xff, 0xff << 56, 0xaaaaaaaaaaaaaaaa}
	for range 20_000 {
		words = append(words, rng.Uint64(), rng.Uint64()&rng.Uint64()&rng.Uint64(), rng.Uint64()|rng.Uint64())
	}
	for _, w := range words {
		i := 0
		for rest := w; rest != 0; rest &= rest - 1 {
			if got, want := selectInWord(w, i), bits.TrailingZeros64(rest); got != want {
				t.Fatalf("one number %d of %#x is bit %d, got %d", i, w, want, got)
			}
			i++
		}
	}
}

func TestAnd(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		b, left := randomBitmap(rng, 1+rng.Int64N(1500), rng.Float64(), 0)
		ranges, _ := randomRanges(rng)
		fromRanges, err := FromRanges(ranges)
		if err != nil {
			t.Fatal(err)
		}
		other, _ := randomBitmap(rng, 1+rng.Int64N(1500), rng.Float64(), 1)
		before := slices.Clone(b.Words())
		for _, sel := range []Selection{fromRanges, other.Freeze(), All(rng.Int64N(2000))} {
			var want []int64
			for _, pos := range left {
				if _, ok := sel.Index(pos); ok {
					want = append(want, pos)
				}
			}
			got := b.And(sel)
			if got.n != b.n {
				t.Fatalf("of %d positions, want %d", got.n, b.n)
			}
			checkSelection(t, got, want)
		}
		if !slices.Equal(before, b.Words()) {
			t.Fatal("And changed its receiver")
		}
	}
}

func TestBitmapRefusals(t *testing.T) {
	b := NewBitmap(70)
	mustPanic(t, "Set(-1)", func() { b.Set(-1) })
	mustPanic(t, "Set(70)", func() { b.Set(70) })
	mustPanic(t, "Len before Freeze", func() { b.Len() })
	mustPanic(t, "a negative size", func() { NewBitmap(-1) })
	b.Words()[1] = math.MaxUint64 // 58 of these are beyond the end
	if b.Freeze(); b.Len() != 6 || b.At(5) != 69 {
		t.Errorf("%d positions, the last %d: bits beyond the end count", b.Len(), b.At(b.Len()-1))
	}
	mustPanic(t, "Set when frozen", func() { b.Set(1) })

	for _, c := range []struct {
		n    int64
		data []byte
	}{
		{-1, nil},
		{0, make([]byte, 8)},
		{1, nil},
		{64, make([]byte, 7)},
		{64, make([]byte, 16)},
		{65, make([]byte, 8)},
		{math.MaxInt64, make([]byte, 8)},
		{3, []byte{8, 0, 0, 0, 0, 0, 0, 0}},
		{63, []byte{0, 0, 0, 0, 0, 0, 0, 0x80}},
	} {
		_, err := BitmapFromBytes(c.n, c.data)
		checkField(t, err, "bitmap")
	}
}

// TestBitmapBytesNeverChange holds the stored form fast.
func TestBitmapBytesNeverChange(t *testing.T) {
	b := NewBitmap(67)
	for _, pos := range []int64{0, 9, 63, 64, 66} {
		b.Set(pos)
	}
	want := []byte{1, 2, 0, 0, 0, 0, 0, 0x80, 5, 0, 0, 0, 0, 0, 0, 0}
	if got := b.Freeze().Bytes(); !bytes.Equal(got, want) {
		t.Errorf("Bytes() = %x, want %x", got, want)
	}
}

func FuzzBitmapFromBytes(f *testing.F) {
	f.Add(int64(0), []byte{})
	f.Add(int64(3), []byte{7, 0, 0, 0, 0, 0, 0, 0})
	f.Add(int64(3), []byte{8, 0, 0, 0, 0, 0, 0, 0})
	f.Add(int64(600), bytes.Repeat([]byte{0x81}, 75))
	f.Add(int64(1024), bytes.Repeat([]byte{0xff}, 128))
	f.Add(int64(math.MaxInt64), []byte{1})
	f.Fuzz(func(t *testing.T, n int64, data []byte) {
		b, err := BitmapFromBytes(n, data)
		if err != nil {
			checkField(t, err, "bitmap")
			return
		}
		if !bytes.Equal(b.Bytes(), data) {
			t.Fatal("other bytes come out than went in")
		}
		var want []int64
		for k := 0; k < len(data); k += 8 {
			for w := binary.LittleEndian.Uint64(data[k:]); w != 0; w &= w - 1 {
				want = append(want, int64(8*k+bits.TrailingZeros64(w)))
			}
		}
		if len(want) > 0 && want[len(want)-1] >= n {
			t.Fatalf("position %d of %d was let in", want[len(want)-1], n)
		}
		checkSelection(t, b, want)
	})
}

var _ = []Selection{(*Bitmap)(nil), span{}, (*rangeSet)(nil)}

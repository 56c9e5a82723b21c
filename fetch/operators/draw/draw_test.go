package draw

import (
	"math"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestKnownAnswers compares with the vectors that the generator's authors publish (Random123, kat_vectors).
func TestKnownAnswers(t *testing.T) {
	const all = math.MaxUint64
	for name, c := range map[string]struct {
		counter [4]uint64
		key     [2]uint64
		want    [4]uint64
	}{
		"zeros": {
			want: [4]uint64{0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b},
		},
		"ones": {
			counter: [4]uint64{all, all, all, all}, key: [2]uint64{all, all},
			want: [4]uint64{0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0},
		},
		"pi": {
			counter: [4]uint64{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89},
			key:     [2]uint64{0x452821e638d01377, 0xbe5466cf34e90c6c},
			want:    [4]uint64{0xa528f45403e61d95, 0x38c72dbd566e9788, 0xa5a1610e72fd18b5, 0x57bd43b5e52b7fe6},
		},
	} {
		if got := philox(c.counter, c.key[0], c.key[1]); got != c.want {
			t.Errorf("%s: %x, want %x", name, got, c.want)
		}
	}
}

// TestSequence holds what must never change: stored plans are drawn again by it.
func TestSequence(t *testing.T) {
	s := New(Key{Seed: 7, Epoch: 3, Position: 1000}, Operator("image", 2))
	var blocks [8]uint64
	for i := range blocks {
		blocks[i] = s.Uint64()
	}
	for i := range 2 {
		want := philox([4]uint64{uint64(i), Operator("image", 2), 1000, 0}, 7, 3)
		if got := [4]uint64(blocks[4*i:]); got != want {
			t.Errorf("block %d: %x, want %x", i, got, want)
		}
	}
	other := New(Key{Seed: 7, Epoch: 4, Position: 1000}, Operator("image", 2))
	if v := other.Uint64(); v == blocks[0] {
		t.Errorf("a new epoch drew %x as the one before", v)
	}
}

// TestRanges holds what each kind of number promises.
func TestRanges(t *testing.T) {
	s := New(Key{Seed: 1}, 0)
	var seen [7]int
	var sum, heads float64
	const n = 70000
	for range n {
		seen[s.IntN(len(seen))]++
		u := s.Uniform(-2, 6)
		if u < -2 || u >= 6 {
			t.Fatalf("Uniform(-2, 6) is %g", u)
		}
		sum += u
		if r := s.LogUniform(0.75, 4.0/3); r < 0.749999 || r > 1.333334 {
			t.Fatalf("LogUniform(3/4, 4/3) is %g", r)
		}
		if s.Chance(0.25) {
			heads++
		}
	}
	for v, c := range seen {
		// Five standard deviations: the sequence is always the same, so it fails always or never.
		if math.Abs(float64(c)-n/7.0) > 5*math.Sqrt(n/7.0*6/7) {
			t.Errorf("%d came %d times of %d", v, c, n)
		}
	}
	if mean := sum / n; math.Abs(mean-2) > 0.05 {
		t.Errorf("the mean of Uniform(-2, 6) is %g", mean)
	}
	if math.Abs(heads/n-0.25) > 0.01 {
		t.Errorf("Chance(0.25) came true %g of the times", heads/n)
	}
}

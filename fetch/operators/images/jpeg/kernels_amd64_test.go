package jpeg

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWideWraps is TestWide for coefficients that only hostile files have.
func TestWideWraps(t *testing.T) {
	if !wide {
		t.Skip("the processor has no AVX2")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		var a [blockSize]int32
		columns := uint8(0)
		for range 1 + r.IntN(8) {
			at := r.IntN(1 + r.IntN(blockSize))
			a[at] = int32(r.Uint32())
			columns |= below[at]
		}
		b := a
		x, y := make([]byte, blockSize), make([]byte, blockSize)
		inverseGo(&a, columns, x, 8)
		inverse(&b, columns, y, 8)
		if !bytes.Equal(x, y) {
			t.Fatalf("columns %08b: samples %v, wide %v", columns, x, y)
		}
	}
}

// TestWide checks that the vector instructions give the bytes of the Go code.
func TestWide(t *testing.T) {
	if !wide {
		t.Skip("the processor has no AVX2")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		var a [blockSize]int32
		columns := uint8(0)
		for range 1 + r.IntN(blockSize) {
			at := r.IntN(blockSize)
			a[at] = int32(r.IntN(4096)) - 2048
			columns |= below[at]
		}
		b := a
		const stride = 11
		x, y := make([]byte, 8*stride), make([]byte, 8*stride)
		inverseGo(&a, columns, x, stride)
		inverse(&b, columns, y, stride)
		if !bytes.Equal(x, y) || a != b || a != ([blockSize]int32{}) {
			t.Fatal("a block's samples are others")
		}
		n := 1 + r.IntN(70)
		var in [3][]byte
		for i := range in {
			in[i] = make([]byte, n)
			for k := range in[i] {
				in[i][k] = byte(r.Uint32())
			}
		}
		x, y = make([]byte, 3*n), make([]byte, 3*n)
		toRGBGo(in[0], in[1], in[2], x)
		toRGB(in[0], in[1], in[2], y)
		if !bytes.Equal(x, y) {
			t.Fatalf("the colours of %d pixels are others", n)
		}
	}
}

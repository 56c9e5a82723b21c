package dsp

import (
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFunctions(t *testing.T) {
	for x := -30.0; x < 30; x += 0.0171 {
		for name, c := range map[string][2]float64{
			"cos": {CosPi(x), math.Cos(math.Pi * x)}, "sin": {SinPi(x), math.Sin(math.Pi * x)},
			"exp": {Exp(x) / math.Exp(x), 1}, "log": {Log(x*x + 1e-9), math.Log(x*x + 1e-9)},
		} {
			if math.Abs(c[0]-c[1]) > 2e-14 {
				t.Fatalf("%s of %g is %.17g, want %.17g", name, x, c[0], c[1])
			}
		}
	}
	for _, x := range []float64{0, 1, 5, 14.769656459379492} {
		// The sum over ½ of a turn of exp(x·cos θ) is another way to it.
		sum := 0.0
		for k := range 1000 {
			sum += math.Exp(x * math.Cos(math.Pi*(float64(k)+0.5)/1000))
		}
		if got, want := besselI0(x), sum/1000; math.Abs(got/want-1) > 1e-12 {
			t.Errorf("I₀(%g) is %g, want %g", x, got, want)
		}
	}
}

func TestLog32(t *testing.T) {
	for e := -30.0; e < 30; e += 0.0037 {
		x := []float32{float32(math.Exp(e))}
		want := math.Log(float64(x[0]))
		if Log32(x, 0, 1e-30, 1); math.Abs(float64(x[0])-want) > 2e-7*max(1, math.Abs(want)) {
			t.Fatalf("log %g is %g, want %g", math.Exp(e), x[0], want)
		}
	}
	x := []float32{0, -1, float32(math.NaN()), 3}
	Log32(x, 1, 2, 10)
	if want := float32(10 * math.Ln2); x[0] != want || x[1] != want || x[2] != want || x[3] != float32(20*math.Ln2) {
		t.Errorf("what is below 2 counts as 2: %v", x)
	}
}

// TestSpectrum compares with sums by definition, for lengths of all kinds of factors.
func TestSpectrum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 3, 4, 6, 7, 16, 22, 30, 50, 121, 400, 512, 1024} {
		s := NewSpectrum(SpectrumOptions{N: n, Length: n, Shape: "hamming_window"})
		x, out := make([]float32, n), make([]float32, s.Bins())
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		var room SpectrumRoom
		s.Frame(x, out, &room)
		for k, got := range out {
			var sum complex128
			for i, v := range x {
				w := 0.54 - 0.46*math.Cos(2*math.Pi*float64(i)/float64(n))
				sum += complex(float64(v)*w, 0) * cmplx.Rect(1, -2*math.Pi*float64(i*k)/float64(n))
			}
			if want := real(sum)*real(sum) + imag(sum)*imag(sum); math.Abs(float64(got)-want) > 1e-5*float64(n) {
				t.Errorf("length %d, frequency %d: %g, want %g", n, k, got, want)
			}
		}
	}
}

// TestMelInTurns checks that a frame has the same sums alone and among others.
func TestMelInTurns(t *testing.T) {
	m := NewMel(MelOptions{Rate: 16000, Bins: 201, Mels: 80, High: 8000})
	r := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, 7*201)
	for i := range x {
		x[i] = r.Float32()
	}
	all := make([]float32, 80*7)
	m.Sum(x, 201, all, 7)
	for i := range 7 {
		one := make([]float32, 80)
		m.Sum(x[i*201:(i+1)*201], 201, one, 1)
		for b, v := range one {
			if v != all[b*7+i] {
				t.Fatalf("frame %d, band %d: %g alone, %g beside others", i, b, v, all[b*7+i])
			}
		}
	}
}

// TestResampler checks that a tone keeps its frequency and level.
func TestResampler(t *testing.T) {
	for _, c := range [][2]int{{44100, 16000}, {8000, 16000}, {16000, 16001}, {48000, 44100}, {3, 2}} {
		o := ResampleOptions{From: c[0], To: c[1], Width: 16, Rolloff: 0.95}
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		x := make([]float32, 2000)
		f := 0.1 * float64(min(c[0], c[1])) / float64(c[0])
		for i := range x {
			x[i] = float32(math.Sin(2 * math.Pi * f * float64(i)))
		}
		y := make([]float32, ResampledLength(len(x), c[0], c[1]))
		NewResampler(o).Run(x, y, 0)
		for j := len(y) / 4; j < 3*len(y)/4; j++ {
			want := math.Sin(2 * math.Pi * f * float64(j) * float64(c[0]) / float64(c[1]))
			if math.Abs(float64(y[j])-want) > 5e-3 {
				t.Fatalf("%v: sample %d is %g, want %g", c, j, y[j], want)
			}
		}
	}
	if (ResampleOptions{From: 767_999, To: 16_000, Width: 6, Rolloff: 0.99}).Check() == nil {
		t.Error("a table of 9 million numbers is let through")
	}
}

// TestHalf goes there and back for all numbers, and rounds to even between them.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		v := FromHalf(uint16(h))
		if v != v {
			if Half(v)&0x7fff != 0x7e00 {
				t.Fatalf("%#x is no number, and became %#x", h, Half(v))
			}
			continue
		}
		if got := Half(v); got != uint16(h) {
			t.Fatalf("%#x is %g, which is %#x", h, v, got)
		}
		if next := FromHalf(uint16(h + 1)); h&0x7fff < 0x7bff {
			middle := (v + next) / 2
			if want := uint16(h + h&1); Half(middle) != want {
				t.Fatalf("between %#x and the next is %g, which is %#x", h, middle, Half(middle))
			}
			if got := Half(math.Float32frombits(math.Float32bits(middle) + 1)); got != uint16(h+1) {
				t.Fatalf("beyond the middle of %#x and the next is %#x", h, got)
			}
		}
	}
	if Half(65520) != 0x7c00 || Half(65519) != 0x7bff {
		t.Error("what is beyond the largest is infinite")
	}
}

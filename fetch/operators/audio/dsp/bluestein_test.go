package dsp

import (
	"fmt"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"
)

// TestLargePrimes compares transforms of lengths with a large prime factor to the
// definition, at frequencies from all parts of the spectrum.
func TestLargePrimes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{67, 134, 201, 509, 1021, 2 * 4093, 16381, 32749, 2 * 16381} {
		s := NewSpectrum(SpectrumOptions{N: n, Length: n, Shape: "ones"})
		if s.fft.chirp == nil {
			t.Errorf("length %d goes by its prime factors", n)
		}
		x, out := make([]float32, n), make([]float32, s.Bins())
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		var room SpectrumRoom
		for range 2 { // the second time with the room's contents from the first
			s.Frame(x, out, &room)
		}
		if got := s.RoomBytes(); got != room.Bytes() {
			t.Errorf("length %d: the room has %d bytes; %d were promised", n, room.Bytes(), got)
		}
		for _, k := range []int{0, 1, 2, n / 7, n / 3, s.Bins() - 2, s.Bins() - 1} {
			var sum complex128
			for i, v := range x {
				sum += complex(float64(v), 0) * cmplx.Rect(1, -2*math.Pi*float64(i*k%n)/float64(n))
			}
			if want := real(sum)*real(sum) + imag(sum)*imag(sum); math.Abs(float64(out[k])-want) > 1e-5*float64(n) {
				t.Errorf("length %d, frequency %d: %g, want %g", n, k, out[k], want)
			}
		}
	}
}

// TestStepsOfLengths bounds the steps for each sample of a frame, whatever its length is.
func TestStepsOfLengths(t *testing.T) {
	const most = 400
	for n := range MaxFFT {
		if n < 2 || n > 600 && n < MaxFFT-100 && n%997 != 0 { // all short ones, all long ones, and some between
			continue
		}
		s := NewSpectrum(SpectrumOptions{N: n, Length: n, Shape: "ones"})
		if got, top := s.Steps(), int64(most*n); got > top {
			t.Errorf("length %d takes %d steps; want at most %d", n, got, top)
		}
	}
}

func BenchmarkFrame(b *testing.B) {
	for _, n := range []int{400, 512, 2048, 31 * 32, 37 * 32, 32749, 1 << 15} {
		s := NewSpectrum(SpectrumOptions{N: n, Length: n, Shape: "hann_window"})
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			x, out := make([]float32, n), make([]float32, s.Bins())
			var room SpectrumRoom
			for b.Loop() {
				s.Frame(x, out, &room)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(s.Steps()), "ns/step")
		})
	}
}

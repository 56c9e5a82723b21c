package vorbis

import (
	"math"
	"math/bits"

	"bowstring/fetch/operators/audio/dsp"
)

// floor0 is section 6: a filter by its line spectral pairs, over the Bark scale.
type floor0 struct {
	order                int
	amplitudeBits, decib int
	books                []*codebook
	cosines              []float64   // of each place of the scale
	places               [2][]uint16 // of each frequency of short and long blocks
}

// maxPlaces is the most places that the scale may have. Encoders take some hundreds.
const maxPlaces = 4096

func (s *setup) readFloor0(r *bitReader) (floor, string) {
	f := &floor0{order: int(r.read(8))}
	rate, size := float64(r.read(16)), int(r.read(16))
	f.amplitudeBits, f.decib = int(r.read(6)), int(r.read(8))
	for range r.read(4) + 1 {
		b := s.book(r.read(8), true)
		if b == nil {
			return nil, "a floor has a codebook that there is not"
		}
		f.books = append(f.books, b)
	}
	if f.order == 0 || rate == 0 || size == 0 || size > maxPlaces || r.over() || f.amplitudeBits > 32 {
		return nil, "a floor of kind 0 is wrong"
	}
	for i, n := range s.half {
		f.places[i] = make([]uint16, n)
		for k := range n {
			v := bark(float64(k)*rate/2/float64(n)) * float64(size) / bark(rate/2)
			f.places[i][k] = uint16(min(int(v), size-1))
		}
	}
	f.cosines = make([]float64, size)
	for i := range f.cosines {
		f.cosines[i] = 2 * dsp.CosPi(float64(i)/float64(size))
	}
	return f, ""
}

// bark is section 6.2.3's scale of a frequency.
func bark(x float64) float64 {
	return float64(13.1*atan(float64(0.00074*x))) + float64(2.24*atan(float64(float64(x*x)*1.85e-8))) + float64(1e-4*x)
}

// atan is the arctangent of a number that is not negative: halved twice, then by its series. It is the same on all
// machines.
func atan(x float64) float64 {
	for range 2 {
		x = x / (1 + math.Sqrt(1+float64(x*x)))
	}
	z, sum := float64(x*x), 0.0
	for k := 31; k > 0; k -= 2 {
		sum = 1/float64(k) - float64(z*sum)
	}
	return 4 * float64(x*sum)
}

func (f *floor0) read(r *bitReader, into *curve) bool {
	amplitude := float64(r.read(f.amplitudeBits))
	if amplitude == 0 {
		return false
	}
	into.amplitude = amplitude * float64(f.decib) / float64(uint64(1)<<f.amplitudeBits-1)
	n := r.read(bits.Len(uint(len(f.books))))
	if int(n) >= len(f.books) {
		return false
	}
	book := f.books[n]
	into.cosines = into.cosines[:0]
	for last := 0.0; len(into.cosines) < f.order; {
		e := book.decode(r)
		if e < 0 {
			return false
		}
		v := book.vectors[e*book.dims:][:book.dims]
		for _, x := range v[:min(len(v), f.order-len(into.cosines))] {
			into.cosines = append(into.cosines, 2*dsp.CosPi(float64((last+float64(x))/math.Pi)))
		}
		last += float64(v[len(v)-1])
	}
	return true
}

func (f *floor0) multiply(spectrum []float32, by *curve, long int) {
	places := f.places[long]
	for i := 0; i < len(spectrum); {
		at := places[i]
		v := f.at(f.cosines[at], by)
		for ; i < len(spectrum) && places[i] == at; i++ {
			spectrum[i] *= v
		}
	}
}

// at is the curve where twice the cosine of the frequency is w.
func (f *floor0) at(w float64, by *curve) float32 {
	p, q := 0.5, 0.5
	c := by.cosines
	for ; len(c) >= 2; c = c[2:] {
		q = float64(q * (w - c[0]))
		p = float64(p * (w - c[1]))
	}
	if len(c) == 1 {
		q = float64(q * (w - c[0]))
		p, q = float64(float64(p*p)*(4-float64(w*w))), float64(q*q)
	} else {
		p, q = float64(float64(p*p)*(2-w)), float64(float64(q*q)*(2+w))
	}
	exponent := by.amplitude/math.Sqrt(p+q) - float64(f.decib)
	return float32(dsp.Exp10(float64(min(max(exponent, -1000), 1000) / 20)))
}

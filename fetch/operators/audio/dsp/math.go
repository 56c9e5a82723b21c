package dsp

import "math"

// The functions below are for tables and parameters: exact to about 1e-15, and not fast.

// SinPi is sin(πx). It shares the reduction of CosPi.
func SinPi(x float64) float64 { return CosPi(x - 0.5) }

// CosPi is cos(πx). The reduction is exact, because the period of cos(πx) is 2 and not 2π.
func CosPi(x float64) float64 {
	x = math.Mod(math.Abs(x), 2) // exact
	if x > 1 {
		x = 2 - x
	}
	switch {
	case x <= 0.25:
		return cosTaylor(float64(math.Pi * x))
	case x < 0.75:
		return sinTaylor(float64(math.Pi * (0.5 - x)))
	default:
		return -cosTaylor(float64(math.Pi * (1 - x)))
	}
}

// cosTaylor is cos(y) for |y| ≤ π/4. Eleven terms suffice for double precision in this
// range.
func cosTaylor(y float64) float64 {
	z, sum := float64(y*y), 0.0
	for k := 20; k > 0; k -= 2 {
		sum = 1 - float64(float64(z/float64(k*(k-1)))*sum1(sum, k == 20))
	}
	return sum
}

// sinTaylor is sin(y) for |y| ≤ π/4.
func sinTaylor(y float64) float64 {
	z, sum := float64(y*y), 0.0
	for k := 21; k > 1; k -= 2 {
		sum = 1 - float64(float64(z/float64(k*(k-1)))*sum1(sum, k == 21))
	}
	return float64(y * sum)
}

// sum1 starts a nested series with 1.
func sum1(sum float64, first bool) float64 {
	if first {
		return 1
	}
	return sum
}

const (
	ln2Hi = 6.93147180369123816490e-01 // ln 2 without its last bits, so that integer multiples are exact
	ln2Lo = 1.90821492927058770002e-10
)

// Exp is eˣ for finite x, by argument reduction and its series.
func Exp(x float64) float64 {
	k := math.Round(x / math.Ln2)
	if k > 1024 {
		return math.Inf(1)
	}
	if k < -1075 {
		return 0
	}
	r := (x - float64(k*ln2Hi)) - float64(k*ln2Lo)
	sum := 1.0
	for i := 18; i > 0; i-- {
		sum = 1 + float64(float64(r/float64(i))*sum)
	}
	return math.Ldexp(sum, int(k))
}

// Log is the natural logarithm of a positive, finite x, by the series of the inverse
// hyperbolic tangent. The mantissa is brought near 1, where the series converges fast.
func Log(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1)
	z, sum := float64(s*s), 0.0
	for k := 27; k > 0; k -= 2 {
		sum = 1/float64(k) + float64(z*sum)
	}
	return float64(float64(e)*ln2Hi) + (float64(2*s*sum) + float64(float64(e)*ln2Lo))
}

// Log10 is the common logarithm of a positive, finite x.
func Log10(x float64) float64 { return float64(Log(x) * (1 / math.Ln10)) }

// Exp10 is 10ˣ.
func Exp10(x float64) float64 { return Exp(float64(x * math.Ln10)) }

// besselI0 is the modified Bessel function of order zero, by its power series. The Kaiser
// window needs it. Terms are added until they no longer change the sum. x is a window's
// parameter, so there are few.
func besselI0(x float64) float64 {
	q, term, sum := float64(x*x)/4, 1.0, 1.0
	for k := 1.0; term > float64(sum*1e-18); k++ {
		term = float64(term*q) / float64(k*k)
		sum += term
	}
	return sum
}

// Log32 replaces each x by the natural logarithm of x plus offset, times scale. It is
// Cephes' logf (Moshier), with a relative error of 2e-7. Values below low count as low,
// which must be positive and normal. It changes x in place. It is used for each number of a
// spectrogram, so speed matters here.
func Log32(x []float32, offset, low, scale float32) {
	const root = 0x3f3504f3 // √½: v without its exponent is from there to √2
	for i, v := range x {
		v += offset
		if !(v >= low) {
			v = low
		}
		b := math.Float32bits(v)
		e := int32(b-root) >> 23
		f, k := math.Float32frombits(b-uint32(e)<<23)-1, float32(e)
		z := float32(f * f)
		p := float32(7.0376836292e-2*f) - 1.1514610310e-1
		p = float32(p*f) + 1.1676998740e-1
		p = float32(p*f) - 1.2420140846e-1
		p = float32(p*f) + 1.4249322787e-1
		p = float32(p*f) - 1.6668057665e-1
		p = float32(p*f) + 2.0000714765e-1
		p = float32(p*f) - 2.4999993993e-1
		p = float32(p*f) + 3.3333331174e-1
		y := float32(float32(p*f)*z) - float32(2.12194440e-4*k)
		y -= float32(0.5 * z)
		x[i] = float32((f + y + float32(0.693359375*k)) * scale)
	}
}

// Package resample changes the size of images of eight bits a channel, to the bytes of
// Pillow 12.1 (libImaging/Resample.c and, for nearest, Geometry.c): separable filters
// that are as wide as a pixel of the result, so that there is no aliasing; fixed-point
// weights of 22 bits; rows first, rounded to bytes, then columns.
//
// The package knows neither files nor operators.
package resample

import "math"

// Filter is how pixels are weighed.
type Filter uint8

// The filters, by Pillow's names.
const (
	Nearest Filter = iota
	Bilinear
	Box
	Hamming
	Bicubic
	Lanczos
)

// support is how far a filter reaches, in pixels of the larger grid.
func (f Filter) support() float64 {
	switch f {
	case Box:
		return 0.5
	case Bicubic:
		return 2
	case Lanczos:
		return 3
	default:
		return 1
	}
}

// Taps is the most pixels of one axis that one of the result is made of.
func (f Filter) Taps(in, out int) int {
	if f == Nearest {
		return 1
	}
	return int(math.Ceil(f.support()*max(float64(in)/float64(out), 1)))*2 + 1
}

// The conversions to float64 below keep compilers from fusing products with sums,
// which would round otherwise on some processors.

func (f Filter) weight(x float64) float64 {
	switch f {
	case Box:
		if x > -0.5 && x <= 0.5 {
			return 1
		}
		return 0
	case Hamming:
		x = math.Abs(x)
		if x == 0 {
			return 1
		}
		if x >= 1 {
			return 0
		}
		x *= math.Pi
		// Pillow has these two in single precision.
		return float64(math.Sin(x)/x) * (float64(float32(0.54)) + float64(float64(float32(0.46))*math.Cos(x)))
	case Bicubic:
		const a = -0.5
		x = math.Abs(x)
		if x < 1 {
			return float64(float64(float64(float64((a+2)*x)-(a+3))*x)*x) + 1
		}
		if x < 2 {
			return float64(float64(float64(float64(float64(x-5)*x)+8)*x)-4) * a
		}
		return 0
	case Lanczos:
		if x >= -3 && x < 3 {
			return sinc(x) * sinc(x/3)
		}
		return 0
	default:
		if x = math.Abs(x); x < 1 {
			return 1 - x
		}
		return 0
	}
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

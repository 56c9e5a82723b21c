package icc

import (
	"math"
	"sync"
)

// one is 1 in fixed point.
const one = 1 << 14

// Transform converts pixels to sRGB. It is immutable.
type Transform struct {
	space  Space
	shape  [3][256]int32 // light of each value, in fixed point
	matrix [3][3]int32
	offset int32
	grey   [256]byte
}

// srgb are the colours of sRGB's primaries, by column, under the white of profiles, D50: those of the profile
// that HP and Microsoft published.
var srgb = [3][3]float64{
	{0.4360657, 0.3851471, 0.1430664},
	{0.2224884, 0.7168732, 0.0606079},
	{0.0139160, 0.0970764, 0.7140961},
}

// values are those of sRGB for each light.
var values = sync.OnceValue(func() *[one + 1]byte {
	table := new([one + 1]byte)
	for i := range table {
		table[i] = byteOf(encode(float64(i) / one))
	}
	return table
})

func byteOf(v float64) byte { return byte(math.Floor(float64(min(max(v, 0), 1)*255) + 0.5)) }

// New reads a profile. Errors are ErrProfile.
func New(data []byte) (*Transform, error) {
	p, space, err := open(data)
	if err != nil {
		return nil, err
	}
	t := &Transform{space: space}
	if space == Grey {
		c, err := p.curve("kTRC")
		if err != nil {
			return nil, err
		}
		black := darkest(c(0))
		for i := range t.grey {
			v, err := light(c, "kTRC", i)
			if err != nil {
				return nil, err
			}
			light := (min(max(v, 0), 1) - black) / (1 - black)
			t.grey[i] = byteOf(encode(max(light, 0)))
		}
		return t, nil
	}
	black := 0.0 // the Y of what has no light
	var from [3][3]float64
	for k, name := range []string{"r", "g", "b"} {
		c, err := p.curve(name + "TRC")
		if err != nil {
			return nil, err
		}
		for i := range t.shape[k] {
			v, err := light(c, name+"TRC", i)
			if err != nil {
				return nil, err
			}
			t.shape[k][i] = fixedOf(v)
		}
		xyz, err := p.column(name + "XYZ")
		if err != nil {
			return nil, err
		}
		for i := range 3 {
			from[i][k] = xyz[i]
		}
		black += float64(xyz[1] * c(0))
	}
	black = darkest(black)
	t.offset = fixedOf(-black / (1 - black))
	to := inverse(srgb)
	for i := range 3 {
		for k := range 3 {
			sum := 0.0
			for m := range 3 {
				sum += float64(to[i][m] * from[m][k])
			}
			t.matrix[i][k] = fixedOf(sum / (1 - black))
		}
	}
	return t, nil
}

// light is what a curve makes of a value. Where that is no number, or has no end, the profile is of no use.
func light(c curve, name string, value int) (float64, error) {
	v := c(float64(value) / 255)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, wrong("%s makes %v of the value %d, which is no light", name, v, value)
	}
	return v, nil
}

// darkest is the light that becomes none: black point compensation, which Little CMS carries out for
// sRGB. What is brighter than L* = 50 counts as that.
func darkest(y float64) float64 {
	const half = 66.0 / 116
	return min(max(y, 0), half*half*half)
}

// most bounds light and factors, so that sums of their products have room in 64 bits.
const most = 8

func fixedOf(v float64) int32 {
	return int32(math.Floor(min(max(v, -most), most)*one + 0.5))
}

func inverse(m [3][3]float64) (out [3][3]float64) {
	minor := func(r, c int) float64 {
		r1, r2, c1, c2 := (r+1)%3, (r+2)%3, (c+1)%3, (c+2)%3
		return float64(m[r1][c1]*m[r2][c2]) - float64(m[r1][c2]*m[r2][c1])
	}
	whole := float64(m[0][0]*minor(0, 0)) + float64(m[0][1]*minor(0, 1)) + float64(m[0][2]*minor(0, 2))
	for r := range 3 {
		for c := range 3 {
			out[c][r] = minor(r, c) / whole
		}
	}
	return out
}

// Space is what the pixels have to be.
func (t *Transform) Space() Space { return t.space }

// Convert changes pixels of three channels in place. Those of grey have the same value in each.
func (t *Transform) Convert(pixels []byte) {
	if t.space == Grey {
		for i, v := range pixels {
			pixels[i] = t.grey[v]
		}
		return
	}
	out := values()
	for ; len(pixels) >= 3; pixels = pixels[3:] {
		r, g, b := int64(t.shape[0][pixels[0]]), int64(t.shape[1][pixels[1]]), int64(t.shape[2][pixels[2]])
		for i := range 3 {
			m := &t.matrix[i]
			v := (int64(m[0])*r + int64(m[1])*g + int64(m[2])*b + one/2) >> 14
			pixels[i] = out[min(max(v+int64(t.offset), 0), one)]
		}
	}
}

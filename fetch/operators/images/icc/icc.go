// Package icc converts pixels of bytes to sRGB with the ICC profile of their file. It
// supports matrix/TRC profiles of three curves and a matrix, as of displays and cameras
// (Display P3, Adobe RGB, ProPhoto), and grey profiles with one curve. Profiles with
// lookup tables, as of printers, are refused with their name.
//
// The format is ICC.1:2022. The arithmetic is that of Little CMS 2 for eight bits: curves
// as tables, and the matrix with 14 bits of fraction. Results differ from it by at most
// 1.
//
// Profiles are untrusted: allocations are bounded by the number of bytes of the profile.
// The package knows neither file formats nor operators.
package icc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
)

// ErrProfile means that a profile cannot be used.
var ErrProfile = errors.New("ICC profile")

// MaxBytes is the maximum size of a profile. Matrix/TRC profiles have some hundred to
// some thousand bytes.
const MaxBytes = 256 << 10

const (
	headerBytes = 128
	maxTags     = 256
)

// Space is the colour space of a profile's pixels.
type Space uint8

// The supported spaces.
const (
	RGB Space = iota + 1
	Grey
)

// String returns the name of the colour space: "grey" or "RGB".
func (s Space) String() string {
	if s == Grey {
		return "grey"
	}
	return "RGB"
}

// wrong is an ErrProfile with its reason.
func wrong(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrProfile, fmt.Sprintf(format, values...))
}

// profile is the bytes of a profile and its tag table. It refers to the bytes and copies
// nothing.
type profile struct {
	data []byte
	tags []byte // 12 bytes each: signature, offset, size
}

// open checks the header and finds the tag table. Only device profiles to XYZ without
// lookup tables are accepted. Profiles with lookup tables may have curves as well; their
// tables would be the better description, so they are refused and not approximated.
func open(data []byte) (p profile, space Space, err error) {
	if len(data) < headerBytes+4 || string(data[36:40]) != "acsp" {
		return p, 0, wrong("it has no header")
	}
	p.data = data
	count := binary.BigEndian.Uint32(data[headerBytes:])
	p.tags = data[headerBytes+4:]
	if count > maxTags || int(count)*12 > len(p.tags) {
		return p, 0, wrong("it says that it has %d tags, in %d bytes", count, len(data))
	}
	p.tags = p.tags[:12*count]
	switch text := string(data[16:20]); text {
	case "RGB ":
		space = RGB
	case "GRAY":
		space = Grey
	default:
		return p, 0, wrong("it is one of %q, and colours of RGB and GRAY are converted", text)
	}
	for _, name := range []string{"A2B0", "D2B0"} {
		if _, _, ok := p.find(name); ok {
			return p, 0, wrong("it converts by a table of colours (%s); those of curves and a matrix are converted", name)
		}
	}
	if pcs := string(data[20:24]); pcs != "XYZ " {
		return p, 0, wrong("it converts to %q, and those to \"XYZ \" are converted", pcs)
	}
	return p, space, nil
}

// find returns the position of a tag's data. If a tag occurs twice, the first one counts.
func (p profile) find(name string) (offset, size uint32, ok bool) {
	for t := p.tags; len(t) > 0; t = t[12:] {
		if string(t[:4]) == name {
			return binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:]), true
		}
	}
	return 0, 0, false
}

// tag returns the data of a tag that has one of these types, after the type signature and
// four reserved bytes. Offsets come from the file, so every access is checked against its
// size.
func (p profile) tag(name string, kinds ...string) (kind string, data []byte, err error) {
	offset, size, ok := p.find(name)
	if !ok {
		return "", nil, wrong("it has no %s", name)
	}
	if size < 8 || uint64(offset)+uint64(size) > uint64(len(p.data)) {
		return "", nil, wrong("%s is %d bytes at %d, of %d", name, size, offset, len(p.data))
	}
	data = p.data[offset:][:size]
	for _, k := range kinds {
		if string(data[:4]) == k {
			return k, data[8:], nil
		}
	}
	return "", nil, wrong("%s is a %q, which is not converted", name, data[:4])
}

// fixed reads an s15Fixed16Number.
func fixed(b []byte) float64 { return float64(int32(binary.BigEndian.Uint32(b))) / 65536 }

// column reads X, Y and Z of a primary.
func (p profile) column(name string) (xyz [3]float64, err error) {
	_, data, err := p.tag(name, "XYZ ")
	if err == nil && len(data) < 12 {
		err = wrong("%s has %d bytes", name, len(data))
	}
	if err != nil {
		return xyz, err
	}
	for i := range xyz {
		xyz[i] = fixed(data[4*i:])
	}
	return xyz, nil
}

// one is 1 in fixed point with 14 bits of fraction.
const one = 1 << 14

// Transform converts pixels to sRGB. It is immutable and safe for concurrent use. It has
// about 3.5 KiB, and does not refer to the profile.
type Transform struct {
	space  Space
	shape  [3][256]int32 // linear light of each value, by channel, in fixed point
	matrix [3][3]int32   // from linear light to that of sRGB, in fixed point
	offset int32         // of black point compensation
	grey   [256]byte     // result of each value of grey
}

// srgb has the XYZ of sRGB's primaries as columns, adapted to the profiles' white D50:
// those of the sRGB profile of HP and Microsoft.
var srgb = [3][3]float64{
	{0.4360657, 0.3851471, 0.1430664},
	{0.2224884, 0.7168732, 0.0606079},
	{0.0139160, 0.0970764, 0.7140961},
}

// values maps linear light in fixed point to sRGB bytes. It has 16 KiB and is built once:
// the power function is too slow for each pixel.
var values = sync.OnceValue(func() *[one + 1]byte {
	table := new([one + 1]byte)
	for i := range table {
		table[i] = byteOf(encode(float64(i) / one))
	}
	return table
})

// byteOf clips to [0, 1] and rounds to a byte.
func byteOf(v float64) byte { return byte(math.Floor(float64(min(max(v, 0), 1)*255) + 0.5)) }

// New reads a profile. All errors are ErrProfile. The cost does not depend on the image:
// all tables are computed here.
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
	black := 0.0 // Y of the colour (0, 0, 0)
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
		// Columns are the primaries.
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

// light evaluates a curve. If the result is not finite, the profile is unusable. An
// infinite value would survive clipping as white or black and hide the damage.
func light(c curve, name string, value int) (float64, error) {
	v := c(float64(value) / 255)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, wrong("%s makes %v of the value %d, which is no light", name, v, value)
	}
	return v, nil
}

// darkest is the Y that becomes black: the black point compensation of Little CMS for
// sRGB. It is limited to that of L* = 50.
func darkest(y float64) float64 {
	// Inverse of L* = 116 * cbrt(Y) - 16.
	const half = 66.0 / 116
	return min(max(y, 0), half*half*half)
}

// most limits light and factors, so that sums of products do not overflow 64 bits.
const most = 8

// fixedOf rounds to fixed point.
func fixedOf(v float64) int32 {
	return int32(math.Floor(min(max(v, -most), most)*one + 0.5))
}

// inverse inverts a 3x3 matrix by its adjugate. The matrix must be invertible; sRGB's is.
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

// Space is the colour space that the pixels must have.
func (t *Transform) Space() Space { return t.space }

// Convert changes RGB pixels in place. Grey pixels must have three equal channels. A
// trailing partial pixel is ignored.
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

// curve maps a value from 0 to 1 to linear light. It must accept any value from 0 to 1.
type curve func(v float64) float64

// curve reads a curveType (a table or a gamma) or a parametricCurveType.
func (p profile) curve(name string) (curve, error) {
	kind, data, err := p.tag(name, "curv", "para")
	if err != nil {
		return nil, err
	}
	if len(data) < 4 {
		return nil, wrong("%s has %d bytes", name, len(data))
	}
	if kind == "para" {
		return formula(name, int(binary.BigEndian.Uint16(data)), data[4:])
	}
	n := binary.BigEndian.Uint32(data)
	data = data[4:]
	if uint64(n)*2 > uint64(len(data)) {
		return nil, wrong("%s has %d entries in %d bytes", name, n, len(data))
	}
	switch n {
	// No entries: the identity.
	case 0:
		return func(v float64) float64 { return v }, nil
	// One entry: gamma, a u8Fixed8Number.
	case 1:
		g := float64(binary.BigEndian.Uint16(data)) / 256
		return func(v float64) float64 { return math.Pow(v, g) }, nil
	}
	table := make([]uint16, n)
	for i := range table {
		table[i] = binary.BigEndian.Uint16(data[2*i:])
	}
	return func(v float64) float64 {
		// Linear interpolation.
		at := float64(v) * float64(n-1)
		i := min(int(at), int(n)-2)
		rest := at - float64(i)
		a, b := float64(table[i]), float64(table[i+1])
		return (a + float64(rest*(b-a))) / 65535
	}, nil
}

// parameters is the number of parameters of each function type.
var parameters = [...]int{1, 3, 4, 5, 7}

// formula is one of the function types of parametricCurveType, ICC.1:2022, section 10.18.
// Types 1 to 4 have a linear or constant part near black, which begins at -b/a or at d.
func formula(name string, kind int, data []byte) (curve, error) {
	if kind >= len(parameters) || len(data) < 4*parameters[kind] {
		return nil, wrong("%s is formula %d of %d bytes", name, kind, len(data))
	}
	var n [7]float64
	for i := range parameters[kind] {
		n[i] = fixed(data[4*i:])
	}
	g, a, b, c, d, e, f := n[0], n[1], n[2], n[3], n[4], n[5], n[6]
	power := func(v float64) float64 { return math.Pow(max(float64(a*v)+b, 0), g) }
	switch kind {
	case 0:
		return func(v float64) float64 { return math.Pow(v, g) }, nil
	case 1, 2:
		if a == 0 {
			return nil, wrong("%s divides by zero", name)
		}
		return func(v float64) float64 {
			if v >= -b/a {
				return power(v) + c
			}
			return c // c is 0 in type 1
		}, nil
	}
	return func(v float64) float64 {
		if v >= d {
			return power(v) + e
		}
		return float64(c*v) + f
	}, nil
}

// encode is the transfer function of sRGB (IEC 61966-2-1) from linear light to values.
func encode(v float64) float64 {
	const g, a, b, c, d = 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045
	if v <= c*d {
		return v / c
	}
	return (math.Pow(v, 1/g) - b) / a
}

package icc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tag struct {
	name string
	data []byte
}

func number(v float64) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(int32(math.Round(v*65536))))
}

func numbers(kind string, list ...float64) []byte {
	b := []byte(kind + "\x00\x00\x00\x00")
	for _, v := range list {
		b = append(b, number(v)...)
	}
	return b
}

func curveOf(list ...uint16) []byte {
	b := binary.BigEndian.AppendUint32([]byte("curv\x00\x00\x00\x00"), uint32(len(list)))
	for _, v := range list {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

func formulaOf(kind uint16, list ...float64) []byte {
	b := binary.BigEndian.AppendUint16([]byte("para\x00\x00\x00\x00"), kind)
	return append(append(b, 0, 0), numbers("", list...)[4:]...)
}

func profileOf(space, pcs string, tags ...tag) []byte {
	header := make([]byte, headerBytes)
	copy(header[16:], space)
	copy(header[20:], pcs)
	copy(header[36:], "acsp")
	b := slices.Clone(header)
	b = binary.BigEndian.AppendUint32(b, uint32(len(tags)))
	at := len(b) + 12*len(tags)
	var body []byte
	for _, t := range tags {
		b = append(b, t.name...)
		b = binary.BigEndian.AppendUint32(b, uint32(at+len(body)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(t.data)))
		body = append(body, t.data...)
	}
	return append(b, body...)
}

func rgb(curve []byte, colours [9]float64, more ...tag) []byte {
	tags := slices.Clone(more)
	for i, c := range []string{"r", "g", "b"} {
		tags = append(tags, tag{c + "TRC", curve}, tag{c + "XYZ", numbers("XYZ ", colours[3*i:3*i+3]...)})
	}
	return profileOf("RGB ", "XYZ ", tags...)
}

var (
	srgbCurve = formulaOf(3, 2.4, 1/1.055, 0.055/1.055, 1/12.92, 0.04045)
	displayP3 = [9]float64{0.515102, 0.241182, -0.00104941, 0.291965, 0.692236, 0.0418818, 0.157153, 0.0665819, 0.784378}
	ownSRGB   = [9]float64{0.4360657, 0.2224884, 0.0139160, 0.3851471, 0.7168732, 0.0970764, 0.1430664, 0.0606079,
		0.7140961}
)

// TestConvert compares with Little CMS 2.19, called by Pillow's ImageCms.
func TestConvert(t *testing.T) {
	for name, c := range map[string]struct {
		profile  []byte
		in, want []byte
	}{
		"sRGB": {rgb(srgbCurve, ownSRGB), []byte{0, 1, 2, 100, 150, 200, 255, 254, 128},
			[]byte{0, 1, 2, 100, 150, 200, 255, 254, 128}},
		"Display P3": {rgb(srgbCurve, displayP3), []byte{0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 255, 0, 200, 100, 50, 90, 120, 60},
			[]byte{0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 255, 0, 215, 93, 31, 81, 121, 51}},
		"a table":  {rgb(curveOf(0, 65535), displayP3), []byte{0, 0, 0, 255, 255, 255}, []byte{0, 0, 0, 255, 255, 255}},
		"no black": {rgb(curveOf(6554, 65535), displayP3), []byte{0, 0, 0, 255, 255, 255}, []byte{0, 0, 0, 255, 255, 255}},
		"grey": {profileOf("GRAY", "XYZ ", tag{"kTRC", curveOf(563)}), []byte{0, 0, 0, 128, 128, 128, 255, 255, 255},
			[]byte{0, 0, 0, 129, 129, 129, 255, 255, 255}},
	} {
		tr, err := New(c.profile)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := bytes.Clone(c.in)
		tr.Convert(got)
		for i := range got {
			if d := int(got[i]) - int(c.want[i]); d < -1 || d > 1 {
				t.Errorf("%s: %v became %v; want %v", name, c.in, got, c.want)
				break
			}
		}
	}
}

func TestRefused(t *testing.T) {
	whole := rgb(srgbCurve, displayP3)
	for name, c := range map[string]struct {
		profile []byte
		want    string
	}{
		"nothing":             {nil, "no header"},
		"no end":              {rgb(formulaOf(0, -2), ownSRGB), "rTRC makes +Inf of the value 0, which is no light"},
		"no end in the midst": {rgb(formulaOf(3, -1, 1, -128.0/255, 1, 0), ownSRGB), "makes"},
		"no number":           {profileOf("GRAY", "XYZ ", tag{"kTRC", formulaOf(4, -1, 1, 0, 1, 0, -1, 0)}), "of the value 0, which is no light"},
		"half":                {whole[:len(whole)/2], "bytes"},
		"a table":             {rgb(srgbCurve, displayP3, tag{"A2B0", make([]byte, 40)}), "a table of colours (A2B0)"},
		"a printer":           {profileOf("CMYK", "Lab "), `one of "CMYK"`},
		"Lab":                 {profileOf("RGB ", "Lab "), `converts to "Lab "`},
		"no curve":            {profileOf("RGB ", "XYZ "), "it has no rTRC"},
		"a formula":           {rgb(formulaOf(9, 1), displayP3), "formula 9"},
		"short":               {rgb(formulaOf(4, 1), displayP3), "formula 4 of 4 bytes"},
		"zero":                {rgb(formulaOf(1, 2, 0, 1), displayP3), "divides by zero"},
		"another":             {rgb(numbers("mft2", 1, 2), displayP3), `is a "mft2"`},
		"few entries":         {rgb(append(curveOf(1, 2, 3), 0)[:15], displayP3), "entries"},
	} {
		_, err := New(c.profile)
		if !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// FuzzNew checks that any bytes are refused or can convert pixels.
func FuzzNew(f *testing.F) {
	f.Add(rgb(srgbCurve, displayP3))
	f.Add(rgb(curveOf(0, 3000, 65535), displayP3))
	f.Add(rgb(formulaOf(4, 2.2, 1.1, -0.1, 0.5, 0.2, 0.01, 0.02), displayP3))
	f.Add(rgb(formulaOf(2, 2.2, 1.1, -0.1, 0.5), displayP3))
	f.Add(profileOf("GRAY", "XYZ ", tag{"kTRC", curveOf(563)}))
	f.Fuzz(func(t *testing.T, profile []byte) {
		var tr *Transform
		var err error
		// Three curves, each of which may be most of the profile, and their tables.
		programtest.Within(t, program.Count(int64(3*len(profile)+1<<16)), func() { tr, err = New(profile) })
		if err != nil {
			if !errors.Is(err, ErrProfile) {
				t.Fatal(err)
			}
			return
		}
		pixels := make([]byte, 3*256)
		for i := range pixels {
			pixels[i] = byte(i * 85)
		}
		tr.Convert(pixels)
	})
}

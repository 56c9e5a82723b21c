package icc

import (
	"encoding/binary"
	"math"
)

// curve makes light of a value of 0 to 1.
type curve func(v float64) float64

// curve reads a tag of a curve: a table, or a formula.
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
	case 0:
		return func(v float64) float64 { return v }, nil
	case 1:
		g := float64(binary.BigEndian.Uint16(data)) / 256
		return func(v float64) float64 { return math.Pow(v, g) }, nil
	}
	table := make([]uint16, n)
	for i := range table {
		table[i] = binary.BigEndian.Uint16(data[2*i:])
	}
	return func(v float64) float64 {
		at := float64(v) * float64(n-1)
		i := min(int(at), int(n)-2)
		rest := at - float64(i)
		a, b := float64(table[i]), float64(table[i+1])
		return (a + float64(rest*(b-a))) / 65535
	}, nil
}

// parameters are how many numbers each kind of formula has.
var parameters = [...]int{1, 3, 4, 5, 7}

// formula is one of the functions of a parametricCurveType, in section 10.18 of the specification.
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
			return c // 0 in kind 1
		}, nil
	}
	return func(v float64) float64 {
		if v >= d {
			return power(v) + e
		}
		return float64(c*v) + f
	}, nil
}

// encode is sRGB's curve, of IEC 61966-2-1, from light to values.
func encode(v float64) float64 {
	const g, a, b, c, d = 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045
	if v <= c*d {
		return v / c
	}
	return (math.Pow(v, 1/g) - b) / a
}

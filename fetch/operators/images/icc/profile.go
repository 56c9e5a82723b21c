package icc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProfile says that a profile cannot be used.
var ErrProfile = errors.New("ICC profile")

// MaxBytes bounds a profile. Those of a matrix have some hundred to some thousand bytes.
const MaxBytes = 256 << 10

const (
	headerBytes = 128
	maxTags     = 256
)

// Space is what the pixels of a profile are.
type Space uint8

// The spaces that are converted.
const (
	RGB Space = iota + 1
	Grey
)

func (s Space) String() string {
	if s == Grey {
		return "grey"
	}
	return "RGB"
}

func wrong(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrProfile, fmt.Sprintf(format, values...))
}

// profile is the bytes of one, and where its tags lie.
type profile struct {
	data []byte
	tags []byte // of 12 bytes each
}

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

// find is where a tag lies.
func (p profile) find(name string) (offset, size uint32, ok bool) {
	for t := p.tags; len(t) > 0; t = t[12:] {
		if string(t[:4]) == name {
			return binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:]), true
		}
	}
	return 0, 0, false
}

// tag is the bytes of a tag of that type, behind its type and four that are reserved.
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

// fixed is a number of 16 bits before the point and 16 behind it.
func fixed(b []byte) float64 { return float64(int32(binary.BigEndian.Uint32(b))) / 65536 }

// column is a colour's X, Y and Z.
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

package tiff

import (
	"encoding/binary"
	"fmt"
	"io"
)

// directory is the tags of an image. Nothing of it is copied.
type directory struct {
	cell    []byte
	order   binary.ByteOrder
	big     bool
	entries []byte
}

// Recognised reports whether a file begins as a TIFF or a BigTIFF.
func Recognised(cell []byte) bool {
	if len(cell) < 4 {
		return false
	}
	switch string(cell[:4]) {
	case "II*\x00", "MM\x00*", "II+\x00", "MM\x00+":
		return true
	}
	return false
}

func (d *directory) size() int {
	if d.big {
		return 20
	}
	return 12
}

// open finds the first directory.
func (d *directory) open(cell []byte) error {
	if !Recognised(cell) || len(cell) < 8 {
		return damaged("it does not begin as a TIFF")
	}
	d.cell, d.order = cell, binary.LittleEndian
	if cell[0] == 'M' {
		d.order = binary.BigEndian
	}
	at := uint64(d.order.Uint32(cell[4:]))
	var n uint64
	if d.big = cell[2] == '+' || cell[3] == '+'; d.big {
		if len(cell) < 16 || d.order.Uint16(cell[4:]) != 8 {
			return damaged("it does not begin as a BigTIFF")
		}
		at = d.order.Uint64(cell[8:])
		if at >= uint64(len(cell)) || len(cell)-int(at) < 8 {
			return fmt.Errorf("%w: its first directory is not there: %w", ErrFormat, io.ErrUnexpectedEOF)
		}
		n = d.order.Uint64(cell[at:])
		at += 8
	} else {
		if at >= uint64(len(cell)) || len(cell)-int(at) < 2 {
			return fmt.Errorf("%w: its first directory is not there: %w", ErrFormat, io.ErrUnexpectedEOF)
		}
		n = uint64(d.order.Uint16(cell[at:]))
		at += 2
	}
	if n > uint64(len(cell)-int(at))/uint64(d.size()) {
		return damaged("it has no room for %d tags", n)
	}
	d.entries = cell[at:][:int(n)*d.size()]
	return nil
}

// values are those of a tag.
type values struct {
	data  []byte
	order binary.ByteOrder
	kind  uint16
	wide  int // bytes of each
	n     int64
}

// widths are the bytes of values, by their types.
var widths = [...]int{
	1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8,
}

// tag finds the values of a tag; of none there are no values. What the file does not have of them is left out.
func (d *directory) tag(tag uint16) (v values) {
	step := d.size()
	for rest := d.entries; len(rest) >= step; rest = rest[step:] {
		if d.order.Uint16(rest) != tag {
			continue
		}
		v.order, v.kind = d.order, d.order.Uint16(rest[2:])
		if int(v.kind) >= len(widths) || widths[v.kind] == 0 {
			return values{}
		}
		v.wide = widths[v.kind]
		n, at, inline := uint64(d.order.Uint32(rest[4:])), uint64(d.order.Uint32(rest[8:])), rest[8:12]
		if d.big {
			n, at, inline = d.order.Uint64(rest[4:]), d.order.Uint64(rest[12:]), rest[12:20]
		}
		v.data = inline
		if n > uint64(len(inline)/v.wide) {
			v.data = d.cell[min(at, uint64(len(d.cell))):]
		}
		v.n = int64(min(n, uint64(len(v.data)/v.wide)))
		v.data = v.data[:int(v.n)*v.wide]
		return v
	}
	return v
}

// at is value i, which is a whole number that is not negative, or otherwise.
func (v *values) at(i, otherwise int64) int64 {
	if i >= v.n {
		return otherwise
	}
	b := v.data[int(i)*v.wide:]
	switch v.kind {
	case 1:
		return int64(b[0])
	case 3:
		return int64(v.order.Uint16(b))
	case 4, 13:
		return int64(v.order.Uint32(b))
	case 16, 18:
		if n := int64(v.order.Uint64(b)); n >= 0 {
			return n
		}
	}
	return otherwise
}

// number is the first value of a tag.
func (d *directory) number(tag uint16, otherwise int64) int64 {
	v := d.tag(tag)
	return v.at(0, otherwise)
}

package program

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Splitter is a Program whose steps before the first random one can run on their own,
// once for all seeds and epochs.
type Splitter interface {
	Program
	// Split returns two programs that together are this one. The result of head, which
	// has no random step, is a [Between] with its header, and the input of tail. Tail's
	// steps keep their indexes, and so their random numbers; its Steps are those of the
	// whole list. Head and tail give the bytes, dimensions and random numbers of this
	// program wherever head does not fail: head may read more of a cell than this program
	// does, and find damage there. ok is false if there is nothing to split.
	Split() (head, tail Program, ok bool)
}

// Between is the state of a cell between two steps. Elements are little-endian, in
// row-major order of the kind's axes: HWC of images, CT of waveforms, CFT of
// spectrograms.
type Between struct {
	Kind Kind
	Type DType
	// Dims are the sizes, in elements.
	Dims []int
	// Rate is that of Form.
	Rate int
}

// MIMEBetween is the media type of bytes that begin with the header of a Between.
const MIMEBetween = "application/vnd.bowstring.between"

// BetweenHeader is the size of the header before the elements, in bytes. 64 keeps the
// elements aligned.
const BetweenHeader = 64

const (
	betweenMagic = "BSB1"
	// upright is Exif's number for an image that is not rotated. Decoding carries out the
	// orientation of a file, so no other number occurs.
	upright = 1
)

// betweenTypes are the element types, their sizes and the numbers of axes of each kind.
// Other combinations are refused.
var betweenTypes = map[Kind]struct {
	dtype DType
	width int64
	axes  int
}{Image: {Uint8, 1, 3}, Audio: {Float32, 4, 2}, Spectrogram: {Float32, 4, 3}}

// Size is the size of header and elements in bytes.
func (b Between) Size() int64 {
	n := betweenTypes[b.Kind].width
	for _, d := range b.Dims {
		n *= int64(d)
	}
	return BetweenHeader + n
}

// PutHeader writes the header to the first BetweenHeader bytes of a buffer, in the layout
// of docs/formats.md.
func (b Between) PutHeader(to []byte) {
	h := to[:BetweenHeader]
	clear(h)
	copy(h, betweenMagic)
	h[4], h[5], h[6], h[7] = byte(b.Kind), byte(b.Type), byte(len(b.Dims)), upright
	binary.LittleEndian.PutUint32(h[8:], uint32(b.Rate))
	for i, d := range b.Dims {
		binary.LittleEndian.PutUint32(h[16+4*i:], uint32(d))
	}
}

// ParseBetween parses and checks a header, and returns the elements after it, which are a
// part of cell. For any bytes, it allocates a constant amount. Errors are ErrDamaged.
func ParseBetween(cell []byte) (b Between, elements []byte, err error) {
	bad := func(format string, values ...any) (Between, []byte, error) {
		return Between{}, nil, fmt.Errorf("%w: data between two steps: %s", ErrDamaged,
			fmt.Sprintf(format, values...))
	}
	if len(cell) < BetweenHeader || string(cell[:4]) != betweenMagic {
		return bad("there are %d bytes; want a header of %d that begins with %s", len(cell), BetweenHeader,
			betweenMagic)
	}
	h := cell[:BetweenHeader]
	b.Kind, b.Type, b.Rate = Kind(h[4]), DType(h[5]), int(binary.LittleEndian.Uint32(h[8:]))
	want, ok := betweenTypes[b.Kind]
	if !ok || b.Type != want.dtype || int(h[6]) != want.axes {
		return bad("kind %d of type %d has %d axes", h[4], h[5], h[6])
	}
	if h[7] != upright {
		return bad("the orientation is %d; want %d", h[7], upright)
	}
	if (b.Kind == Image) != (b.Rate == 0) || b.Rate > math.MaxInt32 {
		return bad("kind %d has %d samples a second", h[4], b.Rate)
	}
	n := want.width
	for i := range want.axes {
		d := int64(binary.LittleEndian.Uint32(h[16+4*i:]))
		if d > math.MaxInt32 || d == 0 && b.Kind == Image {
			return bad("size %d is %d", i, d)
		}
		if n *= d; n > int64(len(cell)) { // both factors are below 2^31 and 2^32, so it has not wrapped
			return bad("the sizes are those of %d bytes and more, and there are %d", n, len(cell)-BetweenHeader)
		}
		b.Dims = append(b.Dims, int(d))
	}
	if n != int64(len(cell)-BetweenHeader) {
		return bad("sizes %v are those of %d bytes, and there are %d", b.Dims, n, len(cell)-BetweenHeader)
	}
	for i, v := range h {
		if unset := i >= 12 && i < 16 || i >= 16+4*want.axes; unset && v != 0 {
			return bad("byte %d is %d; want 0", i, v)
		}
	}
	return b, cell[BetweenHeader:], nil
}

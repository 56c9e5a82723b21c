package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// mdsSurvey looks at all values of a column whose encoding alone does not tell what it becomes.
type mdsSurvey interface {
	observe(b []byte) error
	// decide returns the type and the decoder of the values, or how many images each of them has.
	decide() (t arrow.DataType, decode func([]byte) (any, error), images int, err error)
}

// newMDSSurvey returns nil for an encoding that tells enough.
func newMDSSurvey(encoding string) mdsSurvey {
	name, args, _ := strings.Cut(encoding, ":")
	switch {
	case name == "str_int":
		return &surveyedInts{}
	case name == "ndarray" && !strings.Contains(args, ":"):
		return &surveyedArrays{dtype: args}
	case isMDSImages(name):
		return &surveyedImages{encoding: name}
	}
	return nil
}

// survey reads all samples, if there are columns that need it. What is wrong with a shard or a sample shows again, and
// is reported, when the samples are read.
func (s *mds) survey(ctx context.Context) error {
	needed := false
	for i := range s.columns {
		s.columns[i].survey = newMDSSurvey(s.columns[i].encoding)
		needed = needed || s.columns[i].survey != nil
	}
	if !needed {
		return nil
	}
	for _, p := range s.parts {
		for _, sh := range p.shards {
			_ = s.readShard(ctx, p, sh, func(_ int64, buf []byte, columns [][]byte, err error) bool {
				for i, c := range s.columns {
					if err == nil && c.survey != nil {
						_ = c.survey.observe(columns[i])
					}
				}
				buffers.put(buf)
				return true
			})
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// surveyedInts are whole numbers in writing, of any size: int64 if all fit, else uint64, else text.
type surveyedInts struct{ unsigned, signed, text bool }

func (s *surveyedInts) observe(b []byte) error {
	text := string(b)
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		s.signed = s.signed || strings.HasPrefix(text, "-")
		return nil
	} else if !errors.Is(err, strconv.ErrRange) {
		return err
	}
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		s.unsigned = true
	} else {
		s.text = true
	}
	return nil
}

func (s *surveyedInts) decide() (arrow.DataType, func([]byte) (any, error), int, error) {
	switch {
	case s.text || s.signed && s.unsigned:
		return arrow.BinaryTypes.String, func(b []byte) (any, error) {
			if text := string(b); isWholeText(text) {
				return text, nil
			}
			return nil, fmt.Errorf("%.40q is no whole number", b)
		}, 0, nil
	case s.unsigned:
		return arrow.PrimitiveTypes.Uint64, func(b []byte) (any, error) {
			return strconv.ParseUint(string(b), 10, 64)
		}, 0, nil
	}
	return arrow.PrimitiveTypes.Int64, func(b []byte) (any, error) {
		return strconv.ParseInt(string(b), 10, 64)
	}, 0, nil
}

// isWholeText says whether a text is digits, behind a sign or none.
func isWholeText(text string) bool {
	digits := strings.TrimLeft(text, "+-")
	return digits != "" && len(text)-len(digits) <= 1 && strings.Trim(digits, "0123456789") == ""
}

// isMDSImages says whether an encoding is that of several images a sample.
func isMDSImages(encoding string) bool {
	switch encoding {
	case "list[jpeg]", "list[png]", "jpeg_array", "jpegarray":
		return true
	}
	return false
}

// maxImages bounds the images of a sample: each image is a column.
const maxImages = 256

// surveyedImages are lists of images. A row has one blob in each column, so that they become as many columns as each
// of the lists has images.
type surveyedImages struct {
	encoding    string
	seen        bool
	least, most int
}

func (s *surveyedImages) observe(b []byte) error {
	images, err := mdsImages(s.encoding, b)
	if err != nil {
		return err
	}
	if n := len(images); !s.seen {
		s.seen, s.least, s.most = true, n, n
	} else {
		s.least, s.most = min(s.least, n), max(s.most, n)
	}
	return nil
}

func (s *surveyedImages) decide() (arrow.DataType, func([]byte) (any, error), int, error) {
	const advice = "write a sample for each image, or a column for each of a fixed number of images"
	switch {
	case s.least != s.most:
		return nil, nil, 0, fmt.Errorf("encoding %s holds between %d and %d images a sample; a row has one image in a "+
			"column: %s", s.encoding, s.least, s.most, advice)
	case s.most > maxImages:
		return nil, nil, 0, fmt.Errorf("encoding %s holds %d images a sample, which would be as many columns; want at "+
			"most %d: %s", s.encoding, s.most, maxImages, advice)
	case s.most == 0:
		return nil, nil, 0, fmt.Errorf("encoding %s holds no image", s.encoding)
	}
	return nil, nil, s.most, nil
}

// mdsImages divides a list of images. They lie in b.
func mdsImages(encoding string, b []byte) ([][]byte, error) {
	if strings.HasPrefix(encoding, "list[") {
		if len(b) < 4 {
			return nil, fmt.Errorf("%w: %d bytes hold no list", errCut, len(b))
		}
		b = b[4:] // reserved
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: it does not say how many images there are", errCut)
	}
	n := int64(binary.LittleEndian.Uint32(b))
	if n > int64(len(b)-4)/4 {
		return nil, fmt.Errorf("%w: %d bytes do not hold the sizes of %d images", errCut, len(b), n)
	}
	sizes, rest := b[4:4+4*n], b[4+4*n:]
	images := make([][]byte, 0, n)
	for ; len(sizes) > 0; sizes = sizes[4:] {
		size := int64(binary.LittleEndian.Uint32(sizes))
		if size > int64(len(rest)) {
			return nil, fmt.Errorf("%w: image %d has %d bytes and only %d are left", errCut, len(images), size,
				len(rest))
		}
		images = append(images, rest[:size:size])
		rest = rest[size:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes lie behind its images", len(rest))
	}
	return images, nil
}

// mdsDtypes are the types of an array's values by the numbers that stand in its first byte.
var mdsDtypes = map[byte]string{8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32",
	33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64"}

// surveyedArrays are arrays that state their own shapes, and their types unless dtype states it. They become nested
// lists, if all have as many dimensions and one type.
type surveyedArrays struct {
	dtype string // "" where each array has its own
	seen  bool
	found string // type
	ndim  int
	other string // what another array is
}

func (s *surveyedArrays) observe(b []byte) error {
	dtype, dims, _, err := splitArray(s.dtype, b)
	if err != nil {
		return err
	}
	switch {
	case !s.seen:
		s.seen, s.found, s.ndim = true, dtype, len(dims)
	case s.other == "" && (dtype != s.found || len(dims) != s.ndim):
		s.other = fmt.Sprintf("%s of %d dimensions", dtype, len(dims))
	}
	return nil
}

func (s *surveyedArrays) decide() (arrow.DataType, func([]byte) (any, error), int, error) {
	if s.other != "" {
		return nil, nil, 0, fmt.Errorf("encoding ndarray holds %s of %d dimensions and %s, and a column has one type; "+
			"write arrays of one type and number of dimensions, or bytes", s.found, s.ndim, s.other)
	}
	if !s.seen {
		return nil, nil, 0, errors.New("encoding ndarray holds no array that can be read")
	}
	scalar := mdsScalars[s.found]
	t := scalar.typ
	for range s.ndim {
		t = arrow.ListOf(t)
	}
	return t, func(b []byte) (any, error) {
		dtype, dims, values, err := splitArray(s.dtype, b)
		if err != nil {
			return nil, err
		}
		if dtype != s.found || len(dims) != s.ndim {
			return nil, fmt.Errorf("%s of %d dimensions, not %s of %d as before", dtype, len(dims), s.found, s.ndim)
		}
		return nest(values, dims, scalar), nil
	}, 0, nil
}

// splitArray reads what stands before the values of an array: their type, unless it is known, and the shape.
func splitArray(dtype string, b []byte) (string, []int, []byte, error) {
	all := len(b)
	if dtype == "" {
		if len(b) == 0 {
			return "", nil, nil, fmt.Errorf("%w: an array without a type", errCut)
		}
		if dtype = mdsDtypes[b[0]]; dtype == "" {
			return "", nil, nil, fmt.Errorf("an array of unknown type %d", b[0])
		}
		b = b[1:]
	}
	scalar, ok := mdsScalars[dtype]
	if !ok {
		return "", nil, nil, fmt.Errorf("encoding ndarray:%s is of unknown type", dtype)
	}
	if len(b) == 0 {
		return "", nil, nil, fmt.Errorf("%w: an array without a shape", errCut)
	}
	ndim, width := int(b[0]>>2), 1<<(b[0]&3)
	b = b[1:]
	switch {
	case ndim == 0 || ndim > maxDepth:
		return "", nil, nil, fmt.Errorf("an array of %d dimensions; want 1 to %d", ndim, maxDepth)
	case len(b) < ndim*width:
		return "", nil, nil, fmt.Errorf("%w: %d bytes do not hold the shape of %d dimensions", errCut, all, ndim)
	}
	dims, total := make([]int, ndim), uint64(scalar.size)
	for i := range dims {
		var eight [8]byte
		copy(eight[:], b[i*width:(i+1)*width])
		n := binary.LittleEndian.Uint64(eight[:])
		if n == 0 || n > math.MaxInt32 || total*n > maxText {
			return "", nil, nil, errors.New("an impossible shape, or more than metadata may have")
		}
		dims[i], total = int(n), total*n
	}
	if b = b[ndim*width:]; uint64(len(b)) != total {
		return "", nil, nil, fmt.Errorf("%d bytes of values, want the %d of shape %v of %s", len(b), total, dims, dtype)
	}
	return dtype, dims, b, nil
}

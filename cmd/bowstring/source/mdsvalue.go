package source

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/float16"
)

// mdsDecoder returns the type and the decoder of an MDS encoding. A nil type
// means that the bytes are a blob as they are.
func mdsDecoder(encoding string) (arrow.DataType, func([]byte) (any, error), error) {
	name, args, _ := strings.Cut(encoding, ":")
	switch name {
	case "bytes", "jpeg", "png":
		return nil, nil, nil
	case "str", "str_decimal":
		return arrow.BinaryTypes.String, func(b []byte) (any, error) { return string(b), nil }, nil
	case "json": // kept as it is written
		return arrow.BinaryTypes.String, func(b []byte) (any, error) {
			if !json.Valid(b) {
				return nil, errors.New("bad JSON")
			}
			return string(b), nil
		}, nil
	case "str_float":
		return arrow.PrimitiveTypes.Float64, func(b []byte) (any, error) {
			return strconv.ParseFloat(string(b), 64)
		}, nil
	case "int":
		name = "int64"
	case "ndarray":
		return mdsArray(args)
	case "pkl":
		return nil, nil, errors.New("encoding pkl is pickle, which runs whatever code it holds, and is refused; " +
			"write the column as json, bytes or ndarray")
	case "pil", "list[pil]":
		return nil, nil, fmt.Errorf("encoding %s is bare pixels; write the column as png or jpeg, or as list[png] or "+
			"list[jpeg]", encoding)
	}
	if s, ok := mdsScalars[name]; ok {
		return s.typ, func(b []byte) (any, error) {
			if len(b) != s.size {
				return nil, fmt.Errorf("%d bytes, want the %d of %s", len(b), s.size, name)
			}
			return s.read(b), nil
		}, nil
	}
	return nil, nil, fmt.Errorf("encoding %q cannot be imported; want bytes, jpeg, png, list[jpeg], list[png], "+
		"jpeg_array, str, json, int, str_int, str_float, str_decimal, int8 to int64, uint8 to uint64, float16 to "+
		"float64, ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE", encoding)
}

type mdsScalar struct {
	typ  arrow.DataType
	size int
	read func([]byte) any // little-endian
}

var mdsScalars = map[string]mdsScalar{
	"int8":   {arrow.PrimitiveTypes.Int8, 1, func(b []byte) any { return int8(b[0]) }},
	"int16":  {arrow.PrimitiveTypes.Int16, 2, func(b []byte) any { return int16(binary.LittleEndian.Uint16(b)) }},
	"int32":  {arrow.PrimitiveTypes.Int32, 4, func(b []byte) any { return int32(binary.LittleEndian.Uint32(b)) }},
	"int64":  {arrow.PrimitiveTypes.Int64, 8, func(b []byte) any { return int64(binary.LittleEndian.Uint64(b)) }},
	"uint8":  {arrow.PrimitiveTypes.Uint8, 1, func(b []byte) any { return b[0] }},
	"uint16": {arrow.PrimitiveTypes.Uint16, 2, func(b []byte) any { return binary.LittleEndian.Uint16(b) }},
	"uint32": {arrow.PrimitiveTypes.Uint32, 4, func(b []byte) any { return binary.LittleEndian.Uint32(b) }},
	"uint64": {arrow.PrimitiveTypes.Uint64, 8, func(b []byte) any { return binary.LittleEndian.Uint64(b) }},
	"float16": {arrow.FixedWidthTypes.Float16, 2, func(b []byte) any {
		return float16.FromBits(binary.LittleEndian.Uint16(b))
	}},
	"float32": {arrow.PrimitiveTypes.Float32, 4, func(b []byte) any {
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}},
	"float64": {arrow.PrimitiveTypes.Float64, 8, func(b []byte) any {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}},
}

// mdsArray decodes an ndarray of a fixed type and shape as nested lists of fixed size.
func mdsArray(args string) (arrow.DataType, func([]byte) (any, error), error) {
	dtype, shape, fixed := strings.Cut(args, ":")
	s, ok := mdsScalars[dtype]
	if !ok || !fixed {
		return nil, nil, fmt.Errorf("encoding ndarray:%s says no type and shape that all samples have; want "+
			"ndarray:DTYPE:SHAPE, such as ndarray:float32:3,4, or bytes", args)
	}
	var dims []int
	total := s.size
	for d := range strings.SplitSeq(shape, ",") {
		n, err := strconv.Atoi(d)
		if err != nil || n < 1 || n > maxText/total {
			return nil, nil, fmt.Errorf("encoding ndarray:%s has an impossible shape, or more than the %d bytes that "+
				"metadata may have", args, maxText)
		}
		dims = append(dims, n)
		total *= n
	}
	typ := s.typ
	for i := len(dims) - 1; i >= 0; i-- {
		typ = arrow.FixedSizeListOf(int32(dims[i]), typ)
	}
	return typ, func(b []byte) (any, error) {
		if len(b) != total {
			return nil, fmt.Errorf("%d bytes, want the %d of ndarray:%s", len(b), total, args)
		}
		return nest(b, dims, s), nil
	}, nil
}

func nest(b []byte, dims []int, s mdsScalar) any {
	if len(dims) == 0 {
		return s.read(b)
	}
	list := make([]any, dims[0])
	step := len(b) / dims[0]
	for i := range list {
		list[i] = nest(b[i*step:(i+1)*step], dims[1:], s)
	}
	return list
}

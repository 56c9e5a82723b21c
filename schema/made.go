package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// Names of virtual columns that describe cells made by operators.
const (
	// ParamsPart names the column image.params, a utf8: the random parameters of the
	// cell, as JSON.
	ParamsPart = "params"
	// LengthPart names the column audio.length, an int64: the cell's size along the first
	// axis that differs between cells.
	LengthPart = "length"
)

const (
	fixedTensorName    = "arrow.fixed_shape_tensor"
	variableTensorName = "arrow.variable_shape_tensor"
	// madeKey is the metadata key of a field that operators have made; its value is a
	// MadeForm as JSON.
	madeKey = "bowstring.made"
)

// MadeForm describes the cells that operators make of a column, as far as it is known
// before the cells are read.
type MadeForm struct {
	// Kind is "image", "audio", "spectrogram" or "encoded".
	Kind string `json:"kind"`
	// DType is "uint8", "uint16", "int16", "float16" or "float32"; "" of encoded bytes.
	DType string `json:"dtype,omitempty"`
	// Shape has the sizes along Axes, in elements; nil where they differ between cells.
	Shape []*int `json:"shape,omitempty"`
	// Axes are letters: H, W and C of images, T (time) and F (frequency) of sound.
	Axes string `json:"axes,omitempty"`
	// Rate is in samples a second.
	Rate int `json:"rate,omitempty"`
	// MIME is the media type of encoded bytes, if it is known.
	MIME string `json:"mime,omitempty"`
	// Contract is the version of the rules for the bytes of results.
	Contract string `json:"contract"`
}

// elements are the types of tensors' elements.
var elements = map[string]arrow.DataType{
	"uint8": arrow.PrimitiveTypes.Uint8, "uint16": arrow.PrimitiveTypes.Uint16, "int16": arrow.PrimitiveTypes.Int16,
	"float16": arrow.FixedWidthTypes.Float16, "float32": arrow.PrimitiveTypes.Float32,
}

// Encoded reports whether cells are the bytes of a file, and no tensors.
func (f *MadeForm) Encoded() bool { return f.DType == "" }

// Elements is the number of elements of a cell; -1 if cells differ or are encoded.
func (f *MadeForm) Elements() int64 {
	if f.Encoded() {
		return -1
	}
	n := int64(1)
	for _, d := range f.Shape {
		if d == nil {
			return -1
		}
		n *= int64(*d)
	}
	return n
}

// CellBytes is the size of each cell in bytes; -1 if cells differ.
func (f *MadeForm) CellBytes() int64 {
	n := f.Elements()
	if n < 0 {
		return -1
	}
	return n * f.ElementBytes()
}

// ElementBytes is the size of an element of a tensor.
func (f *MadeForm) ElementBytes() int64 {
	return int64(elements[f.DType].(arrow.FixedWidthDataType).Bytes())
}

// ragged is the index of the first axis along which cells differ; -1 if there is none.
func (f *MadeForm) ragged() int { return slices.Index(f.Shape, nil) }

// Check returns an ErrInvalid or ErrLimit if no column can have the form.
func (f *MadeForm) Check() error {
	if f.Encoded() {
		return nil
	}
	if elements[f.DType] == nil || len(f.Shape) == 0 || len(f.Shape) != len(f.Axes) {
		return fmt.Errorf("%w: a tensor of %q with %d sizes along axes %q", ErrInvalid, f.DType, len(f.Shape), f.Axes)
	}
	n := f.ElementBytes()
	for _, d := range f.Shape {
		if d == nil {
			continue
		}
		if *d < 1 || int64(*d) > MaxBatchBytes/n {
			return fmt.Errorf("%w: a tensor of more than %d bytes, or of none", ErrLimit, MaxBatchBytes)
		}
		n *= int64(*d)
	}
	return nil
}

// field is the field of a column of that form: arrow.fixed_shape_tensor,
// arrow.variable_shape_tensor, or a column of bytes. blob is the field of the blobs that
// it is made of.
func (f *MadeForm) field(blob arrow.Field, layout Layout) arrow.Field {
	about := string(marshal(f))
	if f.Encoded() {
		blob.Metadata = arrow.NewMetadata(append(slices.Clone(blob.Metadata.Keys()), madeKey),
			append(slices.Clone(blob.Metadata.Values()), about))
		if layout == LayoutBinary {
			blob.Type = arrow.BinaryTypes.Binary
		}
		return blob
	}
	names := strings.Split(f.Axes, "")
	elem := elements[f.DType]
	out := arrow.Field{Name: blob.Name, Nullable: true}
	var extension string
	var parameters map[string]any
	if n := f.Elements(); n >= 0 {
		out.Type = arrow.FixedSizeListOf(int32(n), elem)
		extension, parameters = fixedTensorName, map[string]any{"shape": f.Shape, "dim_names": names}
	} else {
		out.Type = arrow.StructOf(
			arrow.Field{Name: "data", Type: arrow.ListOf(elem), Nullable: true},
			arrow.Field{Name: "shape", Type: arrow.FixedSizeListOf(int32(len(f.Shape)), arrow.PrimitiveTypes.Int32),
				Nullable: true},
		)
		extension, parameters = variableTensorName, map[string]any{"uniform_shape": f.Shape, "dim_names": names}
	}
	text, err := json.Marshal(parameters)
	if err != nil {
		panic(err) // numbers and letters
	}
	out.Metadata = arrow.NewMetadata([]string{extensionNameKey, extensionMetaKey, madeKey},
		[]string{extension, string(text), about})
	return out
}

// IsTensor reports whether a field has tensors, of one shape or of several.
func IsTensor(f arrow.Field) bool {
	name := fieldMeta(f, extensionNameKey)
	return name == fixedTensorName || name == variableTensorName
}

// MadeCell describes a cell that operators have made, in addition to its bytes.
type MadeCell struct {
	// Shape has a size for each axis; nil of encoded bytes.
	Shape []int32
	// Params are the random parameters, as JSON.
	Params []byte
}

// Maker is an Owner of cells that operators have made.
type Maker interface {
	Owner
	// Made describes the cell. The result does not change, and is valid as long as the
	// cell.
	Made() *MadeCell
}

// Made describes the cell; nil if no operators made it. It must not be called after
// Release.
func (b *Blob) Made() *MadeCell {
	if m, ok := b.owner.(Maker); ok {
		return m.Made()
	}
	return nil
}

// MadePart resolves the name of a virtual column that describes what operators made of a
// blob column, as BlobPart does.
func MadePart(s *arrow.Schema, made map[string]*MadeForm, name string) (column, part string, ok bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 || s.HasField(name) || made[name[:dot]] == nil {
		return "", "", false
	}
	column, part = name[:dot], name[dot+1:]
	return column, part, part == ParamsPart || part == LengthPart && made[column].ragged() >= 0
}

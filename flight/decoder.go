package flight

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"runtime"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"bowstring/schema"
)

// decoder takes the nodes and buffers of one batch in order.
type decoder struct {
	in             *incoming
	body           []byte
	nodes, buffers []byte // pairs of 64-bit integers
	codec          int8
	inflated       int64 // bytes decompressed so far
}

// decoder begins with a record batch.
func (in *incoming) decoder(t *flatbuffers.Table, body []byte) (*decoder, int64, error) {
	rows := t.GetInt64Slot(slotBatchRows, 0)
	if rows < 0 {
		return nil, 0, fmt.Errorf("%w: a record batch has %d rows", schema.ErrInvalid, rows)
	}
	if rows > int64(in.opts.MaxBatchRows) {
		return nil, 0, fmt.Errorf("%w: a record batch has %d rows, MaxBatchRows is %d; send smaller record batches",
			schema.ErrLimit, rows, in.opts.MaxBatchRows)
	}
	d := &decoder{in: in, body: body, nodes: pairsOf(t, slotBatchNodes), buffers: pairsOf(t, slotBatchBuffers),
		codec: notCompressed}
	if at := flatbuffers.UOffsetT(t.Offset(slotBatchCompression)); at != 0 {
		c := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + at)}
		d.codec = c.GetInt8Slot(slotCodec, 0)
	}
	return d, rows, nil
}

// pairsOf returns a vector of structs of two 64-bit integers.
func pairsOf(t *flatbuffers.Table, slot flatbuffers.VOffsetT) []byte {
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return nil
	}
	start := int(t.Vector(at))
	return t.Bytes[start : start+16*t.VectorLen(at)]
}

func takePair(list *[]byte) (a, b int64, ok bool) {
	if len(*list) < 16 {
		return 0, 0, false
	}
	a = int64(binary.LittleEndian.Uint64(*list))
	b = int64(binary.LittleEndian.Uint64((*list)[8:]))
	*list = (*list)[16:]
	return a, b, true
}

// end checks that all there was belongs to a column.
func (d *decoder) end() error {
	if len(d.nodes) > 0 || len(d.buffers) > 0 {
		return fmt.Errorf("%w: a record batch has more columns than its schema", schema.ErrInvalid)
	}
	return nil
}

// bytes returns the next buffer, decompressed.
func (d *decoder) bytes() ([]byte, error) {
	at, n, ok := takePair(&d.buffers)
	if !ok {
		return nil, fmt.Errorf("%w: a record batch has fewer buffers than its schema", schema.ErrInvalid)
	}
	if at < 0 || n < 0 || at > int64(len(d.body)) || n > int64(len(d.body))-at {
		return nil, fmt.Errorf("%w: a buffer lies at %d, of %d bytes, in a body of %d", schema.ErrInvalid, at, n,
			len(d.body))
	}
	b := d.body[at : at+n : at+n]
	if d.codec != notCompressed && n > 0 {
		return d.inflate(b)
	}
	return d.place(b)
}

// array reads the next column of rows rows, -1 for any number.
func (d *decoder) array(dt arrow.DataType, rows int64) (arrow.Array, error) {
	data, err := d.data(storageType(dt), rows)
	if err != nil {
		return nil, err
	}
	return array.MakeFromData(data), nil
}

func (d *decoder) data(dt arrow.DataType, rows int64) (arrow.ArrayData, error) {
	length, nulls, ok := takePair(&d.nodes)
	if !ok {
		return nil, fmt.Errorf("%w: a record batch has fewer columns than its schema", schema.ErrInvalid)
	}
	if length < 0 || length > math.MaxInt32 || rows >= 0 && length != rows {
		return nil, fmt.Errorf("%w: it has %d rows, its batch %d", schema.ErrInvalid, length, rows)
	}
	if nulls < 0 || nulls > length {
		return nil, fmt.Errorf("%w: it counts %d nulls in %d rows", schema.ErrInvalid, nulls, length)
	}
	var buffers []*memory.Buffer
	add := func(b []byte) { buffers = append(buffers, memory.NewBufferBytes(b)) }
	validity, err := d.bytes()
	if err != nil {
		return nil, err
	}
	if nulls == 0 {
		buffers = append(buffers, nil)
	} else {
		if int64(len(validity)) < (length+7)/8 {
			return nil, fmt.Errorf("%w: its validity bitmap has %d bytes for %d rows", schema.ErrInvalid, len(validity),
				length)
		}
		nulls = length - int64(bitutil.CountSetBits(validity, 0, int(length)))
		add(validity)
	}
	var children []arrow.ArrayData
	child := func(dt arrow.DataType, rows int64) error {
		c, err := d.data(storageType(dt), rows)
		children = append(children, c)
		return err
	}
	switch dt := dt.(type) {
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		offsets, err := d.bytes()
		if err != nil {
			return nil, err
		}
		values, err := d.bytes()
		if err != nil {
			return nil, err
		}
		width := 4
		if id := dt.ID(); id == arrow.LARGE_STRING || id == arrow.LARGE_BINARY {
			width = 8
		}
		if err := checkOffsets(offsets, width, length, int64(len(values))); err != nil {
			return nil, err
		}
		add(offsets)
		add(values)
	case *arrow.ListType:
		offsets, err := d.bytes()
		if err != nil {
			return nil, err
		}
		if err := child(dt.Elem(), -1); err != nil {
			return nil, err
		}
		if err := checkOffsets(offsets, 4, length, int64(children[0].Len())); err != nil {
			return nil, err
		}
		add(offsets)
	case *arrow.FixedSizeListType:
		items, err := product(length, int64(dt.Len()), dt)
		if err != nil {
			return nil, err
		}
		if err := child(dt.Elem(), items); err != nil {
			return nil, err
		}
	case *arrow.StructType:
		if dt.NumFields() == 0 {
			return nil, noBytes(dt)
		}
		for _, f := range dt.Fields() {
			if err := child(f.Type, length); err != nil {
				return nil, fmt.Errorf("field %q: %w", f.Name, err)
			}
		}
	case arrow.FixedWidthDataType:
		width, err := product(length, int64(dt.BitWidth()), dt)
		if err != nil {
			return nil, err
		}
		values, err := d.bytes()
		if err != nil {
			return nil, err
		}
		if want := (width + 7) / 8; int64(len(values)) < want {
			return nil, fmt.Errorf("%w: its values have %d bytes, %d rows need %d", schema.ErrInvalid, len(values),
				length, want)
		}
		add(values)
	default:
		return nil, fmt.Errorf("%w: type %s is not supported", schema.ErrInvalid, schema.ShownType(dt))
	}
	return array.NewData(dt, int(length), buffers, children, int(nulls), 0), nil
}

// product is rows times what each takes, which is more than nothing: what takes
// no bytes may claim any number of rows.
func product(rows, each int64, dt arrow.DataType) (int64, error) {
	if each < 1 {
		return 0, noBytes(dt)
	}
	hi, lo := bits.Mul64(uint64(rows), uint64(each))
	if hi != 0 || lo > math.MaxInt64/2 {
		return 0, fmt.Errorf("%w: %d rows of %s are more than there can be", schema.ErrInvalid, rows,
			schema.ShownType(dt))
	}
	return int64(lo), nil
}

func noBytes(dt arrow.DataType) error {
	return fmt.Errorf("%w: values of type %s take no bytes; want a type of some width", schema.ErrInvalid, schema.ShownType(dt))
}

// checkOffsets checks the offsets of a list or binary array into limit items or bytes.
func checkOffsets(b []byte, width int, rows, limit int64) error {
	if rows == 0 {
		return nil
	}
	if int64(len(b)) < (rows+1)*int64(width) {
		return fmt.Errorf("%w: its offsets do not suffice for %d rows", schema.ErrInvalid, rows)
	}
	last := int64(0)
	for i := 0; i <= int(rows); i++ {
		var at int64
		if width == 4 {
			at = int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
		} else {
			at = int64(binary.LittleEndian.Uint64(b[8*i:]))
		}
		if at < last || at > limit {
			return fmt.Errorf("%w: offset %d follows %d, of %d", schema.ErrInvalid, at, last, limit)
		}
		last = at
	}
	return nil
}

// storageType is what values of an extension type are stored as.
func storageType(t arrow.DataType) arrow.DataType {
	if e, ok := t.(arrow.ExtensionType); ok {
		return storageType(e.StorageType())
	}
	return t
}

// brokenFlatbuffer makes an error of the panic of a flatbuffer that leads out of
// itself, which is read without checks.
func brokenFlatbuffer(p any, err error) error {
	if p == nil {
		return err
	}
	if _, ok := p.(runtime.Error); !ok {
		panic(p)
	}
	return fmt.Errorf("%w: the header of a message is broken: it leads out of itself", schema.ErrInvalid)
}

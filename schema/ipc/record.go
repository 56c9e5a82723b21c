package ipc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const (
	slotBatchRows        = 4
	slotBatchNodes       = 6
	slotBatchBuffers     = 8
	slotBatchCompression = 10
	slotCodec            = 4
)

// Codecs of compressed record batches, as in Message.fbs.
const (
	notCompressed = -1
	codecLZ4      = 0
	codecZstd     = 1
	// sizePrefix is the length of the size before each compressed buffer.
	sizePrefix = 8
)

// Options bound the reading of record batches.
type Options struct {
	// MaxBatchRows is how many rows a batch may have.
	MaxBatchRows int
	// MaxMessageBytes is half of the size that a batch may have after decompression; 0
	// refuses compressed batches.
	MaxMessageBytes int
	// Strict refuses wrong counts of nulls. Otherwise they are corrected.
	Strict bool
	// Memory counts what is made of a message, Kept what outlives the message.
	Memory, Kept Memory
	// Work runs CPU work that takes long, such as decompression.
	Work func(func() error) error
}

// decoder reads the nodes and buffers of one batch, in order.
type decoder struct {
	o              *Options
	body           []byte
	nodes, buffers []byte // pairs of 64-bit integers
	codec          int8
	inflated       int64 // bytes decompressed so far
}

// decoder begins reading a record batch, and checks its number of rows.
func (o *Options) decoder(t *flatbuffers.Table, body []byte) (*decoder, int64, error) {
	rows := t.GetInt64Slot(slotBatchRows, 0)
	if rows < 0 {
		return nil, 0, broken("a record batch has %d rows", rows)
	}
	if rows > int64(o.MaxBatchRows) {
		return nil, 0, tooMuch("a record batch has %d rows, MaxBatchRows is %d; send smaller record batches", rows,
			o.MaxBatchRows)
	}
	d := &decoder{o: o, body: body, nodes: pairsOf(t, slotBatchNodes), buffers: pairsOf(t, slotBatchBuffers),
		codec: notCompressed}
	if at := flatbuffers.UOffsetT(t.Offset(slotBatchCompression)); at != 0 {
		if o.MaxMessageBytes == 0 {
			return nil, 0, broken("a record batch is compressed, want a plain one")
		}
		c := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + at)}
		d.codec = c.GetInt8Slot(slotCodec, 0)
	}
	return d, rows, nil
}

// pairsOf returns the bytes of a vector of structs of two 64-bit integers.
func pairsOf(t *flatbuffers.Table, slot flatbuffers.VOffsetT) []byte {
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return nil
	}
	start := int(t.Vector(at))
	return t.Bytes[start : start+16*t.VectorLen(at)]
}

// takePair removes the first pair of a vector.
func takePair(list *[]byte) (a, b int64, ok bool) {
	if len(*list) < 16 {
		return 0, 0, false
	}
	a = int64(binary.LittleEndian.Uint64(*list))
	b = int64(binary.LittleEndian.Uint64((*list)[8:]))
	*list = (*list)[16:]
	return a, b, true
}

// end checks that every node and buffer belonged to a column.
func (d *decoder) end() error {
	if len(d.nodes) > 0 || len(d.buffers) > 0 {
		return broken("a record batch has more columns than its schema")
	}
	return nil
}

// bytes returns the next buffer, decompressed.
func (d *decoder) bytes() ([]byte, error) {
	at, n, ok := takePair(&d.buffers)
	if !ok {
		return nil, broken("a record batch has fewer buffers than its schema")
	}
	if at < 0 || n < 0 || at > int64(len(d.body)) || n > int64(len(d.body))-at {
		return nil, broken("a buffer is at %d, of %d bytes, in a body of %d", at, n,
			len(d.body))
	}
	b := d.body[at : at+n : at+n]
	if d.codec != notCompressed && n > 0 {
		return d.inflate(b)
	}
	return d.place(b)
}

// Column is a column of a record batch, read in place: its slices are parts of the
// message's body, or of decompressed buffers. Everything that they refer to was checked
// to be inside.
type Column struct {
	Type     arrow.DataType // type of the stored values
	Rows     int
	Nulls    int
	Validity []byte // a bit for each row; nil if no row is null
	Offsets  []byte // of texts, bytes and lists: Rows+1 integers of 4 or 8 bytes
	Values   []byte // of all types except lists and structs
	Children []Column
}

// Data is the column in the form of the Arrow library, over the same memory. It needs no
// Release.
func (c *Column) Data() arrow.ArrayData {
	buffers := make([]*memory.Buffer, 1, 3)
	if c.Validity != nil {
		buffers[0] = memory.NewBufferBytes(c.Validity)
	}
	if c.Offsets != nil {
		buffers = append(buffers, memory.NewBufferBytes(c.Offsets))
	}
	if c.Children == nil {
		buffers = append(buffers, memory.NewBufferBytes(c.Values))
	}
	children := make([]arrow.ArrayData, len(c.Children))
	for i := range c.Children {
		children[i] = c.Children[i].Data()
	}
	return array.NewData(c.Type, c.Rows, buffers, children, c.Nulls, 0)
}

// array reads the next column of rows rows, or of any number if rows is -1.
func (d *decoder) array(dt arrow.DataType, rows int64) (arrow.Array, error) {
	var c Column
	if err := d.column(&c, dt, rows); err != nil {
		return nil, err
	}
	return array.MakeFromData(c.Data()), nil
}

// column reads the next column of a type. rows is as for array. The null count is
// verified, because wrong counts would make readers skip the bitmap.
func (d *decoder) column(c *Column, dt arrow.DataType, rows int64) error {
	length, nulls, ok := takePair(&d.nodes)
	if !ok {
		return broken("a record batch has fewer columns than its schema")
	}
	if length < 0 || length > math.MaxInt32 || rows >= 0 && length != rows {
		return broken("it has %d rows, its batch %d", length, rows)
	}
	if nulls < 0 || nulls > length {
		return broken("it counts %d nulls in %d rows", nulls, length)
	}
	c.Type, c.Rows = Storage(dt), int(length)
	validity, err := d.bytes()
	if err != nil {
		return err
	}
	if nulls > 0 {
		if int64(len(validity)) < (length+7)/8 {
			return broken("its validity bitmap has %d bytes for %d rows", len(validity), length)
		}
		counted := length - int64(bitutil.CountSetBits(validity, 0, int(length)))
		if d.o.Strict && counted != nulls {
			return broken("it counts %d nulls, its validity bitmap has %d", nulls, counted)
		}
		c.Nulls, c.Validity = int(counted), validity
	}
	return d.values(c, length)
}

// values reads the buffers and children of a column, after its validity.
func (d *decoder) values(c *Column, length int64) (err error) {
	switch dt := c.Type.(type) {
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		if c.Offsets, err = d.bytes(); err != nil {
			return err
		}
		if c.Values, err = d.bytes(); err != nil {
			return err
		}
		width := 4
		if id := dt.ID(); id == arrow.LARGE_STRING || id == arrow.LARGE_BINARY {
			width = 8
		}
		c.Offsets, err = offsets(c.Offsets, width, length, int64(len(c.Values)))
		return err
	case *arrow.ListType:
		if c.Offsets, err = d.bytes(); err != nil {
			return err
		}
		c.Children = make([]Column, 1)
		if err := d.column(&c.Children[0], dt.Elem(), -1); err != nil {
			return err
		}
		c.Offsets, err = offsets(c.Offsets, 4, length, int64(c.Children[0].Rows))
		return err
	case *arrow.FixedSizeListType:
		items, err := product(length, int64(dt.Len()), dt)
		if err != nil {
			return err
		}
		c.Children = make([]Column, 1)
		return d.column(&c.Children[0], dt.Elem(), items)
	case *arrow.StructType:
		if dt.NumFields() == 0 {
			return noBytes(dt)
		}
		c.Children = make([]Column, dt.NumFields())
		for i := range c.Children {
			if err := d.column(&c.Children[i], dt.Field(i).Type, length); err != nil {
				return fmt.Errorf("field %q: %w", dt.Field(i).Name, err)
			}
		}
		return nil
	case arrow.FixedWidthDataType:
		width, err := product(length, int64(dt.BitWidth()), dt)
		if err != nil {
			return err
		}
		if c.Values, err = d.bytes(); err != nil {
			return err
		}
		want := (width + 7) / 8
		if int64(len(c.Values)) < want {
			return broken("its values have %d bytes, %d rows need %d", len(c.Values), length, want)
		}
		c.Values = c.Values[:want]
		return nil
	default:
		return broken("type %s is not supported", shown(dt))
	}
}

// ReadColumns reads a record batch of a schema without dictionaries, and returns its
// number of rows. The columns are in place.
func (o *Options) ReadColumns(s *arrow.Schema, head, body []byte) (columns []Column, rows int, err error) {
	defer func() { err = leadsOut(recover(), err) }()
	kind, t, _, err := header(head)
	if err != nil {
		return nil, 0, err
	}
	if kind != kindBatch {
		return nil, 0, broken("a message of type %d comes where a record batch does", kind)
	}
	d, n, err := o.decoder(&t, body)
	if err != nil {
		return nil, 0, err
	}
	columns = make([]Column, s.NumFields())
	for i := range columns {
		if err := d.column(&columns[i], s.Field(i).Type, n); err != nil {
			return nil, 0, fmt.Errorf("column %q: %w", s.Field(i).Name, err)
		}
	}
	return columns, int(n), d.end()
}

// product is rows times the size of each, which must be positive: values without bytes
// could claim any number of rows.
func product(rows, each int64, dt arrow.DataType) (int64, error) {
	if each < 1 {
		return 0, noBytes(dt)
	}
	hi, lo := bits.Mul64(uint64(rows), uint64(each))
	if hi != 0 || lo > math.MaxInt64/2 {
		return 0, broken("%d rows of %s are more than there can be", rows,
			shown(dt))
	}
	return int64(lo), nil
}

func noBytes(dt arrow.DataType) error {
	return broken("values of type %s take no bytes; want a type of some width", shown(dt))
}

// offsets returns the rows+1 offsets, of width bytes each, of a list or binary array with
// limit items or bytes.
func offsets(b []byte, width int, rows, limit int64) ([]byte, error) {
	if rows == 0 && len(b) == 0 {
		return make([]byte, width), nil // the format permits leaving out the single offset
	}
	if int64(len(b)) < (rows+1)*int64(width) {
		return nil, broken("its offsets do not suffice for %d rows", rows)
	}
	b = b[:(rows+1)*int64(width)]
	if width == 4 {
		return b, ascend(unsafe.Slice((*int32)(unsafe.Pointer(&b[0])), rows+1), limit)
	}
	return b, ascend(unsafe.Slice((*int64)(unsafe.Pointer(&b[0])), rows+1), limit)
}

// ascend checks that offsets do not descend, from 0 or more up to limit.
func ascend[T int32 | int64](list []T, limit int64) error {
	last := list[0]
	descends := last < 0
	for _, at := range list {
		descends = descends || at < last
		last = at
	}
	if descends || int64(last) > limit {
		return broken("its offsets do not ascend from 0 to %d", limit)
	}
	return nil
}

// Storage is the type in which values of an extension type are stored.
func Storage(t arrow.DataType) arrow.DataType {
	if e, ok := t.(arrow.ExtensionType); ok {
		return Storage(e.StorageType())
	}
	return t
}

// shown is a type in an error, cut off: its name may be as long as its message.
func shown(dt arrow.DataType) string { return fmt.Sprintf("%.100s", dt) }

// zstdDecoder decodes whole buffers into memory of a given size, whatever window or
// content size a frame claims. It has no goroutines.
var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // the options are right or wrong for good
	}
	return d
})

// inflate decompresses a buffer. The size that it claims is counted and bounded before
// anything is allocated.
func (d *decoder) inflate(b []byte) ([]byte, error) {
	if len(b) < sizePrefix {
		return nil, broken("a compressed buffer has %d bytes, its size alone takes %d", len(b), sizePrefix)
	}
	n := int64(binary.LittleEndian.Uint64(b))
	b = b[sizePrefix:]
	if n == -1 { // stored without compression, as it would not shrink
		return d.place(b)
	}
	if n < 0 {
		return nil, broken("a compressed buffer claims %d bytes", n)
	}
	if most := 2 * int64(d.o.MaxMessageBytes); n > most-d.inflated {
		return nil, tooMuch("a record batch, decompressed, takes more than twice MaxMessageBytes, which is %d", most/2)
	}
	d.inflated += n
	if err := d.o.Memory.Grow(n); err != nil {
		return nil, err
	}
	out := aligned(int(n))
	var wrong error
	err := d.o.Work(func() error {
		wrong = d.decompress(b, out)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if wrong != nil {
		return nil, broken("a compressed buffer of %d bytes that claims %d cannot be decompressed: %v", len(b), n, wrong)
	}
	return out, nil
}

// decompress fills out exactly, or fails.
func (d *decoder) decompress(b, out []byte) error {
	switch d.codec {
	case codecZstd:
		got, err := zstdDecoder().DecodeAll(b, out[:0])
		if err == nil && len(got) != len(out) {
			err = io.ErrUnexpectedEOF
		}
		return err
	case codecLZ4:
		_, err := io.ReadFull(lz4.NewReader(bytes.NewReader(b)), out)
		return err
	}
	return fmt.Errorf("codec %d is not known", d.codec)
}

// place returns b aligned to align, as nearly all writers have it; otherwise it copies.
func (d *decoder) place(b []byte) ([]byte, error) {
	if len(b) == 0 || uintptr(unsafe.Pointer(&b[0]))%align == 0 {
		return b, nil
	}
	if err := d.o.Memory.Grow(int64(len(b))); err != nil {
		return nil, err
	}
	return append(aligned(len(b))[:0], b...), nil
}

// aligned returns n bytes that begin at a multiple of align.
func aligned(n int) []byte { return make([]byte, (n+align-1)/align*align)[:n:n] }

package flight

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// checkRecord reports an ErrInvalid if a record that came over the wire is not
// what it says. What has passed can be read without a panic.
func checkRecord(rec arrow.Record) error {
	if rec.NumCols() == 0 {
		return fmt.Errorf("%w: a record batch has no columns", schema.ErrInvalid)
	}
	for i, col := range rec.Columns() {
		if int64(col.Len()) != rec.NumRows() {
			return fmt.Errorf("%w: column %q has %d rows, its batch %d", schema.ErrInvalid, rec.ColumnName(i), col.Len(), rec.NumRows())
		}
		if err := checkArray(col.Data()); err != nil {
			return fmt.Errorf("column %q: %w", rec.ColumnName(i), err)
		}
	}
	return nil
}

// checkArray reports an ErrInvalid if an array that came over the wire points
// outside of its buffers. The IPC reader takes a client's lengths and offsets
// as they are; whoever reads the array afterwards would panic.
func checkArray(d arrow.ArrayData) error {
	rows := int64(d.Offset()) + int64(d.Len())
	bufs := d.Buffers()
	buffer := func(i int) *memory.Buffer {
		if i < len(bufs) {
			return bufs[i]
		}
		return nil
	}
	size := func(i int) int64 {
		if b := buffer(i); b != nil {
			return int64(b.Len())
		}
		return 0
	}
	if v := buffer(0); v != nil && v.Len() > 0 && size(0) < bitutil.BytesForBits(rows) {
		return fmt.Errorf("%w: its validity bitmap has %d bytes for %d rows", schema.ErrInvalid, size(0), rows)
	}
	if d.Len() > 0 && d.NullN() > 0 && size(0) == 0 {
		return fmt.Errorf("%w: it counts %d nulls and has no validity bitmap", schema.ErrInvalid, d.NullN())
	}
	children := func(want int64) error {
		for _, c := range d.Children() {
			if int64(c.Len()) < want {
				return fmt.Errorf("%w: a child has %d rows, its parent needs %d", schema.ErrInvalid, c.Len(), want)
			}
			if err := checkArray(c); err != nil {
				return err
			}
		}
		return nil
	}

	switch dt := d.DataType().(type) {
	case arrow.ExtensionType:
		storage := array.NewDataWithDictionary(dt.StorageType(), d.Len(), bufs, d.NullN(), d.Offset(), dictionaryOf(d))
		defer storage.Release()
		return checkArray(storage)
	case *arrow.DictionaryType:
		return checkDictionary(d, dt)
	case *arrow.FixedSizeListType:
		return children(rows * int64(dt.Len()))
	case arrow.FixedWidthDataType:
		if want := (rows*int64(dt.BitWidth()) + 7) / 8; size(1) < want {
			return fmt.Errorf("%w: its values have %d bytes, %d rows need %d", schema.ErrInvalid, size(1), rows, want)
		}
		return nil
	case *arrow.BinaryType, *arrow.StringType:
		return checkOffsets(d, buffer(1), 4, size(2))
	case *arrow.LargeBinaryType, *arrow.LargeStringType:
		return checkOffsets(d, buffer(1), 8, size(2))
	case *arrow.ListType, *arrow.MapType, *arrow.LargeListType:
		if len(d.Children()) != 1 {
			return fmt.Errorf("%w: a list has %d children", schema.ErrInvalid, len(d.Children()))
		}
		width := 4
		if dt.ID() == arrow.LARGE_LIST {
			width = 8
		}
		if err := checkOffsets(d, buffer(1), width, int64(d.Children()[0].Len())); err != nil {
			return err
		}
		return children(0)
	case *arrow.StructType:
		return children(rows)
	}
	return fmt.Errorf("%w: type %s is not supported", schema.ErrInvalid, d.DataType())
}

// checkOffsets checks the offsets of a list or binary array into limit items or bytes.
func checkOffsets(d arrow.ArrayData, offsets *memory.Buffer, width int, limit int64) error {
	if d.Len() == 0 {
		return nil
	}
	n := d.Offset() + d.Len() + 1
	if offsets == nil || offsets.Len() < n*width {
		return fmt.Errorf("%w: its offsets do not suffice for %d rows", schema.ErrInvalid, d.Len())
	}
	b := offsets.Bytes()[d.Offset()*width : n*width]
	last := int64(0)
	for i := 0; i < len(b); i += width {
		var at int64
		if width == 4 {
			at = int64(int32(binary.LittleEndian.Uint32(b[i:])))
		} else {
			at = int64(binary.LittleEndian.Uint64(b[i:]))
		}
		if at < last || at > limit {
			return fmt.Errorf("%w: offset %d follows %d, of %d", schema.ErrInvalid, at, last, limit)
		}
		last = at
	}
	return nil
}

func dictionaryOf(d arrow.ArrayData) *array.Data {
	dict, _ := d.Dictionary().(*array.Data)
	return dict
}

func checkDictionary(d arrow.ArrayData, dt *arrow.DictionaryType) error {
	dict := dictionaryOf(d)
	if dict == nil {
		return fmt.Errorf("%w: a dictionary column has no dictionary", schema.ErrInvalid)
	}
	if err := checkArray(dict); err != nil {
		return fmt.Errorf("in its dictionary: %w", err)
	}
	data := array.NewData(dt.IndexType, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset())
	defer data.Release()
	if err := checkArray(data); err != nil {
		return err
	}
	indices := array.MakeFromData(data)
	defer indices.Release()
	at, err := anyIntegers(indices)
	if err != nil {
		return err
	}
	for i := range indices.Len() {
		if v := at(i); indices.IsValid(i) && (v < 0 || v >= int64(dict.Len())) {
			return fmt.Errorf("%w: row %d has index %d of a dictionary of %d", schema.ErrInvalid, i, v, dict.Len())
		}
	}
	return nil
}

// anyIntegers returns the values of an integer array; where it is null they
// mean nothing. A uint64 beyond int64 comes out negative.
func anyIntegers(a arrow.Array) (func(int) int64, error) {
	switch a := a.(type) {
	case *array.Int64:
		return a.Value, nil
	case *array.Int32:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Int16:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Int8:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint64:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint32:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint16:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint8:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	}
	return nil, fmt.Errorf("%w: type %s is no integer", schema.ErrInvalid, a.DataType())
}

// integers returns the values of an integer column that has no nulls.
func integers(name string, a arrow.Array) (func(int) int64, error) {
	at, err := anyIntegers(a)
	if err != nil {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", name), Got: a.DataType().String(), Want: "integers"}
	}
	return at, noNulls(name, a)
}

func noNulls(name string, a arrow.Array) error {
	for i := range a.Len() {
		if a.IsNull(i) {
			return &schema.FieldError{Field: fmt.Sprintf("column %q, row %d", name, i), Got: "null", Want: "a value in every row"}
		}
	}
	return nil
}

// ids returns the values of a column of sample ids that has no nulls.
func ids(name string, a arrow.Array) (func(int) (schema.ID, error), error) {
	if ext, ok := a.(array.ExtensionArray); ok {
		a = ext.Storage()
	}
	var at func(int) (schema.ID, error)
	parse := func(i int, s string) (schema.ID, error) {
		id, err := schema.ParseID(s)
		if err != nil {
			return id, &schema.FieldError{Field: fmt.Sprintf("column %q, row %d", name, i), Got: schema.Quote(s), Want: "a UUID such as 6ba7b811-9dad-51d1-80b4-00c04fd430c8"}
		}
		return id, nil
	}
	switch a := a.(type) {
	case *array.FixedSizeBinary:
		if a.DataType().(*arrow.FixedSizeBinaryType).ByteWidth == len(schema.ID{}) {
			at = func(i int) (schema.ID, error) { return schema.ID(a.Value(i)), nil }
		}
	case *array.String:
		at = func(i int) (schema.ID, error) { return parse(i, a.Value(i)) }
	case *array.LargeString:
		at = func(i int) (schema.ID, error) { return parse(i, a.Value(i)) }
	}
	if at == nil {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", name), Got: a.DataType().String(), Want: "fixed_size_binary[16], arrow.uuid or utf8"}
	}
	return at, noNulls(name, a)
}

// texts returns the values of a string or binary column as they lie there,
// valid as long as the array; ok is false where null.
func texts(a arrow.Array) (at func(int) (v []byte, ok bool), err error) {
	var value func(int) []byte
	switch a := a.(type) {
	case *array.Binary:
		value = a.Value
	case *array.LargeBinary:
		value = a.Value
	case *array.String:
		value = func(i int) []byte { return []byte(a.Value(i)) }
	case *array.LargeString:
		value = func(i int) []byte { return []byte(a.Value(i)) }
	default:
		return nil, fmt.Errorf("%w: type %s is neither text nor binary", schema.ErrInvalid, a.DataType())
	}
	return func(i int) ([]byte, bool) {
		if a.IsNull(i) {
			return nil, false
		}
		return value(i), true
	}, nil
}

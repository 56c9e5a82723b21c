package where

import (
	little "encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/decimal128"
	"github.com/expr-lang/expr/types"

	"bowstring/schema"
)

// typeOf returns the type that a column's values have in an expression, nil if
// expressions cannot read such values. It must agree with valuesOf: the compiler
// specializes instructions by this type, and the machine panics on a value of another
// one.
func typeOf(dt arrow.DataType) types.Type {
	switch dt := dt.(type) {
	case *arrow.BooleanType:
		return types.Bool
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type,
		*arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type:
		return types.Int
	case *arrow.Float16Type, *arrow.Float32Type, *arrow.Float64Type, *arrow.Decimal128Type:
		return types.Float64
	case *arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType, *arrow.FixedSizeBinaryType:
		return types.String
	case *arrow.TimestampType, *arrow.Date32Type, *arrow.Date64Type:
		return types.TypeOf(time.Time{})
	case *arrow.Time32Type, *arrow.Time64Type, *arrow.DurationType:
		return types.TypeOf(time.Duration(0))
	case *arrow.ListType:
		return arrayOf(dt.Elem())
	case *arrow.FixedSizeListType:
		return arrayOf(dt.Elem())
	case *arrow.StructType:
		m := types.Map{}
		for _, f := range dt.Fields() {
			t := typeOf(f.Type)
			if t == nil {
				return nil
			}
			m[f.Name] = t
		}
		return m
	}
	return nil
}

// arrayOf returns the type of a list with such items, nil if expressions cannot read the
// items.
func arrayOf(item arrow.DataType) types.Type {
	if t := typeOf(item); t != nil {
		return types.Array(t)
	}
	return nil
}

// getter returns the value of row i of an array, nil for null. Strings view the array's
// memory without a copy, so they are valid only while the page is open. A getter may
// allocate for each call (lists and structs), which the cost model counts as steps.
type getter func(i int) any

// nullable wraps a getter of values for an array with nulls.
func nullable(a arrow.Array, get getter) getter {
	if a.NullN() == 0 {
		return get
	}
	return func(i int) any {
		if a.IsNull(i) {
			return nil
		}
		return get(i)
	}
}

// getterOf reads an array whose type typeOf knows.
func getterOf(a arrow.Array) getter { return nullable(a, valuesOf(a)) }

// valuesOf reads the values of an array whose type typeOf knows, as if none were null;
// nil for any other type. All numbers come out as int, uint64 beyond an int, or float64.
// The types of columns would otherwise multiply the cases that the operators have to
// distinguish.
func valuesOf(a arrow.Array) getter {
	switch a := a.(type) {
	case *array.Boolean:
		return func(i int) any { return a.Value(i) }
	case *array.Int8:
		return ints(a.Int8Values())
	case *array.Int16:
		return ints(a.Int16Values())
	case *array.Int32:
		return ints(a.Int32Values())
	case *array.Int64:
		return ints(a.Int64Values())
	case *array.Uint8:
		return ints(a.Uint8Values())
	case *array.Uint16:
		return ints(a.Uint16Values())
	case *array.Uint32:
		return ints(a.Uint32Values())
	case *array.Uint64:
		v := a.Uint64Values()
		return func(i int) any {
			if v[i] > math.MaxInt64 {
				return v[i]
			}
			return boxInt(int(v[i]))
		}
	case *array.Float16:
		return func(i int) any { return float64(a.Value(i).Float32()) }
	case *array.Float32:
		v := a.Float32Values()
		return func(i int) any { return float64(v[i]) }
	case *array.Float64:
		v := a.Float64Values()
		return func(i int) any { return v[i] }
	case *array.Decimal128:
		scale := a.DataType().(*arrow.Decimal128Type).Scale
		return func(i int) any { return decimalFloat(a.Value(i), scale) }
	case *array.String:
		return func(i int) any { return a.Value(i) }
	case *array.LargeString:
		return func(i int) any { return a.Value(i) }
	case *array.Binary:
		return func(i int) any { return stringOf(a.Value(i)) }
	case *array.FixedSizeBinary:
		return func(i int) any { return stringOf(a.Value(i)) }
	case *array.Timestamp:
		unit := a.DataType().(*arrow.TimestampType).Unit
		return func(i int) any { return a.Value(i).ToTime(unit) }
	case *array.Date32:
		return func(i int) any { return a.Value(i).ToTime() }
	case *array.Date64:
		return func(i int) any { return a.Value(i).ToTime() }
	case *array.Time32:
		unit := a.DataType().(*arrow.Time32Type).Unit.Multiplier()
		return func(i int) any { return time.Duration(a.Value(i)) * unit }
	case *array.Time64:
		unit := a.DataType().(*arrow.Time64Type).Unit.Multiplier()
		return func(i int) any { return time.Duration(a.Value(i)) * unit }
	case *array.Duration:
		unit := a.DataType().(*arrow.DurationType).Unit.Multiplier()
		return func(i int) any { return durationOf(int64(a.Value(i)), unit) }
	case array.ListLike:
		get := getterOf(a.ListValues())
		return func(i int) any {
			from, to := a.ValueOffsets(i)
			items := make([]any, 0, to-from)
			for ; from < to; from++ {
				items = append(items, get(int(from)))
			}
			return items
		}
	case *array.Struct:
		fields := a.DataType().(*arrow.StructType).Fields()
		gets := make([]getter, len(fields))
		for f := range gets {
			gets[f] = getterOf(a.Field(f))
		}
		return func(i int) any {
			m := make(map[string]any, len(fields))
			for f, get := range gets {
				m[fields[f].Name] = get(i)
			}
			return m
		}
	}
	return nil
}

// ints reads integers that always fit into an int.
func ints[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](v []T) getter {
	return func(i int) any { return boxInt(int(v[i])) }
}

// durationOf converts n units to a duration. Values beyond the range of time.Duration
// (292 years) are clamped to its ends, because a wrapped value would compare as the
// opposite.
func durationOf(n int64, unit time.Duration) time.Duration {
	switch most := math.MaxInt64 / int64(unit); {
	case n > most:
		return math.MaxInt64
	case n < -most:
		return math.MinInt64
	}
	return time.Duration(n) * unit
}

// decimalFloat returns the float64 nearest to a decimal, the same one that its text would
// parse to.
//
// Up to 2^53 and 10^22 both operands of the division are exact floats, so one division
// rounds correctly. Beyond that strconv does the rounding from the decimal text, which
// allocates.
func decimalFloat(n decimal128.Num, scale int32) float64 {
	if small := n.HighBits() == 0 && n.LowBits() < 1<<floatBits; small && scale >= 0 && scale <= 22 {
		return float64(n.LowBits()) / math.Pow10(int(scale)) // of two floats that are exact
	}
	f, _ := strconv.ParseFloat(fmt.Sprintf("%se%d", n.BigInt(), -scale), 64)
	return f
}

// smallInts holds boxed integers. Converting an int to an interface allocates, and most
// cells hold small numbers such as labels.
var smallInts = func() (boxed [4096]any) {
	for i := range boxed {
		boxed[i] = i
	}
	return boxed
}()

// boxInt returns n as an interface value, without an allocation if n is small.
func boxInt(n int) any {
	if uint(n) < uint(len(smallInts)) {
		return smallInts[n]
	}
	return n
}

// stringOf views b as a string, without copying.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// source says where the values of one name come from: a column of the manifest, a virtual
// column, or a part of a blob column.
type source struct {
	name     string
	column   int    // index of a metadata column in the form; ordinal among the blob columns if part is set
	part     string // schema.SizePart or schema.KeyPart of a blob column, else ""
	nullable bool   // of a part: the blob may be null
}

// sourcesOf resolves the names of an expression in a snapshot, once for all of its pages.
// It fails if a page of the snapshot has no such column.
func sourcesOf(f *schema.Form, names []string) ([]source, error) {
	s := f.Snapshot().Schema
	c := &columns{s}
	var ordinals map[string]int // of blob columns
	out := make([]source, len(names))
	for i, name := range names {
		out[i].name = name
		if name == schema.PositionColumn || name == schema.SplitColumn || name == schema.IDColumn {
			continue
		}
		blob, part, ok := c.part(name)
		if !ok {
			var err error
			if out[i].column, err = f.ColumnIndex(name); err != nil {
				return nil, err
			}
			continue
		}
		if ordinals == nil {
			ordinals = map[string]int{}
			for n, b := range schema.BlobFields(s) {
				ordinals[b.Name] = n
			}
		}
		out[i].column, out[i].part, out[i].nullable = ordinals[blob.Name], part, blob.Nullable
	}
	return out, nil
}

// getter returns a function that reads the values in a page that begins at position
// start, and whether they may include nulls. The caller selects the faster plain program
// if no source has nulls. The function keeps state, so it is for one goroutine.
func (s *source) getter(f *schema.Form, start int64, p *schema.Page) (get getter, nulls bool) {
	switch {
	case s.name == schema.PositionColumn:
		return func(i int) any { return boxInt(int(f.PositionIn(start + int64(i)))) }, false
	case s.name == schema.SplitColumn:
		last, boxed := "", any("") // of the row before: neighbouring rows are mostly in the same split
		return func(i int) any {
			if name := f.SplitOf(start + int64(i)); name != last {
				last, boxed = name, name
			}
			return boxed
		}, false
	case s.name == schema.IDColumn:
		return func(i int) any { return schema.FormatID(p.ID(i)) }, false
	case s.part != "":
		return partOf(p, s.column, s.part), s.nullable
	}
	a := p.Column(s.column)
	// Nulls below the top level are not looked for: that would cost more than the guarded
	// program.
	_, nested := a.DataType().(arrow.NestedType)
	return getterOf(a), nested || a.NullN() > 0
}

// partOf reads the size in bytes, or the key in hexadecimal digits, of the blobs of a
// page. The blob itself is not read.
func partOf(p *schema.Page, column int, part string) getter {
	return func(i int) any {
		ref, ok := p.Blob(column, i)
		switch {
		case !ok:
			return nil
		case part == schema.SizePart:
			return boxInt(int(ref.Size))
		}
		return ref.Key.String()
	}
}

// metaNames lists the names that an expression may use, and apart from them the blob
// columns. A part such as image.size is hidden by a column of that very name.
func metaNames(s *arrow.Schema) (meta, blobs []string) {
	var parts []string
	for _, f := range s.Fields() {
		if !schema.IsBlob(f) {
			meta = append(meta, f.Name)
			continue
		}
		blobs = append(blobs, f.Name)
		for _, part := range []string{schema.SizePart, schema.KeyPart} {
			if name := f.Name + "." + part; !s.HasField(name) {
				parts = append(parts, name)
			}
		}
	}
	return slices.Concat(meta, []string{schema.PositionColumn, schema.SplitColumn}, parts), blobs
}

// columnBuilder collects the values of a column in the layout of Arrow. It is used
// instead of Arrow's builders because its buffers go into a schema.Vector without a copy,
// and an error leaves no half-added row.
type columnBuilder struct {
	// id is the type's. It decides which of the buffers below are used.
	id     arrow.Type
	fixed  []byte  // values of a fixed width, little-endian; bits for bools
	ends   []int32 // offsets of texts: one more than rows
	text   []byte  // UTF-8 of all texts
	absent []int   // rows that are null
	rows   int
}

// builderOf returns a builder for a column of a type that typeMade gives, with room for
// the rows.
func builderOf(t arrow.DataType, rows int) *columnBuilder {
	b := &columnBuilder{id: t.ID()}
	switch b.id {
	case arrow.STRING:
		b.ends = append(make([]int32, 0, rows+1), 0)
	case arrow.BOOL:
		b.fixed = make([]byte, 0, (rows+7)/8)
	default:
		b.fixed = make([]byte, 0, 8*rows)
	}
	return b
}

// errValue reports that an expression gave a value of another type than the one it was
// compiled to. Only operands of unknown static type can cause it.
var errValue = errors.New("it gives a value of another type here")

// fault adds the null of a row that cannot be evaluated. Columns of bools get a null here
// too: in add a nil bool is false.
func (b *columnBuilder) fault() {
	if b.id == arrow.BOOL {
		b.absent = append(b.absent, b.rows)
	}
	_ = b.add(nil) // every type accepts null
}

// add appends a value; nil is null, or false in a column of bools. On an error nothing
// was added.
func (b *columnBuilder) add(v any) error {
	if v == nil && b.id != arrow.BOOL {
		b.absent = append(b.absent, b.rows)
	}
	switch b.id {
	case arrow.BOOL:
		// Arrow's bools are bits, the lowest first.
		if b.rows%8 == 0 {
			b.fixed = append(b.fixed, 0)
		}
		if v == true {
			b.fixed[b.rows/8] |= 1 << (b.rows % 8)
		}
	case arrow.STRING:
		text, ok := v.(string)
		switch {
		case v != nil && !ok:
			return errValue
		case len(text) > MaxMadeText:
			return fmt.Errorf("it gives a text of %d bytes, at most %d are allowed where a column is made", len(text),
				MaxMadeText)
		case !utf8.ValidString(text):
			return errors.New("it gives bytes that are no UTF-8, and no text")
		}
		b.text = append(b.text, text...)
		b.ends = append(b.ends, int32(len(b.text)))
	default:
		bits, err := bitsOf(b.id, v)
		if err != nil {
			return err
		}
		b.fixed = little.LittleEndian.AppendUint64(b.fixed, bits)
	}
	b.rows++
	return nil
}

// maxSeconds is the largest distance from 1970 in seconds at which the microseconds of a
// time fit into an int64.
const maxSeconds = math.MaxInt64/1_000_000 - 1

// bitsOf returns the eight bytes of a fixed-width value, zero for null. Times and
// durations are in microseconds, as the columns of typeMade are. A value that the type
// cannot hold is an error, never wrapped or rounded.
func bitsOf(id arrow.Type, v any) (uint64, error) {
	switch v := v.(type) {
	case nil:
		return 0, nil
	case time.Time:
		if id == arrow.TIMESTAMP {
			if s := v.Unix(); s > maxSeconds || s < -maxSeconds {
				return 0, errors.New("it gives a time that is more than 292,000 years away, which the column does not hold")
			}
			return uint64(v.UnixMicro()), nil
		}
	case time.Duration:
		if id == arrow.DURATION {
			return uint64(v.Microseconds()), nil
		}
	case int:
		switch id {
		case arrow.INT64:
			return uint64(v), nil
		case arrow.UINT64:
			if v < 0 {
				return 0, fmt.Errorf("it gives %d, which no uint64 holds", v)
			}
			return uint64(v), nil
		case arrow.FLOAT64:
			return math.Float64bits(float64(v)), nil
		}
	case uint64: // beyond an int
		switch id {
		case arrow.INT64:
			return 0, fmt.Errorf("it gives %d, which no int64 holds", v)
		case arrow.UINT64:
			return v, nil
		case arrow.FLOAT64:
			return math.Float64bits(float64(v)), nil
		}
	case float64:
		if id == arrow.FLOAT64 {
			return math.Float64bits(v), nil
		}
	}
	return 0, errValue
}

// vector returns the column of all added values. It takes over the builder's buffers: the
// builder is not used afterwards.
func (b *columnBuilder) vector(t arrow.DataType) schema.Vector {
	v := schema.Vector{Type: t, Len: b.rows, Nulls: len(b.absent), Buffers: []schema.Buffer{{}}}
	if v.Nulls > 0 {
		valid := make([]byte, (b.rows+7)/8)
		// All rows are valid at first, then the null ones are cleared; there are few of
		// these.
		for i := range b.rows {
			valid[i/8] |= 1 << (i % 8)
		}
		for _, i := range b.absent {
			valid[i/8] &^= 1 << (i % 8)
		}
		v.Buffers[0] = bufferOf(valid)
	}
	if b.id != arrow.STRING {
		v.Buffers = append(v.Buffers, bufferOf(b.fixed))
		return v
	}
	offsets := make([]byte, 0, 4*len(b.ends))
	for _, end := range b.ends {
		offsets = little.LittleEndian.AppendUint32(offsets, uint32(end))
	}
	v.Buffers = append(v.Buffers, bufferOf(offsets), bufferOf(b.text))
	return v
}

// bufferOf wraps bytes without copying them.
func bufferOf(b []byte) schema.Buffer {
	if len(b) == 0 {
		return schema.Buffer{}
	}
	return schema.Buffer{Pieces: [][]byte{b}, Len: int64(len(b))}
}

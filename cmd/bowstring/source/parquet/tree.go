package parquet

import (
	"errors"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/schema"
)

// maxDepth bounds the nesting of a column. The tree is built and read by recursion.
const maxDepth = 32

// kind is the kind of a node.
type kind int

const (
	kindLeaf kind = iota
	// A list has the offsets of Arrow; a fixed list has none, and a length in its type.
	kindList
	kindFixedList
	kindStruct
)

// level is the position of a node among the levels of its leaves.
type level struct {
	// def is the definition level from which on the parent exists. content gets it with
	// the node's own optional level counted.
	def int16
	// rep is the repetition level of the nearest list around the node.
	rep int16
	// above is the definition level from which on that list has an element, and so the
	// node a slot.
	above int16
	depth int
}

// node is a column of a file, or a nested part of one. Nodes do not change after grow.
type node struct {
	name     string
	kind     kind
	nullable bool
	at       level
	def      int16   // definition level from which on the node is not null
	element  int16   // definition level from which on a list has an element
	length   int32   // length of a fixed list
	children []*node // fields of a struct, or the element of a list
	// first is the number of the first leaf below; the leaves of a node have consecutive
	// numbers.
	first  int
	column *schema.Column // set for a leaf
	typ    arrow.DataType // set for a leaf
	// err says why the node cannot be read. Other columns of the file can still be read.
	err error
}

// grower makes the trees of nodes. It numbers the leaves in the order in which it meets
// them, which must be the order of the schema's columns.
type grower struct {
	schema *schema.Schema
	leaves []*node
}

// node makes the node of any part of a schema. as is the type of that part in the stored
// Arrow schema, or nil.
func (g *grower) node(n schema.Node, at level, as arrow.DataType) *node {
	if n.RepetitionType() != pq.Repetitions.Repeated {
		return g.single(n, at, as)
	}
	// A repeated field outside a LIST group is a required list of required elements, by
	// the format's rules for compatibility.
	list := g.list(n, at, at.def)
	list.children = []*node{g.content(n, list.below(), elementOf(as))}
	return list
}

// single makes the node of an optional or required field. An optional field adds a
// definition level.
func (g *grower) single(n schema.Node, at level, as arrow.DataType) *node {
	nullable := n.RepetitionType() == pq.Repetitions.Optional
	if nullable {
		at.def++
	}
	out := g.content(n, at, as)
	out.nullable = nullable
	return out
}

// content makes the node of a field without its repetition, which at includes already.
func (g *grower) content(n schema.Node, at level, as arrow.DataType) *node {
	as = plain(as)
	at.depth++
	if at.depth > maxDepth {
		return &node{name: n.Name(), at: at, def: at.def, first: len(g.leaves),
			err: fmt.Errorf("it is nested more than %d levels deep", maxDepth)}
	}
	group, ok := n.(*schema.GroupNode)
	if !ok {
		return g.leaf(n.(*schema.PrimitiveNode), at, as)
	}
	// A LIST or MAP of another shape than the format's is read as a plain struct.
	logical := n.LogicalType()
	_, isList := logical.(schema.ListLogicalType)
	_, isMap := logical.(schema.MapLogicalType)
	if (isList || isMap) && group.NumFields() == 1 && group.Field(0).RepetitionType() == pq.Repetitions.Repeated {
		return g.annotated(group, at, as, isList)
	}
	return g.group(group, at, as)
}

// group makes a struct. If the stored Arrow schema has another number of fields, it is
// ignored below this node.
func (g *grower) group(n *schema.GroupNode, at level, as arrow.DataType) *node {
	out := &node{name: n.Name(), kind: kindStruct, at: at, def: at.def, first: len(g.leaves)}
	// The stored schema may be of another file, or of a tool that changed the columns.
	was, _ := as.(*arrow.StructType)
	if was != nil && was.NumFields() != n.NumFields() {
		was = nil
	}
	for i := range n.NumFields() {
		var t arrow.DataType
		if was != nil {
			t = was.Field(i).Type
		}
		out.children = append(out.children, g.node(n.Field(i), at, t))
	}
	if len(out.children) == 0 {
		out.err = errors.New("it is a struct without fields")
	}
	return out
}

// annotated makes a list or a map, whose only field is repeated.
//
// The format's rules for older writers: the repeated field is the element itself if it is
// no group, if it has several fields, or if it is named "array" or like the list with
// "_tuple" appended. Otherwise the repeated group is a wrapper, and its only field is the
// element. A map is a list of structs here.
func (g *grower) annotated(n *schema.GroupNode, at level, as arrow.DataType, isList bool) *node {
	repeated := n.Field(0)
	list := g.list(n, at, at.def)
	element := elementOf(as)
	if fixed, ok := as.(*arrow.FixedSizeListType); ok {
		list.kind, list.length = kindFixedList, fixed.Len()
	}
	group, ok := repeated.(*schema.GroupNode)
	if isList && ok && group.NumFields() == 1 && group.Name() != "array" && group.Name() != n.Name()+"_tuple" {
		child := g.node(group.Field(0), list.below(), element)
		list.children = []*node{child}
		return list
	}
	list.children = []*node{g.content(repeated, list.below(), element)}
	return list
}

// list makes a list at a level. Its element exists from one definition level above its
// own on: the level between says that the list is empty.
func (g *grower) list(n schema.Node, at level, def int16) *node {
	return &node{name: n.Name(), kind: kindList, at: at, def: def, element: def + 1, first: len(g.leaves)}
}

// below returns the level at which the element of a list begins.
func (n *node) below() level {
	return level{def: n.element, rep: n.at.rep + 1, above: n.element, depth: n.at.depth}
}

// leaf makes a leaf and gives it the next number. Its levels must equal those that the
// library computed from the same schema: otherwise all values would go to wrong slots.
func (g *grower) leaf(n *schema.PrimitiveNode, at level, as arrow.DataType) *node {
	out := &node{name: n.Name(), at: at, def: at.def, first: len(g.leaves)}
	if out.first >= g.schema.NumColumns() {
		out.err = errors.New("the schema has more leaves than columns")
		return out
	}
	out.column = g.schema.Column(out.first)
	g.leaves = append(g.leaves, out)
	switch {
	case out.column.MaxDefinitionLevel() != out.def || out.column.MaxRepetitionLevel() != at.rep:
		out.err = errors.New("its levels are not those of the schema")
	default:
		out.typ, out.err = leafType(n, at, as)
	}
	return out
}

// plain returns a type without what concerns memory only: dictionaries, run-end encoding,
// extensions. Parquet stores the plain values of each.
func plain(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return plain(t.ValueType)
	case *arrow.RunEndEncodedType:
		return plain(t.Encoded())
	case arrow.ExtensionType:
		return plain(t.StorageType())
	}
	return t
}

// elementOf returns the type of a list's elements, or of a map's pairs; nil if t is no
// list.
func elementOf(t arrow.DataType) arrow.DataType {
	switch t := plain(t).(type) {
	case *arrow.MapType:
		return t.Elem()
	case arrow.ListLikeType:
		return t.Elem()
	}
	return nil
}

// problem returns the first reason why a column cannot be read, with the path of the
// field; nil if it can.
func (n *node) problem() error {
	if n.err != nil {
		return n.err
	}
	for _, c := range n.children {
		if err := c.problem(); err != nil {
			return fmt.Errorf("%q in it: %w", c.name, err)
		}
	}
	return nil
}

// dataType returns the Arrow type of the node's arrays. micro selects microseconds for
// INT96 timestamps.
func (n *node) dataType(micro bool) arrow.DataType {
	fields := make([]arrow.Field, len(n.children))
	for i, c := range n.children {
		fields[i] = arrow.Field{Name: c.name, Type: c.dataType(micro), Nullable: c.nullable}
	}
	if n.kind == kindList || n.kind == kindFixedList {
		fields[0].Name = "item" // the usual name in Arrow
	}
	switch n.kind {
	case kindList:
		return arrow.ListOfField(fields[0])
	case kindFixedList:
		return arrow.FixedSizeListOfField(n.length, fields[0])
	case kindStruct:
		return arrow.StructOf(fields...)
	}
	if micro && n.column.PhysicalType() == pq.Types.Int96 {
		return &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: n.typ.(*arrow.TimestampType).TimeZone}
	}
	return n.typ
}

// leaves returns the number of leaves below the node.
func (n *node) leaves() int {
	if n.kind == kindLeaf {
		return 1
	}
	sum := 0
	for _, c := range n.children {
		sum += c.leaves()
	}
	return sum
}

// leafType returns the Arrow type of a leaf. The logical type decides; the stored Arrow
// type adds what Parquet has no type for. A combination that the format does not have is
// an error: a guess would be wrong values.
func leafType(n *schema.PrimitiveNode, at level, as arrow.DataType) (arrow.DataType, error) {
	logical := n.LogicalType()
	if _, ok := logical.(schema.NullLogicalType); ok {
		return arrow.Null, nil
	}
	if d, ok := logical.(*schema.DecimalLogicalType); ok {
		return decimalType(n, d)
	}
	switch n.PhysicalType() {
	case pq.Types.Boolean:
		return arrow.FixedWidthTypes.Boolean, nil
	case pq.Types.Int32:
		return int32Type(logical)
	case pq.Types.Int64:
		return int64Type(logical, as)
	case pq.Types.Int96:
		t := &arrow.TimestampType{Unit: arrow.Nanosecond}
		if was, ok := as.(*arrow.TimestampType); ok {
			t.TimeZone = was.TimeZone
		}
		return t, nil
	case pq.Types.Float:
		return arrow.PrimitiveTypes.Float32, nil
	case pq.Types.Double:
		return arrow.PrimitiveTypes.Float64, nil
	case pq.Types.ByteArray:
		return bytesType(n, logical, at, as)
	case pq.Types.FixedLenByteArray:
		if _, ok := logical.(schema.Float16LogicalType); ok && n.TypeLength() == arrow.Float16SizeBytes {
			return arrow.FixedWidthTypes.Float16, nil
		}
		if n.TypeLength() < 1 || n.TypeLength() > 1<<30 {
			return nil, fmt.Errorf("its values have a length of %d bytes", n.TypeLength())
		}
		return &arrow.FixedSizeBinaryType{ByteWidth: n.TypeLength()}, nil
	}
	return nil, fmt.Errorf("it has the physical type %s", n.PhysicalType())
}

// decimalType returns the narrowest Arrow decimal for the precision: 38 digits fit 128
// bits, 76 fit 256.
func decimalType(n *schema.PrimitiveNode, d *schema.DecimalLogicalType) (arrow.DataType, error) {
	switch n.PhysicalType() {
	case pq.Types.Int32, pq.Types.Int64, pq.Types.ByteArray, pq.Types.FixedLenByteArray:
	default:
		return nil, fmt.Errorf("it is a decimal of the physical type %s", n.PhysicalType())
	}
	p, s := d.Precision(), d.Scale()
	switch {
	case p < 1 || p > 76 || s < 0 || s > p:
		return nil, fmt.Errorf("it is a decimal with %d digits, %d of them behind the point", p, s)
	case p <= 38:
		return &arrow.Decimal128Type{Precision: p, Scale: s}, nil
	}
	return &arrow.Decimal256Type{Precision: p, Scale: s}, nil
}

// int32Type returns the type of an INT32 by its logical type.
func int32Type(logical schema.LogicalType) (arrow.DataType, error) {
	switch l := logical.(type) {
	case schema.NoLogicalType, schema.UnknownLogicalType:
		return arrow.PrimitiveTypes.Int32, nil
	case *schema.IntLogicalType:
		if t := intType(l); t != nil && l.BitWidth() <= 32 {
			return t, nil
		}
	case schema.DateLogicalType:
		return arrow.FixedWidthTypes.Date32, nil
	case *schema.TimeLogicalType:
		if l.TimeUnit() == schema.TimeUnitMillis {
			return arrow.FixedWidthTypes.Time32ms, nil
		}
	}
	return nil, fmt.Errorf("it is INT32 as %s", logical)
}

// int64Type returns the type of an INT64 by its logical type. Parquet has no durations:
// Arrow's writers store them as plain INT64, and only the stored Arrow schema shows it.
func int64Type(logical schema.LogicalType, as arrow.DataType) (arrow.DataType, error) {
	switch l := logical.(type) {
	case schema.NoLogicalType, schema.UnknownLogicalType:
		if was, ok := as.(*arrow.DurationType); ok {
			return &arrow.DurationType{Unit: was.Unit}, nil
		}
		return arrow.PrimitiveTypes.Int64, nil
	case *schema.IntLogicalType:
		if t := intType(l); t != nil {
			return t, nil
		}
	case *schema.TimeLogicalType:
		switch l.TimeUnit() {
		case schema.TimeUnitMicros:
			return arrow.FixedWidthTypes.Time64us, nil
		case schema.TimeUnitNanos:
			return arrow.FixedWidthTypes.Time64ns, nil
		}
	case *schema.TimestampLogicalType:
		return timestampType(l, as)
	}
	return nil, fmt.Errorf("it is INT64 as %s", logical)
}

// timestampType returns the type of a timestamp. A timestamp that is not adjusted to UTC
// has no time zone. The format stores no other zone; the stored Arrow schema has its
// name.
func timestampType(l *schema.TimestampLogicalType, as arrow.DataType) (arrow.DataType, error) {
	t := &arrow.TimestampType{}
	switch l.TimeUnit() {
	case schema.TimeUnitMillis:
		t.Unit = arrow.Millisecond
	case schema.TimeUnitMicros:
		t.Unit = arrow.Microsecond
	case schema.TimeUnitNanos:
		t.Unit = arrow.Nanosecond
	default:
		return nil, fmt.Errorf("it is INT64 as %s", l)
	}
	if l.IsAdjustedToUTC() || l.IsFromConvertedType() { // older writers had no other timestamps
		t.TimeZone = "UTC"
		if was, ok := as.(*arrow.TimestampType); ok && was.TimeZone != "" {
			t.TimeZone = was.TimeZone
		}
	}
	return t, nil
}

// intType returns nil for a bit width that Arrow does not have.
func intType(l *schema.IntLogicalType) arrow.DataType {
	types := map[int8][2]arrow.DataType{
		8:  {arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Int8},
		16: {arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int16},
		32: {arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Int32},
		64: {arrow.PrimitiveTypes.Uint64, arrow.PrimitiveTypes.Int64},
	}
	signed := 0
	if l.IsSigned() {
		signed = 1
	}
	return types[l.BitWidth()][signed]
}

// bytesType returns the type of a BYTE_ARRAY. Columns of blobs get 64-bit offsets, so
// that a batch of them may exceed 2 GiB.
func bytesType(n *schema.PrimitiveNode, logical schema.LogicalType, at level, as arrow.DataType) (arrow.DataType,
	error) {
	switch logical.(type) {
	case schema.StringLogicalType, schema.EnumLogicalType, schema.JSONLogicalType:
		if as != nil && as.ID() == arrow.LARGE_STRING {
			return arrow.BinaryTypes.LargeString, nil
		}
		return arrow.BinaryTypes.String, nil
	case schema.NoLogicalType, schema.UnknownLogicalType, schema.BSONLogicalType:
		// Blob columns: plain bytes, or the field "bytes" of Hugging Face's struct,
		// outside of lists.
		if at.rep == 0 && (at.depth == 1 || n.Name() == "bytes") {
			return arrow.BinaryTypes.LargeBinary, nil
		}
		return arrow.BinaryTypes.Binary, nil
	}
	return nil, fmt.Errorf("it is BYTE_ARRAY as %s", logical)
}

package parquet

import (
	"errors"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/schema"
)

// maxDepth bounds how deep columns are nested.
const maxDepth = 32

// kind is what a node of a column is.
type kind int

const (
	kindLeaf kind = iota
	kindList
	kindFixedList
	kindStruct
)

// level is where a node stands among the levels of its leaves.
type level struct {
	def   int16 // definition level from which on the parent is there
	rep   int16 // repetition level of the nearest list around it
	above int16 // definition level from which on that list has an element
	depth int
}

// node is a column of a file, or a part of one that is nested.
type node struct {
	name     string
	kind     kind
	nullable bool
	at       level
	def      int16          // definition level from which on the node is not null
	element  int16          // definition level from which on a list has an element
	length   int32          // of a list of fixed size
	children []*node        // fields of a struct, or the element of a list
	first    int            // number of the first leaf below
	column   *schema.Column // of a leaf
	typ      arrow.DataType // of a leaf
	err      error          // why it cannot be read
}

// grower makes trees of nodes, and numbers the leaves.
type grower struct {
	schema *schema.Schema
	leaves []*node
}

// node makes the node of any part of a schema. as is the type that it had in Arrow, or nil.
func (g *grower) node(n schema.Node, at level, as arrow.DataType) *node {
	if n.RepetitionType() != pq.Repetitions.Repeated {
		return g.single(n, at, as)
	}
	// A list without more ado: its elements are the node, and none is null.
	list := g.list(n, at, at.def)
	list.children = []*node{g.content(n, list.below(), elementOf(as))}
	return list
}

// single makes a node that is not repeated by itself.
func (g *grower) single(n schema.Node, at level, as arrow.DataType) *node {
	nullable := n.RepetitionType() == pq.Repetitions.Optional
	if nullable {
		at.def++
	}
	out := g.content(n, at, as)
	out.nullable = nullable
	return out
}

// content makes a node of what is below a part of a schema, for which at counts already.
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
	logical := n.LogicalType()
	_, isList := logical.(schema.ListLogicalType)
	_, isMap := logical.(schema.MapLogicalType)
	if (isList || isMap) && group.NumFields() == 1 && group.Field(0).RepetitionType() == pq.Repetitions.Repeated {
		return g.annotated(group, at, as, isList)
	}
	return g.group(group, at, as)
}

// group makes a struct.
func (g *grower) group(n *schema.GroupNode, at level, as arrow.DataType) *node {
	out := &node{name: n.Name(), kind: kindStruct, at: at, def: at.def, first: len(g.leaves)}
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

// annotated makes a list or a map, whose only field is repeated. The format's rules for what older writers made:
// the repeated field is the element, unless it is a group of one field that is not named as such groups are.
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

func (g *grower) list(n schema.Node, at level, def int16) *node {
	return &node{name: n.Name(), kind: kindList, at: at, def: def, element: def + 1, first: len(g.leaves)}
}

// below is where the element of a list stands.
func (n *node) below() level {
	return level{def: n.element, rep: n.at.rep + 1, above: n.element, depth: n.at.depth}
}

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

// plain is a type without what says only how it was in memory.
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

// elementOf is the type of a list's elements, of a map's pairs.
func elementOf(t arrow.DataType) arrow.DataType {
	switch t := plain(t).(type) {
	case *arrow.MapType:
		return t.Elem()
	case arrow.ListLikeType:
		return t.Elem()
	}
	return nil
}

// problem says why a column cannot be read.
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

// dataType is the type of the node's arrays, with INT96 timestamps as nanoseconds or as microseconds.
func (n *node) dataType(micro bool) arrow.DataType {
	fields := make([]arrow.Field, len(n.children))
	for i, c := range n.children {
		fields[i] = arrow.Field{Name: c.name, Type: c.dataType(micro), Nullable: c.nullable}
	}
	if n.kind == kindList || n.kind == kindFixedList {
		fields[0].Name = "item" // as lists have it that do not come from files
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

// leaves is how many there are below the node.
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

// leafType is the type of a leaf: by what Parquet says of it, and by the type that it had in Arrow where Parquet has no
// such type.
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
	if l.IsAdjustedToUTC() || l.IsFromConvertedType() { // what older writers mean by the latter
		t.TimeZone = "UTC"
		if was, ok := as.(*arrow.TimestampType); ok && was.TimeZone != "" {
			t.TimeZone = was.TimeZone
		}
	}
	return t, nil
}

// intType is nil for a number of bits that no type has.
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

// bytesType is the type of a leaf of bytes. Columns of blobs have large offsets, so that a batch may have any size.
func bytesType(n *schema.PrimitiveNode, logical schema.LogicalType, at level, as arrow.DataType) (arrow.DataType,
	error) {
	switch logical.(type) {
	case schema.StringLogicalType, schema.EnumLogicalType, schema.JSONLogicalType:
		if as != nil && as.ID() == arrow.LARGE_STRING {
			return arrow.BinaryTypes.LargeString, nil
		}
		return arrow.BinaryTypes.String, nil
	case schema.NoLogicalType, schema.UnknownLogicalType, schema.BSONLogicalType:
		if at.rep == 0 && (at.depth == 1 || n.Name() == "bytes") {
			return arrow.BinaryTypes.LargeBinary, nil
		}
		return arrow.BinaryTypes.Binary, nil
	}
	return nil, fmt.Errorf("it is BYTE_ARRAY as %s", logical)
}

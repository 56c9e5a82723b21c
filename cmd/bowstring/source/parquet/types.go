package parquet

import (
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/schema"
)

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

package cql

import (
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/gocql/gocql"
)

// columnType maps a CQL type to an Arrow type.
type columnType struct {
	arrow arrow.DataType
	dest  func() any                      // what the driver scans into: a pointer to a pointer, nil for a null
	put   func(b array.Builder, dest any) // appends what dest has received
}

// typed is converted for builders that take the driver's type as it is.
func typed[T any, B interface {
	array.Builder
	Append(T)
}](t arrow.DataType) *columnType {
	return converted(t, func(b B, v T) { b.Append(v) })
}

// converted returns the columnType for a driver's type T. Nulls are appended as nulls, so
// put gets values only.
func converted[T any, B array.Builder](t arrow.DataType, put func(B, T)) *columnType {
	return &columnType{
		arrow: t,
		dest:  func() any { return new(*T) },
		put: func(b array.Builder, dest any) {
			if v := *dest.(**T); v != nil {
				put(b.(B), *v)
			} else {
				b.AppendNull()
			}
		},
	}
}

// columnTypes are the types of metadata columns by CQL name.
var columnTypes = map[string]*columnType{
	"boolean":  typed[bool, *array.BooleanBuilder](arrow.FixedWidthTypes.Boolean),
	"tinyint":  typed[int8, *array.Int8Builder](arrow.PrimitiveTypes.Int8),
	"smallint": typed[int16, *array.Int16Builder](arrow.PrimitiveTypes.Int16),
	"int":      typed[int32, *array.Int32Builder](arrow.PrimitiveTypes.Int32),
	"bigint":   typed[int64, *array.Int64Builder](arrow.PrimitiveTypes.Int64),
	"float":    typed[float32, *array.Float32Builder](arrow.PrimitiveTypes.Float32),
	"double":   typed[float64, *array.Float64Builder](arrow.PrimitiveTypes.Float64),
	"text":     typed[string, *array.StringBuilder](arrow.BinaryTypes.String),
	"ascii":    typed[string, *array.StringBuilder](arrow.BinaryTypes.String),
	"blob":     typed[[]byte, *array.BinaryBuilder](arrow.BinaryTypes.Binary),
	"uuid":     uuidType,
	"timeuuid": uuidType,
	"timestamp": converted(&arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"},
		func(b *array.TimestampBuilder, v time.Time) {
			b.Append(arrow.Timestamp(v.UnixMilli()))
		}),
	"date": converted(arrow.FixedWidthTypes.Date32, func(b *array.Date32Builder, v time.Time) {
		b.Append(arrow.Date32FromTime(v))
	}),
}

// uuidType maps uuids to 16 bytes.
var uuidType = converted(&arrow.FixedSizeBinaryType{ByteWidth: 16},
	func(b *array.FixedSizeBinaryBuilder, v gocql.UUID) {
		b.Append(v[:])
	})

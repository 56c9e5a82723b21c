package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// Object is a JSON object that keeps the order of its keys. A map would sort them, and
// the columns of a row would lose their order.
type Object struct {
	keys   []string
	values []any
}

// Row returns a row of rec as an object: ids as text, labels as numbers, bytes in Base64.
// The values may refer to the memory of rec.
func Row(rec arrow.Record, row int) Object {
	var o Object
	for i, f := range rec.Schema().Fields() {
		o.Add(f.Name, Value(f, rec.Column(i), row))
	}
	return o
}

// Value returns a cell as it goes into JSON, nil for a null. Numbers that JSON lacks
// become the texts "NaN", "Infinity" and "-Infinity", also within lists and structs.
func Value(f arrow.Field, column arrow.Array, row int) any {
	if column.IsNull(row) {
		return nil
	}
	if id, ok := column.(*array.FixedSizeBinary); ok && f.Name == schema.IDColumn &&
		len(id.Value(row)) == len(schema.ID{}) {
		return schema.FormatID(schema.ID(id.Value(row)))
	}
	return plain(column, row)
}

// plain returns the value of a cell that is not an id.
func plain(column arrow.Array, row int) any {
	if column.IsNull(row) {
		return nil
	}
	switch c := column.(type) {
	case *array.Float16:
		v := c.Value(row).Float32()
		return number(v, float64(v))
	case *array.Float32:
		return number(c.Value(row), float64(c.Value(row)))
	case *array.Float64:
		return number(c.Value(row), c.Value(row))
	case *array.Struct:
		fields := map[string]any{}
		for i, f := range c.DataType().(*arrow.StructType).Fields() {
			fields[f.Name] = plain(c.Field(i), row)
		}
		return fields
	case array.ListLike:
		elements := []any{}
		for i, end := c.ValueOffsets(row); i < end; i++ {
			elements = append(elements, plain(c.ListValues(), int(i)))
		}
		text, err := json.Marshal(elements)
		if err == nil {
			return json.RawMessage(text)
		}
	}
	// The library's own form for all other types.
	return column.GetOneForMarshal(row)
}

// number returns a float for JSON: number itself, or a text if v, its value, is not
// finite. number keeps the narrower type, whose shortest text is shorter.
func number(number any, v float64) any {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return number
}

// Add appends a member. Keys are not checked for duplicates.
func (o *Object) Add(key string, value any) {
	o.keys = append(o.keys, key)
	o.values = append(o.values, value)
}

// MarshalJSON implements json.Marshaler. It does not escape HTML: < in a text stays
// readable.
func (o Object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	put := func(v any) error {
		if err := enc.Encode(v); err != nil {
			return err
		}
		out.Truncate(out.Len() - 1) // Encode ends with a line feed
		return nil
	}
	out.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := put(key); err != nil {
			return nil, err
		}
		out.WriteByte(':')
		if err := put(o.values[i]); err != nil {
			return nil, fmt.Errorf("column %q: %w", key, err)
		}
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

package export

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// Object is a JSON object whose keys keep their order.
type Object struct {
	keys   []string
	values []any
}

// Row returns row number row of rec as an object: ids as text, labels as
// numbers, bytes in base64.
func Row(rec arrow.Record, row int) Object {
	var o Object
	for i, f := range rec.Schema().Fields() {
		o.Add(f.Name, Value(f, rec.Column(i), row))
	}
	return o
}

// Value returns a cell as it is put in JSON, nil for null.
func Value(f arrow.Field, column arrow.Array, row int) any {
	if column.IsNull(row) {
		return nil
	}
	if id, ok := column.(*array.FixedSizeBinary); ok && f.Name == schema.IDColumn &&
		len(id.Value(row)) == len(schema.ID{}) {
		return schema.FormatID(schema.ID(id.Value(row)))
	}
	return column.GetOneForMarshal(row)
}

// Add appends a member.
func (o *Object) Add(key string, value any) {
	o.keys = append(o.keys, key)
	o.values = append(o.values, value)
}

// MarshalJSON implements json.Marshaler.
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

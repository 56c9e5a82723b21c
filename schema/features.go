package schema

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
)

// Features returns the value of the schema metadata key "huggingface" of a table with these columns; see features.
func Features(fields []arrow.Field) string { return string(features(fields)) }

// features returns the value of the schema metadata key "huggingface": the
// description of the columns that the datasets library writes and reads. Its
// versions name a list "Sequence" (until 3) or "List" (from 4), but all of them
// read "Sequence" of a plain value, and a JSON list for a list of structs.
func features(fields []arrow.Field) []byte {
	var list []member
	for _, f := range fields {
		list = append(list, member{f.Name, featureOf(f)})
	}
	return object(member{"info", object(member{"features", object(list...)})})
}

func featureOf(f arrow.Field) json.RawMessage {
	if IsBlob(f) {
		switch Media(f) {
		case MediaImage:
			return object(member{"_type", text("Image")})
		case MediaAudio:
			return object(member{"_type", text("Audio")})
		}
		return value("binary")
	}
	if names := Classes(f); names != nil && f.Type.ID() == arrow.INT64 {
		b, err := json.Marshal(names)
		if err != nil {
			panic(err) // strings always marshal
		}
		return object(member{"names", b}, member{"_type", text("ClassLabel")})
	}
	return featureOfType(f.Type)
}

func featureOfType(dt arrow.DataType) json.RawMessage {
	switch dt := dt.(type) {
	case *arrow.StructType:
		var list []member
		for _, f := range dt.Fields() {
			list = append(list, member{f.Name, featureOfType(f.Type)})
		}
		return object(list...)
	case *arrow.ListType:
		if _, ok := dt.Elem().(*arrow.StructType); ok {
			return json.RawMessage("[" + string(featureOfType(dt.Elem())) + "]")
		}
		return object(member{"feature", featureOfType(dt.Elem())}, member{"_type", text("Sequence")})
	case *arrow.FixedSizeListType:
		length, err := json.Marshal(dt.Len())
		if err != nil {
			panic(err) // integers always marshal
		}
		return object(member{"feature", featureOfType(dt.Elem())}, member{"length", length},
			member{"_type", text("Sequence")})
	}
	return value(dtypeOf(dt))
}

// dtypeOf is the library's name of a flat type.
func dtypeOf(dt arrow.DataType) string {
	switch dt := dt.(type) {
	case *arrow.StringType:
		return "string"
	case *arrow.LargeStringType:
		return "large_string"
	case *arrow.BooleanType:
		return "bool"
	case *arrow.Float16Type:
		return "float16"
	case *arrow.Float32Type:
		return "float32"
	case *arrow.Float64Type:
		return "float64"
	case *arrow.TimestampType:
		if dt.TimeZone != "" {
			return "timestamp[" + dt.Unit.String() + ", tz=" + dt.TimeZone + "]"
		}
		return "timestamp[" + dt.Unit.String() + "]"
	case *arrow.Decimal128Type:
		return fmt.Sprintf("decimal128(%d, %d)", dt.Precision, dt.Scale)
	case *arrow.Decimal256Type:
		return fmt.Sprintf("decimal256(%d, %d)", dt.Precision, dt.Scale)
	case *arrow.FixedSizeBinaryType:
		return "binary"
	}
	return dt.String() // int8 … uint64, binary, date32, time32[s], duration[us] are named alike
}

func value(dtype string) json.RawMessage {
	return object(member{"dtype", text(dtype)}, member{"_type", text("Value")})
}

// member is one member of a JSON object whose order is kept.
type member struct {
	name  string
	value json.RawMessage
}

func object(members ...member) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(text(m.name))
		b.WriteString(": ")
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func text(s string) json.RawMessage { return marshal(s) }

// Package schema defines the names and forms of everything in Bowstring: sample columns,
// snapshots and their manifests, requests and tickets with their checks, and the physical
// layout of a batch.
//
// It imports no other package of Bowstring except its own subpackages, does no I/O of its
// own and starts no goroutine. Finding bytes is the task of package fetch, sending them
// that of package flight. Begin reading with [Snapshot], [Request] and [Batch].
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/google/uuid"
)

// Names of the columns that Bowstring itself defines.
const (
	// IDColumn is the first column of every dataset.
	IDColumn = "id"
	// PositionColumn is virtual: the sample's position in its snapshot, an int64.
	PositionColumn = "position"
	// SplitColumn is virtual: the name of the sample's split, a utf8, "" if it is in none.
	SplitColumn = "split"
	// SizePart and KeyPart name the virtual columns of a blob column: image.size, an
	// int64, and image.key, the 32 bytes of its key in the store. See BlobPart.
	SizePart = "size"
	KeyPart  = "key"
	// PathColumn is the metadata column that supplies the path of an image or audio
	// struct in the huggingface layout.
	PathColumn = "file_name"
)

// Kinds of media a blob column may declare.
const (
	MediaImage = "image"
	MediaAudio = "audio"
)

// Keys of the field metadata of a logical schema.
const (
	kindKey    = "bowstring.kind"
	mediaKey   = "bowstring.media"
	classesKey = "bowstring.classes"
	kindBlob   = "blob"

	extensionNameKey = "ARROW:extension:name"
	extensionMetaKey = "ARROW:extension:metadata"
	extensionUUID    = "arrow.uuid"
)

const (
	// MaxNameLen is the longest name of a dataset, split or column, in bytes.
	MaxNameLen = 128
	// MaxColumns is the largest number of columns of a dataset.
	MaxColumns = 4096

	maxTypeDepth = 16 // levels of list, fixed_size_list and struct in one column
)

// IDField is the field of the id column: 16 bytes, never null, carrying the
// canonical extension type arrow.uuid as field metadata.
func IDField() arrow.Field {
	return arrow.Field{
		Name: IDColumn,
		Type: &arrow.FixedSizeBinaryType{ByteWidth: 16},
		Metadata: arrow.NewMetadata(
			[]string{extensionNameKey, extensionMetaKey},
			[]string{extensionUUID, ""}),
	}
}

// BlobField makes the field of a blob column. media is "" (plain bytes),
// MediaImage or MediaAudio.
func BlobField(name, media string, nullable bool) arrow.Field {
	keys, values := []string{kindKey}, []string{kindBlob}
	if media != "" {
		keys, values = append(keys, mediaKey), append(values, media)
	}
	return arrow.Field{
		Name: name, Type: arrow.BinaryTypes.LargeBinary, Nullable: nullable,
		Metadata: arrow.NewMetadata(keys, values),
	}
}

// ClassField makes the field of a label column: an int64 that indexes classes.
func ClassField(name string, classes []string) arrow.Field {
	names, err := json.Marshal(classes)
	if err != nil {
		panic(err) // strings always marshal
	}
	return arrow.Field{
		Name: name, Type: arrow.PrimitiveTypes.Int64, Nullable: true,
		Metadata: arrow.NewMetadata([]string{classesKey}, []string{string(names)}),
	}
}

// IsBlob reports whether f is the field of a blob column of a logical schema.
func IsBlob(f arrow.Field) bool { return fieldMeta(f, kindKey) == kindBlob }

// BlobPart resolves the name of a virtual column that describes a blob column without
// reading it, such as image.size: the ordinal of the blob column among those of a logical
// schema, its field, and the part. A stored column of that name hides it.
func BlobPart(s *arrow.Schema, name string) (ordinal int, blob arrow.Field, part string, ok bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 || s.HasField(name) {
		return 0, blob, "", false
	}
	part = name[dot+1:]
	if part != SizePart && part != KeyPart {
		return 0, blob, "", false
	}
	at := s.FieldIndices(name[:dot])
	if len(at) == 0 || !IsBlob(s.Field(at[0])) {
		return 0, blob, "", false
	}
	for i := range at[0] {
		if IsBlob(s.Field(i)) {
			ordinal++
		}
	}
	return ordinal, s.Field(at[0]), part, true
}

// Media returns the kind of media that a blob field declares, "" for none.
func Media(f arrow.Field) string { return fieldMeta(f, mediaKey) }

// Classes returns the class names of a label column, nil if f is none.
func Classes(f arrow.Field) []string {
	s := fieldMeta(f, classesKey)
	if s == "" {
		return nil
	}
	var names []string
	if json.Unmarshal([]byte(s), &names) != nil {
		return nil
	}
	return names
}

// MetaFields returns the metadata fields of a logical schema, in order.
func MetaFields(s *arrow.Schema) []arrow.Field {
	return slices.DeleteFunc(slices.Clone(s.Fields()[1:]), IsBlob)
}

// BlobFields returns the blob fields of a logical schema, in order.
func BlobFields(s *arrow.Schema) []arrow.Field {
	return slices.DeleteFunc(slices.Clone(s.Fields()), func(f arrow.Field) bool { return !IsBlob(f) })
}

// NewSchema makes the logical schema of a dataset: id, the metadata fields,
// the blob fields. It is checked as by CheckSchema.
func NewSchema(meta []arrow.Field, blobs []arrow.Field) (*arrow.Schema, error) {
	fields := make([]arrow.Field, 0, 1+len(meta)+len(blobs))
	fields = append(fields, IDField())
	fields = append(fields, meta...)
	fields = append(fields, blobs...)
	s := arrow.NewSchema(fields, nil)
	if err := CheckSchema(s); err != nil {
		return nil, err
	}
	return s, nil
}

// CheckSchema reports an ErrInvalid if s is not a logical schema:
//
//   - the first field is IDField;
//   - blob fields come last and are of type large_binary, with media "", image or audio;
//   - names are unique, not empty, valid UTF-8, of at most MaxNameLen bytes, and
//     not those of virtual columns;
//   - a metadata field is a bool, an integer, a float, a utf8 or large_utf8, a
//     binary or fixed_size_binary, a date, a time, a timestamp, a duration, a
//     decimal128 or decimal256, or a list, fixed_size_list or struct of these.
func CheckSchema(s *arrow.Schema) error {
	if s == nil || s.NumFields() == 0 {
		return fmt.Errorf("%w: schema has no fields, want %q first", ErrInvalid, IDColumn)
	}
	if s.NumFields() > MaxColumns {
		return fmt.Errorf("%w: schema has %d columns, want at most %d", ErrInvalid, s.NumFields(), MaxColumns)
	}
	if f := s.Field(0); f.Name != IDColumn || f.Nullable || !arrow.TypeEqual(f.Type, IDField().Type) ||
		fieldMeta(f, extensionNameKey) != extensionUUID {
		return fmt.Errorf("%w: first column is %q of type %s, want %q, not null, fixed_size_binary[16] as %s",
			ErrInvalid, f.Name, ShownType(f.Type), IDColumn, extensionUUID)
	}
	seen := make(map[string]bool, s.NumFields())
	blobs := false
	for i, f := range s.Fields() {
		if err := checkColumnName(f.Name); err != nil {
			return err
		}
		if seen[f.Name] {
			return fmt.Errorf("%w: two columns are named %q", ErrInvalid, f.Name)
		}
		seen[f.Name] = true
		if i == 0 {
			continue
		}
		if IsBlob(f) {
			blobs = true
			if f.Type.ID() != arrow.LARGE_BINARY {
				return fmt.Errorf("%w: blob column %q has type %s, want large_binary", ErrInvalid, f.Name,
					ShownType(f.Type))
			}
			if m := Media(f); m != "" && m != MediaImage && m != MediaAudio {
				return fmt.Errorf("%w: blob column %q has media %q, want %q, %q or none", ErrInvalid, f.Name, m,
					MediaImage, MediaAudio)
			}
			continue
		}
		if blobs {
			return fmt.Errorf("%w: metadata column %q comes after a blob column, want blob columns last", ErrInvalid,
				f.Name)
		}
		if k := fieldMeta(f, kindKey); k != "" {
			return fmt.Errorf("%w: column %q has %s %q, want %q or none", ErrInvalid, f.Name, kindKey, k, kindBlob)
		}
		if err := checkMetaType(f.Name, f.Type, 0); err != nil {
			return err
		}
		if fieldMeta(f, classesKey) != "" && (Classes(f) == nil || !arrow.IsInteger(f.Type.ID())) {
			return fmt.Errorf("%w: column %q has %s, want an integer column and a JSON list of names", ErrInvalid,
				f.Name, classesKey)
		}
	}
	return nil
}

func checkColumnName(name string) error {
	switch {
	case name == "" || len(name) > MaxNameLen || !utf8.ValidString(name):
		return fmt.Errorf("%w: column name %s, want 1 to %d bytes of UTF-8", ErrInvalid, Quote(name), MaxNameLen)
	case name == PositionColumn || name == SplitColumn:
		return fmt.Errorf("%w: column name %q is reserved for a virtual column", ErrInvalid, name)
	}
	return nil
}

// checkMetaType checks the type of a metadata column. Types without a use in metadata,
// such as maps and unions, are refused.
func checkMetaType(name string, dt arrow.DataType, depth int) error {
	if depth > maxTypeDepth {
		return fmt.Errorf("%w: column %q is nested more than %d levels deep", ErrInvalid, name, maxTypeDepth)
	}
	switch dt := dt.(type) {
	case *arrow.BooleanType,
		*arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type,
		*arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type,
		*arrow.Float16Type, *arrow.Float32Type, *arrow.Float64Type,
		*arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType,
		*arrow.Date32Type, *arrow.Date64Type, *arrow.Time32Type, *arrow.Time64Type,
		*arrow.TimestampType, *arrow.DurationType, *arrow.Decimal128Type, *arrow.Decimal256Type:
		return nil
	case *arrow.FixedSizeBinaryType:
		if dt.ByteWidth < 1 {
			return fmt.Errorf("%w: column %q has type %s, want a width of at least 1", ErrInvalid, name, ShownType(dt))
		}
		return nil
	case *arrow.ListType:
		return checkMetaType(name, dt.Elem(), depth+1)
	case *arrow.FixedSizeListType:
		if dt.Len() < 1 {
			return fmt.Errorf("%w: column %q has type %s, want a length of at least 1", ErrInvalid, name, ShownType(dt))
		}
		return checkMetaType(name, dt.Elem(), depth+1)
	case *arrow.StructType:
		if dt.NumFields() == 0 {
			return fmt.Errorf("%w: column %q has a struct without fields", ErrInvalid, name)
		}
		for _, f := range dt.Fields() {
			if err := checkMetaType(name, f.Type, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%w: column %q has type %s, want bool, int8 to int64, uint8 to uint64, float16 to float64, "+
		"utf8, large_utf8, binary, fixed_size_binary, date32, date64, time32, time64, timestamp, duration, decimal128, "+
		"decimal256, or list, fixed_size_list or struct of these", ErrInvalid, name, ShownType(dt))
}

// HoldsBytes reports whether the lists or structs of a type contain binary values.
// Writers of such a column mostly mean blobs, not metadata.
func HoldsBytes(dt arrow.DataType) bool {
	nested, ok := dt.(arrow.NestedType)
	return ok && slices.ContainsFunc(nested.Fields(), func(f arrow.Field) bool {
		return f.Type.ID() == arrow.BINARY || f.Type.ID() == arrow.LARGE_BINARY || HoldsBytes(f.Type)
	})
}

// CheckName returns a FieldError unless name is fit for a dataset or a split: a letter or
// digit, then up to 127 letters, digits, '.', '_' or '-', all ASCII. field is the name of
// the field in the error.
func CheckName(field, name string) error {
	ok := name != "" && len(name) <= MaxNameLen
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == '-':
			ok = i > 0
		default:
			ok = false
		}
	}
	if !ok {
		return &FieldError{Field: field, Got: Quote(name),
			Want: fmt.Sprintf("a name of 1 to %d letters, digits, '.', '_' and '-', the first a letter or digit",
				MaxNameLen)}
	}
	return nil
}

// Nearest returns the member of names that is most similar to name, "" if none is close
// enough to be a likely typing error.
func Nearest(name string, names []string) string {
	const longest = 64 // longer names are no typing errors, and slow to compare
	if len(name) > longest {
		return ""
	}
	best, at := max(1, len(name)/3)+1, ""
	for _, n := range names {
		if len(n)-len(name) >= best || len(name)-len(n) >= best {
			continue // each byte more is an insertion
		}
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d < best {
			best, at = d, n
		}
	}
	return at
}

// distance is the number of insertions, deletions, replacements and swaps of neighbours
// between a and b (optimal string alignment).
func distance(a, b string) int {
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			sub := prev[j-1]
			if a[i-1] != b[j-1] {
				sub++
			}
			cur[j] = min(sub, prev[j]+1, cur[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}

func fieldMeta(f arrow.Field, key string) string {
	if i := f.Metadata.FindKey(key); i >= 0 {
		return f.Metadata.Values()[i]
	}
	return ""
}

// ID names a sample: a UUID, 16 bytes in network order.
type ID = [16]byte

// idSpace is the namespace of sample ids. It must never change, because ids are stored
// outside of Bowstring.
var idSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("bowstring:sample"))

// SampleID derives the id of a sample from its dataset and its key at the
// source (a relative path, a primary key), as a UUID version 5. The same
// sample imported again gets the same id.
func SampleID(dataset, sourceKey string) ID {
	name := make([]byte, 0, len(dataset)+1+len(sourceKey))
	name = append(name, dataset...)
	name = append(name, 0) // cannot be in a dataset's name, so the result is unambiguous
	name = append(name, sourceKey...)
	return ID(uuid.NewSHA1(idSpace, name))
}

// FormatID returns id in the canonical form of 36 characters.
func FormatID(id ID) string { return uuid.UUID(id).String() }

// ParseID parses an id in the canonical form of 36 characters, or as 32 hexadecimal
// digits.
func ParseID(s string) (ID, error) {
	if len(s) == 36 || len(s) == 32 {
		if id, err := uuid.Parse(s); err == nil {
			return ID(id), nil
		}
	}
	return ID{}, &FieldError{Field: "id", Got: Quote(s), Want: "a UUID such as 6ba7b811-9dad-51d1-80b4-00c04fd430c8"}
}

// Features returns the value of the schema metadata key "huggingface" for a table with
// these columns; see features.
func Features(fields []arrow.Field) string { return string(features(fields)) }

// features returns the value of the schema metadata key "huggingface": the description of
// columns that the datasets library writes and reads. Its versions call a list "Sequence"
// (until 3) or "List" (from 4), but all of them read "Sequence" for a list of plain
// values, and a JSON list for a list of structs.
func features(fields []arrow.Field) []byte {
	var list []member
	for _, f := range fields {
		list = append(list, member{f.Name, featureOf(f)})
	}
	return object(member{"info", object(member{"features", object(list...)})})
}

// featureOf describes a column.
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

// featureOfType describes a type.
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
	return dt.String() // int8 … uint64, binary, date32, time32[s], duration[us] have the same names
}

func value(dtype string) json.RawMessage {
	return object(member{"dtype", text(dtype)}, member{"_type", text("Value")})
}

// member is a member of a JSON object whose order is kept: the library preserves the
// order of columns.
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

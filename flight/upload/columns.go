package upload

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// Keys of metadata that an upload may carry into the dataset: the class names of a column,
// and the features of the Hugging Face datasets library.
const (
	classesKey     = "bowstring.classes"
	huggingFaceKey = "huggingface"
)

// incomingField is a column as the dataset will store it, with its source in the stream.
type incomingField struct {
	arrow.Field
	source
}

// newUpload decides the role of each column of a stream. There are three ways to name the
// blob columns; the first that is used decides:
//
//   - the command's list of blobs,
//   - field metadata,
//   - the type: every binary and large_binary column.
//
// A struct in the layout of Hugging Face datasets is a blob column in any case.
func newUpload(put *Command, in *arrow.Schema) (*upload, error) {
	u := &upload{dataset: put.Dataset, split: put.Split, found: put.alters()}
	if u.found {
		u.split = "" // samples stay in their splits
	}
	hints := huggingFaceHints(in)
	var meta, blobs []incomingField
	var path *incomingField
	for i, f := range in.Fields() {
		if f.Name == schema.IDColumn {
			u.id = &source{f.Name, i, -1}
			continue
		}
		if f.Name == schema.PositionColumn {
			return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", f.Name), Got: "it in an upload",
				Want: "another name: this one is computed"}
		}
		f.Type = valueType(f.Type)
		if f.Name == schema.SplitColumn {
			if !isText(f.Type) {
				return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", f.Name), Got: schema.ShownType(f.Type),
					Want: "utf8: the split of each row"}
			}
			u.splitFrom = &source{f.Name, i, -1}
			continue
		}
		if bytes, at, ok := huggingFaceStruct(f.Type); ok {
			col := incomingField{f, source{f.Name, i, bytes}}
			col.Type = arrow.BinaryTypes.LargeBinary
			col.Nullable = true // the struct or its bytes may be null
			blobs = append(blobs, col)
			if at >= 0 && path == nil {
				path = &incomingField{arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String,
					Nullable: true}, source{f.Name + ".path", i, at}}
				path.Type = f.Type.(*arrow.StructType).Field(at).Type
			}
			continue
		}
		col := incomingField{f, source{f.Name, i, -1}}
		if isBlob, err := put.isBlob(f, in); err != nil {
			return nil, err
		} else if isBlob {
			blobs = append(blobs, col)
		} else {
			meta = append(meta, col)
		}
	}
	// The path of the first struct becomes a metadata column, unless the stream has a
	// column of that name.
	if path != nil && !slices.ContainsFunc(in.Fields(), func(f arrow.Field) bool {
		return f.Name == schema.PathColumn
	}) {
		meta = append(meta, *path)
	}
	if err := put.checkNames(in, blobs); err != nil {
		return nil, err
	}

	// The dataset's schema has metadata columns first, and then blob columns.
	metaFields, blobFields := make([]arrow.Field, len(meta)), make([]arrow.Field, len(blobs))
	for i, f := range meta {
		metaFields[i] = arrow.Field{Name: f.Name, Type: f.Type, Nullable: f.Nullable, Metadata: classes(f.Field, hints)}
		u.metaFrom = append(u.metaFrom, f.source)
		if put.Key == f.Name {
			u.key = &f.source
		}
	}
	for i, f := range blobs {
		blobFields[i] = schema.BlobField(f.Name, put.mediaOf(f.Field, hints, f.child >= 0), f.Nullable)
		u.blobFrom = append(u.blobFrom, f.source)
	}
	if put.Key != "" && u.key == nil {
		return nil, &schema.FieldError{Field: "put.key", Got: fmt.Sprintf("%q", put.Key),
			Want: "a metadata column of the upload" + known(metaFields)}
	}
	if put.Key != "" && u.id != nil {
		return nil, &schema.FieldError{Field: "put.key", Got: fmt.Sprintf("%q", put.Key),
			Want: "no key, as the upload has a column \"id\""}
	}
	if u.splitFrom != nil && u.id == nil && u.key == nil && !u.found {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", schema.SplitColumn), Got: "it without ids",
			Want: "a column \"id\" or put.key beside it: rows of several splits are not numbered"}
	}
	var err error
	if u.schema, err = schema.NewSchema(metaFields, blobFields); err != nil {
		return nil, err
	}
	u.meta = arrow.NewSchema(metaFields, nil)
	return u, nil
}

// known returns the names of fields as the end of an error message.
func known(fields []arrow.Field) string {
	if len(fields) == 0 {
		return "; it has none"
	}
	s := ": "
	for i, f := range fields {
		if i > 0 {
			s += ", "
		}
		s += schema.Shown(f.Name)
	}
	return s
}

// valueType returns the type in which values of t are stored: without dictionaries and
// extensions.
func valueType(t arrow.DataType) arrow.DataType {
	switch dt := t.(type) {
	case *arrow.DictionaryType:
		return valueType(dt.ValueType)
	case arrow.ExtensionType:
		return valueType(dt.StorageType())
	}
	return t
}

// isBinary reports whether values of t can be blobs.
func isBinary(t arrow.DataType) bool {
	return t.ID() == arrow.BINARY || t.ID() == arrow.LARGE_BINARY
}

// isText reports whether values of t are UTF-8.
func isText(t arrow.DataType) bool { return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING }

// huggingFaceStruct recognises struct<bytes: binary, path: string>. It returns the indices
// of the children; path is -1 if there is none. A struct with any other child is not
// recognised, because that child would be lost.
func huggingFaceStruct(t arrow.DataType) (bytes, path int, ok bool) {
	st, isStruct := t.(*arrow.StructType)
	if !isStruct {
		return 0, 0, false
	}
	bytes, path = -1, -1
	for i, f := range st.Fields() {
		switch {
		case f.Name == "bytes" && isBinary(f.Type):
			bytes = i
		case f.Name == "path" && isText(f.Type):
			path = i
		default:
			return 0, 0, false
		}
	}
	return bytes, path, bytes >= 0
}

// feature is the description of a column in Hugging Face's schema metadata.
type feature struct {
	Type  string   `json:"_type"`
	Names []string `json:"names"`
}

// huggingFaceHints reads the huggingface metadata of a schema. Another project defines it,
// so anything unexpected is ignored and is not an error.
func huggingFaceHints(s *arrow.Schema) map[string]feature {
	md := s.Metadata()
	i := md.FindKey(huggingFaceKey)
	if i < 0 {
		return nil
	}
	var doc struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	if json.Unmarshal([]byte(md.Values()[i]), &doc) != nil {
		return nil
	}
	hints := map[string]feature{}
	for name, raw := range doc.Info.Features {
		var f feature
		if json.Unmarshal(raw, &f) == nil {
			hints[name] = f
		}
	}
	return hints
}

// classes returns the field metadata that a metadata column keeps: its class names.
func classes(f arrow.Field, hints map[string]feature) arrow.Metadata {
	if i := f.Metadata.FindKey(classesKey); i >= 0 {
		return arrow.NewMetadata([]string{classesKey}, []string{f.Metadata.Values()[i]})
	}
	if h := hints[f.Name]; h.Type == "ClassLabel" && len(h.Names) > 0 && arrow.IsInteger(f.Type.ID()) {
		return schema.ClassField(f.Name, h.Names).Metadata
	}
	return arrow.Metadata{}
}

// isBlob decides whether a column holds blobs. A column of lists or structs of bytes is
// refused unless the command names the blobs: as metadata it would have no checksums and no
// operators.
func (p *Command) isBlob(f arrow.Field, in *arrow.Schema) (bool, error) {
	switch {
	case p.Blobs == nil && !slices.ContainsFunc(in.Fields(), schema.IsBlob) && schema.HoldsBytes(f.Type):
		return false, &schema.FieldError{Field: fmt.Sprintf("column %q", f.Name), Got: schema.ShownType(f.Type),
			Want: "a blob column for each of its blobs, such as " + f.Name + "_0 and " + f.Name +
				"_1, or put.blobs: with that, columns that it does not name are metadata"}
	case p.Blobs != nil:
		if !slices.Contains(p.Blobs, f.Name) {
			return false, nil
		}
	case slices.ContainsFunc(in.Fields(), schema.IsBlob):
		if !schema.IsBlob(f) {
			return false, nil
		}
	default:
		return isBinary(f.Type), nil
	}
	if !isBinary(f.Type) {
		return false, &schema.FieldError{Field: fmt.Sprintf("column %q", f.Name), Got: schema.ShownType(f.Type),
			Want: "binary or large_binary for a blob column"}
	}
	return true, nil
}

// checkNames returns an error for a name in the command that is not a column of the upload.
func (p *Command) checkNames(in *arrow.Schema, blobs []incomingField) error {
	for _, name := range p.Blobs {
		if len(in.FieldIndices(name)) == 0 {
			return &schema.FieldError{Field: "put.blobs", Got: schema.Quote(name), Want: "columns of the upload" +
				known(in.Fields())}
		}
	}
	for name, media := range p.Media {
		if !slices.ContainsFunc(blobs, func(f incomingField) bool { return f.Field.Name == name }) {
			return &schema.FieldError{Field: "put.media", Got: schema.Quote(name), Want: "blob columns of the upload"}
		}
		if media != schema.MediaImage && media != schema.MediaAudio {
			return &schema.FieldError{Field: "put.media." + schema.Shown(name), Got: schema.Quote(media), Want: `"image" or "audio"`}
		}
	}
	return nil
}

// mediaOf returns the media type of a blob column, "" if it is not known. The command takes
// precedence over field metadata, and that over Hugging Face's hints.
func (p *Command) mediaOf(f arrow.Field, hints map[string]feature, huggingFace bool) string {
	switch {
	case p.Media[f.Name] != "":
		return p.Media[f.Name]
	case schema.Media(f) != "":
		return schema.Media(f)
	case hints[f.Name].Type == "Audio":
		return schema.MediaAudio
	case hints[f.Name].Type == "Image" || huggingFace:
		return schema.MediaImage
	}
	return ""
}

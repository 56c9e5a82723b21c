package source

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// maxSpread bounds the blob columns that one column of lists becomes.
const maxSpread = 256

// feature is what the `datasets` library says of a column, in the schema
// metadata "huggingface" of a file.
type feature struct {
	Type    string   `json:"_type"`
	Names   []string `json:"names"`
	Feature *feature `json:"feature"` // of the elements of a list
}

// UnmarshalJSON reads a list of one feature, too, which older versions wrote for a list.
func (f *feature) UnmarshalJSON(b []byte) error {
	var list []*feature
	if json.Unmarshal(b, &list) == nil {
		*f = feature{Type: "List"}
		if len(list) > 0 {
			f.Feature = list[0]
		}
		return nil
	}
	type plain feature
	return json.Unmarshal(b, (*plain)(f))
}

func features(text string) map[string]feature {
	var info struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	if text == "" || json.Unmarshal([]byte(text), &info) != nil {
		return nil
	}
	found := map[string]feature{}
	for name, raw := range info.Info.Features {
		var f feature // what is strange is passed over: it is another project's
		if json.Unmarshal(raw, &f) == nil {
			found[name] = f
		}
	}
	return found
}

type metaColumn struct {
	field arrow.Field
	index int // in the layout
}

// blobColumn is a blob column, and where the rows of a file have it.
type blobColumn struct {
	field   arrow.Field
	index   int  // in the layout
	nested  bool // struct<bytes, path>
	element int  // of the lists in the column; -1 for a column without lists
	last    bool // of those that the lists are spread over
}

// cell returns the blob of a row, nil for null, and its path. bad says why there is neither.
func (b *blobColumn) cell(column arrow.Array, row int) (data []byte, path, bad string) {
	if column.IsNull(row) {
		return nil, "", ""
	}
	if list, ok := column.(array.ListLike); ok {
		start, end := list.ValueOffsets(row)
		if n := int(end - start); n > b.element+1 && b.last {
			return nil, "", fmt.Sprintf("%s has %d elements, more than the %d that --spread takes",
				Quoted(b.field.Name), n, b.element+1)
		} else if n <= b.element {
			return nil, "", ""
		}
		if column, row = list.ListValues(), int(start)+b.element; column.IsNull(row) {
			return nil, "", ""
		}
	}
	content, paths := blobArrays(column)
	if paths != nil {
		path = text(paths, row)
	}
	switch {
	case content.IsValid(row):
		if data = content.Value(row); data == nil {
			data = []byte{}
		}
	case path != "":
		bad = fmt.Sprintf("%s: the file holds its path only (%s), not its bytes", Quoted(b.field.Name), Quoted(path))
	}
	return data, path, bad
}

// bytesArray is an array of binary or large_binary.
type bytesArray interface {
	arrow.Array
	Value(int) []byte
}

// blobArrays returns the content and the path (or nil) of a blob column, nil if it is none.
func blobArrays(a arrow.Array) (content bytesArray, path arrow.Array) {
	switch a := a.(type) {
	case *array.Binary:
		return a, nil
	case *array.LargeBinary:
		return a, nil
	case *array.Struct:
		if !isBlobStruct(a.DataType()) {
			return nil, nil
		}
		t := a.DataType().(*arrow.StructType)
		i, _ := t.FieldIdx("bytes")
		if j, ok := t.FieldIdx("path"); ok {
			path = a.Field(j)
		}
		content, _ := blobArrays(a.Field(i))
		return content, path
	}
	return nil, nil
}

// isBlobStruct says whether a type is struct<bytes, path>, or struct<bytes>.
func isBlobStruct(t arrow.DataType) bool {
	st, ok := t.(*arrow.StructType)
	if !ok {
		return false
	}
	content, ok := st.FieldByName("bytes")
	path, pathed := st.FieldByName("path")
	switch {
	case !ok || !isBytes(content.Type) || st.NumFields() > 2 || st.NumFields() == 2 && !pathed:
		return false
	}
	return !pathed || isText(path.Type)
}

func isBytes(t arrow.DataType) bool { return t.ID() == arrow.BINARY || t.ID() == arrow.LARGE_BINARY }

func isBlob(t arrow.DataType) bool { return isBytes(t) || isBlobStruct(t) }

// classify sorts the columns into metadata and blobs.
func (s *parquetSource) classify(samples map[int][]byte) error {
	known := features(s.layout.info())
	s.notes = append(s.notes, s.layout.notes...)
	for i, f := range s.layout.fields {
		list, isList := f.Type.(arrow.ListLikeType)
		n, spread := s.opts.Spread[f.Name]
		switch {
		case isBlob(f.Type):
			b := blobColumn{field: schema.BlobField(f.Name, mediaOf(known[f.Name].Type, samples[i]), true), index: i,
				nested: !isBytes(f.Type), element: -1}
			s.blobs = append(s.blobs, b)
		case spread && isList && isBlob(list.Elem()):
			var of string
			if e := known[f.Name].Feature; e != nil {
				of = e.Type
			}
			for e := range n {
				s.blobs = append(s.blobs, blobColumn{
					field: schema.BlobField(fmt.Sprintf("%s_%d", f.Name, e), mediaOf(of, samples[i]), true), index: i,
					nested: !isBytes(list.Elem()), element: e, last: e == n-1})
			}
			if !isBytes(list.Elem()) {
				s.notes = append(s.notes, fmt.Sprintf("of the paths in column %s, the first of a row is kept at most",
					Quoted(f.Name)))
			}
		case schema.HoldsBytes(f.Type) && !slices.Contains(s.opts.AsMetadata, f.Name):
			return s.refuseBytes(f, isList && isBlob(list.Elem()))
		default:
			if names := known[f.Name].Names; known[f.Name].Type == "ClassLabel" && f.Type.ID() == arrow.INT64 {
				f = schema.ClassField(f.Name, names)
			}
			s.meta = append(s.meta, metaColumn{f, i})
		}
	}
	if err := s.checkSpread(); err != nil {
		return err
	}
	nested := slices.IndexFunc(s.blobs, func(b blobColumn) bool { return b.nested })
	named := slices.ContainsFunc(s.meta, func(m metaColumn) bool { return m.field.Name == schema.PathColumn })
	if !named && nested >= 0 && s.layout.choice.keeps(schema.PathColumn) {
		s.paths = nested
	}
	return nil
}

// refuseBytes is why a column of bytes within other values is neither taken for metadata nor for blobs.
func (s *parquetSource) refuseBytes(f arrow.Field, spreads bool) error {
	name, advice := Quoted(f.Name), ""
	if spreads {
		advice = fmt.Sprintf("--spread %s=N makes N blob columns of it, %s_0 and so on; ", name, name)
	}
	return fmt.Errorf("%w: column %s of type %s holds several blobs a row, or blobs within other values: %s--as-metadata "+
		"%s keeps it in the rows of the manifest, without checksums, the spill and operators; --leave-out %s leaves it out",
		schema.ErrInvalid, name, schema.ShownType(f.Type), advice, name, name)
}

// checkSpread looks for names in the options that no such column has.
func (s *parquetSource) checkSpread() error {
	for _, name := range slices.Sorted(maps.Keys(s.opts.Spread)) {
		if n := s.opts.Spread[name]; n < 1 || n > maxSpread {
			return fmt.Errorf("%w: --spread %s=%d: want 1 to %d columns", schema.ErrInvalid, Quoted(name), n, maxSpread)
		}
		if !slices.ContainsFunc(s.blobs, func(b blobColumn) bool {
			return b.element >= 0 && s.layout.fields[b.index].Name == name
		}) {
			return fmt.Errorf("%w: --spread %s: there is no column of lists of blobs of that name", schema.ErrInvalid,
				Quoted(name))
		}
	}
	for _, name := range s.opts.AsMetadata {
		if !slices.ContainsFunc(s.meta, func(m metaColumn) bool { return m.field.Name == name }) {
			return fmt.Errorf("%w: --as-metadata: there is no column %s of bytes within lists or structs",
				schema.ErrInvalid, Quoted(name))
		}
	}
	return nil
}

// sniffColumns returns the first content of each blob column, as far as the
// first rows have one.
func (s *parquetSource) sniffColumns(ctx context.Context, path string) map[int][]byte {
	found := map[int][]byte{}
	records, err := s.layout.openRecords(path)
	if err != nil {
		return nil
	}
	defer func() { _ = records.close() }()
	rec, _, err := records.next(ctx)
	if err != nil {
		return nil
	}
	defer rec.Release()
	for c, column := range rec.Columns() {
		if list, ok := column.(array.ListLike); ok {
			column = list.ListValues()
		}
		content, _ := blobArrays(column)
		for row := 0; content != nil && row < content.Len() && found[c] == nil; row++ {
			if content.IsValid(row) {
				found[c] = slices.Clone(content.Value(row))
			}
		}
	}
	return found
}

// mediaOf says what a blob column holds, by its feature or else by a sample.
func mediaOf(feature string, sample []byte) string {
	switch feature {
	case "Image":
		return schema.MediaImage
	case "Audio":
		return schema.MediaAudio
	case "":
		if _, err := inspect(sample, VerifyNone); err == nil {
			return schema.MediaImage
		}
	}
	return ""
}

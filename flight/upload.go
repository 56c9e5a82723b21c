package flight

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/ingest"
	"bowstring/schema"
)

// Names of field metadata that an upload may carry into the dataset.
const (
	classesKey     = "bowstring.classes"
	huggingFaceKey = "huggingface"
)

// upload says how the columns of an incoming stream become those of a
// dataset. It is immutable.
type upload struct {
	dataset string
	split   string
	schema  *arrow.Schema // of the dataset
	meta    *arrow.Schema // its metadata columns

	first int64 // rows that the split has already

	id        *source // nil: ids are derived
	key       *source // what they are derived from; nil: the row's number
	splitFrom *source // nil: all rows are in split
	metaFrom  []source
	blobFrom  []source
}

// source is where the values of a column come from: a column of the stream,
// or a child of one that is a struct.
type source struct {
	name   string // as errors say it
	column int
	child  int // -1: the column itself
}

// incomingField is a column of the stream, as it is stored.
type incomingField struct {
	arrow.Field
	source
}

// newUpload decides what each column is. Blob columns are those that put
// names, else those whose field metadata says so, else every binary and
// large_binary one; columns in the Hugging Face layout always are.
func newUpload(put *putCommand, in *arrow.Schema) (*upload, error) {
	u := &upload{dataset: put.Dataset, split: put.Split}
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
				return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", f.Name), Got: f.Type.String(),
					Want: "utf8: the split of each row"}
			}
			u.splitFrom = &source{f.Name, i, -1}
			continue
		}
		if bytes, at, ok := huggingFaceStruct(f.Type); ok {
			col := incomingField{f, source{f.Name, i, bytes}}
			col.Type = arrow.BinaryTypes.LargeBinary
			col.Nullable = true // the struct or its bytes may be
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
	if path != nil && !slices.ContainsFunc(in.Fields(), func(f arrow.Field) bool {
		return f.Name == schema.PathColumn
	}) {
		meta = append(meta, *path)
	}
	if err := put.checkNames(in, blobs); err != nil {
		return nil, err
	}

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
	if u.splitFrom != nil && u.id == nil && u.key == nil {
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

func known(fields []arrow.Field) string {
	if len(fields) == 0 {
		return "; it has none"
	}
	s := ": "
	for i, f := range fields {
		if i > 0 {
			s += ", "
		}
		s += f.Name
	}
	return s
}

// valueType is the type that values of t are stored in.
func valueType(t arrow.DataType) arrow.DataType {
	switch dt := t.(type) {
	case *arrow.DictionaryType:
		return valueType(dt.ValueType)
	case arrow.ExtensionType:
		return valueType(dt.StorageType())
	}
	return t
}

func isBinary(t arrow.DataType) bool {
	return t.ID() == arrow.BINARY || t.ID() == arrow.LARGE_BINARY
}

func isText(t arrow.DataType) bool { return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING }

// huggingFaceStruct recognises struct<bytes: binary, path: string>, and returns
// where its children are; path may be absent (-1).
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

// feature is what Hugging Face's schema metadata says of a column.
type feature struct {
	Type  string   `json:"_type"`
	Names []string `json:"names"`
}

// huggingFaceHints reads a schema's huggingface metadata, if it has any that
// can be understood: it is another project's, so what is strange is passed over.
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

// classes is the field metadata that a metadata column keeps: its class names.
func classes(f arrow.Field, hints map[string]feature) arrow.Metadata {
	if i := f.Metadata.FindKey(classesKey); i >= 0 {
		return arrow.NewMetadata([]string{classesKey}, []string{f.Metadata.Values()[i]})
	}
	if h := hints[f.Name]; h.Type == "ClassLabel" && len(h.Names) > 0 && arrow.IsInteger(f.Type.ID()) {
		return schema.ClassField(f.Name, h.Names).Metadata
	}
	return arrow.Metadata{}
}

// isBlob decides whether a column holds blobs.
func (p *putCommand) isBlob(f arrow.Field, in *arrow.Schema) (bool, error) {
	switch {
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
		return false, &schema.FieldError{Field: fmt.Sprintf("column %q", f.Name), Got: f.Type.String(),
			Want: "binary or large_binary for a blob column"}
	}
	return true, nil
}

// checkNames reports names in the command that the upload lacks.
func (p *putCommand) checkNames(in *arrow.Schema, blobs []incomingField) error {
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
			return &schema.FieldError{Field: "put.media." + name, Got: schema.Quote(media), Want: `"image" or "audio"`}
		}
	}
	return nil
}

// mediaOf is what a blob column holds, "" if nobody says.
func (p *putCommand) mediaOf(f arrow.Field, hints map[string]feature, huggingFace bool) string {
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

// uploadedRows are the rows of a record as ingest takes them. What they point
// to is valid until release.
type uploadedRows struct {
	ids   []schema.ID
	meta  arrow.Record
	blobs [][][]byte
	bytes int64 // of all blobs
	runs  []run // all rows, by the split they are in

	mem     memory.Allocator
	lease   *lease        // that mem takes from
	columns []arrow.Array // made of what came, to be released
}

// run is rows [start, end) that are in one split.
type run struct {
	split      string
	start, end int
}

// write stores the rows, run by run.
func (r *uploadedRows) write(ctx context.Context, w *ingest.Writer) error {
	for _, run := range r.runs {
		meta := r.meta.NewSlice(int64(run.start), int64(run.end))
		blobs := make([][][]byte, len(r.blobs))
		for c := range blobs {
			blobs[c] = r.blobs[c][run.start:run.end]
		}
		err := w.Write(ctx, run.split, r.ids[run.start:run.end], meta, blobs)
		meta.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// splits divides n rows into runs of one split. A row whose split is null or
// empty is in that of the command.
func (u *upload) splits(columns []arrow.Array, n int) ([]run, error) {
	if u.splitFrom == nil {
		return []run{{u.split, 0, n}}, nil
	}
	at, err := u.text(columns, *u.splitFrom)
	if err != nil {
		return nil, err
	}
	var runs []run
	for i := range n {
		split := u.split
		if v, ok := at(i); ok && len(v) > 0 {
			split = string(v)
		}
		if last := len(runs) - 1; last >= 0 && runs[last].split == split {
			runs[last].end = i + 1
		} else {
			runs = append(runs, run{split, i, i + 1})
		}
	}
	return runs, nil
}

func (r *uploadedRows) release() {
	if r.meta != nil {
		r.meta.Release()
	}
	for _, a := range r.columns {
		a.Release()
	}
}

// rows takes a batch of the stream apart. first is the number in its split of
// the batch's first row. The caller releases the result.
func (u *upload) rows(mem memory.Allocator, lease *lease, rec *batch, first int64) (_ *uploadedRows, err error) {
	r := &uploadedRows{mem: mem, lease: lease}
	defer func() {
		if err != nil {
			r.release()
		}
	}()
	columns := make([]arrow.Array, len(rec.columns))
	for i := range columns {
		if columns[i], err = r.values(rec.columns[i]); err != nil {
			return nil, fmt.Errorf("decoding column %q: %w", rec.schema.Field(i).Name, err)
		}
	}
	n := rec.rows

	meta := make([]arrow.Array, len(u.metaFrom))
	for i, from := range u.metaFrom {
		if meta[i], err = r.child(columns, from); err != nil {
			return nil, err
		}
	}
	r.meta = array.NewRecord(u.meta, meta, int64(n))

	r.blobs = make([][][]byte, len(u.blobFrom))
	for c, from := range u.blobFrom {
		at, err := u.text(columns, from)
		if err != nil {
			return nil, err
		}
		column := make([][]byte, n)
		for i := range column {
			v, ok := at(i)
			if !ok {
				continue
			}
			if v == nil {
				v = []byte{} // empty, not null
			}
			column[i] = v
			r.bytes += int64(len(v))
		}
		r.blobs[c] = column
	}

	if r.runs, err = u.splits(columns, n); err != nil {
		return nil, err
	}
	r.ids, err = u.ids(columns, n, first)
	return r, err
}

// values decodes dictionaries. Arrays that it makes are r's to release.
func (r *uploadedRows) values(a arrow.Array) (arrow.Array, error) {
	dict, ok := a.(*array.Dictionary)
	if !ok {
		return a, nil
	}
	v, err := gather(dict, r.mem, r.lease)
	if err != nil {
		return nil, err
	}
	r.columns = append(r.columns, v)
	return v, nil
}

// metaBytes is what the metadata columns take.
func (r *uploadedRows) metaBytes() int64 {
	var sum int64
	var add func(d arrow.ArrayData)
	add = func(d arrow.ArrayData) {
		for _, b := range d.Buffers() {
			if b != nil {
				sum += int64(b.Len())
			}
		}
		for _, c := range d.Children() {
			add(c)
		}
	}
	for _, c := range r.meta.Columns() {
		add(c.Data())
	}
	return sum
}

// child returns the values of a metadata column. A child of a struct is null
// where the struct is.
func (r *uploadedRows) child(columns []arrow.Array, from source) (arrow.Array, error) {
	col := columns[from.column]
	if from.child < 0 {
		return col, nil
	}
	at, err := structText(col.(*array.Struct), from.child)
	if err != nil {
		return nil, err
	}
	t := col.(*array.Struct).Field(from.child).DataType()
	b := array.NewBuilder(r.mem, t)
	defer b.Release()
	for i := range col.Len() {
		v, ok := at(i)
		if !ok {
			b.AppendNull()
		} else if err := b.AppendValueFromString(string(v)); err != nil {
			return nil, err
		}
	}
	a := b.NewArray()
	r.columns = append(r.columns, a)
	return a, nil
}

// text returns the values of a binary or text source.
func (u *upload) text(columns []arrow.Array, from source) (func(int) ([]byte, bool), error) {
	if from.child < 0 {
		return texts(columns[from.column])
	}
	return structText(columns[from.column].(*array.Struct), from.child)
}

func structText(s *array.Struct, child int) (func(int) ([]byte, bool), error) {
	at, err := texts(s.Field(child))
	if err != nil {
		return nil, err
	}
	return func(i int) ([]byte, bool) {
		if s.IsNull(i) {
			return nil, false
		}
		return at(i)
	}, nil
}

// ids reads or derives the ids of the rows.
func (u *upload) ids(columns []arrow.Array, n int, first int64) ([]schema.ID, error) {
	out := make([]schema.ID, n)
	if u.id != nil {
		at, err := ids(u.id.name, columns[u.id.column])
		if err != nil {
			return nil, err
		}
		for i := range out {
			if out[i], err = at(i); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	at, err := u.keys(columns, first)
	if err != nil {
		return nil, err
	}
	for i := range out {
		key, ok := at(i)
		if !ok {
			return nil, &schema.FieldError{Field: fmt.Sprintf("column %q, row %d of its batch", u.key.name, i),
				Got: "null", Want: "a value, as the ids are derived from it"}
		}
		out[i] = schema.SampleID(u.dataset, key)
	}
	return out, nil
}

// keys returns what the ids of the rows are derived from.
func (u *upload) keys(columns []arrow.Array, first int64) (func(int) (string, bool), error) {
	if u.key == nil {
		return func(i int) (string, bool) {
			return "put:" + u.split + ":" + strconv.FormatInt(first+int64(i), 10), true
		}, nil
	}
	col := columns[u.key.column]
	if u.key.child < 0 && arrow.IsInteger(col.DataType().ID()) {
		at, err := anyIntegers(col)
		if err != nil {
			return nil, err
		}
		return func(i int) (string, bool) { return strconv.FormatInt(at(i), 10), col.IsValid(i) }, nil
	}
	at, err := u.text(columns, *u.key)
	if err != nil {
		return nil, &schema.FieldError{Field: "put.key", Got: fmt.Sprintf("%q, a column of type %s", u.key.name,
			col.DataType()), Want: "a column of text, binary or integers"}
	}
	return func(i int) (string, bool) {
		v, ok := at(i)
		return string(v), ok
	}, nil
}

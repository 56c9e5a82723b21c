package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// feature is what the `datasets` library says of a column, in the schema
// metadata "huggingface" of a file.
type feature struct {
	Type  string   `json:"_type"`
	Names []string `json:"names"`
}

func features(s *arrow.Schema) map[string]feature {
	md := s.Metadata()
	i := md.FindKey("huggingface")
	if i < 0 {
		return nil
	}
	var info struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	if json.Unmarshal([]byte(md.Values()[i]), &info) != nil {
		return nil
	}
	found := map[string]feature{}
	for name, raw := range info.Info.Features {
		var f feature // a list feature is an array, which this is not
		if json.Unmarshal(raw, &f) == nil {
			found[name] = f
		}
	}
	return found
}

// parquetSource is a directory or a file of Parquet, as the `datasets` library
// writes it or not. Columns of binary and of struct<bytes, path> are blobs,
// the others metadata. A split is told by the name of the file or its folder.
type parquetSource struct {
	about
	shards []shard
	choice *choice
	broken map[string]error // shards that cannot be opened, by rel
	fields []arrow.Field    // of the files
	meta   []metaColumn
	blobs  []blobColumn
	paths  int         // blob column whose paths are the column file_name, or -1
	own    *ownColumns // of a file that Bowstring wrote
	asked  string      // the split to read
}

type metaColumn struct {
	field arrow.Field
	index int // in the file
}

type blobColumn struct {
	field  arrow.Field
	index  int
	nested bool // struct<bytes, path>
}

func openParquet(ctx context.Context, path string, opts Options) (Source, error) {
	all, err := findShards(path, opts, func(name string) bool { return extension(name) == "parquet" && !isMetadata(name) })
	if err != nil {
		return nil, err
	}
	s := &parquetSource{about: about{format: "parquet", path: absolute(path)}, choice: opts.choice,
		broken: map[string]error{}, paths: -1, asked: opts.Split}
	s.shards, s.splits = arrangeShards(all, opts.Split)
	if len(s.shards) == 0 {
		return nil, fmt.Errorf("%w: there is no *.parquet file", schema.ErrInvalid)
	}
	if err := s.readSchemas(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// readSchemas opens each file for its columns and its number of rows.
func (s *parquetSource) readSchemas(ctx context.Context) error {
	first := ""
	for _, sh := range s.shards {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if sh.missing != "" {
			s.broken[sh.rel] = errors.New(sh.missing)
			continue
		}
		f, err := openParquetFile(sh.path)
		if err != nil {
			s.broken[sh.rel] = err
			continue
		}
		s.rows += max(f.file.NumRows(), 0)
		fields := plainFields(f.schema.Fields())
		if first == "" {
			first, s.fields = sh.rel, fields
			s.own = ownColumnsOf(f.stored, fields)
			s.exact = s.own != nil
			s.classify(f.schema, sniffColumns(ctx, f, fields))
		} else if diff := fieldsDiff(s.fields, fields); diff != "" {
			s.broken[sh.rel] = fmt.Errorf("its columns are not those of %s: %s", Quoted(first), diff)
		}
		if err := f.close(); err != nil {
			return err
		}
	}
	if first == "" {
		var errs []error
		for _, sh := range s.shards {
			errs = append(errs, fmt.Errorf("%s: %w", Quoted(sh.rel), s.broken[sh.rel]))
		}
		return fmt.Errorf("%w: no file can be read: %w", schema.ErrInvalid, errors.Join(errs...))
	}
	return nil
}

// sniffColumns returns the first content of each blob column, as far as the
// first rows have one.
func sniffColumns(ctx context.Context, f *parquetFile, fields []arrow.Field) map[int][]byte {
	found := map[int][]byte{}
	records, err := f.records(ctx)
	if err != nil {
		return nil
	}
	defer records.release()
	rec, err := records.next()
	if err != nil {
		return nil
	}
	for c := range fields {
		column, _ := blobArrays(rec.Column(c))
		for row := 0; column != nil && row < column.Len() && found[c] == nil; row++ {
			if column.IsValid(row) {
				found[c] = slices.Clone(column.Value(row))
			}
		}
	}
	return found
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
		t := a.DataType().(*arrow.StructType)
		i, ok := t.FieldIdx("bytes")
		j, pathed := t.FieldIdx("path")
		if !ok || !pathed || t.NumFields() != 2 {
			return nil, nil
		}
		content, _ := blobArrays(a.Field(i))
		return content, a.Field(j)
	case array.ExtensionArray:
		return blobArrays(a.Storage())
	}
	return nil, nil
}

// classify sorts the columns into metadata and blobs.
func (s *parquetSource) classify(file *arrow.Schema, samples map[int][]byte) {
	known := features(file)
	var taken []string
	for i, f := range s.fields {
		if s.own != nil {
			if i != s.own.id && i != s.own.split && s.choice.wants(f.Name) {
				s.addOwn(i)
			}
			continue
		}
		if !s.choice.wants(f.Name, freeName(f.Name, nil)) {
			continue
		}
		empty := array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 0)
		content, _ := blobArrays(empty)
		if content != nil {
			_, nested := f.Type.(*arrow.StructType)
			s.blobs = append(s.blobs, blobColumn{schema.BlobField(f.Name, mediaOf(known[f.Name].Type, samples[i]),
				true), i, nested})
			taken = append(taken, f.Name)
			continue
		}
		if f.Type.ID() == arrow.NULL {
			s.notes = append(s.notes, fmt.Sprintf("column %q holds nothing and was left out", f.Name))
			continue
		}
		if names := known[f.Name].Names; known[f.Name].Type == "ClassLabel" && f.Type.ID() == arrow.INT64 {
			f = schema.ClassField(f.Name, names)
		}
		s.meta = append(s.meta, metaColumn{f, i})
	}
	if s.own != nil {
		return
	}
	s.rename(taken)
	nested := slices.IndexFunc(s.blobs, func(b blobColumn) bool { return b.nested })
	named := slices.ContainsFunc(s.meta, func(m metaColumn) bool { return m.field.Name == schema.PathColumn })
	if !named && nested >= 0 && s.choice.keeps(schema.PathColumn) {
		s.paths = nested
	}
}

func (s *parquetSource) rename(taken []string) {
	rename := func(f *arrow.Field, taken []string) {
		if name := freeName(f.Name, taken); name != f.Name {
			s.notes = append(s.notes, fmt.Sprintf("column %q is kept as %q", f.Name, name))
			f.Name = name
		}
	}
	for i := range s.meta {
		rename(&s.meta[i].field, taken)
	}
	for i := range s.blobs {
		rename(&s.blobs[i].field, nil)
	}
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

func (s *parquetSource) Fields() (meta, blobs []arrow.Field) {
	for _, m := range s.meta {
		meta = append(meta, m.field)
	}
	if s.paths >= 0 {
		meta = append(meta, arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
	}
	for _, b := range s.blobs {
		blobs = append(blobs, b.field)
	}
	return meta, blobs
}

func (s *parquetSource) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		for _, sh := range s.shards {
			more, err := s.readShard(ctx, sh, yield)
			if ctx.Err() != nil {
				yield(Sample{}, context.Cause(ctx))
				return
			}
			if err != nil && !yield(Sample{Key: sh.rel, Split: sh.split, Bad: err.Error()}, nil) || !more {
				return
			}
		}
	}
}

// readShard yields the rows of a file. Its error is what is wrong with the file.
func (s *parquetSource) readShard(ctx context.Context, sh shard,
	yield func(Sample, error) bool) (more bool, err error) {
	if err := s.broken[sh.rel]; err != nil {
		return true, err
	}
	f, err := openParquetFile(sh.path)
	if err != nil {
		return true, err
	}
	defer func() { _ = f.close() }()
	records, err := f.records(ctx)
	if err != nil {
		return true, err
	}
	defer records.release()
	for row := int64(0); ; {
		rec, err := records.next()
		if errors.Is(err, io.EOF) {
			if want := f.file.NumRows(); row != want {
				return true, fmt.Errorf("it ends after %d of %d rows", row, want)
			}
			return true, nil
		}
		if err != nil {
			return true, fmt.Errorf("after %d of %d rows: %w", row, f.file.NumRows(), err)
		}
		share := recordBytes(rec) / max(rec.NumRows(), 1)
		for i := range int(rec.NumRows()) {
			sample := s.sample(sh, row, rec, i)
			sample.Size = max(sample.Size, share) // of the record, which stays as long as a row of it does
			if s.own.leavesOut(sample.Split, s.asked) {
				sample.Release()
				row++
				continue
			}
			if !yield(sample, nil) {
				return false, nil
			}
			row++
		}
	}
}

func (s *parquetSource) sample(sh shard, row int64, rec arrow.Record, i int) Sample {
	rec.Retain()
	out := Sample{Key: fmt.Sprintf("%s#%d", sh.rel, row), Split: sh.split, Release: rec.Release}
	for _, m := range s.meta {
		column := storage(rec.Column(m.index))
		if column.IsNull(i) && schema.Classes(m.field) != nil && s.own == nil {
			out.Bad = m.field.Name + " missing"
		}
		out.Meta = append(out.Meta, Cell{column, i})
	}
	var file any
	for c, b := range s.blobs {
		column := rec.Column(b.index)
		content, path := blobArrays(column)
		var data []byte
		switch {
		case column.IsNull(i):
		case content.IsValid(i):
			data = content.Value(i)
			if data == nil {
				data = []byte{}
			}
			out.Size += int64(len(data))
		case path != nil && text(path, i) != "":
			out.Bad = fmt.Sprintf("%s: the file holds its path only (%s), not its bytes", Quoted(b.field.Name),
				Quoted(text(path, i)))
		}
		if c == s.paths && path != nil && text(path, i) != "" {
			file = text(path, i)
		}
		out.Blobs = append(out.Blobs, data)
	}
	if s.paths >= 0 {
		out.Meta = append(out.Meta, file)
	}
	if s.own != nil {
		s.own.tell(&out, func(column int) Cell { return Cell{storage(rec.Column(column)), i} })
	}
	return out
}

func (l *layout) looksParquet() bool {
	if !l.dir {
		return extension(l.path) == "parquet" && !l.looksList()
	}
	return l.any(func(name string) bool { return extension(name) == "parquet" && !isMetadata(filepath.Base(name)) })
}

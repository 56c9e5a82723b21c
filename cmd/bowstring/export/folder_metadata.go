package export

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	parquetfile "github.com/apache/arrow/go/v17/parquet/file"

	"bowstring/schema"
)

// Keys of the metadata of metadata.parquet.
const (
	// folderKey, in the file, says that it belongs to an export to a folder.
	folderKey = "bowstring.folder"
	// fileKey, of a column that names files, is the blob column that they are of.
	fileKey = "bowstring.file"
	// fileMediaKey, beside it, is the media of that column, "" for none.
	fileMediaKey = "bowstring.file.media"
	// nameKey is the name of the column in the dataset, where it has another one here.
	nameKey = "bowstring.name"
)

// fileName and its like end the names of columns that name files: readers take x_file_name for those of a column x.
var fileNames = []string{"file_name", "file_names"}

// isFileName says whether readers of an ImageFolder would take a column for one of file names.
func isFileName(name string) bool {
	for _, suffix := range fileNames {
		if name == suffix || strings.HasSuffix(name, "_"+suffix) {
			return true
		}
	}
	return false
}

// folderSchema is the schema of metadata.parquet: for each blob column X the paths of its files, X_file_name, or
// file_name for an image or audio that comes first; the id as text; then all other columns as they are, but that one
// whose name readers would misunderstand gets a _ behind it. The features of Hugging Face are in the metadata.
func folderSchema(s *arrow.Schema, blobs []int) *arrow.Schema {
	var fields []arrow.Field
	taken := map[string]bool{}
	for i, at := range blobs {
		blob := s.Field(at)
		name := blob.Name + "_" + schema.PathColumn
		if i == 0 && (blob.Name == schema.MediaImage || blob.Name == schema.MediaAudio) {
			name = schema.PathColumn
		}
		taken[name] = true
		fields = append(fields, arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true,
			Metadata: arrow.NewMetadata([]string{fileKey, fileMediaKey}, []string{blob.Name, schema.Media(blob)})})
	}
	for _, f := range s.Fields() {
		switch {
		case isBlob(f):
			taken[f.Name] = true // readers name the content so
		case !isFileName(f.Name):
			taken[f.Name] = true
		}
	}
	for _, f := range s.Fields() {
		switch {
		case isBlob(f):
			continue
		case f.Name == schema.IDColumn:
			f = arrow.Field{Name: f.Name, Type: arrow.BinaryTypes.String}
		case isFileName(f.Name):
			name := f.Name
			for taken[name] || isFileName(name) {
				name += "_"
			}
			taken[name] = true
			f.Metadata = arrow.NewMetadata(append(f.Metadata.Keys(), nameKey), append(f.Metadata.Values(), f.Name))
			f.Name = name
		}
		fields = append(fields, f)
	}
	meta := arrow.NewMetadata([]string{folderKey, "huggingface"}, []string{"1", schema.Features(fields)})
	return arrow.NewSchema(fields, &meta)
}

// FolderFile returns the blob column, and its media, of whose files a column of metadata.parquet has the paths.
func FolderFile(f arrow.Field) (column, media string, ok bool) {
	column, ok = f.Metadata.GetValue(fileKey)
	media, _ = f.Metadata.GetValue(fileMediaKey)
	return column, media, ok
}

// FolderColumn returns the name that a column of metadata.parquet had in the dataset.
func FolderColumn(f arrow.Field) string {
	if name, ok := f.Metadata.GetValue(nameKey); ok {
		return name
	}
	return f.Name
}

// IsFolderMetadata says whether a file is the metadata of an export to a folder.
func IsFolderMetadata(name string) (is bool) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return false
	}
	defer func() {
		if recover() != nil { // the library panics about damaged files
			is = false
		}
	}()
	f, err := parquetfile.OpenParquetFile(name, false)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return f.MetaData().KeyValueMetadata().FindValue(folderKey) != nil
}

// metadata is an open metadata.parquet.
type metadata struct {
	f    *os.File
	w    *bufio.Writer
	rows encoder
}

// lines are rows of a record whose metadata is in one folder.
type lines struct {
	rows  []int
	files [][]string // of each row, "" for a null blob
}

// of returns the rows' cells of a column.
func (l *lines) of(column arrow.Array) (arrow.Array, error) {
	first, last := l.rows[0], l.rows[len(l.rows)-1]
	if last-first+1 == len(l.rows) {
		return array.NewSlice(column, int64(first), int64(last+1)), nil
	}
	cells := make([]arrow.Array, len(l.rows))
	for i, row := range l.rows {
		cells[i] = array.NewSlice(column, int64(row), int64(row+1))
		defer cells[i].Release()
	}
	return array.Concatenate(cells, memory.DefaultAllocator)
}

// writeLines writes the metadata of rows of a record.
func (o *folder) writeLines(dir string, rec arrow.Record, l *lines) error {
	m, err := o.metadataOf(dir)
	if err != nil {
		return err
	}
	var columns []arrow.Array
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	defer texts.Release()
	for i := range o.blobs {
		for _, names := range l.files {
			if names[i] == "" {
				texts.AppendNull()
			} else {
				texts.Append(names[i])
			}
		}
		columns = append(columns, texts.NewArray())
	}
	for i, f := range o.schema.Fields() {
		switch {
		case isBlob(f):
		case i == o.id:
			ids := rec.Column(i).(*array.FixedSizeBinary)
			for _, row := range l.rows {
				texts.Append(schema.FormatID(schema.ID(ids.Value(row))))
			}
			columns = append(columns, texts.NewArray())
		default:
			cells, err := l.of(rec.Column(i))
			if err != nil {
				return fmt.Errorf("column %q: %w", f.Name, err)
			}
			columns = append(columns, cells)
		}
	}
	out := array.NewRecord(o.lines, columns, int64(len(l.rows)))
	defer out.Release()
	if err := m.rows.write(out); err != nil {
		return fmt.Errorf("%s: %w", path.Join(dir, MetadataFile), err)
	}
	return nil
}

// metadataOf returns the metadata file of a folder, which it makes for its first row.
func (o *folder) metadataOf(dir string) (*metadata, error) {
	if m := o.metadata[dir]; m != nil {
		return m, nil
	}
	name := path.Join(dir, MetadataFile)
	if err := o.root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return nil, err
	}
	f, err := o.root.Create(name)
	if err != nil {
		return nil, err
	}
	m := &metadata{f: f, w: bufio.NewWriterSize(f, bufferBytes)}
	o.metadata[dir] = m
	m.rows, err = newParquetEncoder(o.lines, struct{ io.Writer }{m.w}, parquet.NewWriterProperties(
		parquet.WithVersion(parquet.V2_LATEST), parquet.WithCreatedBy("bowstring"),
		parquet.WithCompression(compress.Codecs.Snappy), parquet.WithMaxRowGroupLength(RowGroupRows)))
	return m, err
}

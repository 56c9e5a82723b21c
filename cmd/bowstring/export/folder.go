package export

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	parquetfile "github.com/apache/arrow/go/v17/parquet/file"
	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// MetadataFile is the file in which readers of an ImageFolder find the columns of each
// file.
const MetadataFile = "metadata.parquet"

// reserved are the names of metadata files that readers know. Content under such a name
// would be read as metadata.
var reserved = []string{MetadataFile, "metadata.csv", "metadata.jsonl"}

// Folder returns a sink that writes rows as an ImageFolder:
//
//	[SPLIT/][CLASS/]FILE
//	[SPLIT/]metadata.parquet
//
// A file keeps the path of the column file_name, which it had at its source, if that path
// is within the folder of its class and, with Options.SplitFolders, of its split.
// Otherwise SPLIT is the column "split". CLASS is the class name given by the first
// column with class names. FILE is the base of file_name, or the id with an ending by
// content.
//
// metadata.parquet has one row for each exported row: the path of each blob, relative to
// the file, and all other columns with their types and classes. An import makes the same
// rows of it; see folderSchema.
//
// The schema needs the id column. Each blob column gives files. A null blob has a null
// file name and no file.
func Folder(dir string, s *arrow.Schema, opts Options) (Sink, error) {
	dir = filepath.Clean(dir)
	if opts.Force {
		if err := replaceable(dir); err != nil {
			return nil, err
		}
	}
	st, err := stage(dir, opts)
	if err != nil {
		return nil, err
	}
	f := &folder{
		staged: st, opts: opts, schema: s, id: -1, split: -1, class: -1, name: -1, metadata: map[string]*metadata{},
		sync: opts.sync,
	}
	if f.sync == nil {
		f.sync = (*os.File).Sync
	}
	f.syncs.SetLimit(syncing)
	if err := f.open(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// folder is the sink of Folder.
type folder struct {
	staged
	opts                   Options
	schema                 *arrow.Schema
	root                   *os.Root // no name in the data leads out of it
	id, split, class, name int      // indexes of columns; -1 for none
	// blobs are the indexes of the blob columns.
	blobs    []int
	lines    *arrow.Schema        // schema of the metadata
	metadata map[string]*metadata // by folder: "" or a split
	// syncs syncs files in the background. A file is synced while it is open, because
	// only the descriptor that wrote gets the disk's error. Many are synced at once,
	// because each sync waits for the disk.
	syncs errgroup.Group
	sync  func(*os.File) error
}

// syncing is how many files are synced at once. It also bounds the open files.
const syncing = 16

// replaceable returns an error if Force may not replace dir. It may replace an empty
// folder, or one with the metadata of an export, directly or in a folder of a split.
// Anything else could be a user's data.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	for _, pattern := range []string{MetadataFile, "*/" + MetadataFile} {
		found, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return err
		}
		for _, name := range found {
			if IsFolderMetadata(filepath.Join(dir, name)) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: %s holds other things than an export (no %s of one), so that --force does not replace it",
		schema.ErrExists, dir, MetadataFile)
}

// open finds the columns that decide about paths, and makes the temporary folder.
func (o *folder) open() (err error) {
	for i, f := range o.schema.Fields() {
		switch {
		case isBlob(f):
			if f.Type.ID() == arrow.STRUCT {
				return fmt.Errorf("%w: column %q is in the huggingface layout, a folder takes bytes", schema.ErrInvalid,
					f.Name)
			}
			o.blobs = append(o.blobs, i)
		case f.Name == schema.IDColumn:
			o.id = i
		case f.Name == schema.SplitColumn:
			o.split = i
		case f.Name == schema.PathColumn:
			o.name = i
		case o.class < 0 && schema.Classes(f) != nil:
			o.class = i
		}
	}
	o.lines = folderSchema(o.schema, o.blobs)
	if o.id < 0 {
		return fmt.Errorf("%w: a folder needs the column %q", schema.ErrInvalid, schema.IDColumn)
	}
	if err := os.Mkdir(o.temp, 0o777); err != nil {
		return err
	}
	// All paths come from data. os.Root refuses paths and links that leave the folder.
	o.root, err = os.OpenRoot(o.temp)
	return err
}

// Write implements Sink: it writes the files of the rows, then their metadata, grouped by
// its folder.
func (o *folder) Write(rec arrow.Record) error {
	byFolder := map[string]*lines{}
	var order []string
	for row := range int(rec.NumRows()) {
		dir, names, err := o.writeRow(rec, row)
		if err != nil {
			return err
		}
		l := byFolder[dir]
		if l == nil {
			l = &lines{}
			byFolder[dir], order = l, append(order, dir)
		}
		l.rows, l.files = append(l.rows, row), append(l.files, names)
	}
	for _, dir := range order {
		if err := o.writeLines(dir, rec, byFolder[dir]); err != nil {
			return err
		}
	}
	return nil
}

// writeRow writes the files of a row. It returns the folder of the row's metadata, and
// the paths of the files relative to that folder; "" for a null blob.
func (o *folder) writeRow(rec arrow.Record, row int) (dir string, names []string, err error) {
	ids, ok := rec.Column(o.id).(*array.FixedSizeBinary)
	if !ok || len(ids.Value(row)) != len(schema.ID{}) {
		return "", nil, fmt.Errorf("%w: column %q has type %s, want fixed_size_binary[16]", schema.ErrInvalid,
			schema.IDColumn, rec.Column(o.id).DataType())
	}
	split := text(rec, o.split, row)
	if split != "" {
		if err := schema.CheckName("split", split); err != nil {
			return "", nil, err
		}
	}
	class, err := o.className(rec, row)
	if err != nil {
		return "", nil, err
	}
	at := home{class: folderName(class), name: sourceName(text(rec, o.name, row)),
		id: schema.FormatID(schema.ID(ids.Value(row)))}
	if o.opts.SplitFolders {
		at.split, dir = split, split
	}
	for i, column := range o.blobs {
		suffix := ""
		if i > 0 {
			suffix = "." + folderName(o.schema.Field(column).Name)
		}
		data, null, err := blob(rec.Column(column), row)
		if err != nil {
			return "", nil, err
		}
		name := ""
		if !null {
			if name, err = o.writeBlob(at.paths(suffix, data), data); err != nil {
				return "", nil, err
			}
		}
		names = append(names, name)
	}
	// If all files of a row are in the folder of its split, so is their metadata: readers
	// that take that folder for a split look for it there.
	inSplit := func(name string) bool { return name == "" || split != "" && strings.HasPrefix(name, split+"/") }
	if dir != "" || slices.ContainsFunc(names, func(n string) bool { return n != "" }) && !slices.ContainsFunc(names,
		func(n string) bool { return !inSplit(n) }) {
		dir = split
		for i := range names {
			names[i] = strings.TrimPrefix(names[i], split+"/")
		}
	}
	return dir, names, nil
}

// className returns the name of a row's class. A row without a label, or with one beyond
// the names, has "".
func (o *folder) className(rec arrow.Record, row int) (string, error) {
	if o.class < 0 || rec.Column(o.class).IsNull(row) {
		return "", nil
	}
	f := o.schema.Field(o.class)
	var label int64
	if err := json.Unmarshal([]byte(rec.Column(o.class).ValueStr(row)), &label); err != nil {
		return "", fmt.Errorf("%w: column %q: %w", schema.ErrInvalid, f.Name, err)
	}
	classes := schema.Classes(f)
	if label < 0 || label >= int64(len(classes)) {
		return "", nil
	}
	return classes[label], nil
}

// writeBlob writes a file under the first of the paths that can be created, and returns
// that path. O_EXCL shows whether a path
// is taken, so that no list of all names is kept in memory.
func (o *folder) writeBlob(paths []string, data []byte) (string, error) {
	var err error
	for _, name := range paths {
		if err = o.root.MkdirAll(path.Dir(name), 0o777); err != nil {
			continue // such as a file in the place of a folder
		}
		var f *os.File
		if f, err = o.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666); err != nil {
			continue // taken by another row, or not allowed by the file system
		}
		if _, err = f.Write(data); err != nil {
			return name, errors.Join(err, f.Close())
		}
		o.syncs.Go(func() error { return errors.Join(o.sync(f), f.Close()) })
		return name, nil
	}
	return "", err
}

// Commit implements Sink. All files and folders are on stable storage before the existing
// result is removed.
func (o *folder) Commit() error {
	for dir, m := range o.metadata {
		err := errors.Join(m.rows.close(), m.w.Flush(), o.sync(m.f), m.f.Close())
		delete(o.metadata, dir)
		if err != nil {
			return err
		}
	}
	if err := o.syncs.Wait(); err != nil {
		return err
	}
	if err := errors.Join(o.root.Close(), o.syncDirs()); err != nil {
		return err
	}
	o.root = nil
	// A folder cannot be renamed over one with content. The old one moves aside first,
	// and is removed at the end: a crash between the two renames leaves it under its
	// temporary name.
	old := ""
	if entries, err := os.ReadDir(o.path); err == nil && len(entries) > 0 {
		old = o.temp + ".old"
		if err := os.Rename(o.path, old); err != nil {
			return err
		}
	}
	if err := os.Rename(o.temp, o.path); err != nil {
		return err
	}
	o.done = true
	if err := syncDir(filepath.Dir(o.path)); err != nil || old == "" {
		return err
	}
	return os.RemoveAll(old)
}

// syncDirs syncs the folders, whose entries are otherwise not durable.
func (o *folder) syncDirs() error {
	return filepath.WalkDir(o.temp, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		return errors.Join(o.sync(f), f.Close())
	})
}

// Close implements Sink.
func (o *folder) Close() error {
	_ = o.syncs.Wait() // Commit has returned the error, or the files are removed anyway
	var err error
	for _, m := range o.metadata {
		err = errors.Join(err, m.f.Close())
	}
	o.metadata = nil
	if o.root != nil {
		err = errors.Join(err, o.root.Close())
		o.root = nil
	}
	return errors.Join(err, o.remove())
}

// blob returns the bytes of a row: a slice of the column's memory, valid as long as the
// column is retained.
func blob(column arrow.Array, row int) (data []byte, null bool, err error) {
	if column.IsNull(row) {
		return nil, true, nil
	}
	switch c := column.(type) {
	case *array.LargeBinary:
		return c.Value(row), false, nil
	case *array.Binary:
		return c.Value(row), false, nil
	}
	return nil, false, fmt.Errorf("%w: a blob column of type %s", schema.ErrInvalid, column.DataType())
}

// text returns a string cell. It returns "" if the column is absent or no string, or the
// cell is null.
func text(rec arrow.Record, column, row int) string {
	if column < 0 || rec.Column(column).IsNull(row) {
		return ""
	}
	switch c := rec.Column(column).(type) {
	case *array.String:
		return c.Value(row)
	case *array.LargeString:
		return c.Value(row)
	}
	return ""
}

// home is where the files of a row may go: the folders of its split, if that has one, and
// of its class, with the base name that it had at its source, or its id.
type home struct {
	split, class string // folders, "" for none
	name         string // name at the source; "" if it is no path within a folder
	id           string
}

// paths lists the paths to try for a blob, best first. suffix distinguishes the blobs of
// further columns from that of the first.
func (h home) paths(suffix string, data []byte) []string {
	folder := path.Join(h.split, h.class)
	// A file system may refuse the name of a class. The last path is therefore outside
	// the folder of the class.
	last := []string{path.Join(folder, h.id) + suffix + ending(data), path.Join(h.split, h.id) + suffix + ending(data)}
	if h.name == "" {
		return last
	}
	name := h.name
	// The source's own folders are kept if they agree with split and class. Otherwise
	// only the base name is.
	dirs := strings.Split(path.Dir(name), "/")
	if h.split != "" && dirs[0] != h.split || h.class != "" && !slices.Contains(dirs, h.class) {
		name = path.Join(folder, path.Base(name))
	}
	if suffix != "" || path.Ext(name) == "" {
		name = strings.TrimSuffix(name, path.Ext(name)) + suffix + ending(data)
	}
	return append([]string{name}, last...)
}

// sourceName cleans the name that a sample had at its source. It returns "" if the name
// is no path within a folder, or one that readers skip.
func sourceName(name string) string {
	name = path.Clean(filepath.ToSlash(name))
	if name == "." || !filepath.IsLocal(name) {
		return ""
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || slices.Contains(reserved, part) {
			return ""
		}
	}
	return name
}

// folderName makes the name of a folder from that of a class. It escapes what would make
// other folders, or a name that readers skip.
func folderName(class string) string {
	if class == "" {
		return ""
	}
	name := strings.ReplaceAll(class, "/", url.PathEscape("/"))
	if strings.HasPrefix(name, ".") || slices.Contains(reserved, name) {
		name = fmt.Sprintf("%%%02X%s", name[0], name[1:])
	}
	return name
}

// ending returns the usual file ending for some content, ".bin" if it is not recognised.
// Readers choose the decoder by it.
func ending(data []byte) string {
	switch kind, _, _ := strings.Cut(http.DetectContentType(data), ";"); kind {
	case "image/jpeg":
		return ".jpg"
	case "image/png":
		return ".png"
	case "image/gif":
		return ".gif"
	case "image/webp":
		return ".webp"
	case "image/bmp":
		return ".bmp"
	case "audio/wave":
		return ".wav"
	case "audio/mpeg":
		return ".mp3"
	case "application/ogg":
		return ".ogg"
	case "text/plain":
		return ".txt"
	}
	switch {
	case bytes.HasPrefix(data, []byte("II*\x00")), bytes.HasPrefix(data, []byte("MM\x00*")):
		return ".tiff"
	case bytes.HasPrefix(data, []byte("fLaC")):
		return ".flac"
	}
	return ".bin"
}

// Keys of the metadata of metadata.parquet. By them an import recognises an export and
// restores its columns.
const (
	// folderKey, of the file, marks it as part of an export to a folder.
	folderKey = "bowstring.folder"
	// fileKey, of a column with paths, is the name of the blob column whose files these
	// are.
	fileKey = "bowstring.file"
	// fileMediaKey, next to fileKey, is the media of that column, "" for none.
	fileMediaKey = "bowstring.file.media"
	// nameKey is the name of the column in the dataset, if it has another one in the
	// file.
	nameKey = "bowstring.name"
)

// fileNames end the names of columns with paths: readers take x_file_name for the paths
// of a column x.
var fileNames = []string{"file_name", "file_names"}

// isFileName reports whether readers of an ImageFolder would take a column for one with
// paths.
func isFileName(name string) bool {
	for _, suffix := range fileNames {
		if name == suffix || strings.HasSuffix(name, "_"+suffix) {
			return true
		}
	}
	return false
}

// folderSchema returns the schema of metadata.parquet:
//
//   - for each blob column X the paths of its files, X_file_name; file_name for a
//     first column of images or audio
//   - the id as text
//   - all other columns as they are; a name that readers would misunderstand gets a _
//     appended
//
// The metadata has the features of Hugging Face.
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
			taken[f.Name] = true // readers give the content this name
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

// FolderFile returns the blob column, and its media, whose files' paths are in a column
// of metadata.parquet. ok is false for a column without paths.
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

// IsFolderMetadata reports whether a file is the metadata of an export to a folder. A
// file that cannot be read is not.
func IsFolderMetadata(name string) (is bool) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return HoldsFolderMetadata(f)
}

// HoldsFolderMetadata is IsFolderMetadata for an open file.
func HoldsFolderMetadata(in parquet.ReaderAtSeeker) (is bool) {
	defer func() {
		if recover() != nil { // the library panics on damaged files
			is = false
		}
	}()
	f, err := parquetfile.NewParquetReader(in)
	if err != nil {
		return false
	}
	return f.MetaData().KeyValueMetadata().FindValue(folderKey) != nil
}

// metadata is an open metadata.parquet. It stays open until Commit, because rows of a
// split may come at any time.
type metadata struct {
	f    *os.File
	w    *bufio.Writer
	rows encoder
}

// lines are the rows of one record whose metadata is in one folder.
type lines struct {
	rows  []int
	files [][]string // paths by row; "" for a null blob
}

// of returns the cells of a column in these rows. Consecutive rows, the usual case, are a
// slice without a copy.
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

// writeLines writes the metadata of some rows of a record.
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

// metadataOf returns the metadata file of a folder, and creates it for the first row.
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

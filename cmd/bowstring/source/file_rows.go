package source

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/export"
	"bowstring/cmd/bowstring/storedtype"
	"bowstring/schema"
)

// fileRows is a folder with a table that names, in each row, the files of one or more
// blob columns. One goroutine at a time iterates over it.
type fileRows struct {
	about
	in     *bounds
	choice *choice
	// found resolves names that may be written in another way; nil if names are exact, as
	// in an export.
	found *namer
	// asked is the split to read; "" reads all splits.
	asked string
	meta  *table // the columns that name no files
	files []fileColumn
	// ids are the ids of the rows; nil if ids are made of keys.
	ids   arrow.Array
	split []string // the split of each row; nil if the source has none
	label int      // column of meta that must not be null, or -1
	// unnamed yields the files of the folder that no row names, as bad samples. It may be
	// nil.
	unnamed func(ctx context.Context, named map[string]bool) iter.Seq2[Sample, error]
}

// fileColumn is a blob column, with the paths of its files relative to the folder of the
// table.
type fileColumn struct {
	field arrow.Field
	paths arrow.Array
}

// count returns how many rows will be read.
func (s *fileRows) count() (n int64) {
	for row := range s.meta.rows {
		if !s.leavesOut(row) {
			n++
		}
	}
	return n
}

// leavesOut reports whether a row is in another split than the one asked for.
func (s *fileRows) leavesOut(row int) bool {
	return s.split != nil && len(s.splits) > 0 && s.asked != "" && s.split[row] != s.asked
}

// Fields implements Source. The path of the first file becomes a column, unless the ids
// come from the source: an export has that column already.
func (s *fileRows) Fields() (meta, blobs []arrow.Field) {
	if s.ids == nil {
		meta = append(meta, arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
	}
	for _, f := range s.files {
		blobs = append(blobs, f.field)
	}
	return append(meta, s.meta.fields...), blobs
}

// Samples implements Source: the rows, then bad rows of the table, then files without a
// row.
func (s *fileRows) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		first, named := map[string]int{}, map[string]bool{}
		for row := range s.meta.rows {
			if ctx.Err() != nil {
				yield(Sample{}, context.Cause(ctx))
				return
			}
			// A row of another split is checked as well, because it may use the same
			// file.
			sample := s.sample(ctx, row, first, named)
			if !s.leavesOut(row) && !yield(sample, nil) {
				return
			}
		}
		for _, row := range s.meta.bad {
			if !yield(row.sample(), nil) {
				return
			}
		}
		if s.unnamed == nil {
			return
		}
		for bad, err := range s.unnamed(ctx, named) {
			if !yield(bad, err) || err != nil {
				return
			}
		}
	}
}

// sample makes the sample of a row. first has the row of each key so far. named collects
// the files that rows use. A problem makes a bad sample, with the first reason found, and
// never ends the import.
func (s *fileRows) sample(ctx context.Context, row int, first map[string]int, named map[string]bool) Sample {
	at := s.meta.lines[row]
	var out Sample
	var names []string // paths of the files, relative to the folder
	paths := make([]string, len(s.files))
	out.At = make([]Extent, len(s.files))
	for i, f := range s.files {
		if f.paths.IsNull(row) {
			continue
		}
		// Paths are relative to the file that names them, which may be in a subfolder.
		rel := path.Join(path.Dir(at.file), path.Clean(filepath.ToSlash(text(f.paths, row))))
		if s.found != nil {
			rel = s.found.rel(rel)
		}
		names, named[rel] = append(names, rel), true
		paths[i] = filepath.Join(s.path, filepath.FromSlash(rel))
		why := s.in.outside(paths[i])
		if why == "" {
			size, bad := s.place.statFile(paths[i])
			if bad == "empty" && s.exact {
				bad = ""
			}
			out.Size += size
			why = bad
			out.At[i] = s.place.extent(paths[i], size)
		}
		if why != "" && out.Bad == "" {
			out.Bad = fmt.Sprintf("%s: %s: %s", Quoted(f.field.Name), Quoted(rel), why)
		}
	}
	// The key is the names of the files: moving a row within the table does not change
	// its id.
	out.Key = strings.Join(names, "+")
	if s.ids != nil {
		id, ok := idOf(Cell{s.ids, row})
		if !ok {
			out.Bad = "id missing, or no UUID"
		}
		out.ID, out.Key = &id, at.String()
	}
	other, twice := first[out.Key]
	switch {
	// The order of the cases decides which reason is reported: a duplicate explains more
	// than a missing label.
	case len(names) == 0 && s.ids == nil:
		out.Key, out.Bad = at.String(), "it names no file"
	case twice:
		out.Bad = fmt.Sprintf("duplicate: %s and %s name it", s.meta.lines[other], at)
	case out.Bad != "":
	case out.Size > maxBlob:
		out.Bad = fmt.Sprintf("its files have %d bytes together, more than the %d that a sample may have", out.Size,
			int64(maxBlob))
	case s.label >= 0 && s.meta.columns[s.label].IsNull(row):
		out.Bad = fmt.Sprintf("label missing in %s", at)
	}
	// The first row of a key keeps it, and all later ones are duplicates of that row.
	if !twice {
		first[out.Key] = row
	}
	if s.split != nil {
		out.Split = s.split[row]
		if out.Split == "" && len(s.splits) > 0 && out.Bad == "" {
			out.Bad = "it is in none of the split folders " + strings.Join(s.splits, ", ")
		}
	}
	if s.ids == nil {
		var file any
		if len(names) > 0 {
			file = names[0]
		}
		out.Meta = append(out.Meta, file)
	}
	out.Meta = append(out.Meta, s.meta.cells(row)...)
	s.load(ctx, &out, paths)
	return out
}

// load makes the sample read its files when it is used. A lazy place reads none: extents
// are enough.
func (s *fileRows) load(ctx context.Context, out *Sample, paths []string) {
	if s.place.lazy {
		return
	}
	var blobs [][]byte
	out.Load = func() ([][]byte, error) {
		blobs = make([][]byte, len(paths))
		for i, p := range paths {
			if p == "" {
				continue
			}
			// The file may have changed since the sample was made, so it is checked
			// again.
			size, bad := s.place.statFile(p)
			if bad != "" && (bad != "empty" || !s.exact) {
				return nil, errors.New(bad)
			}
			if size == 0 {
				blobs[i] = []byte{}
				continue
			}
			b, err := s.place.loadFile(ctx, p, size)
			if err != nil {
				return nil, err
			}
			blobs[i] = b
		}
		return blobs, nil
	}
	out.Release = func() { buffers.putAll(blobs) }
}

// exportFormat is a folder that Bowstring exported. Its metadata.parquet names the files
// of each row, and has all other columns of the dataset. An import restores the same
// rows: types, classes, ids and splits.
const exportFormat = "folder"

// exportMetadata returns the metadata files of an export among files, which are relative
// to root. There is one in the root, or one in the folder of each split.
func (f *Files) exportMetadata(ctx context.Context, root string, files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(name string) bool {
		return filepath.Base(name) != export.MetadataFile || strings.Count(filepath.ToSlash(name), "/") > 1 ||
			!f.isFolderMetadata(ctx, filepath.Join(root, name))
	})
}

// isFolderMetadata is export.IsFolderMetadata for any place. It reads the footer of the
// file only.
func (f *Files) isFolderMetadata(ctx context.Context, path string) bool {
	in, err := f.openParts(ctx, path, footerBytes)
	if err != nil {
		return false
	}
	defer func() { _ = in.Close() }()
	return export.HoldsFolderMetadata(in)
}

// detectExport reports whether the layout is an export.
func (l *layout) detectExport() bool {
	return l.dir && len(l.opts.files.exportMetadata(l.ctx, l.path, l.files)) > 0
}

// openExport opens an export.
func openExport(ctx context.Context, root string, opts Options) (Source, error) {
	s := &fileRows{about: about{place: opts.files, format: exportFormat, path: opts.files.absolute(root), exact: true},
		asked: opts.Split, label: -1, choice: opts.choice}
	s.walked = opts.Walk
	l, err := examine(ctx, root, opts)
	if err != nil {
		return nil, err
	}
	if s.in, err = s.place.boundsOf(s.path, opts); err != nil {
		return nil, err
	}
	files := s.place.exportMetadata(ctx, s.path, l.files)
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: there is no %s of an export", schema.ErrInvalid, export.MetadataFile)
	}
	slices.Sort(files)
	// A metadata file may be a link out of the folder, as any file of a data set.
	for i, f := range files {
		if err := s.in.check(filepath.Join(s.path, f)); err != nil {
			return nil, err
		}
		files[i] = filepath.ToSlash(f)
	}
	if s.meta, err = s.place.readTable(ctx, s.path, files, tableOptions{}); err != nil {
		return nil, err
	}
	stored, err := s.place.storedFields(ctx, filepath.Join(s.path, files[0]))
	if err != nil {
		return nil, err
	}
	return s, s.arrangeExport(stored)
}

// arrangeExport assigns a meaning to each column of the metadata: files, ids, splits or
// values. The stored schema has the types that Parquet lacks.
func (s *fileRows) arrangeExport(stored []arrow.Field) error {
	t := &table{rows: s.meta.rows, lines: s.meta.lines}
	for i, read := range s.meta.fields {
		at := slices.IndexFunc(stored, func(f arrow.Field) bool { return f.Name == read.Name })
		if at < 0 {
			return fmt.Errorf("%w: the metadata does not say what its column %q is", schema.ErrInvalid, read.Name)
		}
		f := stored[at]
		f.Type = storedtype.Restored(read.Type, f.Type)
		column, err := storedtype.Convert(s.meta.columns[i], f.Type)
		if err != nil {
			return fmt.Errorf("%w: column %q: %w", schema.ErrInvalid, read.Name, err)
		}
		if name, media, ok := export.FolderFile(f); ok {
			if !s.choice.wants(name) {
				continue
			}
			s.files = append(s.files, fileColumn{schema.BlobField(name, media, true), column})
			continue
		}
		switch f.Name = export.FolderColumn(f); f.Name {
		case schema.IDColumn:
			s.ids = column
			continue
		case schema.SplitColumn:
			s.takeSplits(column)
			continue
		// The position is that in the old dataset. The new one numbers its rows anew.
		case schema.PositionColumn:
			s.notes = append(s.notes, positionNote)
			continue
		}
		if s.choice.wants(f.Name) {
			t.fields, t.columns = append(t.fields, ownMeta(f)), append(t.columns, column)
		}
	}
	if len(s.files) == 0 || s.ids == nil {
		return fmt.Errorf("%w: the metadata has no column of files, or none of ids", schema.ErrInvalid)
	}
	s.meta = t
	s.rows = s.count()
	return nil
}

// takeSplits takes the split of each row from a column.
func (s *fileRows) takeSplits(column arrow.Array) {
	s.split = make([]string, s.meta.rows)
	for row := range s.split {
		s.split[row] = text(column, row)
		if name := s.split[row]; name != "" && !slices.Contains(s.splits, name) {
			s.splits = append(s.splits, name)
		}
	}
}

package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// fileRows makes the source of a folder whose metadata names files in columns X_file_name, or lists of files in columns
// X_file_names, as ImageFolder and AudioFolder of the library datasets have it. nil if it does not.
func (s *imageFolder) fileRows(t *table) (*fileRows, error) {
	out := &fileRows{about: s.about, in: s.in, asked: s.split, meta: t, label: -1,
		found: &namer{dir: s.path, in: s.in}}
	var files []fileColumn
	var at []int // columns of t that name files
	others := false
	for i, f := range t.fields {
		one, isOne := strings.CutSuffix("_"+f.Name, "_file_name")
		many, isMany := strings.CutSuffix("_"+f.Name, "_file_names")
		switch {
		case isOne && isText(f.Type):
			if f.Name != schema.PathColumn {
				if !s.namesFiles(out.found, t, t.columns[i]) {
					s.notes = append(s.notes, fmt.Sprintf("the column %q names no file that there is, and is kept as text",
						f.Name))
					continue
				}
				others = true
			}
			column := s.fileColumn(strings.TrimPrefix(one, "_"), t.columns[i])
			if f.Name == schema.PathColumn { // is the first
				files = slices.Insert(files, 0, column)
			} else {
				files = append(files, column)
			}
		case isMany && isListOfText(f.Type):
			columns, err := s.fileLists(t, strings.TrimPrefix(many, "_"), i)
			if err != nil {
				return nil, err
			}
			files, others = append(files, columns...), true
		default:
			continue
		}
		at = append(at, i)
	}
	if !others {
		return nil, nil //nolint:nilnil // the files are the samples
	}
	var names []string
	for _, f := range files {
		if slices.Contains(names, f.field.Name) {
			return nil, fmt.Errorf("%w: two columns of the metadata name the files of column %q", schema.ErrInvalid,
				f.field.Name)
		}
		names = append(names, f.field.Name)
	}
	for _, i := range slices.Backward(at) {
		t.remove(i)
	}
	out.files, out.unnamed = slices.DeleteFunc(files, func(f fileColumn) bool { return !s.choice.wants(f.field.Name) }),
		s.unnamed
	if len(out.files) == 0 {
		return nil, fmt.Errorf("%w: no column of files is left", schema.ErrInvalid)
	}
	t.choose(s.choice)
	out.notes = append(append(s.notes, t.notes...), t.rename(append(names, schema.PathColumn)...)...)
	if out.label = t.find("label"); out.label >= 0 {
		if err := t.classes(out.label); err != nil {
			return nil, err
		}
	}
	if len(s.splits) > 0 {
		out.split = make([]string, t.rows)
		for row := range t.rows {
			out.split[row] = s.splitOf(t, row, files)
		}
	}
	out.rows = out.count()
	return out, nil
}

// fileColumn is the blob column of files that a column of text names.
func (s *imageFolder) fileColumn(name string, paths arrow.Array) fileColumn {
	if name == "" {
		name = s.media
	}
	images, sound := true, true
	for row := range paths.Len() {
		if file := text(paths, row); file != "" {
			images, sound = images && isImageName(file), sound && isAudioName(file)
		}
	}
	media := ""
	switch {
	case images && sound:
		media = s.media
	case images:
		media = schema.MediaImage
	case sound:
		media = schema.MediaAudio
	}
	return fileColumn{schema.BlobField(freeName(name, []string{schema.PathColumn}), media, true), paths}
}

// namesFiles says whether some row's text is the name of a file.
func (s *imageFolder) namesFiles(found *namer, t *table, paths arrow.Array) bool {
	for row := range paths.Len() {
		if name := text(paths, row); name != "" {
			rel := path.Join(path.Dir(t.lines[row].file), path.Clean(filepath.ToSlash(name)))
			if file, _, _ := found.find(rel); !missing(file) {
				return true
			}
		}
	}
	return false
}

// fileLists are the blob columns of files that lists name: one for each place in the lists, if all are of one length.
func (s *imageFolder) fileLists(t *table, name string, i int) ([]fileColumn, error) {
	lists := t.columns[i].(array.ListLike)
	length := int64(-1)
	for row := range lists.Len() {
		if lists.IsNull(row) {
			continue
		}
		from, to := lists.ValueOffsets(row)
		if length >= 0 && to-from != length {
			return nil, fmt.Errorf("%w: %s: the lists in column %q are of %d and %d files; a row has one file in a "+
				"column: write a row for each file, or a column for each of a fixed number", schema.ErrInvalid,
				t.lines[row], t.fields[i].Name, length, to-from)
		}
		length = to - from
	}
	if length < 1 || length > maxImages {
		return nil, fmt.Errorf("%w: the lists in column %q are of %d files; want 1 to %d: each file is a column",
			schema.ErrInvalid, t.fields[i].Name, max(length, 0), maxImages)
	}
	if name == "" {
		name = s.media
	}
	var columns []fileColumn
	for n := range length {
		b := array.NewStringBuilder(memory.DefaultAllocator)
		for row := range lists.Len() {
			from, _ := lists.ValueOffsets(row)
			if lists.IsNull(row) || lists.ListValues().IsNull(int(from+n)) {
				b.AppendNull()
			} else {
				b.Append(text(lists.ListValues(), int(from+n)))
			}
		}
		columns = append(columns, s.fileColumn(fmt.Sprintf("%s_%d", name, n), b.NewArray()))
		b.Release()
	}
	return columns, nil
}

func isListOfText(t arrow.DataType) bool {
	list, ok := t.(arrow.ListLikeType)
	return ok && isText(list.Elem())
}

// splitOf is the top folder in which a row's first file lies, or else its metadata; "" if that is no split.
func (s *imageFolder) splitOf(t *table, row int, files []fileColumn) string {
	folder := path.Dir(t.lines[row].file)
	rel := path.Join(folder, "x")
	for _, f := range files {
		if name := text(f.paths, row); name != "" {
			rel = path.Join(folder, path.Clean(strings.ReplaceAll(name, `\`, "/")))
			break
		}
	}
	if top, _ := folders(rel); slices.Contains(s.splits, top) {
		return top
	}
	return ""
}

// unnamed yields the files that no row of the metadata names, as bad samples.
func (s *imageFolder) unnamed(ctx context.Context, named map[string]bool) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		err := filepath.WalkDir(s.path, func(p string, d fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			bad := Sample{Key: s.rel(p)}
			switch {
			case err != nil:
				bad.Bad = reason(err)
			case p == s.path:
			case d.IsDir() && (hidden(d.Name()) || s.split != "" && bad.Key != s.split && slices.Contains(s.splits,
				bad.Key)):
				return fs.SkipDir
			case !d.IsDir() && !hidden(d.Name()) && s.isMedia(d.Name()) && !named[bad.Key]:
				bad.Bad = "no row of the metadata (" + quotedList(s.files) + ") names it"
			}
			if bad.Bad != "" && !yield(bad, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Sample{}, err)
		}
	}
}

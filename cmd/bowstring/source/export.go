package source

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/export"
	"bowstring/cmd/bowstring/storedtype"
	"bowstring/schema"
)

// exportFormat is a folder that Bowstring exported. Its metadata.parquet names the files of each row, and has all other
// columns of the dataset as they were, so that it becomes the same rows again: types, classes, ids and splits.
const exportFormat = "folder"

// exportMetadata lists the metadata files of an export among files that are relative to root.
func exportMetadata(root string, files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(name string) bool {
		return filepath.Base(name) != export.MetadataFile || strings.Count(filepath.ToSlash(name), "/") > 1 ||
			!export.IsFolderMetadata(filepath.Join(root, name))
	})
}

func (l *layout) looksExport() bool { return l.dir && len(exportMetadata(l.path, l.files)) > 0 }

func openExport(ctx context.Context, root string, opts Options) (Source, error) {
	s := &fileRows{about: about{format: exportFormat, path: absolute(root), exact: true}, asked: opts.Split, label: -1,
		choice: opts.choice}
	l, err := look(root, opts)
	if err != nil {
		return nil, err
	}
	if s.in, err = boundsOf(s.path, opts); err != nil {
		return nil, err
	}
	files := exportMetadata(s.path, l.files)
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: there is no %s of an export", schema.ErrInvalid, export.MetadataFile)
	}
	slices.Sort(files)
	for i, f := range files {
		if err := s.in.check(filepath.Join(s.path, f)); err != nil {
			return nil, err
		}
		files[i] = filepath.ToSlash(f)
	}
	if s.meta, err = readTable(ctx, s.path, files, tableOptions{}); err != nil {
		return nil, err
	}
	stored, err := storedFields(filepath.Join(s.path, files[0]))
	if err != nil {
		return nil, err
	}
	return s, s.arrangeExport(stored)
}

// arrangeExport finds out what the columns of the metadata are.
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
			s.tell(column)
			continue
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

// tell takes the splits of the rows from a column.
func (s *fileRows) tell(column arrow.Array) {
	s.split = make([]string, s.meta.rows)
	for row := range s.split {
		s.split[row] = text(column, row)
		if name := s.split[row]; name != "" && !slices.Contains(s.splits, name) {
			s.splits = append(s.splits, name)
		}
	}
}

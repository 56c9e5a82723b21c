package source

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"path/filepath"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// fileRows is a folder whose metadata names, in each row, the files of one or more blob columns.
type fileRows struct {
	about
	in     *bounds
	choice *choice
	found  *namer // of files that may be written otherwise; nil where names are exact
	asked  string // the split to read; "" reads all
	meta   *table // the columns that name no files
	files  []fileColumn
	ids    arrow.Array // nil where ids are made of keys
	split  []string    // the split of each row; nil if the source has none
	label  int         // column of meta that each row has a value in, or -1
	// unnamed yields what is in the folder and not among the files that rows name, as bad samples. It may be nil.
	unnamed func(ctx context.Context, named map[string]bool) iter.Seq2[Sample, error]
}

// fileColumn is a blob column, and the paths of its files relative to the folder of their metadata.
type fileColumn struct {
	field arrow.Field
	paths arrow.Array
}

// count is how many rows are to be read.
func (s *fileRows) count() (n int64) {
	for row := range s.meta.rows {
		if !s.leavesOut(row) {
			n++
		}
	}
	return n
}

func (s *fileRows) leavesOut(row int) bool {
	return s.split != nil && len(s.splits) > 0 && s.asked != "" && s.split[row] != s.asked
}

func (s *fileRows) Fields() (meta, blobs []arrow.Field) {
	if s.ids == nil {
		meta = append(meta, arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
	}
	for _, f := range s.files {
		blobs = append(blobs, f.field)
	}
	return append(meta, s.meta.fields...), blobs
}

func (s *fileRows) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		first, named := map[string]int{}, map[string]bool{}
		for row := range s.meta.rows {
			if ctx.Err() != nil {
				yield(Sample{}, context.Cause(ctx))
				return
			}
			sample := s.sample(row, first, named)
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

// sample makes the sample of a row; first has the row of each key so far.
func (s *fileRows) sample(row int, first map[string]int, named map[string]bool) Sample {
	at := s.meta.lines[row]
	var out Sample
	var names []string // of files, relative to the folder
	paths := make([]string, len(s.files))
	for i, f := range s.files {
		if f.paths.IsNull(row) {
			continue
		}
		rel := path.Join(path.Dir(at.file), path.Clean(filepath.ToSlash(text(f.paths, row))))
		if s.found != nil {
			rel = s.found.rel(rel)
		}
		names, named[rel] = append(names, rel), true
		paths[i] = filepath.Join(s.path, filepath.FromSlash(rel))
		why := s.in.outside(paths[i])
		if why == "" {
			size, bad := statFile(paths[i])
			if bad == "empty" && s.exact {
				bad = ""
			}
			out.Size += size
			why = bad
		}
		if why != "" && out.Bad == "" {
			out.Bad = fmt.Sprintf("%s: %s: %s", Quoted(f.field.Name), Quoted(rel), why)
		}
	}
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
	if !twice {
		first[out.Key] = row
	}
	if s.split != nil {
		out.Split = s.split[row]
		if out.Split == "" && len(s.splits) > 0 && out.Bad == "" {
			out.Bad = "it lies in none of the split folders " + strings.Join(s.splits, ", ")
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
	s.load(&out, paths)
	return out
}

// load has the files of a sample read when they are needed.
func (s *fileRows) load(out *Sample, paths []string) {
	var blobs [][]byte
	out.Load = func() ([][]byte, error) {
		blobs = make([][]byte, len(paths))
		for i, p := range paths {
			if p == "" {
				continue
			}
			size, bad := statFile(p)
			if bad != "" && (bad != "empty" || !s.exact) {
				return nil, errors.New(bad)
			}
			if size == 0 {
				blobs[i] = []byte{}
				continue
			}
			b, err := loadFile(p, size)
			if err != nil {
				return nil, err
			}
			blobs[i] = b
		}
		return blobs, nil
	}
	out.Release = func() { buffers.putAll(blobs) }
}

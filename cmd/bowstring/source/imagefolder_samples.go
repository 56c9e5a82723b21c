package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// errStop ends a walk whose consumer wants no more.
var errStop = errors.New("stop")

func (s *imageFolder) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		var seen []bool // rows of the metadata that were joined
		if s.meta != nil {
			seen = make([]bool, s.meta.rows)
		}
		tops := []string{""}
		if len(s.splits) > 0 {
			tops = s.splits
			if s.split != "" {
				tops = []string{s.split}
			} else {
				tops = append(slices.Clone(tops), "") // images outside of them
			}
		}
		for _, top := range tops {
			err := filepath.WalkDir(filepath.Join(s.path, top), func(p string, d fs.DirEntry, err error) error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if top == "" && err == nil && d.IsDir() && slices.Contains(s.splits, s.rel(p)) {
					return fs.SkipDir // was walked
				}
				return s.visit(p, top, d, err, seen, yield)
			})
			if errors.Is(err, errStop) {
				return
			}
			if err != nil {
				yield(Sample{}, err)
				return
			}
		}
		s.unseen(seen, tops, yield)
	}
}

// visit yields what is at a path, if it is an image or should be one.
func (s *imageFolder) visit(p, split string, d fs.DirEntry, err error, seen []bool,
	yield func(Sample, error) bool) error {
	var sample Sample
	rel := s.rel(p)
	switch {
	case err != nil:
		sample = Sample{Key: rel, Bad: reason(err)}
	case p != s.path && hidden(d.Name()):
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	case d.IsDir() && !s.isMedia(d.Name()):
		return nil
	case d.Type()&fs.ModeSymlink != 0 && !s.isMedia(d.Name()):
		if !isDir(p) {
			return nil
		}
		sample = Sample{Key: rel, Bad: "a link to a folder; links to folders are not followed"}
	case !s.isMedia(d.Name()):
		return nil
	default:
		sample = s.sample(rel, p, split, seen)
		if d.Type()&fs.ModeSymlink != 0 && sample.Bad == "" {
			sample.Bad = s.in.outside(p)
		}
	}
	if !yield(sample, nil) {
		return errStop
	}
	if d != nil && d.IsDir() {
		return fs.SkipDir // a folder named like an image
	}
	return nil
}

func (s *imageFolder) sample(rel, p, split string, seen []bool) Sample {
	sample := fileSample(rel, p)
	sample.Split = split
	if !utf8.ValidString(rel) {
		sample.Key = strings.ToValidUTF8(rel, "\ufffd")
		sample.Bad = "its name is not valid UTF-8"
	}
	row := -1
	if s.meta != nil {
		var why string
		if row, why = s.join.find(rel); row >= 0 {
			seen[row] = true
		}
		switch {
		case sample.Bad != "":
		case why != "":
			sample.Bad = why
		case s.label >= 0 && s.meta.columns[s.label].IsNull(row):
			sample.Bad = fmt.Sprintf("label missing in %s", s.meta.lines[row])
		}
	}
	switch {
	case s.label >= 0 && row >= 0:
		sample.Meta = append(sample.Meta, Cell{s.meta.columns[s.label], row})
	case s.classes != nil:
		top, class := folders(rel)
		if len(s.splits) == 0 {
			class = top
		}
		if i, ok := slices.BinarySearch(s.classes, class); ok {
			sample.Meta = append(sample.Meta, int64(i))
		} else if sample.Bad == "" {
			sample.Bad = "label missing: it lies in no class folder"
		}
	}
	if sample.Bad == "" && len(s.splits) > 0 && split == "" {
		sample.Bad = "it lies in none of the split folders " + strings.Join(s.splits, ", ")
	}
	if s.paths {
		sample.Meta = append(sample.Meta, rel)
	}
	if s.meta != nil && row >= 0 {
		for i, c := range s.meta.columns {
			if i != s.label {
				sample.Meta = append(sample.Meta, Cell{c, row})
			}
		}
	}
	return sample
}

// unseen yields the rows of the metadata for which there was no image.
func (s *imageFolder) unseen(seen []bool, tops []string, yield func(Sample, error) bool) {
	if s.meta == nil {
		return
	}
	asked := func(rel string) bool {
		top, _ := folders(rel)
		return slices.Contains(tops, "") || slices.Contains(tops, top)
	}
	for _, row := range s.meta.bad {
		if asked(row.at.file) && !yield(row.sample(), nil) {
			return
		}
	}
	var missing []string
	for rel, row := range s.join.rows {
		if !seen[row] && asked(rel) {
			missing = append(missing, rel)
		}
	}
	slices.Sort(missing)
	for _, rel := range missing {
		if !yield(Sample{Key: rel, Bad: fmt.Sprintf("%s names it and there is no such %s",
			s.meta.lines[s.join.rows[rel]],
			s.media)}, nil) {
			return
		}
	}
}

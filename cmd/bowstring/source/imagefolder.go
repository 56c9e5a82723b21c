package source

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// imageFolder is root/class/x.jpg, root/split/class/x.jpg or root/x.jpg, with
// metadata.csv, .jsonl or .parquet in any of the folders, whose column file_name
// is relative to it.
//
// A top folder is a split if all that hold images are named like splits. The
// class is the folder below the split (or root), however deep the image lies.
// Labels are the same in all splits. Metadata with a column label takes their place.
//
// A folder of audio is the same with sound, and with LibriSpeech's transcripts:
// X.trans.txt, each line of which is the name of a file beside it, without its
// extension, and what is said.
type imageFolder struct {
	about
	media   string                 // schema.MediaImage or schema.MediaAudio
	isMedia func(name string) bool // whether a file is a sample
	split   string                 // the only one to read, if told apart
	in      *bounds
	choice  *choice
	paths   bool     // there is a column file_name
	classes []string // sorted; nil if there are none

	meta  *table   // joined columns, or nil
	label int      // column of meta that is the label, or -1
	join  *joined  // the rows of meta
	files []string // metadata files
}

func openImageFolder(ctx context.Context, root string, opts Options) (Source, error) {
	return openFolder(ctx, root, opts, &imageFolder{about: about{format: "imagefolder"}, media: schema.MediaImage,
		isMedia: isImageName})
}

// openFolder fills in s, which says what is looked for.
func openFolder(ctx context.Context, root string, opts Options, s *imageFolder) (Source, error) {
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", schema.ErrNotFound, err)
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return nil, err
	}
	s.path, s.split, s.label, s.choice = resolved, opts.Split, -1, opts.choice
	if s.in, err = boundsOf(resolved, opts); err != nil {
		return nil, err
	}
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	rows, err := s.readMetadata(ctx)
	if err != nil {
		return nil, err
	}
	if rows != nil {
		return rows, nil
	}
	if s.classes != nil && !s.choice.keeps("label") {
		s.classes = nil
	}
	s.paths = s.choice.keeps(schema.PathColumn)
	return s, nil
}

// survey walks the tree once for splits, classes and metadata.
func (s *imageFolder) survey(ctx context.Context) error {
	tops := map[string]int64{}          // images by top folder, "" for those in root
	seconds := map[[2]string]struct{}{} // top folders, and the folders in them, with images
	ignored, example := 0, ""
	note := func(rel string, d fs.DirEntry) {
		switch {
		case s.isMetadata(d.Name()):
			s.files = append(s.files, rel)
		case s.isMedia(d.Name()):
			top, second := folders(rel)
			tops[top]++
			seconds[[2]string{top, second}] = struct{}{}
		case d.Type().IsRegular():
			if ignored++; example == "" {
				example = rel
			}
		}
	}
	err := filepath.WalkDir(s.path, func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// What cannot be read is reported when the samples are read.
		if err == nil && p != s.path && hidden(d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		rel := s.rel(p)
		if err == nil && d.IsDir() && p != s.path && (s.isMedia(d.Name()) || !utf8.ValidString(rel)) {
			return fs.SkipDir // nor is what is in it read, so that it is no class
		}
		if err == nil && !d.IsDir() && utf8.ValidString(rel) {
			note(rel, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(tops) == 0 {
		return fmt.Errorf("%w: no file is named like %s (%s)", schema.ErrInvalid, s.kind(),
			strings.Join(s.extensions(), ", "))
	}
	if ignored > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%d files are not named like %s and were ignored, such as %s", ignored,
			s.kind(), Quoted(example)))
	}
	s.arrange(tops, seconds)
	return nil
}

// arrange decides which folders are splits and which are classes.
func (s *imageFolder) arrange(tops map[string]int64, seconds map[[2]string]struct{}) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tops)), func(n string) bool { return n == "" })
	split := len(names) > 0
	for _, n := range names {
		split = split && isSplitWord(n)
	}
	classes := map[string]bool{}
	for pair := range seconds {
		class := pair[0]
		if split {
			class = pair[1]
		}
		if class != "" {
			classes[class] = true
		}
	}
	s.classes = slices.Sorted(maps.Keys(classes))
	if split {
		s.splits = names
		slices.SortFunc(s.splits, func(a, b string) int { return splitRank(a) - splitRank(b) })
	}
	for top, n := range tops {
		if len(s.splits) == 0 || s.split == "" || top == s.split {
			s.rows += n
		}
	}
}

// folders returns the first two folders of a path, "" where there are fewer.
func folders(rel string) (top, second string) {
	parts := strings.SplitN(rel, "/", 3)
	switch len(parts) {
	case 1:
		return "", ""
	case 2:
		return parts[0], ""
	default:
		return parts[0], parts[1]
	}
}

func isMetadata(name string) bool {
	return name == "metadata.csv" || name == "metadata.jsonl" || name == "metadata.parquet"
}

func (s *imageFolder) rel(p string) string {
	rel, err := filepath.Rel(s.path, p)
	if err != nil {
		return p // cannot be: p was found below root
	}
	return filepath.ToSlash(rel)
}

// readMetadata reads the metadata files into one table. If that names files in other columns than file_name, the rows
// are the samples.
func (s *imageFolder) readMetadata(ctx context.Context) (*fileRows, error) {
	if len(s.files) == 0 {
		return nil, nil //nolint:nilnil // no metadata
	}
	dirs := map[string]string{}
	for _, f := range s.files {
		if why := s.in.outside(filepath.Join(s.path, f)); why != "" {
			return nil, fmt.Errorf("%w: %s is %s", schema.ErrInvalid, Quoted(f), why)
		}
		if other, ok := dirs[path.Dir(f)]; ok {
			return nil, fmt.Errorf("%w: %s and %s: two metadata files in one folder", schema.ErrInvalid, Quoted(other),
				Quoted(f))
		}
		dirs[path.Dir(f)] = f
	}
	t, err := readTable(ctx, s.path, s.files, tableOptions{choice: s.choice, text: []string{schema.PathColumn}})
	if err != nil {
		return nil, err
	}
	if rows, err := s.fileRows(t); rows != nil || err != nil {
		return rows, err
	}
	names := t.find("file_name")
	if names < 0 {
		return nil, fmt.Errorf("%w: %s has no column file_name", schema.ErrInvalid, Quoted(s.files[0]))
	}
	column := t.remove(names)
	s.join = newJoined(s.path, s.files)
	for row := range t.rows {
		dir, name := path.Dir(t.lines[row].file), text(column, row)
		s.join.add(path.Join(dir, path.Clean(name)), path.Join(canonical(dir), path.Clean(canonical(name))))
	}
	t.choose(s.choice)
	s.notes = append(append(s.notes, t.notes...), t.rename("file_name", s.media)...)
	if s.label = t.find("label"); s.label >= 0 {
		if err := t.classes(s.label); err != nil {
			return nil, err
		}
		s.classes = nil
	}
	s.meta = t
	return nil, nil //nolint:nilnil // the files are the samples
}

func (s *imageFolder) Fields() (meta, blobs []arrow.Field) {
	switch {
	case s.label >= 0:
		meta = append(meta, s.meta.fields[s.label])
	case s.classes != nil:
		meta = append(meta, schema.ClassField("label", s.classes))
	}
	if s.paths {
		meta = append(meta, arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String})
	}
	if s.meta != nil {
		for i, f := range s.meta.fields {
			if i != s.label {
				meta = append(meta, f)
			}
		}
	}
	return meta, []arrow.Field{schema.BlobField(s.media, s.media, false)}
}

func (l *layout) looksImageFolder() bool {
	return l.dir && l.any(isImageName)
}

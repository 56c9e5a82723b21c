package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
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
	follow  bool                   // links out of the folder
	classes []string               // sorted; nil if there are none

	meta  *table // joined columns, or nil
	label int    // column of meta that is the label, or -1
	byRel map[string]int
	twice map[string]bool // files with two rows
	files []string        // metadata files
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
	s.path, s.split, s.follow, s.label = resolved, opts.Split, opts.FollowLinks, -1
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	if err := s.readMetadata(ctx); err != nil {
		return nil, err
	}
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

// readMetadata reads the metadata files into one table.
func (s *imageFolder) readMetadata(ctx context.Context) error {
	if len(s.files) == 0 {
		return nil
	}
	dirs := map[string]string{}
	for _, f := range s.files {
		if info, err := os.Lstat(filepath.Join(s.path, f)); err == nil && info.Mode()&fs.ModeSymlink != 0 && !s.follow {
			if why := s.linkedOut(filepath.Join(s.path, f)); why != "" {
				return fmt.Errorf("%w: %s is %s", schema.ErrInvalid, Quoted(f), why)
			}
		}
		if other, ok := dirs[path.Dir(f)]; ok {
			return fmt.Errorf("%w: %s and %s: two metadata files in one folder", schema.ErrInvalid, Quoted(other),
				Quoted(f))
		}
		dirs[path.Dir(f)] = f
	}
	t, err := readTable(ctx, s.path, s.files)
	if err != nil {
		return err
	}
	names := t.find("file_name")
	if names < 0 {
		return fmt.Errorf("%w: %s has no column file_name", schema.ErrInvalid, Quoted(s.files[0]))
	}
	column := t.remove(names)
	s.byRel, s.twice = map[string]int{}, map[string]bool{}
	for row := range t.rows {
		rel := path.Join(path.Dir(t.lines[row].file), path.Clean(filepath.ToSlash(text(column, row))))
		if _, ok := s.byRel[rel]; ok {
			s.twice[rel] = true
		}
		s.byRel[rel] = row
	}
	s.notes = append(s.notes, t.rename("file_name", s.media)...)
	if s.label = t.find("label"); s.label >= 0 {
		if err := t.classes(s.label); err != nil {
			return err
		}
		s.classes = nil
	}
	s.meta = t
	return nil
}

func (s *imageFolder) Fields() (meta, blobs []arrow.Field) {
	switch {
	case s.label >= 0:
		meta = append(meta, s.meta.fields[s.label])
	case s.classes != nil:
		meta = append(meta, schema.ClassField("label", s.classes))
	}
	meta = append(meta, arrow.Field{Name: "file_name", Type: arrow.BinaryTypes.String})
	if s.meta != nil {
		for i, f := range s.meta.fields {
			if i != s.label {
				meta = append(meta, f)
			}
		}
	}
	return meta, []arrow.Field{schema.BlobField(s.media, s.media, false)}
}

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
		if d.Type()&fs.ModeSymlink != 0 && !s.follow && sample.Bad == "" {
			sample.Bad = s.linkedOut(p)
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

// linkedOut says where a link leads, if that is out of the folder.
func (s *imageFolder) linkedOut(p string) string {
	to, err := filepath.EvalSymlinks(p)
	if err != nil {
		return reason(err)
	}
	if rel, err := filepath.Rel(s.path, to); err == nil && filepath.IsLocal(rel) {
		return ""
	}
	return fmt.Sprintf("a link out of the folder, to %s; --follow-links takes it", Quoted(to))
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
		var ok bool
		if row, ok = s.byRel[rel]; ok {
			seen[row] = true
		}
		switch {
		case sample.Bad != "":
		case !ok:
			sample.Bad = "no row of the metadata (" + quotedList(s.files) + ") names it"
		case s.twice[rel]:
			sample.Bad = "two rows of the metadata name it"
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
	sample.Meta = append(sample.Meta, rel)
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
	var missing []string
	for rel, row := range s.byRel {
		top, _ := folders(rel)
		if !seen[row] && (slices.Contains(tops, "") || slices.Contains(tops, top)) {
			missing = append(missing, rel)
		}
	}
	slices.Sort(missing)
	for _, rel := range missing {
		if !yield(Sample{Key: rel, Bad: fmt.Sprintf("%s names it and there is no such %s", s.meta.lines[s.byRel[rel]],
			s.media)}, nil) {
			return
		}
	}
}

func (l *layout) looksImageFolder() bool {
	return l.dir && l.any(isImageName)
}

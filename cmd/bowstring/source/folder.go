package source

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// imageFolder is a folder of images: root/class/x.jpg, root/split/class/x.jpg or
// root/x.jpg. Any of the folders may have metadata.csv, .jsonl or .parquet, with a column
// file_name that is relative to it. The layout is that of ImageFolder in Hugging Face's
// library datasets.
//
// The top folders are splits if all that contain images are named like splits. The class
// is the folder below the split, or below root, at any depth above the image. Labels are
// the same in all splits. A column label in the metadata replaces the classes of the
// folders.
//
// A folder of audio has the same layout. It may have transcripts as LibriSpeech has them:
// in X.trans.txt each line has the name of a file in the same folder, without its
// extension, and the words that are said.
type imageFolder struct {
	about
	// media is schema.MediaImage or schema.MediaAudio, and isMedia decides by the name
	// whether a file is a sample.
	media   string
	isMedia func(name string) bool // whether a file is a sample
	// split is the only split to read; "" reads all.
	split  string
	in     *bounds
	choice *choice
	// paths adds the column file_name.
	paths   bool
	classes []string // sorted; nil if there are none

	// meta are the columns of the metadata that join adds to files; nil without metadata.
	meta  *table
	label int      // column of meta that is the label, or -1
	join  *joined  // the rows of meta
	files []string // metadata files
	sizes Estimate // of the samples
}

// openImageFolder opens a folder of images.
func openImageFolder(ctx context.Context, root string, opts Options) (Source, error) {
	return openFolder(ctx, root, opts, &imageFolder{about: about{format: "imagefolder"}, media: schema.MediaImage,
		isMedia: isImageName})
}

// openFolder opens the folder for s, which says which files are samples. If the metadata
// names files in several columns, the rows of the metadata are the samples, and the
// source is another one.
func openFolder(ctx context.Context, root string, opts Options, s *imageFolder) (Source, error) {
	s.place, s.walked = opts.files, opts.Walk
	// The folder may be named by a link. Everything below it is then compared without
	// links.
	resolved, err := s.place.resolve(root)
	if err != nil {
		return nil, notFound(err)
	}
	resolved = s.place.absolute(resolved)
	s.path, s.split, s.label, s.choice = resolved, opts.Split, -1, opts.choice
	if s.in, err = s.place.boundsOf(resolved, opts); err != nil {
		return nil, err
	}
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	if err := s.begin(opts, s.sizes); err != nil {
		return nil, err
	}
	rows, err := s.readMetadata(ctx)
	if err != nil {
		return nil, err
	}
	// Metadata with several columns of files makes another kind of source.
	if rows != nil {
		return rows, nil
	}
	if s.classes != nil && !s.choice.keeps("label") {
		s.classes = nil
	}
	s.paths = s.choice.keeps(schema.PathColumn)
	return s, nil
}

// survey walks the tree once, for the splits, the classes and the metadata. They must be
// known before the first sample, because the schema has the names of the classes.
func (s *imageFolder) survey(ctx context.Context) error {
	tops := map[string]int64{}          // images by top folder, "" for those in root
	seconds := map[[2]string]struct{}{} // top folders, and the folders in them, with images
	ignored, example := 0, ""
	// One pass collects everything, because walking a large tree is slow.
	note := func(rel string, d fs.DirEntry) {
		switch {
		case s.isMetadata(d.Name()):
			s.files = append(s.files, rel)
		case s.isMedia(d.Name()):
			top, second := folders(rel)
			tops[top]++
			s.sizes.add(s.place, filepath.Join(s.path, filepath.FromSlash(rel)))
			seconds[[2]string{top, second}] = struct{}{}
		case d.Type().IsRegular():
			if ignored++; example == "" {
				example = rel
			}
		}
	}
	err := s.place.walk(s.path, func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Files that cannot be read are reported when the samples are read.
		if err == nil && p != s.path && hidden(d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		rel := s.rel(p)
		if err == nil && d.IsDir() && p != s.path && (s.isMedia(d.Name()) || !utf8.ValidString(rel)) {
			// Its files are not samples, so that it must not become a class.
			return fs.SkipDir
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

// arrange decides which folders are splits and which are classes. tops counts the images
// by top folder.
func (s *imageFolder) arrange(tops map[string]int64, seconds map[[2]string]struct{}) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tops)), func(n string) bool { return n == "" })
	// One folder with another name makes all of them classes: train and cat are no
	// splits.
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
	// The counts of the other splits are not those of this import.
	for top, n := range tops {
		if len(s.splits) == 0 || s.split == "" || top == s.split {
			s.rows += n
		}
	}
}

// folders returns the first two folders of a path; "" for each that it does not have.
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

// isMetadata reports whether a file is the metadata of an ImageFolder.
func isMetadata(name string) bool {
	return name == "metadata.csv" || name == "metadata.jsonl" || name == "metadata.parquet"
}

// rel returns a path relative to root, with slashes.
func (s *imageFolder) rel(p string) string {
	rel, err := filepath.Rel(s.path, p)
	if err != nil {
		return p // cannot be: p was found below root
	}
	return filepath.ToSlash(rel)
}

// readMetadata reads the metadata files into one table. If it names files in other
// columns than file_name, it returns the source whose samples are the rows.
func (s *imageFolder) readMetadata(ctx context.Context) (*fileRows, error) {
	if len(s.files) == 0 {
		return nil, nil //nolint:nilnil // no metadata
	}
	// Two metadata files in one folder would name each file twice, with values that may
	// differ.
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
	t, err := s.place.readTable(ctx, s.path, s.files, tableOptions{choice: s.choice, text: []string{schema.PathColumn}})
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
	// The paths are not a column of the dataset: file_name is made from the files
	// themselves.
	column := t.remove(names)
	s.join = newJoined(s.place, s.path, s.files)
	for row := range t.rows {
		dir, name := path.Dir(t.lines[row].file), text(column, row)
		s.join.add(path.Join(dir, path.Clean(name)), path.Join(canonical(dir), path.Clean(canonical(name))))
	}
	t.choose(s.choice)
	s.notes = append(append(s.notes, t.notes...), t.rename("file_name", s.media)...)
	// A label in the metadata takes precedence over the folders.
	if s.label = t.find("label"); s.label >= 0 {
		if err := t.classes(s.label); err != nil {
			return nil, err
		}
		s.classes = nil
	}
	s.meta = t
	return nil, nil //nolint:nilnil // the files are the samples
}

// Fields implements Source.
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

// detectImageFolder reports whether the layout has images outside archives.
func (l *layout) detectImageFolder() bool {
	return l.dir && l.any(isImageName)
}

// errStop ends a walk after the consumer has stopped.
var errStop = errors.New("stop")

// Samples implements Source: split by split, so that the rows of a split follow each
// other in the dataset.
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
				tops = append(slices.Clone(tops), "") // images outside them come last, as bad samples
			}
		}
		for _, top := range tops {
			err := s.place.walk(filepath.Join(s.path, top), func(p string, d fs.DirEntry, err error) error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if top == "" && err == nil && d.IsDir() && slices.Contains(s.splits, s.rel(p)) {
					return fs.SkipDir // was walked
				}
				return s.visit(ctx, p, top, d, err, seen, yield)
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

// visit yields the sample at a path, or a bad one if the path should be a sample. Other
// files are skipped.
//
// Links to files are followed within the bounds of the folder. Links to folders are not
// followed: they may form a cycle.
func (s *imageFolder) visit(ctx context.Context, p, split string, d fs.DirEntry, err error, seen []bool,
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
	// Folders are entered by the walk. One that is named like an image is a bad sample.
	case d.IsDir() && !s.isMedia(d.Name()):
		return nil
	case d.Type()&fs.ModeSymlink != 0 && !s.isMedia(d.Name()):
		if !s.place.isDir(p) {
			return nil
		}
		sample = Sample{Key: rel, Bad: "a link to a folder; links to folders are not followed"}
	case !s.isMedia(d.Name()):
		return nil
	default:
		sample = s.sample(ctx, rel, p, split, seen)
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

// sample makes the sample of a file, joined with its row of the metadata. The first
// problem found is reported.
func (s *imageFolder) sample(ctx context.Context, rel, p, split string, seen []bool) Sample {
	sample := s.place.fileSample(ctx, rel, p)
	sample.Split = split
	if !utf8.ValidString(rel) {
		sample.Key = strings.ToValidUTF8(rel, "\ufffd")
		sample.Bad = "its name is not valid UTF-8"
	}
	// The metadata is joined first: a label in it replaces that of the folder.
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
			sample.Bad = "label missing: it is in no class folder"
		}
	}
	if sample.Bad == "" && len(s.splits) > 0 && split == "" {
		sample.Bad = "it is in none of the split folders " + strings.Join(s.splits, ", ")
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

// unseen yields the rows of the metadata without a file, as bad samples: a file that is
// missing must not disappear silently.
func (s *imageFolder) unseen(seen []bool, tops []string, yield func(Sample, error) bool) {
	if s.meta == nil {
		return
	}
	// Rows of splits that are not read have no samples, and are not missing.
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

// joined finds the rows of metadata that name files of a folder. An exact name comes
// first, then another way to write it. One goroutine uses it.
type joined struct {
	place *Files
	root  string
	// files are the metadata files, for messages.
	files string
	// rows has the row of each file, by the name that the row has.
	rows map[string]int
	// twice has the files that two rows name.
	twice map[string]bool
	names []string // by row
	// alike has the rows of names that may be written in another way, by canonical name.
	// The value is severalRows if several rows share one.
	alike map[string]int
	// used has the file that each row was found for.
	used map[int]string
}

// severalRows marks a canonical name that several rows share, each written in another
// way.
const severalRows = -1

// newJoined returns a joined without rows.
func newJoined(place *Files, root string, files []string) *joined {
	return &joined{place: place, root: root, files: quotedList(files), rows: map[string]int{}, twice: map[string]bool{},
		alike: map[string]int{},
		used:  map[int]string{}}
}

// add adds the next row: the name that it has, and the canonical form of that name.
func (j *joined) add(file, canonical string) {
	row := len(j.names)
	j.names = append(j.names, file)
	_, had := j.rows[file]
	j.twice[file] = j.twice[file] || had
	j.rows[file] = row
	if canonical == file && ascii(file) {
		return
	}
	if other, ok := j.alike[canonical]; ok && j.names[max(other, 0)] != file {
		row = severalRows
	}
	j.alike[canonical] = row
}

// find returns the row of a file, or why there is none. A row is taken for another way to
// write a name only if no file has exactly the name in the row.
func (j *joined) find(file string) (row int, why string) {
	row, ok := j.rows[file]
	if !ok {
		row, ok = j.alike[canonical(file)]
		if !ok || row == severalRows || !j.place.missing(filepath.Join(j.root, filepath.FromSlash(j.names[row]))) {
			return -1, "no row of the metadata (" + j.files + ") names it"
		}
	}
	if j.twice[j.names[row]] {
		return row, "two rows of the metadata name it"
	}
	if other, used := j.used[row]; used && other != file {
		return -1, "the row of the metadata that names it names " + Quoted(other) + ", too"
	}
	j.used[row] = file
	return row, ""
}

// fileRows returns the source of a folder whose metadata names files in columns
// X_file_name, or lists of files in columns X_file_names, as the library datasets has
// them. It returns nil if no column but file_name does so.
func (s *imageFolder) fileRows(t *table) (*fileRows, error) {
	out := &fileRows{about: s.about, in: s.in, asked: s.split, meta: t, label: -1,
		found: &namer{files: s.place, dir: s.path, in: s.in}}
	var files []fileColumn
	var at []int // columns of t that name files
	others := false
	for i, f := range t.fields {
		one, isOne := strings.CutSuffix("_"+f.Name, "_file_name")
		many, isMany := strings.CutSuffix("_"+f.Name, "_file_names")
		switch {
		case isOne && isText(f.Type):
			if f.Name != schema.PathColumn {
				// A column may be named so for other reasons. If none of its values is a
				// file, it is text.
				if !s.namesFiles(out.found, t, t.columns[i]) {
					s.notes = append(s.notes, fmt.Sprintf("the column %q names no file that there is, and is kept as text",
						f.Name))
					continue
				}
				others = true
			}
			column := s.fileColumn(strings.TrimPrefix(one, "_"), t.columns[i])
			if f.Name == schema.PathColumn { // file_name is the first
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
	// Two columns could claim one name, such as image_file_name and file_name.
	var names []string
	for _, f := range files {
		if slices.Contains(names, f.field.Name) {
			return nil, fmt.Errorf("%w: two columns of the metadata name the files of column %q", schema.ErrInvalid,
				f.field.Name)
		}
		names = append(names, f.field.Name)
	}
	// From the end, so that the indexes of earlier columns stay valid.
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

// fileColumn returns the blob column for a column of paths. Its media follows from the
// names of all files: a mix has no media.
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

// namesFiles reports whether any text in the column names an existing file.
func (s *imageFolder) namesFiles(found *namer, t *table, paths arrow.Array) bool {
	for row := range paths.Len() {
		if name := text(paths, row); name != "" {
			rel := path.Join(path.Dir(t.lines[row].file), path.Clean(filepath.ToSlash(name)))
			if file, _, _ := found.find(rel); !s.place.missing(file) {
				return true
			}
		}
	}
	return false
}

// fileLists returns the blob columns for a column of lists of paths: one for each index,
// if all lists have one length. A blob column has one blob a row.
func (s *imageFolder) fileLists(t *table, name string, i int) ([]fileColumn, error) {
	lists := t.columns[i].(array.ListLike)
	// All rows are checked first, because each index becomes a column.
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

// isListOfText reports whether t is a list of strings.
func isListOfText(t arrow.DataType) bool {
	list, ok := t.(arrow.ListLikeType)
	return ok && isText(list.Elem())
}

// splitOf returns the top folder of a row's first file, or of its metadata if it names
// none; "" if that folder is no split.
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
		err := s.place.walk(s.path, func(p string, d fs.DirEntry, err error) error {
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

// transcriptSuffix ends the names of LibriSpeech's transcripts.
const transcriptSuffix = ".trans.txt"

// openAudioFolder opens a folder of audio, which has the layout of a folder of images.
func openAudioFolder(ctx context.Context, root string, opts Options) (Source, error) {
	return openFolder(ctx, root, opts, &imageFolder{about: about{format: "audiofolder"}, media: schema.MediaAudio,
		isMedia: isAudioName})
}

// detectAudioFolder reports whether the layout has audio, and nothing that another format
// claims.
func (l *layout) detectAudioFolder() bool {
	other := func(name string) bool {
		return isImageName(name) || isTarName(name) || extension(name) == "parquet"
	}
	return l.dir && l.any(isAudioName) && !l.any(other) && !l.detectCommonVoice()
}

// kind returns what the files are, for messages.
func (s *imageFolder) kind() string {
	if s.media == schema.MediaAudio {
		return "sound"
	}
	return "images"
}

// extensions returns the extensions of samples.
func (s *imageFolder) extensions() []string {
	if s.media == schema.MediaAudio {
		return audioExtensions
	}
	return imageExtensions
}

// isMetadata reports whether a file has columns for the samples.
func (s *imageFolder) isMetadata(name string) bool {
	return isMetadata(name) || s.media == schema.MediaAudio && strings.HasSuffix(name, transcriptSuffix)
}

// readTranscripts reads lines with the name of an utterance and its words. The utterance
// is a FLAC file in the same folder.
func (t *looseTable) readTranscripts(file string, r *bufio.Reader) error {
	name, transcript := t.column("file_name"), t.column("transcript")
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		// The words follow the name of the utterance after one space.
		id, said, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if id == "" {
			continue
		}
		t.lines = append(t.lines, place{file, n})
		if err := t.set(name, textOf(id+".flac")); err != nil {
			return err
		}
		if err := t.set(transcript, textOf(strings.TrimSpace(said))); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
	}
	return nil
}

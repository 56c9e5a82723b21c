package source

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"iter"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// pathColumns are the columns that are taken for paths if none is named, best first.
var pathColumns = []string{"path", "file_name", "filename", "file"}

// list is a table of paths of files, absolute or relative to the table's folder.
//
// The column split has the split. The column label has the class: a number, or a name.
// The classes are the sorted names. All other columns are metadata. A table that names no
// files makes rows without blobs.
type list struct {
	about
	dir   string
	found *namer
	files []string // by row of the table; nil if the table names no files
	split []string // by row of the table; nil without a column split
	order []int    // rows to read, split by split
	meta  *table
	label int           // column of meta, or -1
	paths bool          // adds the column file_name
	blobs []arrow.Field // blob column of the files; nil without files
}

// openList opens a table. It reads the whole table, because types of columns and classes
// follow from all rows.
func openList(ctx context.Context, path string, opts Options) (Source, error) {
	abs := opts.files.absolute(path)
	if !slices.Contains(tableExtensions, extension(abs)) {
		return nil, fmt.Errorf("%w: want a file named .%s", schema.ErrInvalid, strings.Join(tableExtensions, ", ."))
	}
	// Relative paths are relative to the table, wherever the program runs.
	s := &list{about: about{place: opts.files, format: "list", path: abs}, dir: filepath.Dir(abs)}
	s.walked = opts.Walk
	names := pathColumns
	if opts.PathColumn != "" {
		names = []string{opts.PathColumn}
	}
	t, err := s.place.readTable(ctx, s.dir, []string{filepath.Base(abs)}, tableOptions{choice: opts.choice, paths: names,
		text: []string{"split"}})
	if err != nil {
		return nil, err
	}
	in, err := s.place.boundsOf(s.dir, opts)
	if err != nil {
		return nil, err
	}
	s.found = &namer{files: s.place, dir: s.dir, in: in}
	// Without a named column the usual names are tried.
	i := t.find(names...)
	// The path column is removed from the table first: all other columns are metadata.
	switch {
	case i >= 0:
		s.paths = opts.choice.keeps(t.fields[i].Name, schema.PathColumn)
		column := t.remove(i)
		s.files = make([]string, t.rows)
		for row := range t.rows {
			s.files[row] = text(column, row)
		}
		s.blobs = s.media()
		if err := s.found.know(ctx, s.files); err != nil {
			return nil, err
		}
		if err := s.begin(opts, s.sizes()); err != nil {
			return nil, err
		}
	// A table with names of files in another column would otherwise become rows without
	// files, unnoticed.
	case opts.PathColumn != "" || len(t.fields) == 0 || t.namesMedia():
		return nil, fmt.Errorf("%w: no column of paths (%s), only %s; say which with --path-column",
			schema.ErrInvalid, strings.Join(names, ", "), cmp.Or(quotedList(fieldNames(t.fields)), "none"))
	default:
		s.notes = append(s.notes, fmt.Sprintf("no column of paths (%s): the rows have no files", strings.Join(names, ", ")))
	}
	// The split is taken before Options.Columns applies: a split is not a column of the
	// dataset.
	if i := t.find("split"); i >= 0 && opts.choice.keeps("split") {
		column := t.remove(i)
		for row := range t.rows {
			s.split = append(s.split, text(column, row))
		}
	}
	s.meta = t
	s.arrange(opts.Split)
	t.choose(opts.choice)
	s.notes = append(append(s.notes, t.notes...), t.rename(append(fieldNames(s.blobs), schema.PathColumn)...)...)
	// The label is looked for last: by then it has its name in the dataset.
	if s.label = t.find("label"); s.label >= 0 {
		if err := t.classes(s.label); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// fieldNames returns the names of fields.
func fieldNames(fields []arrow.Field) []string {
	var names []string
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return names
}

// arrange orders the rows by split, in the order in which the splits first occur. Rows of
// a split then follow each other in the dataset, as a snapshot needs them.
func (s *list) arrange(asked string) {
	bySplit := map[string][]int{}
	for row := range s.meta.rows {
		split := ""
		if s.split != nil {
			split = s.split[row]
		}
		if _, ok := bySplit[split]; !ok && split != "" {
			s.splits = append(s.splits, split)
		}
		bySplit[split] = append(bySplit[split], row)
	}
	// Rows without a split come last. If others have one, they are bad samples.
	for _, split := range append(slices.Clone(s.splits), "") {
		if len(s.splits) == 0 || asked == "" || split == asked {
			s.order = append(s.order, bySplit[split]...)
		}
	}
	s.rows = int64(len(s.order))
}

// media returns the blob column for the files. They are audio if all names are, and
// images otherwise.
func (s *list) media() []arrow.Field {
	audio := len(s.files) > 0 && !slices.ContainsFunc(s.files, func(f string) bool { return !isAudioName(f) })
	if audio {
		return audioBlob()
	}
	return []arrow.Field{schema.BlobField("image", schema.MediaImage, false)}
}

// audioBlob returns the blob column of audio files.
func audioBlob() []arrow.Field {
	return []arrow.Field{schema.BlobField("audio", schema.MediaAudio, false)}
}

// namesMedia reports whether a text column has the name of an image or audio file. Such a
// column may be meant as the paths.
func (t *table) namesMedia() bool {
	for i, f := range t.fields {
		for row := 0; isText(f.Type) && row < t.rows; row++ {
			if name := text(t.columns[i], row); isImageName(name) || isAudioName(name) {
				return true
			}
		}
	}
	return false
}

// sizes estimates reading the files.
func (s *list) sizes() (e Estimate) {
	for _, name := range s.files {
		file, _, bad := s.found.find(name)
		if bad == "" && s.place.bucket() != nil {
			e.add(s.place, file)
		}
	}
	return e
}

// Fields implements Source.
func (s *list) Fields() (meta, blobs []arrow.Field) {
	if s.paths {
		meta = append(meta, arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String})
	}
	return append(meta, s.meta.fields...), s.blobs
}

// Samples implements Source: the rows by split, then the bad rows of the table.
func (s *list) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		first := map[string]int{}
		for _, row := range s.order {
			if ctx.Err() != nil {
				yield(Sample{}, context.Cause(ctx))
				return
			}
			if !yield(s.sample(ctx, row, first), nil) {
				return
			}
		}
		for _, row := range s.meta.bad {
			if !yield(row.sample(), nil) {
				return
			}
		}
	}
}

// sample makes the sample of a row. first has the row of each file so far. The order of
// the cases decides which reason a bad sample has.
func (s *list) sample(ctx context.Context, row int, first map[string]int) Sample {
	at := s.meta.lines[row]
	// Without files the key is the row's number, so that its id is stable as long as rows
	// are only appended.
	name, file, key, why := "", "", fmt.Sprintf("%s#%d", filepath.Base(s.path), row), ""
	if s.files != nil {
		name = s.files[row]
		file, key, why = s.found.find(name)
	}
	var out Sample
	other, twice := first[key]
	switch {
	case s.files != nil && name == "":
		out = Sample{Key: at.String(), Bad: "path missing"}
	case twice:
		out = Sample{Key: key, Bad: fmt.Sprintf("duplicate: %s and %s name it", s.meta.lines[other], at)}
	case s.label >= 0 && s.meta.columns[s.label].IsNull(row):
		out = Sample{Key: key, Bad: fmt.Sprintf("label missing in %s", at)}
	case s.splits != nil && s.split[row] == "":
		out = Sample{Key: key, Bad: fmt.Sprintf("split missing in %s", at)}
	case why != "":
		out = Sample{Key: key, Bad: why}
	case s.files == nil:
		out = Sample{Key: key}
	default:
		out = s.place.fileSample(ctx, key, file)
	}
	if s.files != nil && !twice {
		first[key] = row
	}
	if s.split != nil {
		out.Split = s.split[row]
	}
	if s.paths {
		out.Meta = append(out.Meta, key)
	}
	out.Meta = append(out.Meta, s.meta.cells(row)...)
	return out
}

// detectList reports whether the layout is a table of paths. A Parquet file is one only
// if no column holds content.
func (l *layout) detectList() bool {
	if l.dir || isPattern(l.path) {
		return false
	}
	switch extension(l.path) {
	case "csv", "tsv", "jsonl", "ndjson":
		return true
	case "json":
		return filepath.Base(l.path) != "index.json" // an index of MDS or LitData
	case "parquet": // a table of paths has no blobs
		f, err := l.opts.files.openParquet(l.ctx, l.path)
		if err != nil {
			return false
		}
		defer func() { _ = f.Close() }()
		paths := pathColumns
		if l.opts.PathColumn != "" {
			paths = []string{l.opts.PathColumn}
		}
		columns, err := f.Columns(func(string) bool { return false })
		if err != nil {
			return false
		}
		has := false
		for _, c := range columns {
			switch {
			case c.Err != nil:
			case isBytes(c.Type) || c.Type.ID() == arrow.STRUCT:
				return false
			case isText(c.Type):
				has = has || slices.Contains(paths, c.Name)
			}
		}
		return has
	}
	return false
}

// clipsFolder is the folder of the recordings of Common Voice, next to its tables.
const clipsFolder = "clips"

// votes are the numeric columns of Common Voice. All others are text, whatever they look
// like: an age may be "teens" or "20".
var votes = []string{"up_votes", "down_votes"}

// voiceSplits are the tables of Common Voice that are splits. The other tables
// (validated, other, invalidated) name clips of these again, or clips without agreement.
// They are read only if one is asked for.
var voiceSplits = []string{"train", "dev", "test"}

// openCommonVoice opens a language of Common Voice: tables of tab-separated values, each
// a split, that name clips in the folder next to them.
func openCommonVoice(ctx context.Context, root string, opts Options) (Source, error) {
	s := &list{about: about{place: opts.files, format: "commonvoice", path: opts.files.absolute(root)},
		dir: opts.files.absolute(root), label: -1}
	s.walked = opts.Walk
	splits, others, err := s.voiceTables(opts.Split)
	if err != nil {
		return nil, err
	}
	if len(splits) == 0 {
		return nil, fmt.Errorf("%w: it has none of train.tsv, dev.tsv and test.tsv; --split names another table, "+
			"such as validated", schema.ErrInvalid)
	}
	if len(others) > 0 {
		s.notes = append(s.notes, quotedList(others)+" were not read; --split takes one of them")
	}
	in, err := s.place.boundsOf(s.dir, opts)
	if err != nil {
		return nil, err
	}
	s.found = &namer{files: s.place, dir: s.dir, in: in}
	t := newLooseTable(tableOptions{choice: opts.choice, text: []string{"path"}, typed: votes})
	for _, split := range splits {
		file := split + ".tsv"
		if err := in.check(filepath.Join(s.dir, file)); err != nil {
			return nil, err
		}
		// Quotation marks are text: a sentence may begin with one.
		if err := s.place.readFile(ctx, filepath.Join(s.dir, file), func(in *bufio.Reader) error {
			return t.readDelimited(ctx, file, "voice", true, in)
		}); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(file), err)
		}
		if _, ok := t.index["path"]; !ok {
			return nil, fmt.Errorf("%w: %s: there is no column path, only %s", schema.ErrInvalid, Quoted(file),
				quotedList(t.names))
		}
	}
	table, err := t.build()
	if err != nil {
		return nil, err
	}
	s.paths = opts.choice.keeps("path", schema.PathColumn)
	column := table.remove(table.find("path"))
	table.choose(opts.choice)
	for row := range table.rows {
		s.files = append(s.files, clip(text(column, row)))
		s.split = append(s.split, strings.TrimSuffix(table.lines[row].file, ".tsv"))
	}
	// Bad rows of tables that are not imported are not reported.
	table.bad = slices.DeleteFunc(table.bad, func(r badRow) bool {
		return opts.Split != "" && r.at.file != opts.Split+".tsv"
	})
	if err := s.begin(opts, s.sizes()); err != nil {
		return nil, err
	}
	s.meta = table
	s.arrange(opts.Split)
	s.splits = splits
	s.blobs = audioBlob()
	s.notes = append(append(s.notes, table.notes...), table.rename(schema.PathColumn, schema.MediaAudio, "label")...)
	return s, nil
}

// voiceTables returns the splits to read, and the names of the tables that are not read.
func (s *list) voiceTables(asked string) (read, others []string, err error) {
	entries, err := s.place.readDir(s.dir, 0)
	if err != nil {
		return nil, nil, notFound(err)
	}
	for _, e := range entries {
		name, table := strings.CutSuffix(e.Name(), ".tsv")
		switch {
		case !table || e.IsDir() || hidden(name):
		case slices.Contains(voiceSplits, name) || name == asked:
			read = append(read, name)
		default:
			others = append(others, e.Name())
		}
	}
	if asked != "" && !slices.Contains(voiceSplits, asked) && slices.Contains(read, asked) {
		return []string{asked}, nil, nil // its clips are in the splits as well, and a clip has one split
	}
	slices.SortFunc(read, func(a, b string) int { return slices.Index(voiceSplits, a) - slices.Index(voiceSplits, b) })
	return read, others, nil
}

// clip returns the path of a recording; "" if the name leads out of the folder. Old
// releases omit the extension.
func clip(name string) string {
	// A row without a path is a bad sample, which is what happens to a row that leads
	// elsewhere.
	if !filepath.IsLocal(name) {
		return ""
	}
	if !isAudioName(name) {
		name += ".mp3"
	}
	return path.Join(clipsFolder, filepath.ToSlash(name))
}

// detectCommonVoice reports whether the layout has clips and a table of Common Voice.
func (l *layout) detectCommonVoice() bool {
	inClips := func(name string) bool { return filepath.Dir(name) == clipsFolder && isAudioName(name) }
	table := func(name string) bool {
		stem, is := strings.CutSuffix(name, ".tsv")
		return is && (slices.Contains(voiceSplits, stem) || stem == "validated")
	}
	return l.dir && l.any(inClips) && l.any(table)
}

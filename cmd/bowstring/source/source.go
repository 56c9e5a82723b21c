// Package source reads data sets in the layouts of other tools: folders of images and of
// audio, Common Voice, Hugging Face Parquet, WebDataset tars, MosaicML MDS shards,
// LitData, TensorFlow's records, Megatron's token ids, exports, and tables of paths.
//
// A Source lists samples in a fixed order, most of them before their bytes are read. A
// Reader loads and checks them with several workers, keeps the order, and yields batches.
// A sample that cannot be imported becomes a BadItem with a reason. Reading continues, so
// that one run finds all of them.
//
// Begin with Open here and Reader in reader.go. place.go has the file systems: a local
// folder, a bucket (cloud.go, reading.go, keys.go), a zip (zip.go). Each format has a
// file of its own. Writing datasets is not part of this package.
package source

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Source is a data set in one format. It holds files open only while Samples runs.
//
// One goroutine at a time may call its methods. Load and Release of several samples may
// run in other goroutines meanwhile.
type Source interface {
	// Format returns the name that --format takes.
	Format() string
	// Describe returns what was found, in one line: format and path.
	Describe() string
	// Fields returns the metadata columns and the blob columns of the samples.
	Fields() (meta, blobs []arrow.Field)
	// Splits returns the splits of the source, in the order of the samples; none if the
	// source has no splits. It includes those that Options.Split leaves out.
	Splits() []string
	// Rows returns the number of samples to read. It is for a progress bar, and may count
	// bad ones.
	Rows() int64
	// Notes returns notes for the user: files ignored, columns renamed.
	Notes() []string
	// Files returns the place of the files.
	Files() *Files
	// Walked reports whether blobs are not read; see Options.Walk.
	Walked() bool
	// Estimate returns what reading the source from a bucket costs.
	Estimate() Estimate
	// Exact reports whether its columns are complete, as in an export, so that none is
	// added.
	Exact() bool
	// Samples yields the samples split by split. The order depends on names and content
	// only, so that two imports of one source make equal snapshots. An error is the last
	// element: the source as a whole cannot be read.
	Samples(ctx context.Context) iter.Seq2[Sample, error]
}

// about has what every source knows about itself once it is open. It implements most of
// Source.
type about struct {
	place    *Files
	format   string
	path     string // absolute, in place
	splits   []string
	rows     int64
	notes    []string
	walked   bool
	estimate Estimate
	exact    bool // the columns are complete, as in an export
}

// Format implements Source.
func (a *about) Format() string { return a.format }

// Describe implements Source.
func (a *about) Describe() string { return a.format + " " + a.place.shown(a.path) }

// Files implements Source.
func (a *about) Files() *Files { return a.place }

// Splits implements Source.
func (a *about) Splits() []string { return a.splits }

// Rows implements Source.
func (a *about) Rows() int64 { return a.rows }

// Notes implements Source: those of the place, of the format and of indexes.
func (a *about) Notes() []string {
	notes := slices.Concat(a.place.notes(), a.notes, a.place.differing.notes())
	if a.walked {
		notes = append(notes, "the content of blobs was not read: columns of what it holds, such as width and duration, are "+
			"left out")
	}
	return notes
}

// Exact implements Source.
func (a *about) Exact() bool { return a.exact }

// Walked implements Source.
func (a *about) Walked() bool { return a.walked }

// Sample is one row of a Source. Its memory is valid until Release is called.
type Sample struct {
	// Key names the sample within the source, for its id and for messages. It does not
	// depend on the place of the source, or on the order of its files, so that a second
	// import makes the same ids.
	Key   string
	Split string // "" if the source has no splits
	// ID is the sample's id if the source stores it, as exports do; nil if the id is made
	// from the key.
	ID *schema.ID
	// Meta has the values of the metadata columns: nil (null), bool, int64, uint64,
	// float64, string, []byte, []any, Numbers, map[string]any or a Cell.
	Meta []any
	// At has the extents of the blobs by blob column. It is nil if none is known.
	At []Extent
	// Size is an upper bound for the bytes of all blobs: the memory that Load takes.
	Size int64
	// Blobs has the content by blob column, nil for a null. It is nil if Load is set, and
	// if the content was not read.
	Blobs [][]byte
	// Load reads the content if Blobs does not have it. It is called at most once,
	// possibly in another goroutine. Its error makes the sample bad.
	Load func() ([][]byte, error)
	// Release is called exactly once, when Meta, Blobs and the result of Load are no
	// longer used. It may be nil.
	Release func()
	// Bad is why the sample cannot be imported; "" if nothing wrong is known.
	Bad string
	// Known has the sample's blobs and all its columns, from the previous snapshot. If it
	// is set, Meta, At, Size, Blobs and Load are not.
	Known *Known
}

// Cell is a value in an Arrow array. The array must stay valid as long as the sample.
type Cell struct {
	Array arrow.Array
	Row   int
}

// BadItem is a sample, or a file, that cannot be imported.
type BadItem struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Options configure how a source is opened.
type Options struct {
	// Format is the format; "" or "auto" recognises it.
	Format string
	// Split names the split of a source without splits. If the source has splits, it
	// selects the one to read.
	Split string
	// PathColumn is the column of a table that has paths; "" recognises it.
	PathColumn string
	// Outside allows files outside the folder of the data set, to which its links and
	// paths lead. The author of the data set names them, but they belong to the user who
	// imports.
	Outside bool
	// Bucket opens the bucket of a URL; nil opens it with the credentials of the
	// environment.
	Bucket func(ctx context.Context, url string) (object.Bucket, error)
	// With Walk, samples have the extents of their blobs, which are not read. Formats
	// that allow it (see Source.Walked) are folders and tables of paths by the list of
	// the bucket, tars by their headers, and MDS by its tables. Blobs are nil then, and
	// columns computed from them are absent. A format's metadata is read.
	Walk bool
	// Decide replaces Walk if it is not nil. It is called if walking costs anything else
	// than reading everything.
	Decide func(Estimate) bool
	// Kept is called after the objects of a bucket were listed. It returns the rows of
	// objects that have not changed; nil if all are to be read. Formats of shards use it:
	// tars, Parquet, MDS, LitData and TensorFlow's records.
	Kept func(format, bucket string, objects []schema.Object) (Kept, error)
	// Inventory is a list of the bucket's objects that is read instead of listing the
	// bucket; "" lists it. It is a path or URL: manifest.json of an S3 inventory,
	// msc_manifest_index.json of the Multi-Storage Client, or a list of keys.
	Inventory string
	// Index says how indexes next to tars in a bucket are used; IndexAll if empty.
	Index UseIndex
	// Begin is called when it is known what there is to read, before the costly part. Its
	// error ends Open.
	Begin func(Estimate) error
	// Columns are patterns of the columns that are read; empty means all. A * stands for
	// any text. Columns that find samples (paths and splits of a table) are read in any
	// case. Files that a table or a folder names, and columns that an importer makes, are
	// not affected.
	Columns []string
	// LeaveOut are patterns of columns that are not read, or not made, even if Columns
	// names them.
	LeaveOut []string
	// Text are patterns of columns of text tables, and keys of JSON, whose values are
	// text, whatever they look like.
	Text []string
	// Spread is the number of blob columns that a column of lists of blobs becomes, by
	// its name.
	Spread map[string]int
	// AsMetadata are columns with bytes within lists or structs that become metadata
	// nevertheless.
	AsMetadata []string
	// Tokens are the types of token ids, by the name of a column of bytes. Such a column
	// becomes a list of that type.
	Tokens map[string]string
	// TokenBlobs makes the token ids of a sample a blob instead of a list, if the format
	// has them in one piece.
	TokenBlobs bool

	// choice is that of Columns, LeaveOut and Text, and files the place of the source.
	// Open sets both.
	choice *choice
	files  *Files
}

// format is a layout of data sets.
type format struct {
	name      string
	signature string // how users recognise it, for messages
	// detect reports whether a data set looks like the format, from names alone.
	detect func(l *layout) bool
	open   func(ctx context.Context, path string, opts Options) (Source, error)
	shards bool // files have many samples each, and open uses Options.Kept
}

// formats are all formats. The order is that of messages; an export wins over any other.
var formats = []format{
	{exportFormat, "metadata.parquet of an export (bowstring get --to DIR/)", (*layout).detectExport, openExport, false},
	{"mds", "index.json in the directory or in its subdirectories (MosaicML MDS)", (*layout).detectMDS, openMDS, true},
	{"litdata", "index.json of chunks, in the directory or in its subdirectories (LitData)", (*layout).detectLitData,
		openLitData, true},
	{"megatron", "*.idx beside *.bin (Megatron-LM)", (*layout).detectMegatron, openMegatron, false},
	{"tfrecord", "*.tfrecord, also *.tfrecord-00000-of-00010 and *.tfrecord.gz (TensorFlow)", (*layout).detectTFRecord,
		openTFRecords, true},
	{"webdataset", "*.tar, *.tar.gz, *.tgz, *.tar.zst or *.tar.bz2 (WebDataset)", (*layout).detectWebDataset,
		openWebDataset, true},
	{"parquet", "*.parquet, also in data/ (Hugging Face)", (*layout).detectParquet, openParquet, true},
	{"imagefolder", "image files in folders", (*layout).detectImageFolder, openImageFolder, false},
	{"audiofolder", "audio files in folders, also LibriSpeech's", (*layout).detectAudioFolder, openAudioFolder,
		false},
	{"commonvoice", "clips/ beside train.tsv, dev.tsv and test.tsv (Common Voice)", (*layout).detectCommonVoice,
		openCommonVoice, false},
	{"list", "a .csv, .tsv, .jsonl or .parquet file with a column of paths", (*layout).detectList, openList,
		false},
}

// NameOf returns the last part of a path or URL without its extension: the default name
// of a dataset.
func NameOf(named string) string {
	if where, key, err := object.SplitURL(named); err == nil {
		where, _, _ = strings.Cut(where, "?")
		_, where, _ = strings.Cut(where, "://")
		named = path.Join(where, key)
	}
	name, _, _ := strings.Cut(filepath.Base(absolutePath(named)), ".")
	return name
}

// Formats returns the names of the formats.
func Formats() []string {
	var names []string
	for _, f := range formats {
		names = append(names, f.name)
	}
	return names
}

// Open opens the data set at path: a file, a directory, or for tars a pattern such as
// "train-{0000..0011}.tar". It is local, or in a bucket by a URL. The caller reads it
// with a Reader; there is nothing to close.
//
// The error wraps schema.ErrInvalid if the data set is in no known format, or in more
// than one.
func Open(ctx context.Context, path string, opts Options) (Source, error) {
	named := path
	files, path, err := openFiles(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	var z *zipped
	if isZip(files, path) {
		inside, err := openZip(ctx, files, path)
		if err != nil {
			return nil, err
		}
		files, z = inside, inside.system.(*zipped)
		path = z.top(path)
	}
	files.lazy, files.indexes = opts.Walk, cmp.Or(opts.Index, IndexAll)
	opts.files = files
	f, err := choose(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	// Choice and keys are set up after the format is known, because recognising it reads
	// other columns.
	opts.choice = newChoice(opts)
	// The list of a bucket is complete before a format asks for files.
	if info, err := files.stat(path); err == nil && info.IsDir() {
		if err := files.know(ctx, nil); err != nil {
			return nil, err
		}
	}
	if opts.Kept != nil && f.shards && z == nil && files.bucket() != nil {
		where, objects, err := files.Objects()
		if err == nil {
			files.kept, err = opts.Kept(f.name, where, objects)
		}
		if err != nil {
			return nil, err
		}
	}
	s, err := f.open(ctx, path, opts)
	if err == nil {
		// Misspelt names of columns are an error only if the source could be opened at
		// all.
		err = opts.choice.check()
	}
	// If the bucket became unreachable, that is the cause of whatever else went wrong.
	if broken := files.broken(); broken != nil {
		err = broken
	}
	if err != nil {
		return nil, fmt.Errorf("read %s as %s: %w", Quoted(named), f.name, err)
	}
	if err := checkSplits(s.Splits(), opts.Split); err != nil {
		return nil, err
	}
	if z != nil {
		s = &inZip{s, z}
	}
	return s, nil
}

// choose returns the format: the one in opts, or the only one whose signature fits.
func choose(ctx context.Context, path string, opts Options) (*format, error) {
	if opts.Format != "" && opts.Format != "auto" {
		i := slices.IndexFunc(formats, func(f format) bool { return f.name == opts.Format })
		if i < 0 {
			return nil, &schema.FieldError{Field: "format", Got: fmt.Sprintf("%q", opts.Format),
				Want: "auto, " + strings.Join(Formats(), ", ")}
		}
		return &formats[i], nil
	}
	l, err := examine(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	var found []*format
	for i := range formats {
		if !formats[i].detect(l) {
			continue
		}
		if formats[i].name == exportFormat { // its files look like other formats as well
			return &formats[i], nil
		}
		found = append(found, &formats[i])
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		var want []string
		for _, f := range formats {
			want = append(want, f.name+": "+f.signature)
		}
		return nil, fmt.Errorf("%w: %s is no data set of a known format; looked for\n  %s", schema.ErrInvalid,
			Quoted(opts.files.shown(path)), strings.Join(want, "\n  "))
	default:
		var names []string
		for _, f := range found {
			names = append(names, f.name)
		}
		return nil, fmt.Errorf("%w: %s may be %s; say which with --format", schema.ErrInvalid, Quoted(opts.files.shown(path)),
			strings.Join(names, " or "))
	}
}

// checkSplits checks the names of the splits, and that the one asked for exists.
func checkSplits(have []string, asked string) error {
	for _, s := range have {
		if err := schema.CheckName("split", s); err != nil {
			return err
		}
	}
	if asked == "" {
		return nil
	}
	if err := schema.CheckName("split", asked); err != nil {
		return err
	}
	if len(have) > 0 && !slices.Contains(have, asked) {
		return fmt.Errorf("%w: there is no split %q, only %s", schema.ErrNotFound, asked, quotedList(have))
	}
	return nil
}

// layout is what is known of a data set's names, to recognise its format. One goroutine
// uses it.
type layout struct {
	ctx   context.Context //nolint:containedctx // of the inspection
	path  string
	opts  Options
	dir   bool
	files []string // names of files, up to two folders deep; of a file or pattern, its own name
	// index is the result of indexKind, valid if sniffed is set.
	index   string
	sniffed bool
}

// enough is how many names are used to recognise a format. More would not change the
// result, and take long.
const enough = 10_000

// examine collects the names for recognising the format.
func examine(ctx context.Context, path string, opts Options) (*layout, error) {
	l := &layout{ctx: ctx, path: path, opts: opts}
	info, err := opts.files.stat(path)
	switch {
	case err == nil && !info.IsDir():
		l.files = []string{filepath.Base(path)}
		return l, nil
	case err != nil && isPattern(path):
		l.files = []string{filepath.Base(path)}
		return l, nil
	case err != nil:
		return nil, notFound(err)
	}
	l.dir = true
	const depth = 2
	if l.files, err = opts.files.glance(ctx, depth); l.files != nil || err != nil {
		return l, err
	}
	return l, l.list(path, "", depth)
}

// list appends the names of files below a folder. It stops descending at enough names.
func (l *layout) list(dir, rel string, depth int) error {
	entries, err := l.opts.files.readDir(dir, enough)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(rel, e.Name())
		if hidden(e.Name()) {
			continue
		}
		if e.IsDir() {
			if depth > 0 && len(l.files) < enough {
				if err := l.list(filepath.Join(dir, e.Name()), name, depth-1); err != nil {
					return err
				}
			}
			continue
		}
		l.files = append(l.files, name)
	}
	return nil
}

// any reports whether any name matches.
func (l *layout) any(match func(name string) bool) bool {
	return slices.ContainsFunc(l.files, match)
}

// hidden reports whether a file is one that tools skip: a dot file, or macOS's copies of
// metadata in archives.
func hidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "__MACOSX")
}

// extension returns the ending of a name in lower case, without its dot.
func extension(name string) string {
	return strings.ToLower(strings.TrimPrefix(filepath.Ext(name), "."))
}

// Package source reads data sets as other tools lay them out: folders of images and of
// sound, Common Voice, Hugging Face Parquet, WebDataset tars, MosaicML MDS shards,
// Megatron's token ids, and tables of paths.
//
// A Source lists samples in a fixed order, most of them before their bytes were touched;
// a Reader has several workers load and check them, keeps the order, and hands out
// batches. A sample that cannot be imported becomes a BadItem with a reason, and reading
// goes on, so that one run finds all of them.
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

// Source is a data set in one format. It holds no file open but while Samples runs. Its
// methods are for one goroutine at a time, but Load and Release of several samples may
// run meanwhile.
type Source interface {
	// Format is the name --format knows it by.
	Format() string
	// Describe says what was found, in one line: format, path.
	Describe() string
	// Fields returns the metadata columns and the blob columns of its samples.
	Fields() (meta, blobs []arrow.Field)
	// Splits lists the splits that the source itself has, in the order of its samples;
	// none if it has none. Those left out by Options.Split are listed too.
	Splits() []string
	// Rows is the number of samples there are to read, for a progress bar.
	Rows() int64
	// Notes are what a person should know: files ignored, columns renamed.
	Notes() []string
	// Files is the place of its files.
	Files() *Files
	// Walked says that Options.Walk holds for its samples: their content was not read.
	Walked() bool
	// Estimate says what reading it from a bucket takes.
	Estimate() Estimate
	// Exact says that its columns are all that there are to be, as in an export.
	Exact() bool
	// Samples yields the samples split by split, in an order that depends on nothing but
	// names and content. An error ends it: the source as a whole cannot be read.
	Samples(ctx context.Context) iter.Seq2[Sample, error]
}

// about is what every source found out about itself when it was opened.
type about struct {
	place    *Files
	format   string
	path     string // absolute
	splits   []string
	rows     int64
	notes    []string
	walked   bool
	estimate Estimate
	exact    bool // its columns are all that there are to be, as in an export
}

func (a *about) Format() string   { return a.format }
func (a *about) Describe() string { return a.format + " " + a.place.shown(a.path) }
func (a *about) Files() *Files    { return a.place }
func (a *about) Splits() []string { return a.splits }
func (a *about) Rows() int64      { return a.rows }
func (a *about) Notes() []string {
	notes := slices.Concat(a.place.notes(), a.notes, a.place.differing.notes())
	if a.walked {
		notes = append(notes, "the content of blobs was not read: columns of what it holds, such as width and duration, are "+
			"left out")
	}
	return notes
}
func (a *about) Exact() bool  { return a.exact }
func (a *about) Walked() bool { return a.walked }

// Sample is one row of a Source.
type Sample struct {
	// Key names the sample within the source, for its id and for messages. It
	// does not change with the place of the source or the order of its files.
	Key   string
	Split string // "" where the source has no splits
	// ID is the sample's id where the source has it, as exports do; nil where it is made
	// from the key.
	ID *schema.ID
	// Meta are the values of the metadata columns: nil (null), bool, int64, uint64,
	// float64, string, []byte, []any, Numbers, map[string]any or a Cell.
	Meta []any
	// At has the extents of the blobs, by blob column. It is nil where that is not known
	// of any of them.
	At []Extent
	// Size bounds the bytes of all blobs, for the memory Load will take.
	Size int64
	// Blobs is the content by blob column, nil being null, unless Load is set. It is nil
	// where it was not read.
	Blobs [][]byte
	// Load reads the content where Blobs does not have it yet. It may be called
	// from another goroutine, once. Its error is why the sample is bad.
	Load func() ([][]byte, error)
	// Release is called once, whatever became of the sample, when Meta, Blobs and
	// what Load returned are no longer used. It may be nil.
	Release func()
	// Bad says why the sample cannot be imported, "" if nothing is known against it.
	Bad string
	// Known, if it is not nil, has the sample's blobs and all its columns; Meta, At,
	// Size, Blobs and Load are then not set.
	Known *Known
}

// Cell is a value in an Arrow array, which must outlive the sample.
type Cell struct {
	Array arrow.Array
	Row   int
}

// BadItem is something that cannot be imported, and why.
type BadItem struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Options say how a source is opened.
type Options struct {
	// Format forces a format; "" or "auto" recognises it.
	Format string
	// Split names the split of a source that has none, and otherwise picks the one split
	// to read.
	Split string
	// PathColumn is the column of a table that holds paths; "" recognises it.
	PathColumn string
	// Outside takes files outside of the folder of the data set, to which its links and
	// paths lead. The author of the data set names them, and has not handed them over.
	Outside bool
	// Bucket opens the bucket that a URL names; nil opens it with what the environment
	// has of credentials.
	Bucket func(ctx context.Context, url string) (object.Bucket, error)
	// With Walk, samples have the extents of their blobs, which are not read, in the
	// formats that allow it (see Source.Walked): folders and tables of paths by the list
	// of the bucket, tars by their headers. Blobs are nil then, as are the columns that
	// would be made of them. A format's metadata is read.
	Walk bool
	// Decide, if it is not nil, says whether to walk, in the place of Walk, where that is
	// anything else than reading through.
	Decide func(Estimate) bool
	// Kept is called when the objects of a bucket are listed, and returns what is known
	// of those that have not changed; nil if all of them are to be read. Formats of
	// shards ask it: tars, Parquet, MDS, LitData and TensorFlow's records.
	Kept func(format, bucket string, objects []schema.Object) (Kept, error)
	// Inventory is a list of the objects of the bucket that is read in the place of
	// listing it; "" lists it. It is a path or URL: manifest.json of an inventory of S3,
	// msc_manifest_index.json of the Multi-Storage Client, or a list of keys.
	Inventory string
	// Index says what is taken from indexes next to tars in a bucket; IndexAll if empty.
	Index UseIndex
	// Begin is called when it is known what there is to read, and not much was read yet.
	// Its error ends Open.
	Begin func(Estimate) error
	// Columns are the columns of the source that are read; empty means all of them. A *
	// stands for any text. The columns by which samples are found (a table's paths and
	// splits) are read in any case, as are the files that a table or a folder names, and
	// the columns that an importer makes are made.
	Columns []string
	// LeaveOut are columns that are not read, or not made, whatever Columns says.
	LeaveOut []string
	// Text are columns of text tables and keys of JSON whose values are text, whatever
	// they look like.
	Text []string
	// Spread makes as many blob columns of a column of lists of blobs, by its name.
	Spread map[string]int
	// AsMetadata are columns whose lists or structs hold bytes and which are metadata all
	// the same.
	AsMetadata []string
	// Tokens are the types of token ids, by columns of bytes that hold such: each becomes
	// a list of that type.
	Tokens map[string]string
	// TokenBlobs has the token ids of a sample be a blob where the format has them in one
	// piece, in the place of a list.
	TokenBlobs bool

	choice *choice // Columns, LeaveOut and Text, of the source that Open opens
	files  *Files  // at its place
}

// format is one way to lay out a data set.
type format struct {
	name      string
	signature string // what it is recognised by
	// detect says whether path looks like it, from a shallow look.
	detect func(l *layout) bool
	open   func(ctx context.Context, path string, opts Options) (Source, error)
	shards bool // its files have many samples each, and it asks Options.Kept for them
}

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

// NameOf is the last part of the path of a data set, or of its URL, without an extension.
func NameOf(named string) string {
	if where, key, err := object.SplitURL(named); err == nil {
		where, _, _ = strings.Cut(where, "?")
		_, where, _ = strings.Cut(where, "://")
		named = path.Join(where, key)
	}
	name, _, _ := strings.Cut(filepath.Base(absolutePath(named)), ".")
	return name
}

// Formats lists the names of the formats.
func Formats() []string {
	var names []string
	for _, f := range formats {
		names = append(names, f.name)
	}
	return names
}

// Open opens the data set at path: a file, a directory, or for tars also a pattern such
// as "train-{0000..0011}.tar"; on this machine, or in a bucket, by a URL.
// schema.ErrInvalid if it is in no known format.
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
	opts.choice = newChoice(opts)
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
		err = opts.choice.check()
	}
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
		if formats[i].name == exportFormat { // which nothing else looks like
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

// checkSplits looks whether the names can be used, and for the one that is asked for.
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

// layout is a shallow look at a path, for recognising its format.
type layout struct {
	ctx   context.Context //nolint:containedctx // of the inspection
	path  string
	opts  Options
	dir   bool
	files []string // names of a directory's files and those of its folders, two deep; of a file or pattern, itself
	// index is what indexKind has found, once sniffed is set.
	index   string
	sniffed bool
}

// enough is how many names of a directory are looked at for its format.
const enough = 10_000

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

func (l *layout) any(match func(name string) bool) bool {
	return slices.ContainsFunc(l.files, match)
}

// hidden says whether tools skip a file of that name.
func hidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "__MACOSX")
}

func extension(name string) string {
	return strings.ToLower(strings.TrimPrefix(filepath.Ext(name), "."))
}

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/ingest"
	"bowstring/schema"
)

// ImportCmd is bowstring import.
type ImportCmd struct {
	Path    string `arg:"" help:"Directory, file or pattern to import: folders of images, Hugging Face Parquet, WebDataset tars (train-{0000..0011}.tar), MosaicML MDS, or a table of paths."`
	Dataset string `arg:"" optional:"" help:"Dataset to import into (default: PATH's last part, without an extension)."`

	Format     string         `enum:"auto,folder,imagefolder,audiofolder,parquet,webdataset,mds,commonvoice,list" default:"auto" help:"Format of PATH: ${enum}."`
	Mode       string         `enum:"create,append,replace" default:"replace" help:"What becomes of samples that are there: create fails if there is a snapshot, append keeps them, replace makes a snapshot of just the new ones, and none if it would be the same (${default})."`
	DropColumn []string       `sep:"none" placeholder:"NAME" help:"Column of the dataset that --mode replace may take away or make another of; it is an error that it would of any other. Repeatable."`
	Split      string         `placeholder:"NAME" help:"Split of all samples if the source tells no splits (default: train); otherwise the one to import."`
	PathColumn string         `placeholder:"NAME" help:"Column of a table that holds paths (default: path, file_name, filename or file)."`
	Columns    []string       `placeholder:"NAME" help:"Columns of the source to read (default: all). A * stands for any text."`
	LeaveOut   []string       `placeholder:"NAME" help:"Columns not to read, or not to make, such as width. A * stands for any text."`
	Text       []string       `placeholder:"NAME" help:"Columns of text tables, and keys of JSON, whose values are text whatever they look like. A * stands for any text."`
	Spread     map[string]int `placeholder:"NAME=N" help:"Make N blob columns of a column of lists of blobs in Parquet: NAME_0, NAME_1 and so on. A row with more is bad."`
	AsMetadata []string       `placeholder:"NAME" help:"Columns of Parquet whose lists or structs hold bytes, and which are metadata all the same."`
	Verify     source.Verify  `enum:"none,header,decode" default:"header" help:"How images are checked: not at all, by header and end mark, or by decoding them (${default})."`
	Outside    bool           `name:"allow-outside" help:"Take files outside of the folder of PATH, to which links in it and paths in its tables lead."`
	Limit      int64          `placeholder:"N" help:"Import the first N samples only."`
	DryRun     bool           `help:"Read and check everything, and import nothing."`
	SkipBad    bool           `help:"Import what is good, and list what is not."`
	BadList    string         `type:"path" placeholder:"FILE" help:"Write what cannot be imported to FILE, as JSON lines (with --skip-bad default: DATASET-bad.jsonl)."`
	Workers    int            `placeholder:"N" help:"Samples read at a time, and stored at a time (default: twice the processors)."`
	JSON       bool           `name:"json" help:"Print the summary as a JSON object."`
}

// Run imports.
func (c *ImportCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.complete(); err != nil {
		return err
	}
	begun := time.Now()
	src, err := source.Open(ctx, c.Path, source.Options{Format: c.Format, Split: c.Split, PathColumn: c.PathColumn,
		Outside: c.Outside, Columns: c.Columns, LeaveOut: c.LeaveOut, Text: c.Text,
		Spread: c.Spread, AsMetadata: c.AsMetadata})
	if err != nil {
		return err
	}
	reader, err := source.NewReader(src, source.ReadOptions{
		Dataset: c.Dataset, Split: cmp.Or(c.Split, ingest.DefaultSplit), Verify: c.Verify, Workers: c.Workers,
		Limit: c.Limit, LeaveOut: c.LeaveOut,
	})
	if err != nil {
		return err
	}
	sum := newSummary(c, src, reader.Schema())
	var to sink = discard{}
	if !c.DryRun {
		if to, err = c.open(ctx, app, src, reader); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	bad := badList{path: c.BadList}
	defer func() { err = errors.Join(err, bad.Close()) }()

	if err := c.read(ctx, app, src, reader, to, sum, &bad); err != nil {
		return err
	}
	if err := bad.Close(); err != nil {
		return err
	}
	sum.Bad, sum.BadList = bad.n, bad.written()
	if bad.n > 0 && !c.SkipBad {
		bad.print(app)
		return fmt.Errorf("%w: %s of %s samples cannot be imported, so none was; --skip-bad imports the others",
			schema.ErrInvalid, humanize.Comma(bad.n), humanize.Comma(bad.n+sum.Rows))
	}
	if sum.Rows == 0 {
		bad.print(app)
		return fmt.Errorf("%w: %s has no sample that can be imported", schema.ErrInvalid, src.Describe())
	}
	if err := to.Commit(ctx, sum); err != nil {
		return err
	}
	sum.done(time.Since(begun))
	return sum.print(app, c.JSON)
}

// complete fills in what was left out.
func (c *ImportCmd) complete() error {
	if c.Dataset == "" {
		name := filepath.Base(c.Path)
		if abs, err := filepath.Abs(c.Path); err == nil {
			name = filepath.Base(abs)
		}
		c.Dataset, _, _ = strings.Cut(name, ".")
		if err := schema.CheckName("dataset", c.Dataset); err != nil {
			return usagef("PATH gives no name for the dataset (%v): say DATASET", err)
		}
	}
	if err := schema.CheckName("dataset", c.Dataset); err != nil {
		return usageError{err.Error()}
	}
	if c.Limit < 0 || c.Workers < 0 {
		return usagef("--limit and --workers: want a positive number")
	}
	if c.Split != "" {
		if err := schema.CheckName("split", c.Split); err != nil {
			return usageError{err.Error()}
		}
	}
	if c.SkipBad && c.BadList == "" {
		c.BadList = c.Dataset + "-bad.jsonl"
	}
	return nil
}

// read reads all samples and writes the good ones, until the first bad one
// that must not be skipped; then it only looks for more of them.
func (c *ImportCmd) read(ctx context.Context, app *App, src source.Source, reader *source.Reader, to sink, sum *summary,
	bad *badList) error {
	bar := c.progress(app, src)
	defer func() { _ = bar.Exit() }() // drawing is best effort
	for b, err := range reader.Batches(ctx) {
		if err != nil {
			return err
		}
		if err := bad.add(b.Bad); err != nil {
			return err
		}
		sum.add(b)
		if len(b.Keys) > 0 && (bad.n == 0 || c.SkipBad) {
			if err := to.Write(ctx, b); err != nil {
				return err
			}
		}
		_ = bar.Add(len(b.Keys) + len(b.Bad))
	}
	return ctx.Err()
}

// progress draws a bar on a terminal, and nothing elsewhere.
func (c *ImportCmd) progress(app *App, src source.Source) *progressbar.ProgressBar {
	rows := src.Rows()
	if c.Limit > 0 {
		rows = min(rows, c.Limit)
	}
	what := "import " + c.Dataset
	if c.DryRun {
		what = "check " + c.Dataset
	}
	return progressbar.NewOptions64(max(rows, 1),
		progressbar.OptionSetWriter(app.Stderr),
		progressbar.OptionSetVisibility(app.TTY),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("samples"),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

// open opens the store or the server that the flags name.
func (c *ImportCmd) open(ctx context.Context, app *App, src source.Source, reader *source.Reader) (sink, error) {
	if app.globals.Server != "" {
		return openUpload(ctx, app, c, src, reader)
	}
	mode, err := ingest.ParseMode(c.Mode)
	if err != nil {
		return nil, err
	}
	store, err := openStore(ctx, app.globals.Store, true, app.quietLog())
	if err != nil {
		return nil, err
	}
	w, err := ingest.New(ctx, store, ingest.Options{
		Dataset: c.Dataset, Source: src.Describe(), Schema: reader.Schema(), Mode: mode, Workers: c.Workers,
		Drop: c.DropColumn,
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &storeSink{store: store, w: w, before: store.Stats()}, nil
}

// summary is what an import tells when it is done.
type summary struct {
	Dataset  string         `json:"dataset"`
	Snapshot int64          `json:"snapshot,omitempty"` // not with DryRun
	Changed  bool           `json:"changed"`            // there is a new snapshot
	DryRun   bool           `json:"dry_run,omitempty"`
	Format   string         `json:"format"`
	Source   string         `json:"source"`
	Rows     int64          `json:"rows"`
	Splits   []splitRows    `json:"splits"`
	Classes  map[string]int `json:"classes,omitempty"` // how many, by label column
	Blobs    int64          `json:"blobs"`
	Bytes    int64          `json:"bytes"` // of the blobs
	// blobs that were stored before, or twice here; of a server not known
	Dedups  *int64   `json:"dedups,omitempty"`
	Bad     int64    `json:"bad"`
	BadList string   `json:"bad_list,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	Seconds float64  `json:"seconds"`
	MBPerS  float64  `json:"mb_per_s"`
}

type splitRows struct {
	Name string `json:"name"`
	Rows int64  `json:"rows"`
}

func newSummary(c *ImportCmd, src source.Source, columns *arrow.Schema) *summary {
	s := &summary{
		Dataset: c.Dataset, DryRun: c.DryRun, Format: src.Format(), Source: src.Describe(), Notes: src.Notes(),
		Splits: []splitRows{}, Classes: map[string]int{},
	}
	for _, f := range columns.Fields() {
		if names := schema.Classes(f); names != nil {
			s.Classes[f.Name] = len(names)
		}
	}
	return s
}

func (s *summary) add(b *source.Batch) {
	n := int64(len(b.Keys))
	s.Rows += n
	s.Bytes += b.Bytes
	for _, column := range b.Blobs {
		for _, data := range column {
			if data != nil {
				s.Blobs++
			}
		}
	}
	if n == 0 {
		return
	}
	i := slices.IndexFunc(s.Splits, func(r splitRows) bool { return r.Name == b.Split })
	if i < 0 {
		i = len(s.Splits)
		s.Splits = append(s.Splits, splitRows{Name: b.Split})
	}
	s.Splits[i].Rows += n
}

func (s *summary) done(took time.Duration) {
	s.Seconds = took.Seconds()
	if s.Seconds > 0 {
		s.MBPerS = float64(s.Bytes) / 1e6 / s.Seconds
	}
}

func (s *summary) print(app *App, asJSON bool) error {
	if asJSON {
		return printJSON(app.Stdout, s)
	}
	samples, from := humanize.Comma(s.Rows)+" samples", printable(s.Source)
	var b strings.Builder
	switch {
	case s.DryRun:
		fmt.Fprintf(&b, "%s: %s can be imported from %s; nothing was, as --dry-run says\n", s.Dataset, samples, from)
	case s.Changed:
		fmt.Fprintf(&b, "%s: snapshot %d, %s from %s\n", s.Dataset, s.Snapshot, samples, from)
	default:
		fmt.Fprintf(&b, "%s: unchanged, snapshot %d, %s from %s\n", s.Dataset, s.Snapshot, samples, from)
	}
	var parts []string
	for _, r := range s.Splits {
		parts = append(parts, fmt.Sprintf("%s %s", r.Name, humanize.Comma(r.Rows)))
	}
	fmt.Fprintf(&b, "  splits   %s\n", strings.Join(parts, ", "))
	for _, name := range slices.Sorted(maps.Keys(s.Classes)) {
		fmt.Fprintf(&b, "  classes  %s in %s\n", humanize.Comma(int64(s.Classes[name])), printable(name))
	}
	fmt.Fprintf(&b, "  blobs    %s, %s", humanize.Comma(s.Blobs), humanize.Bytes(uint64(s.Bytes)))
	if s.Dedups != nil && *s.Dedups > 0 {
		fmt.Fprintf(&b, ", %s of them stored already", humanize.Comma(*s.Dedups))
	}
	b.WriteString("\n")
	if s.Bad > 0 {
		fmt.Fprintf(&b, "  skipped  %s bad samples, listed in %s\n", humanize.Comma(s.Bad), printable(s.BadList))
	}
	for _, n := range s.Notes {
		fmt.Fprintf(&b, "  note     %s\n", printable(n))
	}
	fmt.Fprintf(&b, "  time     %.1f s, %.0f MB/s\n", s.Seconds, s.MBPerS)
	return app.Printf("%s", b.String())
}

// discard is where a dry run goes.
type discard struct{}

func (discard) Write(context.Context, *source.Batch) error { return nil }
func (discard) Commit(context.Context, *summary) error     { return nil }
func (discard) Close() error                               { return nil }

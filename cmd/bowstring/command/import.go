package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// ImportCmd is bowstring import.
type ImportCmd struct {
	Path    string `arg:"" help:"Directory, file or pattern to import, or its URL in a bucket (s3://, gs://, az://, https://, file://): folders of images, Hugging Face Parquet, WebDataset tars (train-{0000..0011}.tar), MosaicML MDS, LitData, Megatron-LM's token ids, TensorFlow records, or a table of paths."`
	Dataset string `arg:"" optional:"" help:"Dataset to import into (default: PATH's last part, without an extension)."`

	ReadFlags
	Mode       string   `enum:"create,append,replace" default:"replace" help:"What becomes of samples that are there: create fails if there is a snapshot, append keeps them, replace makes a snapshot of just the new ones, and none if it would be the same (${default})."`
	DropColumn []string `sep:"none" placeholder:"NAME" help:"Column of the dataset that --mode replace may take away or make another of; it is an error that it would of any other. Repeatable."`
}

// ReadFlags define what is read of a data set. import and attach share them.
type ReadFlags struct {
	Format      string            `enum:"auto,folder,imagefolder,audiofolder,parquet,webdataset,mds,litdata,megatron,tfrecord,commonvoice,list" default:"auto" help:"Format of the data set: ${enum}."`
	Split       string            `placeholder:"NAME" help:"Split of all samples if the source has no splits (default: train); otherwise the one to read."`
	PathColumn  string            `placeholder:"NAME" help:"Column of a table that holds paths (default: path, file_name, filename or file)."`
	Columns     []string          `placeholder:"NAME" help:"Columns of the source to read (default: all). A * stands for any text."`
	LeaveOut    []string          `placeholder:"NAME" help:"Columns not to read, or not to make, such as width. A * stands for any text."`
	Text        []string          `placeholder:"NAME" help:"Columns of text tables, and keys of JSON, whose values are text whatever they look like. A * stands for any text."`
	Spread      map[string]int    `placeholder:"NAME=N" help:"Make N blob columns of a column of lists of blobs in Parquet: NAME_0, NAME_1 and so on. A row with more is bad."`
	AsMetadata  []string          `placeholder:"NAME" help:"Columns of Parquet whose lists or structs hold bytes, and which are metadata all the same."`
	Tokens      map[string]string `placeholder:"NAME=TYPE" help:"Columns of bytes of MDS and LitData that hold token ids, and their type, such as uint16: each becomes a list."`
	CountTokens string            `placeholder:"NAME" help:"Column of lists whose lengths become the column n_tokens (default: that of --tokens)."`
	TokenBlobs  bool              `help:"Make blobs of the token ids of Megatron-LM, in the place of lists; attach does in any case."`
	Verify      source.Verify     `enum:"none,header,decode" default:"header" help:"How images are checked: not at all, by header and end mark, or by decoding them (${default})."`
	Outside     bool              `name:"allow-outside" help:"Take files outside of the folder of the data set, to which links in it and paths in its tables lead."`
	Limit       int64             `placeholder:"N" help:"Read the first N samples only."`
	DryRun      bool              `help:"Read and check everything, and store nothing."`
	SkipBad     bool              `help:"Take what is good, and list what is not."`
	BadList     string            `type:"path" placeholder:"FILE" help:"Write what cannot be taken to FILE, as JSON lines (with --skip-bad default: DATASET-bad.jsonl)."`
	Workers     int               `placeholder:"N" help:"Samples read at a time, and stored at a time (default: twice the processors)."`
	JSON        bool              `name:"json" help:"Print the summary as a JSON object."`

	// Programs that draw a bar of their own set this.
	ProgressLines bool `hidden:"" help:"Write to standard error how much was read, as lines of JSON, for programs that draw a bar of their own."`

	asked askedOfBuckets
}

// Run imports the data set. It opens the source before the destination, so that a wrong
// path leaves no empty dataset.
func (c *ImportCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.complete(); err != nil {
		return err
	}
	begun := time.Now()
	// Open finds the format and lists the files. NewReader reads as much as it takes to
	// know the schema.
	src, err := source.Open(ctx, c.Path, c.sourceOptions())
	if err != nil {
		return err
	}
	reader, err := source.NewReader(src, c.readOptions(c.Dataset))
	if err != nil {
		return err
	}
	// A dry run reads and checks everything, and then discards it.
	var to sink = discard{}
	if !c.DryRun {
		if to, err = c.open(ctx, app, src, reader); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	// The time of the summary includes opening the source, because a listing may take
	// minutes.
	sum := newSummary(c.Dataset, &c.ReadFlags, src, reader.Schema())
	sum.verb, sum.begun = verb{"import", "imports", "imported"}, begun
	return c.into(ctx, app, sum, src, reader, to)
}

// sourceOptions returns how the source is opened. All of its requests to buckets are
// counted by asked.
func (c *ReadFlags) sourceOptions() source.Options {
	return source.Options{Format: c.Format, Split: c.Split, PathColumn: c.PathColumn, Outside: c.Outside,
		Columns: c.Columns, LeaveOut: c.LeaveOut, Text: c.Text, Spread: c.Spread, AsMetadata: c.AsMetadata,
		Tokens: c.Tokens, TokenBlobs: c.TokenBlobs, Bucket: c.asked.open}
}

// readOptions returns how samples are read and checked. If one column has token ids,
// their number is counted without a flag.
func (c *ReadFlags) readOptions(dataset string) source.ReadOptions {
	count := c.CountTokens
	if count == "" && len(c.Tokens) == 1 {
		for name := range c.Tokens {
			count = name
		}
	}
	return source.ReadOptions{Dataset: dataset, Count: count, Split: cmp.Or(c.Split, ingest.DefaultSplit), Verify: c.Verify,
		Workers: c.Workers, Limit: c.Limit, LeaveOut: c.LeaveOut}
}

// into reads a data set into a sink and commits it. If a sample is bad and --skip-bad is
// not set, nothing is committed: a data set that silently lacks samples is worse than
// none.
func (c *ReadFlags) into(ctx context.Context, app *App, sum *summary, src source.Source, reader *source.Reader,
	to sink) (err error) {
	// The list is written also if the import fails: it says why.
	bad := badList{path: c.BadList}
	defer func() { err = errors.Join(err, bad.Close()) }()

	if err := c.read(ctx, app, src, reader, to, sum, &bad); err != nil {
		return err
	}
	// The list is complete before the commit. The deferred Close covers the other
	// returns.
	if err := bad.Close(); err != nil {
		return err
	}
	sum.Bad, sum.BadList = bad.n, bad.written()
	if bad.n > 0 && !c.SkipBad {
		bad.print(app)
		return fmt.Errorf("%w: %s of %s samples cannot be %s, so none was; --skip-bad %s the others",
			schema.ErrInvalid, humanize.Comma(bad.n), humanize.Comma(bad.n+sum.Rows), sum.verb.done, sum.verb.does)
	}
	// An empty snapshot would replace a good one after a wrong pattern.
	if sum.Rows == 0 {
		bad.print(app)
		return fmt.Errorf("%w: %s has no sample that can be %s", schema.ErrInvalid, src.Describe(), sum.verb.done)
	}
	// Up to here no reader of the store can see any of it.
	if err := to.Commit(ctx, sum); err != nil {
		return err
	}
	// The requests of the commit are counted too.
	sum.Buckets = c.asked.list()
	sum.done(time.Since(sum.begun))
	return sum.print(app, c.JSON)
}

// complete sets the flags that were left out.
func (c *ImportCmd) complete() error {
	return c.ReadFlags.complete(&c.Dataset, source.NameOf(c.Path))
}

// complete sets the flags that were left out, and checks those that kong cannot. The name
// of the dataset, if it is missing, is made of from.
func (c *ReadFlags) complete(dataset *string, from string) error {
	if *dataset == "" {
		*dataset, _, _ = strings.Cut(from, ".")
		if err := schema.CheckName("dataset", *dataset); err != nil {
			return usagef("PATH gives no name for the dataset (%v): say DATASET", err)
		}
	}
	if err := schema.CheckName("dataset", *dataset); err != nil {
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
	// Skipped samples are always listed, so that they can be repaired and imported later.
	if c.SkipBad && c.BadList == "" {
		c.BadList = *dataset + "-bad.jsonl"
	}
	return nil
}

// read reads all samples and writes the good ones. After the first bad one that must not
// be skipped, it writes nothing more, but reads on and collects the other bad ones. The
// user then sees all of them at once, and not one in each run.
func (c *ReadFlags) read(ctx context.Context, app *App, src source.Source, reader *source.Reader, to sink, sum *summary,
	bad *badList) error {
	what := sum.verb.do + " " + sum.Dataset
	if c.DryRun {
		what = "check " + sum.Dataset
	}
	bar := c.progress(app, what, src)
	defer func() { _ = bar.Exit() }() // drawing is best effort
	var said time.Time
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
		// Bad samples move the bar as well, or it would never reach its end.
		bar.Describe(what + sum.soFar())
		_ = bar.Add(len(b.Keys) + len(b.Bad))
		if c.ProgressLines && time.Since(said) >= progressEvery {
			said = time.Now()
			_, _ = fmt.Fprintf(app.Stderr, "{\"rows\": %d, \"of\": %d, \"bytes\": %d}\n", sum.Rows+bad.n, max(src.Rows(), 0),
				sum.Bytes)
		}
	}
	// The reader ends without an error when ctx ends.
	return ctx.Err()
}

// progressEvery is the interval of the lines of --progress-lines.
const progressEvery = 100 * time.Millisecond

// progress returns a bar of samples. Their number may be unknown.
func (c *ReadFlags) progress(app *App, what string, src source.Source) *progressbar.ProgressBar {
	rows := src.Rows()
	if c.Limit > 0 {
		rows = min(rows, c.Limit)
	}
	return app.progress(what, rows, "samples")
}

// open opens the store or the server that the flags name. The store is written in this
// process, which saves a copy of all blobs through a connection.
func (c *ImportCmd) open(ctx context.Context, app *App, src source.Source, reader *source.Reader) (sink, error) {
	if app.globals.Server != "" {
		return openUpload(ctx, app, c, src, reader)
	}
	// An upload sends the mode as text, and the server parses it.
	mode, err := ingest.ParseMode(c.Mode)
	if err != nil {
		return nil, err
	}
	store, err := openFarStore(ctx, app.globals.Store, true, nil, readBuckets{requests: c.asked.of()}, app.quietLog())
	if err != nil {
		return nil, err
	}
	// The sink owns writer and store only if both were opened.
	w, err := ingest.New(ctx, store, ingest.Options{
		Dataset: c.Dataset, Source: src.Describe(), Schema: reader.Schema(), Mode: mode, Workers: c.Workers,
		Drop: c.DropColumn,
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &storeSink{store: store, w: w, before: store.Stats()}, nil
}

// summary is the output of an import or attachment. Its JSON is what --json prints. The
// goroutine of the command owns it.
type summary struct {
	Dataset  string         `json:"dataset"`
	Snapshot int64          `json:"snapshot,omitempty"` // absent with DryRun
	Changed  bool           `json:"changed"`            // whether there is a new snapshot
	DryRun   bool           `json:"dry_run,omitempty"`
	Format   string         `json:"format"`
	Source   string         `json:"source"`
	Rows     int64          `json:"rows"`
	Splits   []splitRows    `json:"splits"`
	Classes  map[string]int `json:"classes,omitempty"` // number of classes by label column
	Blobs    int64          `json:"blobs"`
	Bytes    int64          `json:"bytes"` // of the blobs
	// Dedups is the number of blobs that the store had already, or that occur twice in
	// the data set. It is nil if a server stores them.
	Dedups  *int64   `json:"dedups,omitempty"`
	Bad     int64    `json:"bad"`
	BadList string   `json:"bad_list,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	Seconds float64  `json:"seconds"`
	MBPerS  float64  `json:"mb_per_s"`
	// Update is set by an attachment to an existing dataset.
	Update *updated `json:"update,omitempty"`
	// Mixing is set by an attachment: how well a shuffle of blocks mixes its classes.
	Mixing *fetch.Mixing `json:"block_shuffle,omitempty"`
	// Buckets are the requests to the buckets of the source and of the store.
	Buckets []bucketAsked `json:"buckets,omitempty"`

	verb  verb
	begun time.Time
	files int64  // number of files whose samples were read
	file  string // the last of these files
}

// verb is the name of a command in the forms that messages need.
type verb struct{ do, does, done string }

// updated compares the rows of an attachment with those of the snapshot before.
type updated struct {
	Kept    int64 `json:"kept"`             // same extents as before
	Proven  int64 `json:"proven,omitempty"` // same extents as before, with new checksums
	Changed int64 `json:"changed"`          // ids that existed, with other blobs
	New     int64 `json:"new"`
	Gone    int64 `json:"gone"`
}

type splitRows struct {
	Name string `json:"name"`
	Rows int64  `json:"rows"`
}

// newSummary returns a summary without rows. The lists are empty and not nil, for JSON.
func newSummary(dataset string, c *ReadFlags, src source.Source, columns *arrow.Schema) *summary {
	s := &summary{
		Dataset: dataset, DryRun: c.DryRun, Format: src.Format(), Source: src.Describe(), Notes: src.Notes(),
		Splits: []splitRows{}, Classes: map[string]int{},
	}
	for _, f := range columns.Fields() {
		// A label column has the names of its classes in the schema.
		if names := schema.Classes(f); names != nil {
			s.Classes[f.Name] = len(names)
		}
	}
	return s
}

// add counts a batch. Files are counted when they change, because samples of a file
// follow one another. A blob counts if it was read, is known from before, or stays in
// place.
func (s *summary) add(b *source.Batch) {
	n := int64(len(b.Keys))
	s.Rows += n
	s.Bytes += b.Bytes
	// Extents are in the order of the rows, so that a file's rows follow one another.
	for _, column := range b.At {
		for _, at := range column {
			if !at.IsZero() && at.File != s.file {
				s.file = at.File
				s.files++
			}
		}
	}
	for c, column := range b.Blobs {
		for row, data := range column {
			known := b.Known != nil && b.Known[row] != nil
			if data != nil || !b.At[c][row].IsZero() || known && b.Known[row].Refs[c] != nil {
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

// soFar returns what was read by now, for the bar. The rate is the mean since the start.
func (s *summary) soFar() string {
	rate := float64(s.Bytes) / max(time.Since(s.begun).Seconds(), 1e-3)
	return fmt.Sprintf(": %s, %s, %s/s", plural(s.files, "file"), humanize.Bytes(uint64(s.Bytes)),
		humanize.Bytes(uint64(rate)))
}

// done sets the duration and the rate. Bytes count in MB of 10^6, as disks and networks
// do.
func (s *summary) done(took time.Duration) {
	s.Seconds = took.Seconds()
	if s.Seconds > 0 {
		s.MBPerS = float64(s.Bytes) / 1e6 / s.Seconds
	}
}

// print prints the summary, as JSON or as lines of a name and values. Lines without
// content are left out.
func (s *summary) print(app *App, asJSON bool) error {
	if asJSON {
		return printJSON(app.Stdout, s)
	}
	// The first line says what became of the dataset. The others have a name in the first
	// column.
	samples, from := humanize.Comma(s.Rows)+" samples", printable(s.Source)
	var b strings.Builder
	switch {
	case s.DryRun:
		fmt.Fprintf(&b, "%s: %s can be %s from %s; nothing was, as --dry-run says\n", s.Dataset, samples, s.verb.done, from)
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
	if s.verb.do == "attach" {
		b.WriteString(", in place")
	}
	b.WriteString("\n")
	if u := s.Update; u != nil {
		kept := humanize.Comma(u.Kept) + " kept"
		if u.Proven > 0 {
			kept += fmt.Sprintf(", %s proven where they lay", humanize.Comma(u.Proven))
		}
		fmt.Fprintf(&b, "  update   %s, %s changed, %s new, %s gone\n", kept, humanize.Comma(u.Changed),
			humanize.Comma(u.New), humanize.Comma(u.Gone))
	}
	if s.Mixing != nil {
		fmt.Fprintf(&b, "  shuffle  %s\n", printable(s.Mixing.String()))
	}
	if s.Bad > 0 {
		fmt.Fprintf(&b, "  skipped  %s bad samples, listed in %s\n", humanize.Comma(s.Bad), printable(s.BadList))
	}
	for i := range s.Buckets {
		fmt.Fprintf(&b, "  bucket   %s\n", printable(s.Buckets[i].String()))
	}
	for _, n := range s.Notes {
		fmt.Fprintf(&b, "  note     %s\n", printable(n))
	}
	fmt.Fprintf(&b, "  time     %.1f s, %.0f MB/s\n", s.Seconds, s.MBPerS)
	return app.Printf("%s", b.String())
}

// discard is the sink of a dry run.
type discard struct{}

func (discard) Write(context.Context, *source.Batch) error { return nil }
func (discard) Commit(context.Context, *summary) error     { return nil }
func (discard) Close() error                               { return nil }

// uploadSink sends an import to a server by DoPut. If there are several splits, a column
// named split has the split of each row. One goroutine writes; receive runs in another
// one from beginUpload to the end of the call.
type uploadSink struct {
	client *client            // owned: Close closes it
	cancel context.CancelFunc // ends the call
	stream arrowflight.FlightService_DoPutClient
	w      *arrowflight.Writer
	schema *arrow.Schema // of the batches sent
	splits bool          // its last column is the split
	rows   int64
	ended  chan putEnd // has one value after the server has ended the call
}

// putEnd is how the server ended the call: its last result, its notes, and its error.
type putEnd struct {
	last  putResult
	notes []string
	err   error
}

// putResult is a result of DoPut. The last one has the snapshot; acknowledgements of
// batches lack these fields.
type putResult struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Changed  bool   `json:"changed"`
	Note     string `json:"note"` // in a result of its own
	// These are set by a call that changes existing rows.
	Matched  int64 `json:"matched"`
	Inserted int64 `json:"inserted"`
	Ignored  int64 `json:"ignored"`
	Deleted  int64 `json:"deleted"`
}

// putCommand is the descriptor of the call. Its JSON is part of the protocol.
type putCommand struct {
	Put putOptions `json:"put"`
}

// putOptions are the options of DoPut that the commands use.
type putOptions struct {
	Dataset string `json:"dataset"`
	Split   string `json:"split,omitempty"`
	Mode    string `json:"mode"`
	Source  string `json:"source"`
	// Blobs names all blob columns, so that no other column of bytes is taken for one.
	Blobs []string `json:"blobs,omitzero"`
	// With Commit "message" the server makes the snapshot only after a message that says
	// so. A client that dies in the middle leaves nothing behind.
	Commit string `json:"commit"`

	On          string   `json:"on,omitempty"`
	Missing     string   `json:"missing,omitempty"`
	DropColumns []string `json:"drop_columns,omitempty"`
}

// openUpload begins the DoPut of an import. If the source has several splits, or may show
// more of them later, a split column is added.
func openUpload(ctx context.Context, app *App, c *ImportCmd, src source.Source,
	reader *source.Reader) (_ sink, err error) {
	blobs := []string{}
	for _, f := range schema.BlobFields(reader.Schema()) {
		blobs = append(blobs, f.Name)
	}
	// The server checks what it gets, as for any client.
	put := putOptions{Dataset: c.Dataset, Blobs: blobs, Split: c.Split, Mode: c.Mode, Source: src.Describe(),
		Commit: "message", DropColumns: c.DropColumn}
	columns, splits := reader.Schema(), src.Splits()
	several := len(splits) != 1 && c.Split == "" // also if the splits are known only from the samples
	switch {
	case several:
		field := arrow.Field{Name: schema.SplitColumn, Type: arrow.BinaryTypes.String}
		columns = arrow.NewSchema(append(slices.Clone(columns.Fields()), field), nil)
	case len(splits) == 1:
		put.Split = splits[0]
	}
	client, err := app.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	s, err := beginUpload(ctx, client, put, columns)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s.splits = several
	return s, nil
}

// beginUpload begins a DoPut of batches with a schema. If it succeeds, the sink owns the
// client.
func beginUpload(ctx context.Context, client *client, put putOptions, columns *arrow.Schema) (*uploadSink, error) {
	command, err := json.Marshal(putCommand{put})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.DoPut(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &uploadSink{client: client, cancel: cancel, stream: stream, schema: columns, ended: make(chan putEnd, 1)}
	s.w = arrowflight.NewRecordWriter(stream, ipc.WithSchema(s.schema))
	s.w.SetFlightDescriptor(&arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: command})
	go s.receive()
	return s, nil
}

// receive reads the results until the call ends. Without it the server would block when
// its results fill the connection's window.
func (s *uploadSink) receive() {
	var end putEnd
	for {
		r, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			// A result may lack fields that the one before had.
			end.last = putResult{}
			err = json.Unmarshal(r.GetAppMetadata(), &end.last)
		}
		if end.last.Note != "" {
			end.notes = append(end.notes, end.last.Note)
		}
		if err != nil {
			end.err = err
			break
		}
	}
	s.ended <- end
}

// Write implements sink.
func (s *uploadSink) Write(_ context.Context, b *source.Batch) error {
	rec := s.record(b)
	defer rec.Release()
	return s.send(rec)
}

// send sends a batch. It returns the server's error if the server has ended the call.
func (s *uploadSink) send(rec arrow.Record) error {
	if err := s.w.Write(rec); err != nil {
		return s.failed(err)
	}
	s.rows += rec.NumRows()
	return nil
}

// record returns a record of the batch: id, metadata, blobs, and the split if there are
// several. The blobs are copied into one buffer, as Arrow requires. The caller releases
// it.
func (s *uploadSink) record(b *source.Batch) arrow.Record {
	mem := memory.DefaultAllocator
	// The order of the columns is that of openUpload's schema.
	ids := array.NewFixedSizeBinaryBuilder(mem, schema.IDField().Type.(*arrow.FixedSizeBinaryType))
	defer ids.Release()
	for _, id := range b.IDs {
		ids.Append(id[:])
	}
	// Each column is retained once for the record and released below.
	columns := []arrow.Array{ids.NewArray()}
	for _, c := range b.Meta.Columns() {
		c.Retain()
		columns = append(columns, c)
	}
	for _, column := range b.Blobs {
		blobs := array.NewBinaryBuilder(mem, arrow.BinaryTypes.LargeBinary)
		size := 0
		for _, data := range column {
			size += len(data)
		}
		// Without the reservation, the buffer would be copied each time that it doubles.
		blobs.ReserveData(size)
		for _, data := range column {
			if data == nil {
				blobs.AppendNull()
			} else {
				blobs.Append(data)
			}
		}
		columns = append(columns, blobs.NewArray())
		blobs.Release()
	}
	if s.splits {
		names := array.NewStringBuilder(mem)
		for range b.IDs {
			names.Append(b.Split)
		}
		columns = append(columns, names.NewArray())
		names.Release()
	}
	rec := array.NewRecord(s.schema, columns, int64(len(b.IDs)))
	for _, c := range columns {
		c.Release()
	}
	return rec
}

// failed returns the reason why the call ended. A write returns io.EOF alone; the
// server's error is in the results.
func (s *uploadSink) failed(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	end := <-s.ended
	// The value is put back for Close, which waits for it too.
	s.ended <- end
	if end.err != nil {
		return end.err
	}
	return errors.New("the server ended the upload early")
}

// Commit implements sink.
func (s *uploadSink) Commit(_ context.Context, sum *summary) error {
	end, err := s.finish()
	if err != nil {
		return err
	}
	sum.Snapshot, sum.Changed, sum.Notes = end.last.Snapshot, end.last.Changed, append(sum.Notes, end.notes...)
	return nil
}

// finish commits the upload and returns the server's results. The number of rows lets the
// server detect batches that were lost on the way.
func (s *uploadSink) finish() (putEnd, error) {
	message, err := json.Marshal(map[string]any{"commit": true, "rows": s.rows})
	if err != nil {
		return putEnd{}, err
	}
	if err := s.w.WriteMetadata(message); err != nil {
		return putEnd{}, s.failed(err)
	}
	if err := s.w.Close(); err != nil {
		return putEnd{}, s.failed(err)
	}
	// The server ends the call only after it has read the end of the stream.
	if err := s.stream.CloseSend(); err != nil {
		return putEnd{}, err
	}
	end := <-s.ended
	s.ended <- end
	if end.err != nil {
		return end, end.err
	}
	if end.last.Snapshot == 0 {
		return end, errors.New("the server ended the upload without saying which snapshot it is")
	}
	return end, nil
}

// Close cancels the call, unless it has ended, and waits for receive.
func (s *uploadSink) Close() error {
	s.cancel()
	<-s.ended
	return s.client.Close()
}

// sink is the destination of an import. Without a Commit, no reader ever sees its rows.
// Its methods are called by one goroutine, and Close once at the end.
type sink interface {
	// Write takes a batch, which is valid only during the call.
	Write(ctx context.Context, b *source.Batch) error
	// Commit makes the snapshot and sets its number in sum.
	Commit(ctx context.Context, sum *summary) error
	Close() error
}

// storeSink writes to a store in this process, which it owns.
type storeSink struct {
	store  store.Store
	w      *ingest.Writer
	before store.Stats // counters at the start
}

func (s *storeSink) Write(ctx context.Context, b *source.Batch) error {
	return s.w.Write(ctx, b.Split, b.IDs, b.Meta, b.Blobs)
}

func (s *storeSink) Commit(ctx context.Context, sum *summary) error {
	snap, changed, err := s.w.Commit(ctx)
	if err != nil {
		return err
	}
	sum.Snapshot, sum.Changed, sum.Notes = snap.Number, changed, append(sum.Notes, s.w.Notes()...)
	// Manifest chunks are blobs too, and are deduplicated if all data was stored before.
	// The counter is of the store, and nothing else writes to it in this process.
	dedups := min(s.store.Stats().BlobDedups-s.before.BlobDedups, sum.Blobs)
	sum.Dedups = &dedups
	return nil
}

func (s *storeSink) Close() error { return errors.Join(s.w.Close(), s.store.Close()) }

// printedBad is the number of bad items that are printed: about a screen. The file has
// all.
const printedBad = 50

// badList collects items that cannot be imported. The first few stay in memory for print.
// If there is a path, all of them go to the file. A list of millions therefore takes no
// memory.
type badList struct {
	path  string
	n     int64            // number of all items
	first []source.BadItem // the first printedBad of them

	// Both are nil until the first bad item, so that a good import leaves no empty file.
	file *os.File
	out  *bufio.Writer
}

// add adds items. It returns an error if the file cannot be written.
func (l *badList) add(items []source.BadItem) error {
	for _, item := range items {
		l.n++
		if len(l.first) < printedBad {
			l.first = append(l.first, item)
		}
		if err := l.write(item); err != nil {
			return fmt.Errorf("write the list of bad items: %w", err)
		}
	}
	return nil
}

// write appends an item to the file as a line of JSON.
func (l *badList) write(item source.BadItem) error {
	if l.path == "" {
		return nil
	}
	if l.file == nil {
		f, err := os.Create(l.path)
		if err != nil {
			return err
		}
		l.file, l.out = f, bufio.NewWriter(f)
	}
	line, err := json.Marshal(item)
	if err != nil {
		return err
	}
	_, err = l.out.Write(append(printableJSON(line), '\n'))
	return err
}

// written returns the path of the file, and "" if there is none.
func (l *badList) written() string {
	if l.n == 0 {
		return ""
	}
	return l.path
}

// print prints the first items for people.
func (l *badList) print(app *App) {
	for _, item := range l.first {
		app.Notef("bad: %s: %s", source.Quoted(item.Key), oneLine(item.Reason))
	}
	if more := l.n - int64(len(l.first)); more > 0 && l.path != "" {
		app.Notef("and %s more, all listed in %s", humanize.Comma(more), l.path)
	} else if more > 0 {
		app.Notef("and %s more; --bad-list FILE lists all", humanize.Comma(more))
	}
}

// Close completes the file. Further calls do nothing.
func (l *badList) Close() error {
	if l.file == nil || l.out == nil {
		return nil
	}
	err := errors.Join(l.out.Flush(), l.file.Close())
	l.out = nil
	if err != nil {
		return fmt.Errorf("write the list of bad items: %w", err)
	}
	return nil
}

package command

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/schollz/progressbar/v3"

	"bowstring/cmd/bowstring/export"
	"bowstring/fetch/ingest"
	"bowstring/schema"
)

// GetCmd is bowstring get. The samples come by the same requests as those of a training
// job, so that get shows what a job would get.
type GetCmd struct {
	To     string `required:"" placeholder:"PATH" help:"File or folder to write. FILE.parquet, FILE.arrow and DIR/ imply the format."`
	Format string `enum:",parquet,arrow,folder" default:"" placeholder:"FORMAT" help:"Format, if the name does not imply it: parquet, arrow or folder (files by class, with metadata.parquet)."`
	requestFlags
	Operators opsFlag `placeholder:"FILE|JSON" help:"What becomes of samples before they are sent, as the field operators of a request has it: a file with JSON, or the JSON itself."`
	Layout    string  `enum:"large_binary,binary,huggingface" default:"large_binary" help:"Form of blob columns in files: ${enum}."`
	Limit     int64   `placeholder:"N" help:"At most this many rows."`
	OnError   string  `enum:"fail,null,skip" default:"fail" help:"What to do about a blob that cannot be read: ${enum}."`
	Force     bool    `short:"f" help:"Replace what is there."`
}

// requestFlags define which samples a command reads, and in which order. get, warm and
// explain share them, so that the three describe one job by the same flags.
type requestFlags struct {
	Source      splitRef    `arg:"" optional:"" name:"dataset[@n][/split]" help:"Dataset, or one split of it; of the newest snapshot, or number or tag N."`
	Mixture     mixtureFlag `placeholder:"FILE" help:"Several datasets, mixed, in the place of one: a file with the mixture of a request as JSON, or that itself."`
	Where       string      `placeholder:"EXPR" help:"Only rows for which this expression over metadata columns holds, such as 'width > 500'."`
	Columns     []string    `placeholder:"NAME" help:"Columns, in this order (default: all that are stored). Also position and split."`
	Sample      sampleFlag  `placeholder:"JSON" help:"How often each row comes in an epoch: the sample of a request as JSON, such as '{\"weights\": \"loss\"}' or '{\"balance\": \"label\"}', or a file with it. Goes with --shuffle-seed."`
	ShuffleSeed *uint64     `placeholder:"SEED" help:"Order of a shuffled epoch with this seed."`
	Epoch       uint64      `placeholder:"N" help:"Epoch of that order."`
}

// opsFlag is the operators of a request, as a flag.
type opsFlag struct{ operators schema.Operators }

// UnmarshalText parses JSON, or reads the file that text names.
func (f *opsFlag) UnmarshalText(text []byte) error {
	text, err := jsonOrFile(text)
	if err != nil {
		return err
	}
	f.operators, err = schema.ParseOperators(text)
	return err
}

// jsonOrFile returns the JSON object of a flag, which is the text itself or the content
// of the file that it names. A text that begins with a brace is JSON: few names of files
// do.
func jsonOrFile(text []byte) ([]byte, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return text, nil
	}
	return os.ReadFile(string(text))
}

// mixtureFlag is the mixture of a request, as a flag. It is nil if the flag is not given.
type mixtureFlag struct{ mixture *schema.Mixture }

// UnmarshalText parses JSON, or reads the file that text names.
func (f *mixtureFlag) UnmarshalText(text []byte) error {
	text, err := jsonOrFile(text)
	if err != nil {
		return err
	}
	f.mixture = &schema.Mixture{}
	return schema.DecodeJSON("mixture", text, f.mixture)
}

// sampleFlag is the sampling of a request, as a flag. It is nil if the flag is not given.
type sampleFlag struct{ sample *schema.Sample }

// UnmarshalText parses JSON, or reads the file that text names.
func (f *sampleFlag) UnmarshalText(text []byte) error {
	text, err := jsonOrFile(text)
	if err != nil {
		return err
	}
	f.sample = &schema.Sample{}
	return schema.DecodeJSON("sample", text, f.sample)
}

// check is part of the Validate of the commands with these flags. It reports combinations
// that the server would reject, in the words of the flags.
func (f *requestFlags) check() error {
	if mixed := f.Mixture.mixture != nil; mixed == (f.Source.Name != "") {
		return errors.New("give a dataset, or --mixture and none")
	}
	if f.Epoch != 0 && f.ShuffleSeed == nil {
		return errors.New("--epoch: only a shuffled order has epochs, give --shuffle-seed too")
	}
	if f.Sample.sample != nil && f.ShuffleSeed == nil {
		return errors.New("--sample: what is drawn depends on a seed, give --shuffle-seed too")
	}
	return nil
}

// what names the dataset or the mixture, for people.
func (f *requestFlags) what() string {
	if m := f.Mixture.mixture; m != nil {
		return printable(schema.Request{Mixture: m}.Names())
	}
	return f.Source.String()
}

// request returns the request that the flags describe.
func (f *requestFlags) request() schema.Request {
	r := schema.Request{
		Dataset: f.Source.Name, Snapshot: f.Source.Snapshot, Tag: f.Source.Tag, Split: f.Source.Split,
		Where: f.Where, Columns: f.Columns, Mixture: f.Mixture.mixture, Sample: f.Sample.sample,
	}
	if f.ShuffleSeed != nil {
		r.Shuffle = &schema.Shuffle{Seed: *f.ShuffleSeed, Epoch: f.Epoch}
	}
	return r
}

// Validate is called by kong. It rejects what a format cannot hold before anything is
// read. A folder has one file for each sample, so that repeated samples and several
// datasets would overwrite files.
func (c *GetCmd) Validate() error {
	if c.Limit < 0 {
		return fmt.Errorf("--limit: got %d, want 1 or more", c.Limit)
	}
	if err := c.check(); err != nil {
		return err
	}
	if c.format() == "" {
		return fmt.Errorf("--to: %s does not imply the format, want FILE.parquet, FILE.arrow, DIR/ or --format", c.To)
	}
	if c.format() == "folder" && c.Mixture.mixture != nil {
		return errors.New("--mixture: a folder has the files of one dataset, want --to FILE.parquet or FILE.arrow")
	}
	if c.format() == "folder" && c.Sample.sample != nil {
		return errors.New("--sample: a folder has each file once, want --to FILE.parquet or FILE.arrow")
	}
	if c.format() == "folder" && c.Layout != string(schema.LayoutLargeBinary) {
		return fmt.Errorf("--layout: a folder holds files, only --layout %s makes sense", schema.LayoutLargeBinary)
	}
	return nil
}

// format returns the format of the output, and "" if neither a flag nor the name implies
// it. An existing directory is a folder also without a slash at the end of its name.
func (c *GetCmd) format() string {
	if c.Format != "" {
		return c.Format
	}
	if info, err := os.Stat(c.To); err == nil && info.IsDir() {
		return "folder"
	}
	return export.FormatOf(c.To)
}

// Run copies the samples of the request to a file or folder.
func (c *GetCmd) Run(ctx context.Context, app *App) error {
	return app.with(ctx, false, func(client *client) error {
		request := c.request()
		request.Layout, request.OnError, request.Operators = schema.Layout(c.Layout), c.OnError, c.Operators.operators
		// An export should restore the dataset when it is imported again. That takes the
		// id and the split, which a request leaves out unless it names them. The snapshot
		// is fixed here, so that the columns and the rows are of the same one.
		splits := false
		if request.Mixture == nil &&
			(c.format() == "folder" || len(c.Columns) == 0 && c.Source.Split == "" && request.Operators == nil) {
			d, err := describe(ctx, client, c.Source.datasetRef)
			if err != nil {
				return err
			}
			request.Snapshot, request.Tag = d.Snapshot, ""
			splits = c.Source.Split == "" && len(d.Splits) > 1
			// One split with the default name is what an import makes without a split
			// column.
			if c.format() == "folder" || splits || len(d.Splits) == 1 && d.Splits[0].Name != ingest.DefaultSplit {
				request.Columns = exportColumns(&d, c.Columns)
			}
		}
		info, err := client.GetFlightInfo(ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD,
			Cmd: request.Marshal()})
		if err != nil {
			return err
		}
		return c.copy(ctx, app, client, info, splits)
	})
}

// exportColumns returns the columns that restore a dataset: those that the user asked
// for, and the id and the split after them.
func exportColumns(d *description, asked []string) []string {
	columns := slices.Clone(asked)
	if len(columns) == 0 {
		for _, col := range d.Columns {
			columns = append(columns, col.Name)
		}
	}
	for _, name := range []string{schema.IDColumn, schema.SplitColumn} {
		if !slices.Contains(columns, name) {
			columns = append(columns, name)
		}
	}
	return columns
}

// copy reads the endpoints in order and writes their rows. The output becomes visible by
// commit only: after an error or Ctrl-C there is no file that looks complete.
func (c *GetCmd) copy(ctx context.Context, app *App, client *client, info *arrowflight.FlightInfo,
	splits bool) (err error) {
	total := info.GetTotalRecords()
	if c.Limit > 0 {
		total = min(total, c.Limit)
	}
	// The sink needs the schema, which only the first stream has.
	out := &output{to: c.To, format: c.format(), opts: export.Options{Force: c.Force, SplitFolders: splits},
		left: total}
	defer func() { err = errors.Join(err, out.close()) }()
	progress := app.progress("", total, "rows")
	defer func() { _ = progress.Exit() }()
	// The endpoints are read one after another, because the file keeps the order of the
	// request.
	for _, endpoint := range info.GetEndpoint() {
		if err := readStream(ctx, client, endpoint.GetTicket(), out.open, func(rec arrow.Record) (bool, error) {
			n, err := out.write(rec)
			_ = progress.Add64(n)
			return out.left > 0, err
		}); err != nil {
			return err
		}
	}
	if err := out.commit(); err != nil {
		return err
	}
	_ = progress.Finish()
	app.Notef("wrote %s to %s", plural(out.rows, "row"), c.To)
	return nil
}

// output is the sink of a command, opened when the schema is known. One goroutine uses
// it.
type output struct {
	to, format string
	opts       export.Options
	left       int64       // rows that are still wanted
	rows       int64       // rows that were written
	sink       export.Sink // nil until open
}

// open opens the sink at the first call. Further endpoints have the same schema.
func (o *output) open(s *arrow.Schema) (err error) {
	if o.sink != nil {
		return nil
	}
	// A tensor has no form as a file. Without this check the first row would fail, after
	// the folder was made.
	if o.format == "folder" {
		for _, f := range s.Fields() {
			if schema.IsTensor(f) {
				return fmt.Errorf("--operators: a folder holds files, and %s has tensors; end its operators with one "+
					"that encodes, or write FILE.parquet or FILE.arrow", f.Name)
			}
		}
	}
	switch o.format {
	case "parquet":
		o.sink, err = export.Parquet(o.to, s, o.opts)
	case "arrow":
		o.sink, err = export.Arrow(o.to, s, o.opts)
	default:
		o.sink, err = export.Folder(o.to, s, o.opts)
	}
	return err
}

// write writes the rows that are still wanted, and returns their number.
func (o *output) write(rec arrow.Record) (int64, error) {
	n := min(rec.NumRows(), o.left)
	o.left -= n
	o.rows += n
	if n == rec.NumRows() {
		return n, o.sink.Write(rec)
	}
	// The slice shares the record's buffers.
	part := rec.NewSlice(0, n)
	defer part.Release()
	return n, o.sink.Write(part)
}

// commit makes the output visible under its name.
func (o *output) commit() error {
	if o.sink == nil {
		return errors.New("the server named no endpoint to read from")
	}
	return o.sink.Commit()
}

// close removes the output unless it was committed.
func (o *output) close() error {
	if o.sink == nil {
		return nil
	}
	return o.sink.Close()
}

// readStream reads the records of a ticket, as readRecords does. It cancels the stream
// when it returns: otherwise the server would keep sending to a caller that has enough.
func readStream(ctx context.Context, c *client, ticket *arrowflight.Ticket, open func(*arrow.Schema) error,
	each func(arrow.Record) (more bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx) // ends a stream that is not read to its end
	defer cancel()
	stream, err := c.DoGet(ctx, ticket)
	if err != nil {
		return err
	}
	return readRecords(stream, open, each)
}

// readRecords calls open with a stream's schema and each with its records, until each
// returns false or an error. A record is valid only during the call of each.
func readRecords(stream arrowflight.DataStreamReader, open func(*arrow.Schema) error,
	each func(arrow.Record) (more bool, err error)) error {
	reader, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer reader.Release()
	if err := open(reader.Schema()); err != nil {
		return err
	}
	for reader.Next() {
		if more, err := each(reader.Record()); err != nil || !more {
			return err
		}
	}
	return reader.Err()
}

// progress returns a bar on the terminal. Without a terminal it shows nothing. It counts
// bytes, or what unit names. Commands ignore its errors: a bar is no reason to fail.
func (a *App) progress(what string, total int64, unit string) *progressbar.ProgressBar {
	options := []progressbar.Option{
		progressbar.OptionSetWriter(a.Stderr),
		progressbar.OptionSetVisibility(a.TTY),
		progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionClearOnFinish(),
	}
	if unit == "bytes" {
		options = append(options, progressbar.OptionShowBytes(true))
	} else {
		options = append(options, progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(unit))
	}
	// The library rejects a total of 0.
	return progressbar.NewOptions64(cmp.Or(total, 1), options...)
}

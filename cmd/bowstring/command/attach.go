package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/object"
	"bowstring/fetch/store/cql"
)

// AttachCmd is bowstring attach. Run chooses between the two kinds of data: a table in
// the cluster of the store, or objects in a bucket or directory. See attachObjects for
// the latter.
type AttachCmd struct {
	From    string `arg:"" name:"url" help:"URL of the data: s3://BUCKET/PREFIX, gs://, az://, https://, file:// or a directory; or KEYSPACE.TABLE of the cluster that the store is in. With --update, the dataset."`
	Dataset string `arg:"" optional:"" help:"Name of the dataset (default: the last part of URL, without an extension)."`
	ReadFlags
	Mode        string          `enum:"create,append,replace" default:"create" help:"What to do with a dataset that exists: create refuses, append adds the rows, replace makes a snapshot of these alone."`
	DropColumn  []string        `sep:"none" placeholder:"NAME" help:"Column of the dataset that --mode replace and --update may take away or make another of; it is an error that they would of any other. Repeatable."`
	Lazy        bool            `help:"Do not read blobs, if the format has their offsets: folders, tables of paths, tars and raw MDS. Each gets its checksum when it is first read, for good. Columns of what blobs hold, such as width, are left out."`
	Prove       bool            `help:"Read everything, and know all checksums; with --update, of what was attached by --lazy, what has none. Without --lazy and --prove it is what reading costs that decides."`
	Inventory   string          `placeholder:"URL" help:"Read what objects there are from a list, and do not list the bucket: manifest.json of an inventory of S3, msc_manifest_index.json of the Multi-Storage Client, or a file of keys (text, .csv, .jsonl, .parquet). An update lists the bucket, unless it is given one."`
	Index       source.UseIndex `enum:"all,sample,none" default:"all" help:"What is taken from an index beside a tar (.idx): where to read, and all headers are read (all); members, and a sample of their headers is compared (sample); or nothing (none). It matters where headers are walked."`
	WriteIndex  bool            `help:"Leave an index beside each tar that was read, where there is none. The tar's headers are read once more."`
	IndexFormat source.TarIndex `enum:"energon,dali" default:"energon" help:"Which index --write-index leaves: NAME.tar.idx as Megatron-Energon and Lhotse read it, or NAME.idx as DALI does."`
	SaveEvery   time.Duration   `default:"30s" placeholder:"DURATION" help:"How often what was read is put down, for an attachment that is interrupted to go on from (${default}); 0: never."`
	Update      bool            `help:"Look for what is new, changed and gone since the dataset was attached, read only that, and make a snapshot of what there is now. URL and the other flags are those of before, and need not be named."`

	// The remaining flags are for tables only. attachObjects rejects them.
	Metadata     string `group:"Tables in Scylla or Cassandra" placeholder:"KEYSPACE.TABLE" help:"Table with more columns of the same samples, under the same uuids."`
	SplitColumn  string `group:"Tables in Scylla or Cassandra" placeholder:"NAME" help:"Text column that names each row's split."`
	Media        string `group:"Tables in Scylla or Cassandra" enum:",image,audio" default:"" help:"What the blobs are: image or audio."`
	SkipExisting bool   `group:"Tables in Scylla or Cassandra" help:"With --mode append, leave out rows whose ids the dataset has already; without, they are an error."`
}

// Help says what attaching does to the data.
func (*AttachCmd) Help() string {
	return `The data stays where it is and nothing is copied: the dataset's blobs are parts of objects in a bucket, or of files, or a
table's cells. Rows, ids, columns and splits are those that import makes of the same data. Everything is read once, to learn
sizes and checksums, unless that takes very long or --lazy is given. An object that is changed afterwards is not read any more, and a cell fails its checksum: attach again
with --update, or a table with --mode replace.

Of a table the primary key is one uuid, and the store must be in the same cluster (--store cql://...). Rows that were added
to it come in with --mode append --skip-existing.`
}

// tableName is KEYSPACE.TABLE. Cassandra limits names to 48 word characters.
var tableName = regexp.MustCompile(`^[A-Za-z0-9_]{1,48}\.[A-Za-z0-9_]{1,48}$`)

// isTable reports whether the arguments name a table of the store's cluster. Users write
// the table first or second; isTable swaps the arguments if needed. Only a store in a
// cluster can have tables in place, and a slash never occurs in a table's name.
func (c *AttachCmd) isTable(addr string) bool {
	if !cql.IsURI(addr) || object.IsURL(c.From) || strings.ContainsRune(c.From, '/') || c.Update {
		return false
	}
	if tableName.MatchString(c.Dataset) { // NAME KEYSPACE.TABLE
		c.From, c.Dataset = c.Dataset, c.From
		return true
	}
	return tableName.MatchString(c.From)
}

// Run attaches the data that the arguments name.
func (c *AttachCmd) Run(ctx context.Context, app *App) error {
	// An attachment writes to the store itself: no server can do it.
	addr, err := app.ownStore("attach")
	if err != nil {
		return err
	}
	if !c.isTable(addr) {
		return c.attachObjects(ctx, app, addr)
	}
	// kong cannot check flags that depend on each other.
	if c.SkipExisting && c.Mode != "append" {
		return usagef("--skip-existing goes with --mode append: only there are rows that exist")
	}
	store, err := cql.Open(ctx, addr, cql.Options{Logger: app.quietLog()})
	if err != nil {
		return err
	}
	err = c.attach(ctx, app, store)
	return errors.Join(err, store.Close())
}

// attach attaches a table and prints the result. The blobs stay in the table.
func (c *AttachCmd) attach(ctx context.Context, app *App, store *cql.Store) error {
	// The bar shows thousandths of the token range, because the number of rows is
	// unknown.
	bar := app.progress("", 1000, "‰")
	// The name of the dataset defaults to the table's, without the keyspace.
	snap, report, err := store.Attach(ctx, cql.AttachOptions{
		Dataset: cmp.Or(c.Dataset, c.From[strings.IndexByte(c.From, '.')+1:]), Data: c.From, Metadata: c.Metadata, Columns: c.Columns,
		Split: c.Split, SplitColumn: c.SplitColumn, Media: c.Media,
		Append: c.Mode == "append", Replace: c.Mode == "replace", SkipExisting: c.SkipExisting, Workers: c.Workers,
		// Rows and bytes are exact; Done is the share of the token ring.
		Progress: func(r cql.AttachReport) {
			bar.Describe(fmt.Sprintf("%s, %s", plural(r.Rows, "row"), humanize.IBytes(uint64(r.Bytes))))
			_ = bar.Set(int(r.Done * 1000)) // an error of the bar stops nothing
		},
	})
	_ = bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, struct {
			Dataset  string `json:"dataset"`
			Snapshot int64  `json:"snapshot"`
			cql.AttachReport
		}{snap.Dataset, snap.Number, report})
	}
	// With --skip-existing an attachment without new rows makes no snapshot.
	if report.Rows == 0 {
		app.Notef("%s@%d has all %s already", snap.Dataset, snap.Number, plural(report.Skipped, "row"))
		return nil
	}
	app.Notef("attached %s@%d: %s, %s in place", snap.Dataset, snap.Number, plural(report.Rows, "row"),
		humanize.IBytes(uint64(report.Bytes)))
	if report.Skipped > 0 {
		app.Notef("%s that the dataset has already were left out", plural(report.Skipped, "row"))
	}
	if report.NoMetadata > 0 {
		app.Notef("%s without a row in %s: their columns are null", plural(report.NoMetadata, "row"), c.Metadata)
	}
	if report.NoSample > 0 {
		app.Notef("%s of %s without a sample were left out", plural(report.NoSample, "row"), c.Metadata)
	}
	return nil
}

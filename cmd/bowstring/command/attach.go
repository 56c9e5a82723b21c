package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/store/cql"
)

// AttachCmd is bowstring attach.
type AttachCmd struct {
	Dataset      string   `arg:"" help:"Name of the dataset."`
	Data         string   `arg:"" name:"keyspace.table" help:"Table of the samples, whose primary key is one uuid. Its blob columns become the dataset's."`
	Metadata     string   `placeholder:"KEYSPACE.TABLE" help:"Table with more columns of the same samples, under the same uuids."`
	Columns      []string `placeholder:"NAME" help:"Columns to take (default: all)."`
	Split        string   `placeholder:"NAME" help:"Split of all rows (default: train)."`
	SplitColumn  string   `placeholder:"NAME" help:"Text column that names each row's split."`
	Media        string   `enum:",image,audio" default:"" help:"What the blobs are: image or audio."`
	Mode         string   `enum:"create,append,replace" default:"create" help:"What to do with a dataset that exists: create refuses, append adds the rows, replace makes a snapshot of these alone."`
	SkipExisting bool     `help:"With --mode append, leave out rows whose ids the dataset has already; without, they are an error."`
	Workers      int      `default:"8" help:"How many ranges of the table to scan at once."`
	JSON         bool     `name:"json" help:"Print a JSON object."`
}

// Help says what attaching does to the table.
func (*AttachCmd) Help() string {
	return `The table stays where it is and nothing is copied: the dataset's blobs are the table's cells. Each is read
once, to learn its size and checksum. A cell that is changed afterwards fails its checksum; attach the table again
with --mode replace. Rows that were added to it come in with --mode append --skip-existing. The store must be one in the same cluster (--store cql://...).`
}

// Run attaches the table.
func (c *AttachCmd) Run(ctx context.Context, app *App) error {
	addr, err := app.ownStore("attach")
	if err != nil {
		return err
	}
	if !cql.IsURI(addr) {
		return usagef("attach works on a store in Scylla or Cassandra: --store cql://HOST/KEYSPACE, not %s", addr)
	}
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

func (c *AttachCmd) attach(ctx context.Context, app *App, store *cql.Store) error {
	bar := app.progress("", 1000, "‰") // of the table: how many rows it has is not known
	snap, report, err := store.Attach(ctx, cql.AttachOptions{
		Dataset: c.Dataset, Data: c.Data, Metadata: c.Metadata, Columns: c.Columns,
		Split: c.Split, SplitColumn: c.SplitColumn, Media: c.Media,
		Append: c.Mode == "append", Replace: c.Mode == "replace", SkipExisting: c.SkipExisting, Workers: c.Workers,
		Progress: func(r cql.AttachReport) {
			bar.Describe(fmt.Sprintf("%s, %s", plural(r.Rows, "row"), humanize.IBytes(uint64(r.Bytes))))
			_ = bar.Set(int(r.Done * 1000)) // a bar that cannot be drawn stops nothing
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

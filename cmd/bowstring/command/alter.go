package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/source"
	"bowstring/schema"
)

// AlterCmd is bowstring alter. It has two forms: with FILE it uploads rows by key, and
// without FILE it changes columns or deletes rows by an expression, in one action.
type AlterCmd struct {
	Dataset string `arg:"" help:"Dataset to alter; its newest snapshot stays, and a new one is made."`
	File    string `arg:"" optional:"" help:"Table of rows by key: .csv, .tsv, .jsonl or .parquet. Its columns are added, or change those that there are; a cell without a value makes null."`

	On           string            `default:"id" placeholder:"COLUMN" help:"Column by which samples are found (${default}): the id, or one of integers or text whose values are unique."`
	Missing      string            `enum:",error,insert,ignore" default:"" placeholder:"error" help:"What becomes of rows of FILE whose key no sample has: error, insert or ignore (default: error; ignore with --delete)."`
	Delete       bool              `help:"Delete the samples whose keys are in FILE."`
	Split        string            `placeholder:"NAME" help:"Split of samples that are inserted and have no column split (default: train)."`
	DropColumn   []string          `sep:"none" placeholder:"NAME" help:"Column to drop, before those of FILE are added. Repeatable."`
	RenameColumn map[string]string `mapsep:"none" placeholder:"OLD=NEW" help:"New name of a column. Repeatable."`
	DeleteWhere  string            `placeholder:"EXPR" help:"Delete the samples that meet an expression, such as 'width < 64'."`
	JSON         bool              `name:"json" help:"Print the result as a JSON object."`
}

// alterBody is the body of the alter action. Its JSON is part of the protocol.
type alterBody struct {
	Dataset       string            `json:"dataset"`
	DropColumns   []string          `json:"drop_columns,omitempty"`
	RenameColumns map[string]string `json:"rename_columns,omitempty"`
	DeleteWhere   string            `json:"delete_where,omitempty"`
}

// altered is the result of an alteration, of both forms. Its JSON is what --json prints
// and what the alter action returns.
type altered struct {
	Dataset  string   `json:"dataset"`
	Snapshot int64    `json:"snapshot"`
	Changed  bool     `json:"changed"`
	Matched  int64    `json:"matched"`
	Inserted int64    `json:"inserted"`
	Ignored  int64    `json:"ignored"`
	Deleted  int64    `json:"deleted"`
	Notes    []string `json:"notes,omitempty"`
}

// Run makes a new snapshot with the changes and prints it. The old snapshot stays.
func (c *AlterCmd) Run(ctx context.Context, app *App) error {
	if err := c.check(); err != nil {
		return err
	}
	var out altered
	var err error
	if c.File != "" {
		out, err = c.byRows(ctx, app)
	} else {
		out, err = ask[altered](ctx, app, "alter", alterBody{c.Dataset, c.DropColumn, c.RenameColumn, c.DeleteWhere})
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, out)
	}
	return out.print(app)
}

// check returns a usage error for flags that exclude each other. kong checks each flag
// alone. A flag that had no effect would let the user believe that rows were changed.
func (c *AlterCmd) check() error {
	if err := schema.CheckName("dataset", c.Dataset); err != nil {
		return usageError{err.Error()}
	}
	switch {
	case c.File == "" && (c.Delete || c.Missing != "" || c.Split != "" || c.On != schema.IDColumn):
		return usagef("--on, --missing, --split and --delete are about the rows of FILE, and there is none")
	case c.File == "" && len(c.DropColumn) == 0 && len(c.RenameColumn) == 0 && c.DeleteWhere == "":
		return usagef("nothing is to be altered: give FILE, --drop-column, --rename-column or --delete-where")
	case c.File != "" && (len(c.RenameColumn) > 0 || c.DeleteWhere != ""):
		return usagef("--rename-column and --delete-where go without FILE: alter twice")
	case c.Delete && len(c.DropColumn) > 0:
		return usagef("--delete takes the keys of FILE alone: drop columns by themselves")
	case c.Delete && c.Missing == "insert":
		return usagef("--missing insert: with --delete nothing is inserted")
	}
	return nil
}

// byRows merges the rows of the file into the dataset. With --delete it deletes the
// samples with the keys of the file instead. On an error the dataset is unchanged,
// because only finish commits the upload.
func (c *AlterCmd) byRows(ctx context.Context, app *App) (out altered, err error) {
	// The dataset must exist, so that no store is created.
	client, err := app.connect(ctx, false)
	if err != nil {
		return out, err
	}
	// After beginUpload the upload owns the client and closes it. Before, this function
	// does.
	owned := false
	defer func() {
		if !owned {
			err = errors.Join(err, client.Close())
		}
	}()
	// Names of columns and their types come from the newest snapshot.
	now, err := describe(ctx, client, datasetRef{Name: c.Dataset})
	if err != nil {
		return out, err
	}
	// Text columns of the dataset are read as text. Otherwise a CSV column of zip codes
	// would become integers, and lose its zeros.
	text := []string{schema.IDColumn, schema.SplitColumn}
	for _, column := range now.Columns {
		if column.Kind == "metadata" && (column.Type == "utf8" || column.Type == "large_utf8") {
			text = append(text, column.Name)
		}
	}
	frame, err := source.ReadFrame(ctx, c.File, text)
	if err != nil {
		return out, err
	}
	// Commit "message" makes the server wait for finish. Split is for inserted rows only.
	put := putOptions{Dataset: c.Dataset, Split: c.Split, Mode: "merge", Commit: "message", On: c.On, Missing: c.Missing,
		DropColumns: c.DropColumn}
	if c.Delete {
		put.Mode = "delete"
	}
	up, err := beginUpload(ctx, client, put, frame.Schema)
	if err != nil {
		return out, err
	}
	owned = true
	defer func() { err = errors.Join(err, up.Close()) }()
	for rec := range frame.Batches {
		if err := up.send(rec); err != nil {
			return out, err
		}
	}
	// The server counts the rows by what became of them.
	end, err := up.finish()
	r := end.last
	return altered{r.Dataset, r.Snapshot, r.Changed, r.Matched, r.Inserted, r.Ignored, r.Deleted, end.notes}, err
}

// print prints one line with the counts above zero, and one line for each note.
func (a *altered) print(app *App) error {
	var b strings.Builder
	if a.Changed {
		fmt.Fprintf(&b, "%s: snapshot %d", a.Dataset, a.Snapshot)
	} else {
		fmt.Fprintf(&b, "%s: unchanged, snapshot %d", a.Dataset, a.Snapshot)
	}
	// Counts of 0 are left out, because most alterations do one thing.
	for _, part := range []struct {
		n    int64
		what string
	}{{a.Matched, "matched"}, {a.Inserted, "inserted"}, {a.Ignored, "left out, as no sample has their key"},
		{a.Deleted, "deleted"}} {
		if part.n > 0 {
			fmt.Fprintf(&b, ", %s %s", humanize.Comma(part.n), part.what)
		}
	}
	b.WriteString("\n")
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "  note     %s\n", printable(n))
	}
	return app.Printf("%s", b.String())
}

package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/store"
	"bowstring/fetch/store/tend"
	"bowstring/schema"
)

// CopyCmd is bowstring copy.
type CopyCmd struct {
	From     string       `arg:"" type:"store" help:"Store to copy from, or a directory with a backup."`
	To       string       `arg:"" type:"store" help:"Store to copy to, which is made if there is none."`
	Datasets []datasetRef `arg:"" name:"dataset[@n]" help:"Datasets: the newest snapshot of each, or number or tag N."`

	AllSnapshots bool   `help:"Of a dataset without a number, copy all snapshots."`
	Selections   bool   `help:"Also copy the selections of the snapshots."`
	Renumber     bool   `help:"Make each snapshot the next one of its dataset in TO, in place of keeping its number."`
	Attached     string `enum:"value,reference" default:"value" help:"What becomes of cells of attached tables: value (they become blobs of TO) or reference (TO is in a cluster that has the tables)."`
	transferFlags
}

// transferFlags are those of commands that copy.
type transferFlags struct {
	Rate    size `placeholder:"SIZE" help:"Send so many bytes a second at most, such as 200MB (default: no limit)."`
	Workers int  `default:"32" placeholder:"N" help:"Blobs under way at once (default: ${default})."`
	JSON    bool `name:"json" help:"Print a JSON object."`
}

func (f *transferFlags) check() error {
	if f.Workers < 1 {
		return usagef("--workers: got %d, want 1 or more", f.Workers)
	}
	return nil
}

// Help says what a copy is.
func (*CopyCmd) Help() string {
	return `The copy has the same ids, rows, keys, snapshot numbers and tags. A tag that TO has for another snapshot stays. Each blob is checked on its way. What TO has already
is not sent: a copy that was stopped goes on where it was when it is made again. If TO has another snapshot of that number, or
has given out greater ones, nothing is copied. The blobs of attached datasets become blobs of TO, under the hashes of their content; with
--attached=reference they stay where they are.`
}

// Run copies.
func (c *CopyCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	from, err := openSource(ctx, c.From, 0, app.quietLog())
	if err != nil {
		return fmt.Errorf("from %s: %w", c.From, err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	var snaps []*schema.Snapshot
	if c.AllSnapshots {
		snaps, err = tend.Snapshots(ctx, from, namesOf(c.Datasets))
	} else {
		snaps, err = tend.Newest(ctx, from, namesOf(c.Datasets))
	}
	if err != nil {
		return err
	}
	return c.transfer(ctx, app, "copy", from, c.To, snaps, tend.CopyOptions{
		Selections: c.Selections, Renumber: c.Renumber, Attached: tend.Attached(c.Attached),
	})
}

// transfer copies snapshots into the store at addr, and says what it did.
func (f *transferFlags) transfer(
	ctx context.Context, app *App, what string, from tend.Source, addr string, snaps []*schema.Snapshot,
	opts tend.CopyOptions,
) (err error) {
	to, err := openStore(ctx, addr, true, app.quietLog())
	if err != nil {
		return fmt.Errorf("to %s: %w", addr, err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	begun := time.Now()
	done, err := f.send(ctx, app, what, from, to, snaps, opts)
	if err != nil {
		if done.Sent > 0 {
			app.Notef("%s went over and are kept until the next gc; the same command goes on from here",
				plural(done.Sent, "blob"))
		}
		return err
	}
	if f.JSON {
		return printJSON(app.Stdout, struct {
			tend.Copied
			Seconds float64 `json:"seconds"`
		}{done, time.Since(begun).Seconds()})
	}
	out := table{numbers: []bool{false, true, true}}
	out.add("DATASET", "SNAPSHOT", "ROWS", "")
	for _, s := range done.Snapshots {
		state := "copied"
		switch {
		case s.There:
			state = "was there"
		case s.As != s.Snapshot:
			state = fmt.Sprintf("copied from snapshot %d", s.Snapshot)
		}
		out.add(s.Dataset, fmt.Sprint(s.As), humanize.Comma(s.Rows), state)
	}
	if err := out.print(app.Stdout); err != nil {
		return err
	}
	app.Notef("%s, of which %s with %s were sent, in %.1f s; %s, %s", plural(done.Blobs, "blob"),
		humanize.Comma(done.Sent),
		humanize.IBytes(uint64(done.SentBytes)), time.Since(begun).Seconds(), plural(done.Selections, "selection"),
		plural(done.Tags, "tag"))
	for _, t := range done.KeptTags {
		app.Notef("%s@%s stays snapshot %d; bowstring tag %s@%d %s moves it", t.Dataset, t.Tag, t.Snapshot, t.Dataset,
			t.Copied, t.Tag)
	}
	return nil
}

func (f *transferFlags) send(
	ctx context.Context, app *App, what string, from tend.Source, to store.Store, snaps []*schema.Snapshot,
	opts tend.CopyOptions,
) (tend.Copied, error) {
	bar := app.byteProgress(what, 1)
	defer func() { _ = bar.Exit() }() // drawing is best effort
	opts.Rate, opts.Workers = int64(f.Rate), f.Workers
	opts.Progress = func(c tend.Copied) {
		bar.ChangeMax64(max(c.OfBytes, 1))
		_ = bar.Set64(min(c.Bytes, c.OfBytes))
	}
	return tend.Copy(ctx, from, to, snaps, opts)
}

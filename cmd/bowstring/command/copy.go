package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/store"
	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
)

// CopyCmd is bowstring copy.
type CopyCmd struct {
	// The two stores are arguments and not --store, because neither of them is the one
	// that other commands work on.
	From     string       `arg:"" type:"store" help:"Store to copy from."`
	To       string       `arg:"" type:"store" help:"Store to copy to, which is made if there is none."`
	Datasets []datasetRef `arg:"" optional:"" name:"dataset[@n]" help:"Datasets: the newest snapshot of each, or number or tag N."`

	// Each of these flags deviates from the default, under which a copy changes nothing
	// that the destination has.
	All          bool   `help:"Copy all there is of the datasets, of all if none is named: every snapshot, its selections, and which numbers were given out. This is a backup, and the way back from one."`
	Selections   bool   `help:"Also copy the selections of the snapshots."`
	MoveTags     bool   `help:"Have tags that TO has for other snapshots name the copies (default: they stay)."`
	LeaveDropped bool   `help:"Leave out snapshots that TO has dropped (default: they are a conflict)."`
	Renumber     bool   `help:"Make each snapshot the next one of its dataset in TO, in place of keeping its number."`
	Attached     string `enum:"value,reference" default:"value" help:"Treatment of attached data: value (it becomes blobs of TO) or reference (it stays in place, and TO has to reach it there)."`
	Rate         size   `placeholder:"SIZE" help:"Send at most this many bytes a second, such as 200MB (default: no limit)."`
	Workers      int    `default:"32" placeholder:"N" help:"Blobs under way at once (default: ${default})."`
	JSON         bool   `name:"json" help:"Print a JSON object."`
}

// Help says what a copy is.
func (*CopyCmd) Help() string {
	return `The copy has the same ids, rows, keys, snapshot numbers and tags. A tag that TO has for another snapshot stays. Each blob is checked on its way. What TO has already
is not sent: a copy that was stopped goes on where it was when it is made again. If TO has another snapshot of that number, or
has given out greater ones, nothing is copied. The blobs of attached datasets become blobs of TO, under the hashes of their content; with
--attached=reference they stay where they are.`
}

// Run copies the snapshots. It reads the source's snapshots before it creates the
// destination, so that a wrong name leaves no empty store.
func (c *CopyCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	from, err := openStore(ctx, c.From, false, app.quietLog())
	if err != nil {
		return fmt.Errorf("from %s: %w", c.From, err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	var snaps []*schema.Snapshot
	if c.All {
		snaps, err = maintenance.Snapshots(ctx, from, namesOf(c.Datasets))
	} else {
		snaps, err = maintenance.Newest(ctx, from, namesOf(c.Datasets))
	}
	if err != nil {
		return err
	}
	if len(snaps) == 0 {
		return fmt.Errorf("%w: %s has no snapshot", schema.ErrNotFound, c.From)
	}
	to, err := openStore(ctx, c.To, true, app.quietLog())
	if err != nil {
		return fmt.Errorf("to %s: %w", c.To, err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	begun := time.Now()
	done, err := c.send(ctx, app, from, to, snaps)
	if err != nil {
		// Blobs without a snapshot are garbage until the copy is complete. The next run
		// finds them.
		if done.Sent > 0 {
			app.Notef("%s went over and are kept until the next gc; the same command goes on from here",
				plural(done.Sent, "blob"))
		}
		return err
	}
	return c.print(app, &done, time.Since(begun).Seconds())
}

// check returns usage errors for flags that exclude each other.
func (c *CopyCmd) check() error {
	if c.Workers < 1 {
		return usagef("--workers: got %d, want 1 or more", c.Workers)
	}
	if !c.All && len(c.Datasets) == 0 {
		return usagef("copy: name datasets, or say --all")
	}
	for _, d := range c.Datasets {
		if c.All && (d.Snapshot != 0 || d.Tag != "") {
			return usagef("--all copies every snapshot of a dataset: name %s without one", d.Name)
		}
	}
	return nil
}

// send copies, and shows the progress. The result also counts blobs that were sent before
// an error.
func (c *CopyCmd) send(ctx context.Context, app *App, from, to store.Store,
	snaps []*schema.Snapshot) (maintenance.Copied, error) {
	// The total is unknown before the manifests are read.
	bar := app.progress("copy", 1, "bytes")
	defer func() { _ = bar.Exit() }() // drawing is best effort
	return maintenance.Copy(ctx, from, to, snaps, maintenance.CopyOptions{
		Rate: int64(c.Rate), Workers: c.Workers, Selections: c.Selections || c.All, Numbers: c.All,
		MoveTags: c.MoveTags, LeaveDropped: c.LeaveDropped, Renumber: c.Renumber, Attached: maintenance.Attached(c.Attached),
		// The total grows while snapshots are read, so that the bar's maximum changes.
		Progress: func(done maintenance.Copied) {
			bar.ChangeMax64(max(done.OfBytes, 1))
			_ = bar.Set64(min(done.Bytes, done.OfBytes))
		},
	})
}

// print prints what was copied, and the tags that stayed on other snapshots.
func (c *CopyCmd) print(app *App, done *maintenance.Copied, seconds float64) error {
	if c.JSON {
		return printJSON(app.Stdout, struct {
			*maintenance.Copied
			Seconds float64 `json:"seconds"`
		}{done, seconds})
	}
	// A snapshot may have another number in the destination, with --renumber.
	out := tableOf("DATASET", ">SNAPSHOT", ">ROWS", "")
	for _, s := range done.Snapshots {
		state := "copied"
		switch {
		case s.There:
			state = "was there"
		case s.Dropped:
			out.add(s.Dataset, fmt.Sprint(s.Snapshot), humanize.Comma(s.Rows), "left out, was dropped there")
			continue
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
		humanize.IBytes(uint64(done.SentBytes)), seconds, plural(done.Selections, "selection"),
		plural(done.Tags, "tag"))
	for _, t := range done.KeptTags {
		app.Notef("%s@%s stays snapshot %d; bowstring tag %s@%d %s moves it", t.Dataset, t.Tag, t.Snapshot, t.Dataset,
			t.Copied, t.Tag)
	}
	return nil
}

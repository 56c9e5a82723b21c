package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
)

// RetainCmd is bowstring retain.
type RetainCmd struct {
	Of       string   `arg:"" name:"store" type:"store" help:"Store to drop snapshots from."`
	Datasets []string `arg:"" optional:"" name:"dataset" help:"Datasets (default: all there are)."`

	// Last and Within are rules: a snapshot stays if either of them keeps it.
	Last   int           `placeholder:"N" help:"Keep the newest N snapshots of each dataset."`
	Within time.Duration `placeholder:"DURATION" help:"Keep snapshots that were made so long ago at most, such as 720h."`
	DryRun bool          `help:"Only say what would be dropped."`
	JSON   bool          `name:"json" help:"Print a JSON array."`
}

// Help says what stays.
func (*RetainCmd) Help() string {
	return `A snapshot stays if either rule keeps it. The newest of a dataset always does, and one that has a tag. Streams
that have a dropped one open read on; bowstring gc frees what it held.`
}

// Run drops the snapshots that no rule keeps. It requires a rule: without one it would
// drop everything except the newest.
func (c *RetainCmd) Run(ctx context.Context, app *App) (err error) {
	if c.Last < 0 || c.Within < 0 || c.Last == 0 && c.Within == 0 {
		return usagef("retain: say by --last N or --within DURATION what is to stay")
	}
	for _, name := range c.Datasets {
		if err := schema.CheckName("dataset", name); err != nil {
			return usageError{err.Error()}
		}
	}
	s, err := openStore(ctx, c.Of, false, app.quietLog())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// Each snapshot has a fate, also one that stays, so that the output explains why.
	fates, err := maintenance.Retain(ctx, s, c.Datasets, maintenance.Retention{Last: c.Last, Within: c.Within,
		Now:    time.Now(),
		DryRun: c.DryRun})
	if err != nil {
		return err
	}
	out := tableOf("DATASET", ">SNAPSHOT", "CREATED", "")
	for _, f := range fates {
		state := "kept: " + f.Why
		switch {
		case f.Dropped && c.DryRun:
			state = "would be dropped"
		case f.Dropped:
			state = "dropped"
		}
		out.add(f.Dataset, fmt.Sprint(f.Snapshot), f.Created.UTC().Format(time.RFC3339), state)
	}
	return app.show(c.JSON, append([]maintenance.Fate{}, fates...), out)
}

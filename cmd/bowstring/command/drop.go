package command

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/store"
)

// DropCmd is bowstring drop.
type DropCmd struct {
	Dataset datasetRef `arg:"" name:"dataset[@n]" help:"Dataset to drop, or its snapshot number N, which has no tag."`
	Yes     bool       `short:"y" help:"Do not ask. Needed where there is no terminal to ask on."`
}

// Run drops the dataset or snapshot after asking. The question says how much would be
// lost.
func (c *DropCmd) Run(ctx context.Context, app *App) error {
	if !c.Yes && !app.Interactive {
		return usagef("drop asks before it acts, and there is no terminal to ask on: use --yes")
	}
	return app.with(ctx, false, func(client *client) error {
		if !c.Yes {
			d, err := describe(ctx, client, c.Dataset)
			if err != nil {
				return err
			}
			// A dataset without a snapshot or tag means all of its snapshots.
			what := fmt.Sprintf("dataset %s with %s", d.Dataset, plural(int64(len(d.Snapshots)), "snapshot"))
			if c.Dataset.pinned() {
				what = fmt.Sprintf("snapshot %s of %s", c.Dataset, plural(d.Rows, "row"))
			}
			if ok, err := app.confirm(ctx, "Drop "+what+"?"); err != nil || !ok {
				return err
			}
		}
		result, err := actOne[struct {
			Dataset string  `json:"dataset"`
			Dropped []int64 `json:"dropped"`
		}](ctx, client, "drop", datasetBody(c.Dataset))
		if err != nil {
			return err
		}
		for _, n := range result.Dropped {
			app.Notef("dropped %s@%d", result.Dataset, n)
		}
		app.Notef("bowstring gc frees what they held")
		return nil
	})
}

// confirm asks on the terminal. Any answer except y or yes is a no.
func (a *App) confirm(ctx context.Context, question string) (bool, error) {
	answer, err := a.ask(ctx, question+" [y/N]")
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// ask asks on the terminal and returns the answer, which may be empty. It returns the
// cause if ctx ends first.
func (a *App) ask(ctx context.Context, question string) (string, error) {
	_, _ = fmt.Fprintf(a.Stderr, "%s ", printable(question))
	answers := make(chan string, 1)
	// A read of a terminal cannot be cancelled. After Ctrl-C the goroutine ends with the
	// process.
	go func() {
		line, _ := bufio.NewReader(a.Stdin).ReadString('\n') // an error is an empty answer
		answers <- line
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case answer := <-answers:
		return strings.TrimSpace(answer), nil
	}
}

// GCCmd is bowstring gc.
type GCCmd struct {
	DryRun bool `help:"Only say what could be freed."`
	JSON   bool `name:"json" help:"Print a JSON object."`
}

// Run collects garbage, or with --dry-run computes what a collection would free.
func (c *GCCmd) Run(ctx context.Context, app *App) error {
	r, err := ask[store.GCReport](ctx, app, "gc", struct {
		DryRun bool `json:"dry_run,omitempty"`
	}{c.DryRun})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, r)
	}
	// In a store of segments, live blobs are moved out of segments with dead ones, so
	// that FreedBytes may be less than DeadBytes.
	size := func(n int64) string { return humanize.IBytes(uint64(n)) }
	text := fmt.Sprintf("live   %s, %s\ndead   %s, %s\n", plural(r.LiveBlobs, "blob"), size(r.LiveBytes),
		plural(r.DeadBlobs, "blob"), size(r.DeadBytes))
	if !c.DryRun {
		text += fmt.Sprintf("freed  %s on disk, having moved %s\n", size(r.FreedBytes), size(r.MovedBytes))
	}
	return app.Printf("%s", text)
}

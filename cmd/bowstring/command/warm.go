package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"bowstring/fetch"
	"bowstring/schema"
)

// WarmCmd is bowstring warm.
type WarmCmd struct {
	requestFlags
	Batch int64 `placeholder:"N" help:"Rows of a batch, as the job will ask for (default: the server's)."`
	JSON  bool  `name:"json" help:"Print a JSON object: how far it came."`
}

// Validate is called by kong.
func (c *WarmCmd) Validate() error {
	return errors.Join(c.check(), c.request().Check())
}

func (c *WarmCmd) request() schema.Request {
	r := c.requestFlags.request()
	r.Batch = c.Batch
	return r
}

// Run fills the spill of a server. A signal ends it, and the spill keeps what it has by
// then.
func (c *WarmCmd) Run(ctx context.Context, app *App) error {
	if err := app.needServer("warm"); err != nil {
		return err
	}
	return app.with(ctx, false, func(client *client) error {
		// The server sends its progress as results. The last one has the totals.
		var last fetch.WarmProgress
		bar := app.progress("", -1, "samples") // the first result has the number of samples
		defer func() { _ = bar.Exit() }()
		// The body is a request, so that the server warms exactly what the job will read.
		err := act(ctx, client, "warm", json.RawMessage(c.request().Marshal()), func(p fetch.WarmProgress) error {
			last = p
			bar.ChangeMax64(p.Rows)
			_ = bar.Set64(p.Seen)
			return nil
		})
		if err != nil {
			return err
		}
		// A server that stops may end the call without an error.
		if !last.Done {
			return fmt.Errorf("%s: the server ended warm without saying that it is done", client.target)
		}
		_ = bar.Finish()
		if c.JSON {
			return printJSON(app.Stdout, last)
		}
		app.Notef("%s", warmed(c.what(), last))
		return nil
	})
}

// warmed returns the result of a warm-up as a line.
func warmed(source string, p fetch.WarmProgress) string {
	line := fmt.Sprintf("%s: fetched %s, %s; %s there already", source, plural(p.Stored, "blob"),
		humanize.IBytes(uint64(p.Bytes)), were(p.There))
	// Failures do not fail the command: the job will read those samples from the store.
	if p.Failed > 0 {
		line += fmt.Sprintf("; %s could not be read, or were not stored", plural(p.Failed, "blob"))
	}
	// A full spill is no failure: it has as much as it can keep.
	if p.Full {
		line += fmt.Sprintf("; then the spill was full, after %s of %s", humanize.Comma(p.Seen),
			plural(p.Rows, "sample"))
	}
	return line
}

// were returns a number with the verb that fits it.
func were(n int64) string {
	if n == 1 {
		return "1 was"
	}
	return humanize.Comma(n) + " were"
}

// needServer returns a usage error without --server, for commands about the state of a
// running server.
func (a *App) needServer(command string) error {
	if a.globals.Server == "" {
		return usagef("%s is about the spill of a running server, which a store has not: name the server by --server",
			command)
	}
	return nil
}

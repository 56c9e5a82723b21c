package command

import (
	"context"
	"os"

	"bowstring/cmd/bowstring/apply"
	"bowstring/fetch"
)

// ApplyCmd is bowstring apply, which is hidden: only the Python package calls it.
type ApplyCmd struct{}

// Help is shown below the summary.
func (*ApplyCmd) Help() string {
	return `Reads frames from the standard input and writes frames to the standard output, as docs/operators.md describes them. The
Python package starts it for streams whose operators run at the client.`
}

// Run makes the cells that the standard input requests, until the input ends.
func (*ApplyCmd) Run(ctx context.Context, app *App) error {
	return apply.Run(ctx, os.Stdin, app.Stdout, apply.Options{Kinds: fetch.OperatorKinds(), Logger: app.Log})
}

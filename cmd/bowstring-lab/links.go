package main

import (
	"context"
	"errors"
	"os"

	"bowstring/cmd/bowstring/command"
	"bowstring/internal/links"
)

// linksCmd is bowstring-lab links.
type linksCmd struct{}

// Help is shown below the summary.
func (*linksCmd) Help() string {
	return `Stands between processes on this machine. Each line of the standard input is a command in JSON, which is answered with a
line; the links end with the input.`
}

// Run does what the standard input asks for.
func (*linksCmd) Run(ctx context.Context, app *command.App) error {
	b := links.NewProxySet()
	ended := make(chan error, 1)
	go func() { ended <- b.Run(os.Stdin, app.Stdout) }()
	select {
	case err := <-ended:
		return errors.Join(err, b.Close())
	case <-ctx.Done():
		return b.Close() // what waits for a command ends with the process
	}
}

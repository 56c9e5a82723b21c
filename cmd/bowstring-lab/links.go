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

// Run executes the commands of the standard input until the input or ctx ends. The input
// is read in a goroutine, because a read of it cannot be cancelled.
func (*linksCmd) Run(ctx context.Context, app *command.App) error {
	b := links.NewProxySet()
	ended := make(chan error, 1)
	go func() { ended <- b.Run(os.Stdin, app.Stdout) }()
	select {
	case err := <-ended:
		return errors.Join(err, b.Close())
	case <-ctx.Done():
		return b.Close() // the goroutine that reads the input ends with the process
	}
}

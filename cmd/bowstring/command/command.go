// Package command is bowstring's command line: the server, the imports, and a
// client for each thing the server can do. A program for experiments has other
// commands on the same flags and settings: see Program.
//
// Every command but serve, version and config talks Arrow Flight, to a server
// (--server) or to one that it starts for itself, in its own process, on a
// store (--store). So a command does the same on both.
//
// Standard output carries data only; messages go to standard error. The exit
// status is 0 for success, 1 for a failure, 2 for a wrong command line or
// configuration, and 128 plus the signal's number where a signal ended a
// command.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"bowstring/fetch/operators/audio/sndfile"
)

// Exit statuses.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128 // plus the number of the signal
)

// Program is a binary with this package's flags, settings and messages, and with commands of its own.
type Program struct {
	Name, About string
	Grammar     any      // a pointer to a struct that embeds Globals, and whose other fields are commands
	Globals     *Globals // of Grammar
	Partial     bool     // the configuration file may have sections of commands that this program lacks
}

// bowstring is the product, and its commands.
func bowstring() (Program, *CLI) {
	cli := &CLI{}
	return Program{Name: "bowstring", About: "Bowstring serves training samples as Arrow record batches over Arrow Flight.",
		Grammar: cli, Globals: &cli.Globals}, cli
}

// Main is the product: it runs the command that the process's arguments name, and ends the process.
func Main() {
	if len(os.Args) == 2 && os.Args[1] == sndfile.Command {
		os.Exit(decodeSound())
	}
	p, _ := bowstring()
	p.Main()
}

// Main runs the command that the process's arguments name, and ends the process.
func (p Program) Main() { os.Exit(p.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// decodeSound is a process that a server starts, to read files by a library in C: see package sndfile.
// It knows no settings, and is in no help.
func decodeSound() int {
	if err := sndfile.Serve(os.Stdin, os.Stdout); err != nil {
		return report(os.Stderr, "bowstring", err)
	}
	return 0
}

// Run parses args, runs the command they name and returns the exit status.
func (p Program) Run(args []string, stdin, stdout, stderr *os.File) int {
	app := &App{globals: p.Globals, partial: p.Partial, Stdin: stdin, Stdout: stdout, Stderr: stderr, TTY: term.IsTerminal(int(stderr.Fd()))}
	app.Interactive = app.TTY && term.IsTerminal(int(stdin.Fd()))
	parser, err := p.parser(app)
	if err != nil {
		return report(stderr, p.Name, err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return report(stderr, p.Name, err)
	}
	if app.Log, err = app.globals.logger(stderr); err != nil {
		return report(stderr, p.Name, err)
	}

	ctx, abort, stop := watchSignals()
	defer stop()
	app.Abort = abort
	parsed.BindTo(ctx, (*context.Context)(nil))
	err = parsed.Run(app)
	if err == nil {
		return 0
	}
	var sig signalError
	if errors.As(context.Cause(ctx), &sig) && !errors.As(err, new(usageError)) && !errors.Is(err, errCut) {
		_, _ = fmt.Fprintf(stderr, "%s: stopped by %s\n", p.Name, sig.Signal)
		return exitSignal + int(sig.Signal.(syscall.Signal))
	}
	return report(stderr, p.Name, err)
}

// report writes err as one line and returns the exit status it calls for.
func report(w io.Writer, program string, err error) int {
	_, _ = fmt.Fprintf(w, "%s: %s\n", program, message(err))
	var parse *kong.ParseError
	var usage usageError
	if errors.As(err, &parse) || errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// App is what a command runs in.
type App struct {
	globals *Globals
	partial bool

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY says that standard error is a terminal, so that progress may be drawn on it.
	TTY bool
	// Interactive says that there is also a person at standard input to ask.
	Interactive bool
	Log         *slog.Logger
	// Abort ends when a second signal has arrived: nothing is waited for any longer.
	Abort context.Context

	// Far is between this process and its store, or nil: what makes the store a far one, in an experiment.
	Far Far

	settings settings
	// cluster is the token for other servers of the cluster of the one that the user has named; nil for that one.
	cluster *string
}

// Printf writes data to standard output.
func (a *App) Printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Stdout, format, args...)
	return err
}

// Notef writes a message of one line to standard error.
func (a *App) Notef(format string, args ...any) {
	_, _ = fmt.Fprintln(a.Stderr, printable(fmt.Sprintf(format, args...)))
}

// usageError is a wrong command line that kong cannot know to be wrong.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return usageError{fmt.Sprintf(format, args...)}
}

// signalError is why a command's context ended when a signal ended it.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "stopped by " + e.String() }

// watchSignals returns a context that the first SIGINT or SIGTERM ends, and
// one that the second ends. A third has its default effect. stop gives
// the signals back and waits for the goroutine that watches them.
func watchSignals() (ctx, abort context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	abort, cancelAbort := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for _, end := range []context.CancelCauseFunc{cancel, cancelAbort} {
			select {
			case s := <-signals:
				end(signalError{s})
			case <-done:
				return
			}
		}
		signal.Stop(signals)
	}()
	return ctx, abort, func() {
		signal.Stop(signals)
		close(done)
		<-watched
		cancel(nil)
		cancelAbort(nil)
	}
}

// oneLine folds a message of several lines, such as a list of faults, into one.
// It leaves out lines that only make sense below each other: those after a
// bar, which show a place that the message names as well.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "|") })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "; ")
}

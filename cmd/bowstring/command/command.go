// Package command is bowstring's command line: the server, the imports, and a client for
// each thing that the server can do. A program for experiments has other commands with
// the same flags and settings: see Program.
//
// Every command except serve, version and config calls a server by Arrow Flight. The
// server is that of --server, or one that the command starts in its own process on the
// store of --store. A command therefore does the same on both.
//
// Standard output has data only, and messages go to standard error. The exit status is:
//
//   - 0 for success,
//   - 1 for a failure,
//   - 2 for a wrong command line or configuration,
//   - 128 plus the signal's number if a signal ended the command.
//
// Begin reading at [Program.Run]. CLI lists the commands. Each command has its own
// file. client.go has the connection, settings.go the configuration file, and node.go the
// parts of a server.
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

// exitFailure, exitUsage and exitSignal are the exit statuses. Scripts rely on them.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128 // plus the number of the signal
)

// Program is a binary with this package's flags, settings and messages, and with commands
// of its own.
type Program struct {
	Name, About string
	Grammar     any      // a pointer to a struct that embeds Globals, and whose other fields are commands
	Globals     *Globals // the field of Grammar
	Partial     bool     // the configuration file may have sections of commands that this program lacks
}

// bowstring returns the product's program and its commands.
func bowstring() (Program, *CLI) {
	cli := &CLI{}
	return Program{Name: "bowstring", About: "Bowstring serves training samples as Arrow record batches over Arrow Flight.",
		Grammar: cli, Globals: &cli.Globals}, cli
}

// Main is the main function of bowstring. It runs the command of the process's arguments
// and ends the process.
func Main() {
	// The process that decodes sounds must not parse settings.
	if len(os.Args) == 2 && os.Args[1] == sndfile.Command {
		os.Exit(decodeSound())
	}
	p, _ := bowstring()
	p.Main()
}

// Main runs the command of the process's arguments and ends the process.
func (p Program) Main() { os.Exit(p.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// decodeSound is the main function of a process that a server starts to read files by a C
// library: see package sndfile. It reads no settings, and no help mentions it.
func decodeSound() int {
	if err := sndfile.Serve(os.Stdin, os.Stdout); err != nil {
		return report(os.Stderr, "bowstring", err)
	}
	return 0
}

// Run parses args, runs the command and returns the exit status. It prints each error.
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
	// A command that a signal ended returns the error of the cancelled work, which says
	// nothing. The signal is reported instead. Two kinds of errors are more informative:
	// a wrong command line, and streams that were cut off.
	var sig signalError
	if errors.As(context.Cause(ctx), &sig) && !errors.As(err, new(usageError)) && !errors.Is(err, errCut) {
		_, _ = fmt.Fprintf(stderr, "%s: stopped by %s\n", p.Name, sig.Signal)
		return exitSignal + int(sig.Signal.(syscall.Signal))
	}
	return report(stderr, p.Name, err)
}

// report prints err as one line and returns its exit status.
func report(w io.Writer, program string, err error) int {
	_, _ = fmt.Fprintf(w, "%s: %s\n", program, message(err))
	var parse *kong.ParseError
	var usage usageError
	if errors.As(err, &parse) || errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// App is the environment of a command. Run creates it, and the command's goroutine owns
// it. Tests replace its streams.
type App struct {
	// partial is Program.Partial.
	globals *Globals
	partial bool

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY reports that standard error is a terminal, so that progress can be drawn on it.
	TTY bool
	// Interactive reports that standard input is a terminal as well, so that questions
	// can be asked.
	Interactive bool
	Log         *slog.Logger
	// Abort ends with a second signal. Work that outlives the first one must end then.
	Abort context.Context

	// Far is the link between this process and its store in an experiment, and otherwise
	// nil.
	Far Far

	settings settings
	// cluster is the token for another server of the cluster of the named one. It is nil
	// for the named server itself. See at.
	cluster *string
}

// Printf writes data to standard output. Its error matters: a full disk must not look
// like a complete output.
func (a *App) Printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Stdout, format, args...)
	return err
}

// Notef writes a message of one line to standard error. Characters that could control a
// terminal are escaped, because the arguments may come from a server.
func (a *App) Notef(format string, args ...any) {
	_, _ = fmt.Fprintln(a.Stderr, printable(fmt.Sprintf(format, args...)))
}

// usageError is a wrong command line that kong cannot detect. Its exit status is 2.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

// usagef returns a usageError.
func usagef(format string, args ...any) error {
	return usageError{fmt.Sprintf(format, args...)}
}

// signalError is the cause of a command's context that a signal ended.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "stopped by " + e.String() }

// watchSignals returns a context that the first SIGINT or SIGTERM ends, and a context
// that the second one ends. A third signal has its default effect, and ends a process
// that hangs. stop restores the default effect and waits for the goroutine.
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

// oneLine joins the lines of a message, such as a list of faults, by semicolons. It drops
// lines that begin with a bar: they point at a place by their position below another
// line, and the message names the place as well.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "|") })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "; ")
}

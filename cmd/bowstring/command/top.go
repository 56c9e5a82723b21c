package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"bowstring/cmd/bowstring/watch"
	"bowstring/flight"
)

// TopCmd is bowstring top.
type TopCmd struct {
	Interval time.Duration `default:"2s" placeholder:"DURATION" help:"Time between two looks (default: ${default})."`
	Once     bool          `help:"Look once, over one interval, and end."`
	JSON     bool          `name:"json" help:"Print one JSON object a line, for each observation."`
}

// Help is shown below the summary.
func (*TopCmd) Help() string {
	return `Without --server, top looks at the server that bowstring.open has started on this machine. If there are several, it prints their addresses.`
}

// Validate is called by kong.
func (c *TopCmd) Validate() error {
	if c.Interval < 100*time.Millisecond {
		return fmt.Errorf("--interval: got %s, want 100ms or more", c.Interval)
	}
	return nil
}

// Run prints the difference of two observations after each interval until it is stopped.
// It computes rates by package watch, as the console does.
func (c *TopCmd) Run(ctx context.Context, app *App) error {
	if app.globals.Server == "" {
		if app.settings.origin("store").level != fromDefault {
			return usagef("top looks at a running server, not at a store: name it by --server")
		}
		own, err := openedServer(ctx)
		if err != nil {
			return err
		}
		app.globals.Server = own
	}
	return app.with(ctx, false, func(client *client) error {
		// An observation is the server's counters. top keeps two of them, and the server
		// nothing.
		observe := func() (*watch.Observation, error) {
			st, err := actOne[flight.Stats](ctx, client, "stats", struct{}{})
			return &watch.Observation{At: time.Now(), Stats: st}, err
		}
		// The first observation has no rate yet: it is the base of the first view.
		before, err := observe()
		for err == nil && sleep(ctx, c.Interval) {
			var after *watch.Observation
			if after, err = observe(); err != nil {
				break
			}
			v := watch.Between(client.target, before, after)
			if err = c.show(app, v); err != nil || c.Once {
				break
			}
			before = after
		}
		// With --once, an interrupt is an error: there is no output.
		if ctx.Err() != nil && !c.Once {
			return nil // Ctrl-C is the usual end
		}
		return err
	})
}

// show prints a view. On a terminal it replaces the view before.
func (c *TopCmd) show(app *App, v *watch.View) error {
	if c.JSON {
		// One object on each line can be read while top runs.
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = app.Stdout.Write(append(printableJSON(line), '\n'))
		return err
	}
	var text bytes.Buffer
	if err := printView(v, &text); err != nil {
		return err
	}
	// A pipe gets each view after the other, without control sequences.
	if f, ok := app.Stdout.(*os.File); ok && !c.Once && term.IsTerminal(int(f.Fd())) {
		// The size is read each time, because users resize terminals.
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil {
			width, height = 80, 24
		}
		return app.Printf("%s", screen(text.String(), width, height))
	}
	return app.Printf("%s", text.String())
}

// screen returns the control sequences that draw text over the screen, as much of it as
// fits. They move to the top, erase the end of each line after it is written, and then
// erase all below. Clearing the whole screen first would flicker.
func screen(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var b strings.Builder
	// The cursor goes to the top left.
	b.WriteString("\x1b[H")
	// A line that is too long is cut, because the terminal would wrap it and scroll.
	for i, line := range lines[:min(len(lines), max(height-1, 1))] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\r\n\x1b[J")
	return b.String()
}

// maxTopStreams is the number of streams that are shown to people, the busiest. --json
// has all.
const maxTopStreams = 40

// printView prints a view: the totals, the jobs, and the busiest streams.
func printView(v *watch.View, w io.Writer) error {
	state := ""
	if v.Draining {
		state = ", draining"
	}
	// The head has the totals of the server, in four lines.
	spill := "no spill"
	if v.SpillBudget > 0 {
		spill = fmt.Sprintf("spill %s of %s, %s of bytes from it", humanize.IBytes(uint64(v.SpillHeld)),
			humanize.IBytes(uint64(v.SpillBudget)), percent(v.SpillShare))
	}
	_, err := fmt.Fprintf(w, "%s%s  %s\n%s/s  %s rows/s  %d streams\nstore %s/s, p99 %s, %d reads in flight, %d "+
		"failed, %d lost\n%s\nwindows %s of %s\n\n",
		printable(v.Server), state, v.At.Local().Format(time.TimeOnly),
		humanize.IBytes(uint64(v.BytesPerSec)), humanize.Comma(int64(v.RowsPerSec)), len(v.Streams),
		humanize.IBytes(uint64(v.StoreBytesPerS)), (time.Duration(v.StoreP99) * time.Microsecond).String(),
		v.ReadsInFlight, v.FailedReads, v.Lost,
		spill, humanize.IBytes(uint64(v.WindowUsed)), humanize.IBytes(uint64(v.WindowLimit)))
	if err != nil {
		return err
	}
	// Jobs first, because a user looks for a job and not for its streams.
	jobs := tableOf("JOB", "DATASET", ">STREAMS", ">EPOCH", ">DONE", ">LEFT", ">SPILL")
	for _, j := range v.Jobs {
		// The time is unknown until a job has made progress.
		left := "-"
		if j.LeftSecs != nil {
			left = time.Duration(*j.LeftSecs * float64(time.Second)).Round(time.Second).String()
		}
		jobs.add(abridged(j.Job), j.Dataset, humanize.Comma(int64(j.Streams)), fmt.Sprint(j.Epoch),
			percent(&j.Progress), left, percent(j.SpillShare))
	}
	if err := jobs.print(w); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	streams := tableOf(">ID", "KIND", "DATASET", "TENANT", ">BYTES/S", ">ROWS/S", ">STORE", ">SPILL", ">ENCODE", ">OPERATORS",
		">CONSUMER", "LIMIT")
	for _, s := range v.Streams[:min(len(v.Streams), maxTopStreams)] {
		streams.add(fmt.Sprint(s.ID), s.Kind, s.Dataset, s.Tenant, humanize.IBytes(uint64(s.BytesPerSec)),
			humanize.Comma(int64(s.RowsPerSec)),
			percent(&s.Store), percent(&s.Spill), percent(&s.Encode), percent(&s.Operators), percent(&s.Consumer), s.Limit)
	}
	if err := streams.print(w); err != nil {
		return err
	}
	// The number of the hidden streams is shown, so that a user knows of them.
	if n := len(v.Streams) - maxTopStreams; n > 0 {
		_, err = fmt.Fprintf(w, "and %d more\n", n)
	}
	return err
}

// abridged returns the first 12 characters of an id, enough to distinguish jobs.
func abridged(id string) string {
	return id[:min(len(id), 12)]
}

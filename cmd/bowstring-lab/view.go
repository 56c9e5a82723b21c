package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"bowstring/cmd/bowstring/command"
)

// lines prints a measurement as JSON lines, for a pipe or a file.
type lines struct{ app *command.App }

func (lines) interval() time.Duration { return reportInterval }

// report ignores an error of the output. finish writes to the same output and returns the
// error.
func (l lines) report(s sample) { _ = json.NewEncoder(l.app.Stdout).Encode(s) }

// finish prints the summary as the last line.
func (l lines) finish(s summary) error { return json.NewEncoder(l.app.Stdout).Encode(s) }

// view draws a measurement on the terminal: a bar with the rate and viewRows lines below
// it. It draws on the standard error, so that the summary alone goes to the standard
// output.
type view struct {
	app *command.App
	bar *progressbar.ProgressBar
}

// viewRows is the number of lines below the bar. It must be the length of sample.view:
// the library keeps the last lines only, and clears that many.
const viewRows = 4

// newView returns a view of a measurement of that many rows.
func newView(app *command.App, rows int64) *view {
	return &view{app, progressbar.NewOptions64(rows,
		progressbar.OptionSetWriter(app.Stderr),
		progressbar.OptionSetItsString("rows"),
		progressbar.OptionShowCount(),
		progressbar.OptionSetMaxDetailRow(viewRows),
	)}
}

func (*view) interval() time.Duration { return drawInterval }

// report draws a sample. The width is read at each sample, because users resize
// terminals. An output that is no terminal has 80 columns.
func (v *view) report(s sample) {
	v.bar.Describe(fmt.Sprintf("%.1f MB/s", s.MBPerSecond))
	_ = v.bar.Set64(s.Rows)
	width := 80
	if f, ok := v.app.Stderr.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			width = w
		}
	}
	for _, line := range s.view() {
		if len(line) >= width { // all characters are ASCII
			// A line that wraps would take two rows, and the library would clear one row
			// too few.
			line = line[:max(width-1, 0)]
		}
		_ = v.bar.AddDetail(line)
	}
}

// view returns what a terminal shows besides the rate, in viewRows lines.
func (s sample) view() []string {
	e := &s.stats.Engine
	milliseconds := func(us int64) string { return fmt.Sprintf("%.1f", float64(us)/1000) }
	percent := func(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }
	return []string{
		fmt.Sprintf("batch %d (epoch %d, step %d), %s rows/s", s.Batch, s.Epoch, s.Step,
			humanize.Comma(int64(s.RowsPerSec))),
		fmt.Sprintf("waiting for: store %s, spill %s, window %s, encode %s, consumer %s",
			percent(s.Wait.Store), percent(s.Wait.Spill), percent(s.Wait.Window), percent(s.Wait.Encode),
			percent(s.Wait.Consumer)),
		fmt.Sprintf("reads: %d in flight, %s of %s; p50 %s, p95 %s, p99 %s ms", e.ReadsInFlight,
			humanize.IBytes(uint64(e.BytesInFlight)), humanize.IBytes(uint64(e.InFlightLimit)),
			milliseconds(e.Latency.P50), milliseconds(e.Latency.P95), milliseconds(e.Latency.P99)),
		fmt.Sprintf("retries %d, hedges %d (won %d), shared %d; window %s of %s", s.Retries, s.Hedges, s.HedgesWon,
			s.SharedReads,
			humanize.IBytes(uint64(s.WindowUsed)), humanize.IBytes(uint64(s.WindowLimit))),
	}
}

// finish replaces the drawing by the summary.
func (v *view) finish(s summary) error {
	_ = v.bar.Exit()
	_, _ = fmt.Fprint(v.app.Stderr, "\r\x1b[J") // clears the bar and the lines below it
	return v.app.Printf("%s", s.text())
}

// text returns the summary for people. "exactly once" is absent if the stream had no
// position column, because the meter then knows no rows.
func (s summary) text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("rate", "%.1f MB/s, %s rows/s", s.MBPerSecond, humanize.Comma(int64(s.RowsPerSec)))
	if s.SteadyMB != nil {
		line("steady", "%.1f MB/s after the first %s", *s.SteadyMB, warmUp)
	}
	line("read", "%s in %s batches, %s in %.2f s", humanize.Comma(s.Rows)+" rows", humanize.Comma(s.Batches),
		humanize.Bytes(uint64(s.Bytes)), s.Seconds)
	line("epochs", "%s", strings.Trim(fmt.Sprint(s.EpochRows), "[]"))
	line("first batch", "%.3f s", s.FirstBatch)
	line("waiting for", "store %.0f%%, spill %.0f%%, window %.0f%%, encode %.0f%%, consumer %.0f%%",
		100*s.WaitShares.Store, 100*s.WaitShares.Spill, 100*s.WaitShares.Window, 100*s.WaitShares.Encode,
		100*s.WaitShares.Consumer)
	line("consumers", "waited %.2f s for batches", s.Waited)
	line("reads", "%d retries, %d hedges (%d won), %d shared, %d failed", s.Retries, s.Hedges, s.HedgesWon,
		s.SharedReads, s.FailedReads)
	switch {
	case s.Once == nil:
	case *s.Once && s.Complete:
		line("exactly once", "yes")
	case *s.Once:
		line("exactly once", "no row came twice; stopped before the end")
	default:
		line("exactly once", "NO: %d came twice, %d are missing", s.Duplicates, s.Missing)
	}
	return b.String()
}

// round rounds x to the given number of parts of a unit. JSON with more digits than a
// measurement has would suggest a precision that does not exist.
func round(x, parts float64) float64 { return math.Round(x*parts) / parts }

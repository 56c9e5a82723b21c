package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/renameio/v2"

	"bowstring/cmd/bowstring/command"
	"bowstring/fetch/object"
	"bowstring/internal/simulate"
)

// simulateCmd is bowstring-lab simulate.
type simulateCmd struct {
	File   string `arg:"" type:"existingfile" help:"What there is, and what happens, in JSON or YAML (docs/simulate.md)."`
	Rates  string `type:"existingfile" placeholder:"FILE" help:"What a server was measured to do, in JSON or YAML: the defaults of FILE's store, spill, node and network."`
	Prices string `type:"existingfile" placeholder:"FILE" help:"Prices of requests to the bucket, as of serve --prices. Default: list prices."`
	Plot   string `type:"path" placeholder:"FILE" help:"Draw samples and bytes a second over time, as SVG."`
	JSON   bool   `name:"json" help:"Print a JSON object."`
}

// Run simulates the file and prints the report. All inputs are read and checked before
// the simulation begins, because it can run for minutes. An error in the file or in the
// rates is returned with the name of the file.
func (c *simulateCmd) Run(app *command.App) error {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return err
	}
	var rates []byte
	if c.Rates != "" {
		if rates, err = os.ReadFile(c.Rates); err != nil {
			return err
		}
	}
	opts := simulate.Options{}
	if c.Prices != "" {
		if opts.Prices, err = object.ReadPrices(c.Prices); err != nil {
			return err
		}
	}
	f, err := simulate.Parse(text, rates)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	began := time.Now()
	r, err := simulate.Run(f, opts)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	app.Notef("simulated %s of %s in %s", plainDuration(r.Seconds), c.File,
		time.Since(began).Round(10*time.Millisecond))
	if c.Plot != "" {
		drawing, err := r.Plot()
		if err != nil {
			return fmt.Errorf("draw %s: %w", c.Plot, err)
		}
		// A reader of the plot never sees half of it.
		if err := renameio.WriteFile(c.Plot, drawing, 0o644); err != nil {
			return err
		}
	}
	if c.JSON {
		return json.NewEncoder(app.Stdout).Encode(r)
	}
	return c.print(app, r)
}

// plainDuration formats seconds of virtual time. It rounds to milliseconds: the model is
// not finer than that.
func plainDuration(s float64) string {
	return time.Duration(s * 1e9).Round(time.Millisecond).String()
}

// print prints three tables: the epochs, where their time went, and the requests to the
// bucket. The last one is omitted if there were no requests. All tables are filled in one
// pass and then flushed in order, because a table is complete only after its last row.
func (c *simulateCmd) print(app *command.App, r *simulate.Report) error {
	number := func(v float64) string { return humanize.CommafWithDigits(v, 0) }
	size := func(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }
	// HITS is the share of samples without a read of the store, and ZONES is part of
	// PEERS.
	epochs := newTable(app.Stdout)
	epochs.row("JOB", "EPOCH", "SECONDS", "FIRST STEP", "SAMPLES/S", "HITS", "STORE", "PEERS", "ZONES")
	bucket := newTable(app.Stdout)
	bucket.row("JOB", "EPOCH", "REQUESTS", "REFUSED", "DERIVED", "BYTES", "HELD", "FOR REQUESTS", "FOR BYTES")
	waits := newTable(app.Stdout)
	waits.row("JOB", "EPOCH", "STORE", "SPILL", "PEER", "ENCODE", "CONSUMER", "DATA", "COMPUTE", "RANKS")
	for _, j := range r.Jobs {
		for _, e := range j.Epochs {
			name, epoch := j.Name, strconv.FormatInt(e.Epoch, 10)
			epochs.row(name, epoch, fmt.Sprintf("%.3f", e.Seconds), fmt.Sprintf("%.3f", e.FirstS),
				number(e.SamplesPerS), fmt.Sprintf("%.1f %%", 100*e.HitRate),
				size(e.Traffic.StoreBytes+e.Traffic.ManifestBytes+e.Traffic.RequestBytes), size(e.Traffic.PeerBytes),
				size(e.Traffic.ZoneBytes))
			bucket.row(name, epoch, number(float64(e.Traffic.Requests)), number(float64(e.Traffic.Refused)),
				number(e.Derived), size(e.Traffic.RequestBytes), fmt.Sprintf("%.1f %%", 100*e.Held),
				"$"+e.Cost.Requests.String(), "$"+e.Cost.Transfer.String())
			row := []string{name, epoch}
			for _, s := range []float64{e.Waits.Store, e.Waits.Spill, e.Waits.Peer, e.Waits.Encode, e.Waits.Consumer,
				e.Waits.Data, e.Waits.Compute, e.Waits.Ranks} {
				row = append(row, fmt.Sprintf("%.3f", s))
			}
			waits.row(row...)
		}
	}
	if err := epochs.Flush(); err != nil {
		return err
	}
	if err := app.Printf("\nSeconds of a rank, on average; DATA, COMPUTE and RANKS are the trainer's, the others the " +
		"server's:\n"); err != nil {
		return err
	}
	if err := waits.Flush(); err != nil {
		return err
	}
	if r.Traffic.Requests > 0 {
		if err := app.Printf("\nThe bucket, while the epoch ran:\n"); err != nil {
			return err
		}
		if err := bucket.Flush(); err != nil {
			return err
		}
		if err := app.Printf("\nAll of it: %s requests, %s, $%s.\n", number(float64(r.Traffic.Requests)),
			size(r.Traffic.RequestBytes), r.Cost.Total); err != nil {
			return err
		}
	}
	for _, j := range r.Jobs {
		if err := app.Printf("\n%s trains for %s, %s samples a second.\n", j.Name, plainDuration(j.Seconds),
			number(j.SamplesPerS)); err != nil {
			return err
		}
	}
	for _, p := range r.Problems {
		app.Notef("%s", p)
	}
	return nil
}

// table is a table with columns aligned to the right, two spaces apart.
type table struct{ *tabwriter.Writer }

// newTable returns a table that writes to w when it is flushed.
func newTable(w io.Writer) table {
	return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
}

// row adds a row. Its error is ignored, because Flush returns the first error of the
// writer.
func (t table) row(cells ...string) { _, _ = fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") }

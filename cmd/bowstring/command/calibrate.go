package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch"
	"bowstring/flight"
	"bowstring/schema"
)

// CalibrateCmd is bowstring calibrate. The server measures its store and disk. This
// command measures the cost of serving and the network, which need a client.
type CalibrateCmd struct {
	Address string  `arg:"" optional:"" name:"addr" placeholder:"grpc://HOST:PORT" help:"Server to measure (default: --server)."`
	Dataset string  `placeholder:"NAME" help:"Dataset whose blobs are read (default: that with most rows)."`
	Seconds float64 `default:"5" placeholder:"N" help:"For how long the store is read, and then served from, at most each (default: ${default})."`
	Busy    bool    `help:"Measure though streams read, which have less meanwhile, and are measured too."`
	Out     string  `type:"path" placeholder:"FILE" help:"File to write the rates to, as JSON (default: they are printed)."`
	JSON    bool    `name:"json" help:"Print them as JSON also where a file is written."`
}

// Help says what is done.
func (*CalibrateCmd) Help() string {
	return `Measures what explain and simulations go by: latency, reads and bytes a second of the store, by reading some blobs of a dataset at rising concurrency until the rate grows
no more; how fast the disk of the spill is written and read, in a file without a name; the CPU time of a sample and of a gigabyte served; the network from here to the server.
It writes nothing to the store, and of the spill takes some space for a moment and keeps 32 MiB at most. It takes the right admin on all datasets, is on record in the audit log, and does not begin while streams read.
The server explains by these rates from then on, until streams show others.`
}

// Validate is called by kong.
func (c *CalibrateCmd) Validate() error {
	if !(c.Seconds >= 0.1 && c.Seconds <= 60) {
		return fmt.Errorf("--seconds: got %v, want 0.1 to 60", c.Seconds)
	}
	return nil
}

// calibrationFile is the file that calibrate writes. Its first four fields are the rates,
// which bowstring-lab simulate --rates reads.
type calibrationFile struct {
	// Uncertainty is by the name of the rate. Server, Dataset and At describe the
	// measurement for later readers.
	fetch.Rates
	Uncertainty map[string]fetch.Uncertain `json:"uncertainty,omitempty"`
	Server      string                     `json:"server,omitempty"`
	Dataset     string                     `json:"dataset,omitempty"`
	At          *time.Time                 `json:"at,omitempty"`
}

// calibrated is the answer of the calibrate action.
type calibrated struct {
	// CPU is the server's CPU time since its start, in nanoseconds.
	fetch.Calibration
	Dataset string `json:"dataset"`
	CPU     int64  `json:"cpu_ns"`
}

// Run measures in three steps. The server measures its own parts. This process reads from
// the server. Then it sends all rates back, and the server explains jobs by them.
func (c *CalibrateCmd) Run(ctx context.Context, app *App) error {
	if c.Address != "" {
		if _, _, err := serverAddr(c.Address); err != nil {
			return usagef("calibrate: %v", err)
		}
		// An address as an argument takes the place of --server.
		app.globals.Server, app.globals.Store = c.Address, ""
	}
	if app.globals.Server == "" {
		return usagef("calibrate measures a running server: name it, or set --server")
	}
	// Step 1: the server measures its store, its disk and its CPU.
	return app.with(ctx, false, func(client *client) error {
		found, err := actOne[calibrated](ctx, client, "calibrate",
			map[string]any{"dataset": c.Dataset, "seconds": c.Seconds, "busy": c.Busy})
		if err != nil {
			return err
		}
		if found.Uncertainty == nil {
			found.Uncertainty = map[string]fetch.Uncertain{}
		}
		// Each of the two measurements gets half of the time.
		m := &serving{client: client, found: &found, each: time.Duration(c.Seconds * float64(time.Second) / 2)}
		if err := m.measure(ctx); err != nil {
			return err
		}
		// The server explains jobs by the rates of this call, which has both parts.
		if _, err := actOne[calibrated](ctx, client, "calibrate", map[string]any{"rates": found.Rates}); err != nil {
			return err
		}
		now := time.Now().UTC().Truncate(time.Second)
		file := calibrationFile{Rates: found.Rates, Uncertainty: found.Uncertainty, Server: client.target,
			Dataset: found.Dataset, At: &now}
		return c.say(app, &file)
	})
}

// say writes the rates to the file and prints them.
func (c *CalibrateCmd) say(app *App, file *calibrationFile) error {
	var text bytes.Buffer
	if err := printJSON(&text, file); err != nil {
		return err
	}
	if c.Out != "" {
		if err := writeFile(c.Out, text.String()); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	if c.JSON {
		_, err := app.Stdout.Write(text.Bytes())
		return err
	}
	// SPREAD is the relative uncertainty of a rate, and SAMPLES the number of
	// measurements.
	t := tableOf("RATE", ">VALUE", ">SPREAD", ">SAMPLES", "")
	for _, r := range file.Named() {
		u := file.Uncertainty[r.Name]
		value, spread, samples, about := "-", "", "", u.Why
		if r.Value > 0 {
			value, spread, samples = count(r.Value), fmt.Sprintf("%.0f %%", 100*u.Spread), count(float64(u.Samples))
		}
		if u.AtLeast {
			value = ">= " + value
		}
		t.add(r.Name, value, spread, samples, about)
	}
	if err := t.print(app.Stdout); err != nil {
		return err
	}
	if c.Out != "" {
		app.Notef("written to %s", c.Out)
	}
	return nil
}

// serving measures the cost of serving from the client's side. found is filled in place.
type serving struct {
	client *client
	found  *calibrated
	each   time.Duration // the most that one measurement takes
}

// servedPart is the result of one measurement. cpu is the server's CPU time, and includes
// that of other streams.
type servedPart struct {
	cpu, wall   time.Duration
	rows, bytes float64
	waited      float64 // share of the streams' time spent in store, spill and other nodes
}

// calls is how many small calls the latency is the least of, streams how many are read at once.
const calibrateCalls, calibrateStreams = 8, 2

// measure measures the network's latency, and then serves each set of positions that the
// server chose: samples of one or two different sizes.
func (m *serving) measure(ctx context.Context) error {
	rtt := time.Duration(math.MaxInt64)
	for range calibrateCalls {
		start := time.Now()
		if _, err := m.cpu(ctx); err != nil {
			return err
		}
		rtt = min(rtt, time.Since(start))
	}
	m.found.Network.LatencyMS = float64(rtt) / float64(time.Millisecond)
	m.found.Uncertainty["network.latency_ms"] = fetch.Uncertain{Samples: calibrateCalls, Why: "of a call, from here"}
	// The server chose the dataset, if none was named.
	ref := splitRef{}
	if err := ref.UnmarshalText([]byte(m.found.Dataset)); err != nil {
		return err
	}
	d, err := describe(ctx, m.client, ref.datasetRef)
	if err != nil {
		return err
	}
	// One blob column is enough: the cost is per sample and per byte.
	blob := ""
	for _, col := range d.Columns {
		if col.Kind == "blob" && blob == "" {
			blob = col.Name
		}
	}
	var parts []servedPart
	for _, rows := range m.found.Positions {
		p, err := m.serve(ctx, schema.Request{Dataset: ref.Name, Snapshot: ref.Snapshot, Columns: []string{blob},
			Batch: 64}, rows)
		if err != nil {
			return err
		}
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		return fmt.Errorf("%s: %s has no rows to measure with", m.client.target, m.found.Dataset)
	}
	m.conclude(parts)
	return nil
}

// usualPerGB is the CPU seconds that a gigabyte takes besides the cost of its samples. It
// is assumed if only one size of samples was measured.
const usualPerGB = 0.2

// conclude computes the CPU time of a sample and of a gigabyte. Two sizes give two
// equations for the two unknowns. Noise can make the cost of a sample negative. In that
// case the bytes get all of the cost.
func (m *serving) conclude(parts []servedPart) {
	n := &m.found.Node
	var rows int64
	for _, p := range parts {
		rows += int64(p.rows)
	}
	// The larger samples come last, by the server's order.
	u := fetch.Uncertain{Samples: rows}
	large := parts[len(parts)-1]
	cost := func(p servedPart) (perRow, size float64) {
		return p.cpu.Seconds() / max(p.rows, 1), p.bytes / max(p.rows, 1)
	}
	c, s := cost(large)
	n.SecondsPerGB = usualPerGB
	if len(parts) == 2 {
		c0, s0 := cost(parts[0])
		n.SecondsPerGB = max(0, (c-c0)/max(s-s0, 1)*1e9)
	} else {
		u.Why = "all samples are of about one size: what a gigabyte takes is assumed"
	}
	n.MicrosPerSample = 1e6 * (c - n.SecondsPerGB*1e-9*s)
	if n.MicrosPerSample < 0 {
		n.MicrosPerSample, n.SecondsPerGB = 0, c/max(s, 1)*1e9
	}
	m.found.Uncertainty["node.us_per_sample"], m.found.Uncertainty["node.s_per_gb"] = u, u
	m.found.Uncertainty["node.cores"] = fetch.Uncertain{Why: "as many as the server may use; take off what others " +
		"use on its machine"}
	// If streams waited for the store, their rate says nothing about the network.
	// Otherwise it is a lower bound for the network.
	if large.waited < 0.2 {
		m.found.Network.BytesPerSec = large.bytes / large.wall.Seconds()
		m.found.Uncertainty["network.bytes_per_s"] = fetch.Uncertain{Samples: int64(large.rows), AtLeast: true,
			Why: "as streams to here were served"}
	} else {
		m.found.Uncertainty["network.bytes_per_s"] = fetch.Uncertain{Why: "not seen: the streams waited for the store"}
	}
}

// cpu returns the CPU time that the server has used since it started.
func (m *serving) cpu(ctx context.Context) (time.Duration, error) {
	now, err := actOne[calibrated](ctx, m.client, "calibrate", map[string]any{"probe": false})
	return time.Duration(now.CPU), err
}

// serve reads some rows over several connections again and again, for at most m.each.
// Each pass is a job of its own that reads to its end. The server then prefetches nothing
// for a next epoch, which would use CPU time too.
func (m *serving) serve(ctx context.Context, r schema.Request, positions []int64) (p servedPart, err error) {
	// The server's counters before and after give the share of time that streams waited
	// for data.
	before, err := actOne[flight.Stats](ctx, m.client, "stats", struct{}{})
	if err != nil {
		return p, err
	}
	cpu, err := m.cpu(ctx)
	if err != nil {
		return p, err
	}
	start := time.Now()
	streams, reading := errgroup.WithContext(ctx)
	rows, size := make([]int64, calibrateStreams), make([]int64, calibrateStreams)
	// The positions are divided among the streams, so that no stream finds another's
	// blobs.
	for i := range calibrateStreams {
		own := r
		// A selection of positions must be in ascending order.
		own.Selection = &schema.SelectionRef{}
		for k := i; k < len(positions); k += calibrateStreams {
			own.Selection.Positions = append(own.Selection.Positions, positions[k])
		}
		if len(own.Selection.Positions) == 0 {
			continue
		}
		slices.Sort(own.Selection.Positions)
		streams.Go(func() (err error) {
			rows[i], size[i], err = m.drain(reading, schema.Ticket{Request: own}, start.Add(m.each))
			return err
		})
	}
	if err := streams.Wait(); err != nil {
		return p, err
	}
	p.wall = time.Since(start)
	after, err := m.cpu(ctx)
	if err != nil {
		return p, err
	}
	p.cpu = after - cpu
	for i := range rows {
		p.rows += float64(rows[i])
		p.bytes += float64(size[i])
	}
	now, err := actOne[flight.Stats](ctx, m.client, "stats", struct{}{})
	waited := func(s *flight.Stats) int64 { w := s.Server.Wait; return w.Store + w.Spill + w.Peer }
	p.waited = float64(waited(&now)-waited(&before)) / float64(calibrateStreams*p.wall)
	return p, err
}

// drain reads a ticket again and again until a time, and at least once. It decodes only
// the number of rows. This process may run on the server's machine and would otherwise
// take CPU time from it.
func (m *serving) drain(ctx context.Context, t schema.Ticket, until time.Time) (rows, size int64, err error) {
	conn, err := m.client.dial()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for again := true; again; again = time.Now().Before(until) {
		// Each pass is a call of its own. The connection stays.
		stream, err := conn.DoGet(ctx, &arrowflight.Ticket{Ticket: t.Marshal()})
		if err != nil {
			return rows, size, err
		}
		for {
			data, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return rows, size, err
			}
			var about struct {
				Rows int64 `json:"rows"`
			}
			if len(data.GetAppMetadata()) > 0 {
				if err := json.Unmarshal(data.GetAppMetadata(), &about); err != nil {
					return rows, size, err
				}
			}
			rows += about.Rows
			size += int64(len(data.GetDataBody()))
		}
	}
	return rows, size, nil
}

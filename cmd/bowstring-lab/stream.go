package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"bowstring/cmd/bowstring/command"
	"bowstring/schema"
)

// streamCmd is bowstring-lab stream.
type streamCmd struct {
	Dataset command.DatasetRef `arg:"" name:"dataset[@n]" help:"Dataset; the newest snapshot, or number or tag N."`
	Split   string             `placeholder:"NAME" help:"Only this split."`
	Columns []string           `placeholder:"NAME" help:"Columns (default: all that are stored). With position, it is checked that each row comes once an epoch."`
	Where   string             `placeholder:"EXPR" help:"Only rows for which this expression over metadata columns holds, such as 'width > 500'."`
	Batch   int64              `placeholder:"N" help:"Rows of a batch (default: the server's)."`
	Shuffle *uint64            `placeholder:"SEED" help:"Read shuffled epochs of this seed (default: in order of position)."`
	Epochs  int64              `default:"1" placeholder:"N" help:"Epochs, one after another in the same stream (default: ${default})."`
	Order   string             `placeholder:"ORDER" help:"How strictly the order is kept: strict, window, window:K or free (default: strict)."`
	Streams int                `default:"1" placeholder:"N" help:"Streams that share each epoch, as the workers of a data loader do, each over a connection of its own (default: ${default})."`
	Compute time.Duration      `placeholder:"DURATION" help:"Time that each batch takes before the next is asked for, as a training step."`
	Seconds float64            `placeholder:"N" help:"Stop after this many seconds (default: at the end of the last epoch)."`
	JSON    bool               `name:"json" help:"Print a JSON object each second, and a summary, also on a terminal."`
	linkFlags
}

// Validate is called by kong.
func (c *streamCmd) Validate() error {
	switch {
	case c.Epochs < 1 || c.Epochs >= 1<<31:
		return fmt.Errorf("--epochs: got %d, want 1 to 2^31-1", c.Epochs)
	case c.Streams < 1 || c.Streams > 1<<16:
		return fmt.Errorf("--streams: got %d, want 1 to 65536", c.Streams)
	case c.Compute < 0:
		return fmt.Errorf("--compute: got %s, want 0 or more", c.Compute)
	case !(c.Seconds >= 0 && c.Seconds < 1e9): // so written for NaN's sake
		return fmt.Errorf("--seconds: got %v, want a number of seconds", c.Seconds)
	}
	return errors.Join(c.request().Check(), c.check())
}

func (c *streamCmd) request() schema.Request {
	r := schema.Request{
		Dataset: c.Dataset.Name, Snapshot: c.Dataset.Snapshot, Tag: c.Dataset.Tag, Split: c.Split,
		Columns: c.Columns, Where: c.Where, Batch: c.Batch, Order: c.Order,
	}
	if c.Shuffle != nil {
		r.Shuffle = &schema.Shuffle{Seed: *c.Shuffle}
	}
	return r
}

// errTimeIsUp ends a measurement that was to last so long.
var errTimeIsUp = errors.New("the time is up")

// Run measures.
func (c *streamCmd) Run(ctx context.Context, app *command.App, globals *command.Globals) error {
	return c.over(app, globals, false, func() error {
		return app.With(ctx, func(server arrowflight.Client, dial func() (arrowflight.Client, error)) error {
			return c.read(ctx, app, server, dial)
		})
	})
}

// read measures what server gives, over further connections to it.
func (c *streamCmd) read(ctx context.Context, app *command.App, server arrowflight.Client,
	dial func() (arrowflight.Client, error)) error {
	request := c.request()
	info, err := server.GetFlightInfo(ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD,
		Cmd: request.Marshal()})
	if err != nil {
		return err
	}
	if len(info.GetEndpoint()) != 1 {
		return fmt.Errorf("got %d endpoints for a request of one rank", len(info.GetEndpoint()))
	}
	ticket, err := schema.ParseTicket(info.GetEndpoint()[0].GetTicket().GetTicket())
	if err != nil {
		return err
	}
	before, err := statsOf(ctx, server)
	if err != nil {
		return err
	}
	m := newMeter(info.GetTotalRecords(), c.Epochs, before)
	show := c.reporter(app, m)
	err = c.measure(ctx, server, dial, ticket, m, show)
	cut := err
	if errors.Is(err, errTimeIsUp) {
		err = nil
	}
	// Also of a measurement that was stopped, for which ctx is over.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), statsTimeout)
	defer cancel()
	after, failed := statsOf(asking, server)
	if failed != nil {
		after = m.stats()
	}
	return errors.Join(err, show.finish(m.summary(after, cut == nil)))
}

const (
	// statsTimeout is how long a server may take to say how it is.
	statsTimeout = 5 * time.Second
	// drawInterval is how often a terminal is drawn, reportInterval how often a line is printed.
	drawInterval   = 250 * time.Millisecond
	reportInterval = time.Second
)

// measure reads all streams, and reports meanwhile.
func (c *streamCmd) measure(ctx context.Context, server arrowflight.Client, dial func() (arrowflight.Client, error),
	ticket schema.Ticket, m *meter, show reporter) error {
	if c.Seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(c.Seconds*float64(time.Second)), errTimeIsUp)
		defer cancel()
	}
	streams, reading := errgroup.WithContext(ctx)
	for i := range c.Streams {
		share := ticket
		if c.Streams > 1 {
			share.Step, share.Stride = int64(i), int64(c.Streams)
		}
		if c.Epochs > 1 {
			share.Epochs = c.Epochs
		}
		streams.Go(func() error {
			conn, err := dial()
			if err != nil {
				return err
			}
			return errors.Join(c.stream(reading, conn, share, m), conn.Close())
		})
	}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { c.watch(watching, server, m, show) })
	err := streams.Wait()
	m.end()
	stop()
	watch.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// watch reports until ctx ends.
func (c *streamCmd) watch(ctx context.Context, server arrowflight.Client, m *meter, show reporter) {
	tick := time.NewTicker(show.interval())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		asking, cancel := context.WithTimeout(ctx, statsTimeout)
		if st, err := statsOf(asking, server); err == nil {
			m.setStats(st)
		}
		cancel()
		if ctx.Err() == nil {
			show.report(m.sample())
		}
	}
}

// stream reads a ticket to its end.
func (c *streamCmd) stream(ctx context.Context, conn arrowflight.Client, ticket schema.Ticket, m *meter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.DoGet(ctx, &arrowflight.Ticket{Ticket: ticket.Marshal()})
	if err != nil {
		return err
	}
	counted := &countingStream{DataStreamReader: stream}
	reader, err := arrowflight.NewRecordReader(counted)
	if err != nil {
		return err
	}
	defer reader.Release()
	position := -1
	if at := reader.Schema().FieldIndices(schema.PositionColumn); len(at) > 0 {
		position = at[0]
	}
	for {
		asked := time.Now()
		if !reader.Next() {
			return reader.Err()
		}
		var about batchAbout
		if err := json.Unmarshal(reader.LatestAppMetadata(), &about); err != nil {
			return fmt.Errorf("app_metadata: %w", err)
		}
		rec := reader.Record()
		m.batch(about, rec.NumRows(), counted.take(), time.Since(asked))
		if position >= 0 {
			if err := m.positions(about.Epoch, rec.Column(position)); err != nil {
				return err
			}
		}
		if c.Compute > 0 {
			select {
			case <-time.After(c.Compute):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// countingStream counts the bytes of record batches' bodies.
type countingStream struct {
	arrowflight.DataStreamReader
	bytes int64
}

// Recv implements arrowflight.DataStreamReader.
func (s *countingStream) Recv() (*arrowflight.FlightData, error) {
	data, err := s.DataStreamReader.Recv()
	s.bytes += int64(len(data.GetDataBody()))
	return data, err
}

// take returns the count and begins anew.
func (s *countingStream) take() int64 {
	n := s.bytes
	s.bytes = 0
	return n
}

// batchAbout is what is used of a batch's app_metadata.
type batchAbout struct {
	Epoch  uint64            `json:"epoch"`
	Step   int64             `json:"step"`
	Wait   waits             `json:"wait"`
	Faults []json.RawMessage `json:"faults"`
}

// waits is where time went, in microseconds.
type waits struct {
	Store    int64 `json:"store"`
	Spill    int64 `json:"spill"`
	Window   int64 `json:"window"`
	Encode   int64 `json:"encode"`
	Consumer int64 `json:"consumer"`
}

func (w waits) plus(v waits, sign int64) waits {
	return waits{
		w.Store + sign*v.Store, w.Spill + sign*v.Spill, w.Window + sign*v.Window,
		w.Encode + sign*v.Encode, w.Consumer + sign*v.Consumer,
	}
}

// stats is what is used of the answer to the stats action. A server that does not give a figure means 0.
type stats struct {
	Engine struct {
		ReadsInFlight int64 `json:"reads_in_flight"`
		BytesInFlight int64 `json:"bytes_in_flight"`
		InFlightLimit int64 `json:"in_flight_limit"`
		SharedReads   int64 `json:"shared_reads"`
		Retries       int64 `json:"retries"`
		Hedges        int64 `json:"hedges"`
		HedgesWon     int64 `json:"hedges_won"`
		FailedReads   int64 `json:"failed_reads"`
		WindowUsed    int64 `json:"window_used"`
		WindowLimit   int64 `json:"window_limit"`
		Latency       struct {
			P50 int64 `json:"p50_us"`
			P95 int64 `json:"p95_us"`
			P99 int64 `json:"p99_us"`
			Max int64 `json:"max_us"`
		} `json:"latency"`
		Windows []struct {
			Used  int64 `json:"window_used"`
			Limit int64 `json:"window_limit"`
		} `json:"windows"`
	} `json:"engine"`
}

// statsOf is what a server counts.
func statsOf(ctx context.Context, server arrowflight.Client) (st stats, err error) {
	results, err := server.DoAction(ctx, &arrowflight.Action{Type: "stats"})
	if err != nil {
		return st, err
	}
	result, err := results.Recv()
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(result.GetBody(), &st); err != nil {
		return st, fmt.Errorf("the answer to stats is not what this version of bowstring-lab expects: %w", err)
	}
	_, err = results.Recv()
	if !errors.Is(err, io.EOF) {
		return st, fmt.Errorf("stats gave more than one result: %w", err)
	}
	return st, nil
}

// positionsOf are the values of a position column.
func positionsOf(column arrow.Array) ([]int64, error) {
	positions, ok := column.(*array.Int64)
	if !ok {
		return nil, fmt.Errorf("the column %s is %s, want int64", schema.PositionColumn, column.DataType())
	}
	return positions.Int64Values(), nil
}

// reporter shows a measurement.
type reporter interface {
	interval() time.Duration
	report(sample)
	finish(summary) error
}

// reporter is a view where there is somebody to see it, and JSON lines elsewhere.
func (c *streamCmd) reporter(app *command.App, m *meter) reporter {
	out, ok := app.Stdout.(*os.File)
	if c.JSON || !app.TTY || !ok || !term.IsTerminal(int(out.Fd())) {
		return lines{app}
	}
	return newView(app, m.wanted())
}

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

// Validate is called by kong, before a connection is made.
func (c *streamCmd) Validate() error {
	switch {
	case c.Epochs < 1 || c.Epochs >= 1<<31:
		return fmt.Errorf("--epochs: got %d, want 1 to 2^31-1", c.Epochs)
	case c.Streams < 1 || c.Streams > 1<<16:
		return fmt.Errorf("--streams: got %d, want 1 to 65536", c.Streams)
	case c.Compute < 0:
		return fmt.Errorf("--compute: got %s, want 0 or more", c.Compute)
	case !(c.Seconds >= 0 && c.Seconds < 1e9): // written so that NaN fails
		return fmt.Errorf("--seconds: got %v, want a number of seconds", c.Seconds)
	}
	return errors.Join(c.request().Check(), c.check())
}

// request returns the request that the flags describe. It is for one rank. --streams
// split its ticket instead.
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

// errTimeIsUp is the cause of the end of a measurement with --seconds. It is no failure
// of the command.
var errTimeIsUp = errors.New("the time is up")

// Run measures, over the link that the flags describe. With --store the server runs in
// this process, and otherwise it is the one of --server.
func (c *streamCmd) Run(ctx context.Context, app *command.App, globals *command.Globals) error {
	return c.over(app, globals, false, func() error {
		return app.With(ctx, func(server arrowflight.Client, dial func() (arrowflight.Client, error)) error {
			return c.read(ctx, app, server, dial)
		})
	})
}

// read measures a server. Each stream gets a connection of its own from dial. On one
// connection they would share the flow control of HTTP/2, which a data loader's workers
// do not. After an error it still prints the summary of what was read.
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
	// The counters before the first stream are subtracted from those at the end.
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
	// ctx may have ended, if the user or --seconds stopped the measurement. The summary
	// needs the final counters also then.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), statsTimeout)
	defer cancel()
	after, failed := statsOf(asking, server)
	if failed != nil {
		after = m.stats()
	}
	return errors.Join(err, show.finish(m.summary(after, cut == nil)))
}

const (
	// statsTimeout limits the stats action. A server that takes longer is overloaded, and
	// the measurement continues without its figures.
	statsTimeout = 5 * time.Second
	// drawInterval is the interval of drawings on a terminal. reportInterval is the
	// interval of JSON lines. People see four changes a second, and a file of lines would
	// only grow.
	drawInterval   = 250 * time.Millisecond
	reportInterval = time.Second
)

// measure reads all streams and reports meanwhile. It returns the first error of a
// stream, or the cause if ctx ended. All goroutines have ended when it returns.
func (c *streamCmd) measure(ctx context.Context, server arrowflight.Client, dial func() (arrowflight.Client, error),
	ticket schema.Ticket, m *meter, show reporter) error {
	if c.Seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(c.Seconds*float64(time.Second)), errTimeIsUp)
		defer cancel()
	}
	streams, reading := errgroup.WithContext(ctx)
	for i := range c.Streams {
		// The streams divide the steps of an epoch: stream i reads each step that is i
		// modulo their number. Together they read each row once.
		// Each stream gets its own copy of the ticket. It changes only fields that are values, so the copy is shallow.
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
	// The reports have a context of their own, because that of the group ends with the
	// first failed stream and this one has to end after the last.
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

// watch reports until ctx ends. If the server does not answer, the sample has its figures
// of the last answer.
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
		// No sample follows the end of the measurement: its rate would include the time
		// after it.
		if ctx.Err() == nil {
			show.report(m.sample())
		}
	}
}

// stream reads a ticket to its end and counts its batches in m. It returns the error of
// the stream, or the cause of ctx.
func (c *streamCmd) stream(ctx context.Context, conn arrowflight.Client, ticket schema.Ticket, m *meter) error {
	// A return before the end of the stream cancels the call. Otherwise the server would
	// keep the stream and its memory.
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
		// The waiting time is that of Next alone. It includes decoding, which takes
		// little, because Arrow's format needs no parsing.
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
			// The training step is simulated after the batch is counted. Meanwhile the
			// server and the network can fill the buffers, as during a real step.
			case <-time.After(c.Compute):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// countingStream counts the bytes of record batches' bodies. Headers and metadata are
// left out, so that the rate is that of the data. One goroutine uses it.
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

// take returns the count and resets it.
func (s *countingStream) take() int64 {
	n := s.bytes
	s.bytes = 0
	return n
}

// batchAbout is the part of a batch's app_metadata that the meter uses.
type batchAbout struct {
	Epoch  uint64            `json:"epoch"`
	Step   int64             `json:"step"`
	Wait   waits             `json:"wait"`
	Faults []json.RawMessage `json:"faults"`
}

// waits are durations by reason, in microseconds.
type waits struct {
	Store    int64 `json:"store"`
	Spill    int64 `json:"spill"`
	Window   int64 `json:"window"`
	Encode   int64 `json:"encode"`
	Consumer int64 `json:"consumer"`
}

// plus returns w + sign·v. A sign of -1 gives the difference of two sums.
func (w waits) plus(v waits, sign int64) waits {
	return waits{
		w.Store + sign*v.Store, w.Spill + sign*v.Spill, w.Window + sign*v.Window,
		w.Encode + sign*v.Encode, w.Consumer + sign*v.Consumer,
	}
}

// stats is the part of the answer to the stats action that the meter uses. It is not the
// server's own type, so that this tool can measure servers of other versions. A figure
// that the server does not report is 0.
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

// statsOf returns a server's counters. It reads up to the end of the answer, because
// otherwise the call would stay open until ctx ends.
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

// positionsOf returns the values of a position column. They are valid as long as column
// is.
func positionsOf(column arrow.Array) ([]int64, error) {
	positions, ok := column.(*array.Int64)
	if !ok {
		return nil, fmt.Errorf("the column %s is %s, want int64", schema.PositionColumn, column.DataType())
	}
	return positions.Int64Values(), nil
}

// reporter shows a measurement. report is called once in each interval, by one goroutine,
// and finish once, after the last report.
type reporter interface {
	interval() time.Duration
	report(sample)
	finish(summary) error
}

// reporter returns a view if the standard output is a terminal, and JSON lines otherwise.
func (c *streamCmd) reporter(app *command.App, m *meter) reporter {
	out, ok := app.Stdout.(*os.File)
	if c.JSON || !app.TTY || !ok || !term.IsTerminal(int(out.Fd())) {
		return lines{app}
	}
	return newView(app, m.wanted())
}

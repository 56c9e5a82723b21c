package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/flight/upload"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// exchangeHandler answers DoExchange.
type exchangeHandler struct{ *Server }

// exchangeCommand is the JSON of a DoExchange descriptor.
type exchangeCommand struct {
	Take *takeCommand `json:"take"`
}

// takeCommand says of which snapshot samples are asked for, and what of them.
type takeCommand struct {
	Dataset    string   `json:"dataset"`
	Snapshot   int64    `json:"snapshot"`
	Tag        string   `json:"tag" text:"snapshot"`
	Columns    []string `json:"columns"`
	Layout     string   `json:"layout"`
	BatchBytes int64    `json:"batch_bytes"`
	// Operators and Place are as in a request. Shuffle moves nothing here: operators draw by it.
	Operators schema.Operators `json:"operators"`
	Place     string           `json:"place"`
	Shuffle   *schema.Shuffle  `json:"shuffle"`
}

// partInfo is the JSON of an answer's app_metadata.
type partInfo struct {
	Request int64        `json:"request"` // which incoming batch it answers, from 0
	Part    int64        `json:"part"`    // of the answer, from 0
	Last    bool         `json:"last"`    // of the answer
	Row     int64        `json:"row"`     // of the incoming batch, where the part begins
	Rows    int          `json:"rows"`
	Wait    waitMetadata `json:"wait"`
}

// taken is a request of an exchange being worked on, or why there will be no
// more of them.
type taken struct {
	stream *fetch.Stream // nil if the request has no rows
	end    bool          // the client has ended its side, or err
	err    error
}

// DoExchange serves random access: each batch that comes in names samples by position or
// id, each is answered by these samples in the order asked for.
//
// A goroutine reads the requests and starts their streams, which fetch on their own; the
// handler sends what they bring, one after the other. A channel connects the two, and its
// size bounds the requests under way. A client that does not read thus holds the reader
// back, and gRPC the client.
func (s exchangeHandler) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	in := s.incoming(stream.Context(), stream)
	d, err := in.Descriptor()
	if err != nil {
		in.Close()
		return err
	}
	if err := s.moved(); err != nil {
		in.Close()
		return err
	}
	ctx, done, err := s.beginStream(stream.Context(), "DoExchange", "")
	if err != nil {
		in.Close()
		return err
	}
	defer done()
	cat := s.catalog(ctx)
	job, err := openTake(ctx, cat, d)
	if err != nil {
		in.Close()
		return err
	}
	requests := make(chan taken, s.opts.ExchangeDepth-1)
	var came atomic.Int64 // requests that have come in
	ctx, stop := context.WithCancel(ctx)
	// The reader may be blocked in Recv when the handler returns; it ends when the call
	// does. Until then the job stays open.
	s.sending.Go(func() { s.readRequests(ctx, cat, in, job, requests, &came) })
	defer func() {
		stop()
		s.sending.Go(func() {
			for t := range requests {
				t.close()
			}
			job.Close()
			in.Close()
		})
	}()
	if _, _, err := s.beginStream(ctx, "DoExchange", job.ID()); err != nil {
		return err
	}

	out := &sender{server: s.Server, ctx: ctx, stop: stop,
		wire: wire.NewSender(ctx, stream, laneOf(ctx), nil, job.Projection().Schema)}
	// Before the first request: clients wait for the schema before they ask.
	if err := out.wire.Open(); err != nil {
		return err
	}
	for request := int64(0); ; request++ {
		t, ok, err := s.next(requests, func() bool { return came.Load() == request })
		if err != nil {
			return err
		}
		if !ok {
			return context.Cause(ctx)
		}
		if t.end {
			return t.err
		}
		if err := answer(out, job, request, t); err != nil {
			return err
		}
	}
}

// next is the next request. A server that drains answers those that have come in, and ends the call when it is idle: the
// client has all that it asked for, and asks elsewhere for more.
func (s exchangeHandler) next(requests <-chan taken, idle func() bool) (t taken, ok bool, err error) {
	select {
	case t, ok = <-requests:
		return t, ok, nil
	case <-s.draining.Done():
	}
	select {
	case t, ok = <-requests:
		return t, ok, nil
	default:
	}
	if idle() {
		return taken{}, false, context.Cause(s.draining)
	}
	t, ok = <-requests
	return t, ok, nil
}

func (t taken) close() {
	if t.stream != nil {
		t.stream.Close()
	}
}

// openTake opens what the descriptor names.
func openTake(ctx context.Context, cat *catalog.Catalog, d *flight.FlightDescriptor) (*fetch.Job, error) {
	if d.GetType() != flight.DescriptorCMD {
		return nil, &schema.FieldError{Field: "descriptor.type", Got: d.GetType().String(),
			Want: `CMD with {"take": {"dataset": …}}`}
	}
	var cmd exchangeCommand
	if err := schema.DecodeJSON("request", d.GetCmd(), &cmd); err != nil {
		return nil, err
	}
	if cmd.Take == nil {
		return nil, &schema.FieldError{Field: "take", Got: "nothing", Want: "the dataset to take samples of"}
	}
	return cat.Open(ctx, schema.Request{
		Dataset: cmd.Take.Dataset, Snapshot: cmd.Take.Snapshot, Tag: cmd.Take.Tag, Columns: cmd.Take.Columns,
		Layout: schema.Layout(cmd.Take.Layout), BatchBytes: cmd.Take.BatchBytes,
		Operators: cmd.Take.Operators, Place: cmd.Take.Place, Shuffle: cmd.Take.Shuffle,
	}, policy.Read)
}

// readRequests starts a stream for each incoming batch. The last thing it sends
// on is why it ended; then it closes requests. It owns what it could not send, and counts what has come.
func (s exchangeHandler) readRequests(ctx context.Context, cat *catalog.Catalog, in *upload.Incoming, job *fetch.Job,
	requests chan<- taken, came *atomic.Int64) {
	defer close(requests)
	send := func(t taken) bool {
		select {
		case requests <- t:
			return true
		case <-ctx.Done():
			t.close()
			return false
		}
	}
	err := s.guard(ctx, "DoExchange", func() error {
		batches, err := in.Batches()
		if err != nil {
			return err
		}
		for request := 0; ; request++ {
			rec, err := batches.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("request %d: %w", request, err)
			}
			came.Add(1)
			var positions []int64
			if positions, err = in.Positions(ctx, job, rec); err != nil {
				return fmt.Errorf("request %d: %w", request, err)
			}
			var t taken
			if len(positions) > 0 {
				if t.stream, err = cat.Take(ctx, job, positions); err != nil {
					return fmt.Errorf("request %d: %w", request, err)
				}
			}
			if !send(t) {
				return context.Cause(ctx)
			}
		}
	})
	send(taken{end: true, err: err})
}

// answer sends the samples of one request.
func answer(out *sender, job *fetch.Job, request int64, t taken) error {
	defer t.close()
	if t.stream == nil {
		empty, err := job.Projection().AssembleRows(job.Manifest().Form(), nil, nil,
			make([][]schema.Blob, len(job.Projection().BlobColumns())), nil)
		if err != nil {
			return err
		}
		return out.batch(empty, partInfo{Request: request, Last: true})
	}
	part := int64(0)
	err := out.all(t.stream, func(b *fetch.Batch, wait waitMetadata) any {
		part++
		return partInfo{Request: request, Part: part - 1, Last: b.Last, Row: b.Row, Rows: b.Rows, Wait: wait}
	})
	if err != nil {
		return fmt.Errorf("request %d: %w", request, err)
	}
	return nil
}

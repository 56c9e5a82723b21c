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

// takeCommand names the snapshot and the columns of the samples.
type takeCommand struct {
	Dataset    string   `json:"dataset"`
	Snapshot   int64    `json:"snapshot"`
	Tag        string   `json:"tag" text:"snapshot"`
	Columns    []string `json:"columns"`
	Layout     string   `json:"layout"`
	BatchBytes int64    `json:"batch_bytes"`
	// Operators and Place are as in a request. Shuffle does not reorder samples here: it
	// only seeds the operators.
	Operators schema.Operators `json:"operators"`
	Place     string           `json:"place"`
	Shuffle   *schema.Shuffle  `json:"shuffle"`
}

// partInfo is the JSON of an answer's app_metadata. An answer has one part or more.
type partInfo struct {
	// These three number the answers and their parts from 0.
	Request int64        `json:"request"` // index of the incoming batch
	Part    int64        `json:"part"`    // within the answer
	Last    bool         `json:"last"`    // the answer's final part
	Row     int64        `json:"row"`     // offset of the part in the incoming batch
	Rows    int          `json:"rows"`
	Wait    waitMetadata `json:"wait"`
}

// taken is a request of an exchange, or the reason why no more requests come. Its receiver
// closes it.
type taken struct {
	stream *fetch.Stream // nil if the request has no rows
	end    bool          // the client has closed its side, or err is set
	err    error
}

// DoExchange serves random access. Each incoming batch names samples by position or id.
// Each is answered with these samples in the given order.
//
// A goroutine reads the requests and starts their streams, which fetch concurrently. The
// handler sends the results, one request after the other. A channel connects the two, and
// its size bounds the requests in progress. A client that does not read thus blocks the
// reader, and gRPC then blocks the client.
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
	var came atomic.Int64 // requests received
	ctx, stop := context.WithCancel(ctx)
	// The reader may be blocked in Recv when the handler returns. It ends when the call
	// does, so a goroutine closes the job after it.
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
	// Clients wait for the schema before they send their first request.
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

// next returns the next request. A draining server answers the requests that it has
// received and ends the call when none is left: the client then has every answer and can
// continue on another node.
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

// close cancels the request's stream, if it has one.
func (t taken) close() {
	if t.stream != nil {
		t.stream.Close()
	}
}

// openTake opens the job that the descriptor names. It fails with a schema.FieldError if
// the descriptor has no take command.
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

// readRequests starts a stream for each incoming batch. Its last value says why it ended;
// then it closes requests. It owns the values that it could not send. came counts the
// batches.
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

// answer sends the samples of one request. A request without rows gets an empty batch, so
// that each request has an answer.
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

package flight

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
	"bowstring/schema"
)

// batchMetadata is the app_metadata of every record batch of a DoGet.
type batchMetadata struct {
	Plan  string `json:"plan"`
	Epoch uint64 `json:"epoch"`
	Step  int64  `json:"step"`
	Rank  int    `json:"rank"`
	// Row is where the batch begins in the rank's share of the step, Rows its
	// length, and Last says that the share ends with it.
	Row    int64           `json:"row"`
	Rows   int             `json:"rows"`
	Last   bool            `json:"last"`
	Resume json.RawMessage `json:"resume"`
	Wait   waitMetadata    `json:"wait"`
	Faults []fetch.Fault   `json:"faults,omitempty"`
}

// waitMetadata says where a batch's time went, in microseconds.
type waitMetadata struct {
	Store  int64 `json:"store"`
	Window int64 `json:"window"`
	Encode int64 `json:"encode"`
	// Consumer is how long the batch before this one took to be taken by the
	// transport: what the network and the consumer cost.
	Consumer int64 `json:"consumer"`
}

// DoGet serves a ticket.
func (s *Server) DoGet(ticket *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	t, err := schema.ParseTicket(ticket.GetTicket())
	if err != nil {
		return err
	}
	job, err := s.engine.Open(stream.Context(), t.Request)
	if err != nil {
		return err
	}
	defer job.Close() // the stream keeps the snapshot open for itself
	ctx, end, err := s.beginStream(stream.Context(), "DoGet", job.ID())
	if err != nil {
		return err
	}
	batches, err := s.engine.Stream(ctx, job, t)
	if err != nil {
		end()
		return err
	}
	send := &sender{stream: stream, encoder: newEncoder(job.Projection().Schema)}
	var epoch uint64
	if sh := job.Request().Shuffle; sh != nil {
		epoch = sh.Epoch
	}
	return s.pump(ctx, end, func() error {
		defer batches.Close()
		return send.all(batches, func(b *fetch.Batch, wait waitMetadata) any {
			return batchMetadata{
				Plan: job.ID(), Epoch: epoch, Step: b.Step, Rank: b.Rank, Row: b.Row,
				Rows: b.Rows, Last: b.Last, Resume: b.Resume.Marshal(), Wait: wait, Faults: b.Faults,
			}
		})
	})
}

// pump runs send, which ends soon after ctx or the RPC, and calls end after
// it. pump itself returns when ctx ends though send may hang in the transport,
// at a client that does not read: grpc lets go of it as the handler returns.
func (s *Server) pump(ctx context.Context, end func(), send func() error) error {
	done := make(chan error, 1)
	s.sending.Go(func() {
		defer end()
		done <- send()
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		select {
		case err := <-done: // ended first, which is what ended ctx
			return err
		default:
			return context.Cause(ctx)
		}
	}
}

// messageStream is the sending half of a grpc stream.
type messageStream interface {
	SendMsg(any) error
}

// sender sends batches as frames, the schema first. It is used by one
// goroutine.
type sender struct {
	stream     messageStream
	encoder    *encoder
	opened     bool
	lastSend   time.Duration
	lastEncode time.Duration
}

// all sends every batch with the metadata that describe makes of it.
func (s *sender) all(batches *fetch.Stream, describe func(*fetch.Batch, waitMetadata) any) error {
	if err := s.open(); err != nil {
		return err
	}
	for {
		b, err := batches.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		wait := waitMetadata{
			Store:    b.Wait.Store.Microseconds(),
			Window:   b.Wait.Window.Microseconds(),
			Encode:   (b.Wait.Encode + s.lastEncode).Microseconds(),
			Consumer: s.lastSend.Microseconds(),
		}
		if err := s.batch(b.Batch, describe(b, wait)); err != nil {
			return err
		}
	}
}

// open sends the schema, once.
func (s *sender) open() error {
	if s.opened {
		return nil
	}
	f, err := s.encoder.schemaFrame()
	if err != nil {
		return err
	}
	s.opened = true
	return s.stream.SendMsg(f)
}

// batch sends one batch, which it takes over.
func (s *sender) batch(b *schema.Batch, metadata any) error {
	start := time.Now()
	meta, err := json.Marshal(metadata)
	if err != nil {
		b.Release()
		return err
	}
	f, err := s.encoder.batchFrame(b, meta)
	if err != nil {
		return err
	}
	encoded := time.Now()
	s.lastEncode = encoded.Sub(start)
	err = s.stream.SendMsg(f)
	f.discard()
	s.lastSend = time.Since(encoded)
	return err
}

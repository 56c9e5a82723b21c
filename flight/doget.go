package flight

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
	"bowstring/flight/rules"
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
	Store int64 `json:"store"`
	Spill int64 `json:"spill"`
	Peer  int64 `json:"peer"`
	// Operators is left out where there are none.
	Operators int64 `json:"operators,omitempty"`
	Window    int64 `json:"window"`
	Encode    int64 `json:"encode"`
	// Consumer is how long the batch before this one took to be taken by the
	// transport: what the network and the consumer cost.
	Consumer int64 `json:"consumer"`
	// Quota is how long the batch was held back as its tenant is served only so fast.
	Quota int64 `json:"quota,omitempty"`
}

// DoGet serves a ticket.
func (s *Server) DoGet(ticket *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	t, err := schema.ParseTicket(ticket.GetTicket())
	if err != nil {
		return err
	}
	job, err := s.open(stream.Context(), t.Request, rules.Read)
	if err != nil {
		return err
	}
	defer job.Close() // the stream keeps the snapshot open for itself
	if err := s.moved(); err != nil {
		return err
	}
	ctx, end, err := s.beginStream(stream.Context(), "DoGet", job.ID())
	if err != nil {
		return err
	}
	defer end()
	if onlyLooks(ctx) {
		ctx = fetch.Unrecorded(ctx)
	}
	ring, err := s.sharing(ctx)
	if err != nil {
		return err
	}
	defer ring.leave()
	// As late as sender.batch: what was checked is copied to the client next, while the processor's cache has it.
	batches, err := s.engine.Stream(fetch.CheckedLate(ctx), job, t)
	if err != nil {
		return err
	}
	defer batches.Close()
	send := &sender{server: s, ctx: ctx, stream: stream, encoder: newEncoder(job.Projection().Schema), ring: ring,
		moves: true}
	return send.all(batches, func(b *fetch.Batch, wait waitMetadata) any {
		return batchMetadata{
			Plan: job.ID(), Epoch: b.Epoch, Step: b.Step, Rank: b.Rank, Row: b.Row,
			Rows: b.Rows, Last: b.Last, Resume: b.Resume.Marshal(), Wait: wait, Faults: b.Faults,
		}
	})
}

// messageStream is the sending half of a grpc stream.
type messageStream interface {
	SendMsg(any) error
}

// sender sends batches as frames, the schema first. It is used by one
// goroutine.
type sender struct {
	server     *Server
	ctx        context.Context // the call's
	stream     messageStream
	encoder    *encoder
	ring       *shared // nil if all goes by the connection
	opened     bool
	lastSend   time.Duration
	lastEncode time.Duration
	began      bool // a batch was sent
	moves      bool // its client can go on elsewhere, from the last batch
}

// all sends every batch with the metadata that describe makes of it.
func (s *sender) all(batches *fetch.Stream, describe func(*fetch.Batch, waitMetadata) any) error {
	if err := s.open(); err != nil {
		return err
	}
	var stored int64
	defer func() { countStored(s.ctx, batches.StoreBytes()-stored) }()
	for {
		if s.moves {
			if err := s.server.moved(); err != nil {
				return err
			}
		}
		now := batches.StoreBytes()
		countStored(s.ctx, now-stored)
		stored = now
		quota, err := s.server.pace(s.ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		b, err := batches.Next()
		if err != nil {
			// What there is to wait for here are reads; a stream that was given up in
			// the meantime has no batch that tells.
			countWaits(s.ctx, fetch.Wait{Store: time.Since(start)}, 0, 0)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		wait := waitMetadata{
			Store:     b.Wait.Store.Microseconds(),
			Spill:     b.Wait.Spill.Microseconds(),
			Peer:      b.Wait.Peer.Microseconds(),
			Operators: b.Wait.Operators.Microseconds(),
			Window:    b.Wait.Window.Microseconds(),
			Encode:    (b.Wait.Encode + s.lastEncode).Microseconds(),
			Consumer:  s.lastSend.Microseconds(),
			Quota:     quota.Microseconds(),
		}
		err = s.batch(b.Batch, b.Again, describe(b, wait))
		b.Wait.Encode += s.lastEncode
		countWaits(s.ctx, b.Wait, s.lastSend, len(b.Faults))
		countProcessor(s.ctx, b.Processor)
		if err != nil {
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

// batch sends one batch, which it takes over. Blobs that were not checked yet are so now, those that go by a ring in
// their copies there; again brings what is wrong.
func (s *sender) batch(b *schema.Batch, again rereader, metadata any) error {
	start := time.Now()
	s.lastEncode, s.lastSend = 0, 0
	meta, err := json.Marshal(metadata)
	if err != nil {
		b.Release()
		return err
	}
	beside, err := s.ring.share(s.ctx, b, again)
	if err == nil {
		err = checkInPlace(s.ctx, b, beside, again)
	}
	if err == nil {
		meta, err = beside.told(meta)
	}
	if err != nil {
		beside.dropped()
		b.Release()
		return err
	}
	f, err := s.encoder.batchFrame(b, beside, meta)
	if err != nil {
		beside.dropped()
		return err
	}
	beside.sent()
	if conn := gatherOf(s.ctx); conn != nil && f.hold != nil {
		f.hold.conn = conn
		conn.expect(f)
	}
	rows, size := b.Rows, f.size()+beside.bytes()
	encoded := time.Now()
	s.lastEncode = encoded.Sub(start)
	if beside != nil {
		s.lastEncode -= beside.waited
	}
	err = s.stream.SendMsg(f)
	f.discard()
	s.lastSend = time.Since(start) - s.lastEncode
	if err == nil {
		count(s.ctx, rows, size)
		s.server.paces.Served(fetch.CallerFrom(s.ctx).Tenant, size)
		if !s.began {
			s.began = true
			observeFirst(s.ctx)
		}
	}
	return err
}

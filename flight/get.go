package flight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
	"bowstring/fetch/resolve"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/flight/wire"
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
	// Digest is of the samples of the whole share, where the request asks for it and the share ends with the batch.
	Digest string `json:"digest,omitempty"`
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

// getHandler answers DoGet.
type getHandler struct{ *Server }

// DoGet serves a ticket.
func (s getHandler) DoGet(ticket *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	t, err := schema.ParseTicket(ticket.GetTicket())
	if err != nil {
		return err
	}
	if err := s.nameNodes(stream); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(stream.Context())
	defer stop()
	ring, err := s.sideband(ctx)
	if err != nil {
		return err
	}
	defer ring.Leave()
	cat := s.catalog(ctx)
	job, batches, err := s.serveTicket(ctx, cat, t, false, cat.OpenEarly)
	if errors.Is(err, resolve.ErrSuperseded) {
		mistaken(ctx)
		job, batches, err = s.serveTicket(ctx, cat, t, false, cat.Open)
	}
	if err != nil {
		return err
	}
	defer func() {
		batches.Close()
		job.Close() // the stream keeps the snapshot open for itself
	}()
	send := &sender{server: s.Server, ctx: ctx, stop: stop, moves: true,
		wire: wire.NewSender(ctx, stream, laneOf(ctx), ring, job.Projection().Schema)}
	sources := countSources(ctx, job)
	plan := job.ID()
	describe := func(b *fetch.Batch, wait waitMetadata) any {
		sources.add(b.Positions)
		return batchMetadata{
			Plan: plan, Epoch: b.Epoch, Step: b.Step, Rank: b.Rank, Row: b.Row,
			Rows: b.Rows, Last: b.Last, Resume: b.Resume.Marshal(), Wait: wait, Faults: b.Faults,
			Digest: b.Digest,
		}
	}
	for {
		if err := send.all(batches, describe); err != nil {
			return err
		}
		t, continues := batches.Continuation()
		if !continues {
			return nil
		}
		// The weights of its run change here.
		nextJob, next, err := s.serveTicket(ctx, cat, t, true, cat.Open)
		if err != nil {
			return err
		}
		batches.Close()
		job.Close()
		job, batches = nextJob, next
	}
}

// serveTicket starts to serve a ticket: it opens a job, counts the call in as its stream unless it was, and begins
// to read. The stream is counted out with the call. resolve.ErrSuperseded says that the job was opened early, and
// is the wrong one.
func (s getHandler) serveTicket(ctx context.Context, cat *catalog.Catalog, t schema.Ticket,
	counted bool,
	open func(context.Context, schema.Request, policy.Right) (*fetch.Job, error)) (*fetch.Job, *fetch.Stream, error) {
	for {
		job, err := open(ctx, t.Request, policy.Read)
		if err != nil {
			return nil, nil, err
		}
		batches, err := s.serveJob(ctx, cat, job, t, counted)
		if err == nil {
			return job, batches, nil
		}
		job.Close()
		if !errors.Is(err, fetch.ErrSteered) { // else it was opened just before a change
			return nil, nil, err
		}
		counted = true
	}
}

func (s getHandler) serveJob(ctx context.Context, cat *catalog.Catalog, job *fetch.Job, t schema.Ticket,
	counted bool) (*fetch.Stream, error) {
	if err := s.moved(); err != nil {
		return nil, err
	}
	if !counted {
		if _, _, err := s.beginStream(ctx, "DoGet", job.ID()); err != nil {
			return nil, err
		}
	}
	batches, err := cat.Stream(ctx, job, t, fetch.Serving{
		// As late as in sender.prepare: what was checked is copied to the client next, while the processor's cache has it.
		CheckedLate: true,
		Unrecorded:  isConsole(ctx),
	})
	if err != nil {
		return nil, cmp.Or(cat.Confirm(ctx, job, t.Request), err) // or it is of the wrong snapshot
	}
	if err := cat.Confirm(ctx, job, t.Request); err != nil {
		countStored(ctx, batches.StoreBytes()) // somebody's account has to have it
		batches.Close()
		return nil, err
	}
	return batches, nil
}

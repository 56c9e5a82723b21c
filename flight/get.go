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
	// Row is the offset of the batch in the rank's share of the step, and Rows its length.
	// Last is set on the final batch of the share.
	Row    int64           `json:"row"`
	Rows   int             `json:"rows"`
	Last   bool            `json:"last"`
	Resume json.RawMessage `json:"resume"`
	Wait   waitMetadata    `json:"wait"`
	Faults []fetch.Fault   `json:"faults,omitempty"`
	// Digest covers the samples of the whole share. It is set on the last batch of the
	// share, if the request has asked for it.
	Digest string `json:"digest,omitempty"`
}

// waitMetadata says where a batch's time went, in microseconds.
type waitMetadata struct {
	Store int64 `json:"store"`
	Spill int64 `json:"spill"`
	Peer  int64 `json:"peer"`
	// Operators is omitted if the request has no operators.
	Operators int64 `json:"operators,omitempty"`
	Window    int64 `json:"window"`
	Encode    int64 `json:"encode"`
	// Consumer is the time until the transport had accepted the previous batch: the cost of
	// the network and of the consumer.
	Consumer int64 `json:"consumer"`
	// Quota is how long the server delayed the batch because of the tenant's rate limit.
	Quota int64 `json:"quota,omitempty"`
}

// getHandler answers DoGet.
type getHandler struct{ *Server }

// DoGet serves a ticket. It ends with the ticket's last batch, with the first error of a
// read, or with a movedError if the server leaves its cluster.
//
// The job is opened early, while the store confirms which snapshot is the newest. That
// saves a round trip of the store before the first batch. If the confirmation names another
// snapshot, DoGet discards the job and opens it again. No batch has been sent by then.
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
	// The closure reads the variables at the end, because a continuation replaces both.
	defer func() {
		batches.Close()
		job.Close() // the stream holds its own reference to the snapshot
	}()
	send := &sender{server: s.Server, ctx: ctx, stop: stop, moves: true,
		wire: wire.NewSender(ctx, stream, laneOf(ctx), ring, job.Projection().Schema)}
	sources := countSources(ctx, job)
	plan := job.ID()
	var tickets schema.TicketEncoder
	describe := func(b *fetch.Batch, wait waitMetadata) any {
		sources.add(b.Positions)
		return batchMetadata{
			Plan: plan, Epoch: b.Epoch, Step: b.Step, Rank: b.Rank, Row: b.Row,
			Rows: b.Rows, Last: b.Last, Resume: tickets.Marshal(b.Resume), Wait: wait, Faults: b.Faults,
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
		// The weights of the run change here. A stream has fixed weights, so the ticket
		// continues with a new job and stream. The old ones are closed only after the new
		// ones exist: the snapshot stays open in between.
		nextJob, next, err := s.serveTicket(ctx, cat, t, true, cat.Open)
		if err != nil {
			return err
		}
		batches.Close()
		job.Close()
		job, batches, tickets = nextJob, next, schema.TicketEncoder{}
	}
}

// serveTicket opens a job for a ticket and begins to read. Unless counted is set, it counts
// the call as a stream; the end of the call undoes that. It returns resolve.ErrSuperseded
// if the job was opened early with the wrong snapshot.
//
// A steering request may change the weights between open and the first read. The job is
// then opened again. The loop ends because each pass uses the newest weights.
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
		if !errors.Is(err, fetch.ErrSteered) { // otherwise the job was opened just before a change
			return nil, nil, err
		}
		counted = true
	}
}

// serveJob begins to read a job. The leave check comes before the count: a stream that must
// move elsewhere may not use a place here.
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
		// sender.take copies a batch to the client right after it is checked. A late check
		// leaves the bytes in the CPU cache for that copy.
		CheckedLate: true,
		Unrecorded:  isConsole(ctx),
	})
	if err != nil {
		return nil, cmp.Or(cat.Confirm(ctx, job, t.Request), err) // a wrong snapshot explains err
	}
	if err := cat.Confirm(ctx, job, t.Request); err != nil {
		countStored(ctx, batches.StoreBytes()) // the tenant pays for these reads, too
		batches.Close()
		return nil, err
	}
	return batches, nil
}

package prefetch

import (
	"time"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// Batch is one record batch of a stream: the whole or a part of its rank's
// share of a step. The consumer owns it and calls Release when the bytes are
// out; until then the batch counts against the stream's window, also after
// the stream was closed.
type Batch struct {
	*schema.Batch
	Rank  int
	Epoch uint64
	Step  int64
	// Row is where the batch begins in its rank's share of the step, in rows.
	// Out of order, Step and Row count what was served: rows of other steps may
	// fill the share.
	Row int64
	// Last says that the share ends with this batch.
	Last bool
	// Positions are the rows' positions in the snapshot, in the order served.
	Positions []int64
	// Resume is the ticket that goes on after this batch.
	Resume schema.Ticket
	// Faults lists the samples that could not be read, where the request's
	// on_error lets the stream go on.
	Faults []Fault
	Wait   Wait
	// Processor is the processor time that operators took since the batch before: of what was
	// made meanwhile, be it for this batch or for later ones.
	Processor time.Duration

	rows []schema.Row // where they lie in the manifest
	hold batchHold
	held [1]schema.Blob // of hold, among the batch's blobs
}

// Wait says where the time of a batch went that its consumer may have waited.
type Wait struct {
	// Store is how long the consumer's side of the stream stood still because
	// reads of this batch were not back from the store, Spill because they were
	// not back from the spill. Of several reads, the one waited for last counts.
	// Peer is the same of reads from other nodes.
	Store time.Duration
	Spill time.Duration
	Peer  time.Duration
	// Operators is how long it stood still because cells of this batch were being made, or
	// waited for their turn to be.
	Operators time.Duration
	// Window is how long reading stood still since the last batch because the
	// window was full, that is, because the consumer was slower.
	Window time.Duration
	// Encode is how long it took to put the batch together.
	Encode time.Duration
}

// Fault is a sample that could not be read, or of which nothing could be made.
type Fault struct {
	Position   int64  `json:"position"`
	ID         string `json:"id"`
	Column     string `json:"column"`
	Operator   string `json:"operator,omitempty"` // that could make nothing of it, if it was read
	Cause      string `json:"cause"`
	Substitute *int64 `json:"substitute,omitempty"` // position of the sample sent in its place, if one was
}

// batchHold is what a batch holds beside its blobs: a part of the window, and
// the snapshot.
type batchHold struct {
	stream *Stream
	memory admission.Hold
}

// Unpin implements schema.Owner.
func (h *batchHold) Unpin() {
	n := h.memory.Bytes()
	h.stream.set.transit.Add(-n)
	h.stream.tenant.transit.Add(-n)
	h.stream.free(&h.memory)
	h.stream.job.Release()
}

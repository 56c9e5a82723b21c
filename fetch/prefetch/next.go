package prefetch

import (
	"context"
	"fmt"
	"time"

	"bowstring/schema"
)

// Next returns the next batch, io.EOF after the last. The error of a stream
// that failed is returned again by every further call.
func (s *Stream) Next() (*Batch, error) {
	if !s.do((*owner).come) {
		return nil, context.Cause(s.context())
	}
	got := <-s.next
	if got.err != nil {
		return nil, got.err
	}
	return s.assemble(got.part, got.wait, got.processor)
}

// assemble puts a batch together of what was read for it.
func (s *Stream) assemble(p *part, wait Wait, processor time.Duration) (*Batch, error) {
	start := time.Now()
	var faults []Fault
	var computed []schema.Vector
	var err error
	if p.pieces != nil {
		if p.positions, err = s.positionsOf(p.pieces); err == nil {
			p.rows, err = s.job.Manifest().At(s.context(), p.positions)
		}
		wait.Store += time.Since(start)
	}
	if err == nil {
		err = schema.Guard(func() (err error) {
			if faults, err = s.mend(p); err == nil {
				computed, faults, err = s.compute(p, faults)
			}
			return err
		})
	}
	if err != nil {
		p.release()
		s.free(&p.hold)
		s.fail(err)
		return nil, err
	}
	start = time.Now()
	assembled, err := s.job.Projection().AssembleRows(s.job.Manifest().Form(), p.positions, p.rows, p.blobs, computed)
	if err != nil {
		s.free(&p.hold)
		err = fmt.Errorf("putting step %d of %s together: %w", p.walk.step, s.job.SnapshotName(), err)
		s.fail(err)
		return nil, err
	}
	// The batch points into the manifest, and fills the window, until it is
	// released like its blobs.
	s.job.Retain()
	s.set.transit.Add(p.reserved)
	s.tenant.transit.Add(p.reserved)
	wait.Encode = time.Since(start)
	s.record.Batch(lineageOf(p, faults))
	s.delivered(len(p.positions), wait)
	b := &Batch{
		Batch: assembled, Rank: s.ticket.Rank, Epoch: s.epochOf(p.walk.lap), Step: p.walk.step, Row: p.walk.row(),
		Last:      p.last,
		Positions: p.positions, Resume: p.resume, Faults: faults, Wait: wait, hold: batchHold{s, p.hold},
		Processor: processor, rows: p.rows,
	}
	b.held[0] = schema.NewBlob(nil, &b.hold)
	assembled.Blobs = append(assembled.Blobs, b.held[:])
	return b, nil
}

// Ready reports whether Next would return a whole batch at once, as far as is known without looking at other streams.
// It is false where it does not matter: of a stream without blobs, out of order, or at its end. And it is where memory
// is scarce: a batch that was taken is never given back to streams that have nothing, as what is read ahead is.
func (s *Stream) Ready() bool {
	if len(s.columns) == 0 || s.order.loose {
		return false
	}
	ready := false
	s.ask(func(s *owner) {
		if s.gone || s.slot.left() == 0 || s.context().Err() != nil {
			return
		}
		s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
		ready = s.prefix(false) && s.set.roomy(s.tenant, s.sizer.bytes)
	})
	return ready
}

// epochOf is the epoch's number, 0 where nothing is shuffled.
func (s *Stream) epochOf(lap int64) uint64 {
	if s.ticket.Shuffle == nil {
		return 0
	}
	return s.ticket.Shuffle.Epoch + uint64(lap)
}

// delivered counts a batch.
func (s *Stream) delivered(rows int, w Wait) {
	s.endFirst()
	c := &s.set.count
	c.batches.Add(1)
	c.rows.Add(int64(rows))
	c.waited.Add(int64(w.Store))
	s.told.store.Add(int64(w.Store))
	s.told.spill.Add(int64(w.Spill))
	s.told.peer.Add(int64(w.Peer))
	s.told.making.Add(int64(w.Operators))
}

// endFirst ends the span of the first batch. It may be called again.
func (s *Stream) endFirst() {
	if s.first != nil {
		s.first.End()
	}
}

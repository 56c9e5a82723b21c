package prefetch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/fetch/resolve"
	"bowstring/fetch/where"
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
	// Positions are those of the batch's samples among those of the job, in the order served: one a row, but where rows
	// are sequences.
	Positions []int64
	// Resume is the ticket that goes on after this batch.
	Resume schema.Ticket
	// Digest is of the samples of the share, where the request asks for it and the share ends with this batch; else "".
	Digest string
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
	Source     string `json:"source,omitempty"` // of a mixture, that the sample is of
	Position   int64  `json:"position"`         // in its snapshot
	ID         string `json:"id"`
	Column     string `json:"column"`
	Operator   string `json:"operator,omitempty"` // that could make nothing of it, if it was read
	Cause      string `json:"cause"`
	Substitute *int64 `json:"substitute,omitempty"` // position of the sample sent in its place, if one was
}

// PlaceFaults gives faults of a job on a mixture the names of their sources, and positions in the snapshots of those.
func PlaceFaults(j *resolve.Job, faults []Fault) []Fault {
	if j.Alone() != nil {
		return faults
	}
	for i := range faults {
		f := &faults[i]
		var source int
		source, f.Position = j.Locate(f.Position)
		f.Source = j.Source(source).Name
		if f.Substitute != nil { // of the same source
			_, at := j.Locate(*f.Substitute)
			f.Substitute = &at
		}
	}
	return faults
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

// assemble puts a batch together of what was read for it.
func (s *Stream) assemble(p *part, wait Wait, processor time.Duration) (*Batch, error) {
	start := time.Now()
	var faults []Fault
	var computed []schema.Vector
	var err error
	if p.pieces != nil {
		if p.positions, p.packing, err = s.positionsOf(p.pieces); err == nil {
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
	digest, err := s.digest(p)
	if err != nil {
		p.release()
		s.free(&p.hold)
		s.manifestLost(err)
		return nil, err
	}
	start = time.Now()
	var assembled *schema.Batch
	if p.packing != nil {
		assembled, err = s.shows.AssemblePacked(s.job.Manifest().Form(), p.positions, p.rows, p.packing, computed)
	} else {
		assembled, err = s.shows.AssembleRows(s.job.Manifest().Form(), p.positions, p.rows, p.blobs, computed)
	}
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
	faults = PlaceFaults(s.job, faults)
	s.delivered(assembled.Rows, wait)
	b := &Batch{
		Batch: assembled, Rank: s.ticket.Rank, Epoch: s.epochOf(p.walk.epochOffset), Step: p.walk.step, Row: p.walk.row(),
		Last: p.last, Digest: digest,
		Positions: p.positions, Resume: p.resume, Faults: faults, Wait: wait, hold: batchHold{s, p.hold},
		Processor: processor, rows: p.rows,
	}
	b.held[0] = schema.NewBlob(nil, &b.hold)
	assembled.Blobs = append(assembled.Blobs, b.held[:])
	return b, nil
}

// epochOf is the epoch's number, 0 where nothing is shuffled.
func (s *Stream) epochOf(offset int64) uint64 {
	if s.ticket.Shuffle == nil {
		return 0
	}
	return s.ticket.Shuffle.Epoch + uint64(offset)
}

// delivered counts a batch.
func (s *Stream) delivered(rows int, w Wait) {
	s.endFirst()
	c := &s.set.count
	c.batches.Add(1)
	c.rows.Add(int64(rows))
	c.waited.Add(int64(w.Store))
	s.published.store.Add(int64(w.Store))
	s.published.spill.Add(int64(w.Spill))
	s.published.peer.Add(int64(w.Peer))
	s.published.making.Add(int64(w.Operators))
}

// endFirst ends the span of the first batch. It may be called again.
func (s *Stream) endFirst() {
	if s.first != nil {
		s.first.End()
	}
}

const (
	// maxSubstitutes is how many samples are tried in the place of one that cannot
	// be read.
	maxSubstitutes = 16
	// maxCause bounds the bytes of what a fault says.
	maxCause = 4096
)

// mend does with a part's faults what the request's on_error says, and reports
// each. Nothing is ever exchanged silently.
func (s *Stream) mend(p *part) ([]Fault, error) { return s.mended(p, p.faults) }

// mended is mend for some of a part's faults.
func (s *Stream) mended(p *part, wrong []fault) ([]Fault, error) {
	if len(wrong) == 0 {
		return nil, nil
	}
	faults := make([]Fault, len(wrong))
	for i, f := range wrong {
		if passes(f.err) {
			return nil, s.faultError(p, f)
		}
		pos := p.positions[f.row]
		faults[i] = Fault{Position: pos, ID: s.job.ShownID(p.rows[f.row].ID()), Column: f.column, Cause: causeOf(f.err)}
		if made, ok := errors.AsType[*operators.FaultError](f.err); ok {
			faults[i].Operator = made.Operator
		}
	}
	switch s.job.Request().OnError {
	case schema.OnErrorNull:
		return faults, nil // the cell's zero Blob is a null
	case schema.OnErrorSkip:
		substitutes := map[int]int64{} // by row, as several cells of a row may have failed
		for i, f := range wrong {
			if _, ok := substitutes[f.row]; !ok {
				sub, err := s.substitute(p, f)
				if err != nil {
					return nil, err
				}
				substitutes[f.row] = sub
			}
			sub := substitutes[f.row]
			faults[i].Substitute = &sub
		}
		return faults, nil
	}
	return nil, s.faultError(p, wrong[0])
}

// compute makes the columns of a mended part that its job computes, and does with rows that cannot be told what
// on_error says: faults has those of the part before. The part has all of them then.
func (s *Stream) compute(p *part, faults []Fault) ([]schema.Vector, []Fault, error) {
	columns, wrong, err := s.job.Computed(s.context(), p.positions, p.rows)
	if err != nil || len(wrong) == 0 {
		return columns, faults, err
	}
	added := make([]fault, len(wrong))
	for i, f := range wrong {
		added[i] = fault{f.Row, f.Column, f.Err}
	}
	more, err := s.mended(p, added)
	if err != nil {
		return nil, nil, err
	}
	if s.job.Request().OnError == schema.OnErrorSkip {
		if columns, wrong, err = s.job.Computed(s.context(), p.positions, p.rows); err != nil {
			return nil, nil, err
		}
		if len(wrong) > 0 { // a substitute was made columns of before
			return nil, nil, s.faultError(p, fault{wrong[0].Row, wrong[0].Column, wrong[0].Err})
		}
	}
	p.faults = append(p.faults, added...)
	return columns, append(faults, more...), nil
}

// computable fails where a column that the job computes cannot be made for a sample.
func (s *Stream) computable(pos int64, row schema.Row) error {
	_, wrong, err := s.job.Computed(s.context(), []int64{pos}, []schema.Row{row})
	if err == nil && len(wrong) > 0 {
		err = s.sampleError(pos, row, wrong[0].Column, wrong[0].Err)
	}
	return err
}

// causeOf is an error as a fault tells it. An expression is in the request: its text is left out.
func causeOf(err error) string {
	cause := err.Error()
	if e, ok := errors.AsType[*where.Error](err); ok {
		cause = fmt.Sprintf("%s:%d:%d: %s", e.Field, e.Line, e.Column, e.Message)
	}
	if len(cause) > maxCause {
		cause = strings.ToValidUTF8(cause[:maxCause], "") + "…"
	}
	return cause
}

// faultError is the error of a fault that ends the stream.
func (s *Stream) faultError(p *part, f fault) error {
	return s.sampleError(p.positions[f.row], p.rows[f.row], f.column, f.err)
}

// manifestLost fails the stream, as it cannot know which blobs come next.
func (s *Stream) manifestLost(err error) {
	s.fail(fmt.Errorf("manifest of %s: %w", s.job.SnapshotName(), err))
}

// substitute puts another sample of the selection, of a mixture one of the same source, into a row whose own could
// not be read. Which ones are tried is a pure function of the plan's seed and
// epoch and the position that failed, so a stream served again is the same.
func (s *Stream) substitute(p *part, f fault) (int64, error) {
	failed := p.positions[f.row]
	selection, base := s.job.Alike(failed)
	n, candidate := selection.Len(), selection.At
	if s.job.Request().Sample != nil { // what the epoch does not have is no substitute
		epoch := s.job.PlanOf(p.walk.epochOffset)
		n, candidate = epoch.Rows(), epoch.Position
	}
	var seed uint64
	if sh := s.job.Request().Shuffle; sh != nil {
		seed = sh.Seed
	}
	candidates := plan.NewPerm(uint64(n), seed^uint64(failed), s.epochOf(p.walk.epochOffset))
	causes := []error{f.err}
	for i := range min(n, maxSubstitutes) {
		pos := base + candidate(int64(candidates.At(uint64(i))))
		if pos == failed {
			continue
		}
		row, at, err := s.readRow(p.walk.epochOffset, pos)
		if err != nil {
			if passes(err) || s.context().Err() != nil {
				return 0, err
			}
			causes = append(causes, err)
			continue
		}
		for c := range s.columns {
			p.blobs[c][f.row].Release()
			p.blobs[c][f.row] = row[c]
		}
		// positions may be the caller's: the row is changed in a copy.
		p.positions = append([]int64(nil), p.positions...)
		p.positions[f.row], p.rows[f.row] = pos, at
		return pos, nil
	}
	return 0, fmt.Errorf("no substitute for it could be read either: %w", s.sampleError(failed, p.rows[f.row], f.column,
		errors.Join(causes...)))
}

// readRow reads all blobs of a sample, makes of them what is wanted in the epoch of a lap, and says where its row lies.
func (s *Stream) readRow(offset, pos int64) ([]schema.Blob, schema.Row, error) {
	rows, err := s.job.Manifest().At(s.context(), []int64{pos})
	if err != nil {
		return nil, schema.Row{}, err
	}
	if err := s.computable(pos, rows[0]); err != nil {
		return nil, schema.Row{}, err
	}
	cells := make([]schema.Blob, len(s.columns))
	for c := range s.columns {
		ref, ok, err := rows[0].TryBlob(s.columns[c].ordinal)
		if err == nil && !ok {
			continue
		}
		var b schema.Blob
		if err == nil {
			b, err = s.set.opts.Reader.Get(s.context(), ref)
		}
		if err == nil && s.columns[c].made != nil {
			b, err = s.makeNow(c, offset, pos, b)
		}
		if err != nil {
			for i := range cells {
				cells[i].Release()
			}
			return nil, schema.Row{}, s.sampleError(pos, rows[0], s.columns[c].name, err)
		}
		cells[c] = b
	}
	return cells, rows[0], nil
}

// Again reads the blob of a row once more, compares it, and returns it for the caller to release: what it was handed
// out as has proved wrong, or unreadable. It is found in the tiers, so that one with a wrong copy forgets it and the
// next is asked. The error names the sample.
func (b *Batch) Again(ctx context.Context, row int, ref schema.BlobRef) (schema.Blob, error) {
	s := b.hold.stream
	pos := b.Positions[row]
	blob, err := s.set.opts.Reader.GetAt(ctx, ref, s.places.At(pos, s.payer))
	if err == nil {
		return blob, nil
	}
	if ctx.Err() != nil {
		return schema.Blob{}, context.Cause(ctx)
	}
	column := 0
	for c := range s.columns {
		if own, ok, err := b.rows[row].TryBlob(s.columns[c].ordinal); err == nil && ok && own == ref {
			column = c
		}
	}
	err = s.sampleError(pos, b.rows[row], s.columns[column].name, err)
	s.fail(err)
	return schema.Blob{}, err
}

// positionsOf finds out the positions of the samples of rows, and how these are packed. No lock is held.
func (s *Stream) positionsOf(pieces []piece) (positions []int64, packing *schema.Packing, err error) {
	for _, p := range pieces {
		if p.from.packed() {
			if packing == nil {
				packing = &schema.Packing{}
			}
			positions = p.from.pack(p.rows, positions, packing)
			continue
		}
		shared, known := p.from.shared()
		if !known {
			if shared, err = s.job.Shared(s.context(), p.from.epochOffset, p.from.step); err != nil {
				return nil, nil, err
			}
		}
		positions = append(positions, p.from.samples(shared, p.rows)...)
	}
	return positions, packing, nil
}

// pack appends what the next rows have, which are sequences, to positions and to what is known of the sequences before.
func (w *walk) pack(rows int64, positions []int64, k *schema.Packing) []int64 {
	parts, lengths := w.parts(rows), w.plan.Config().Pack.Config().Lengths
	for i := range parts {
		p := &parts[i]
		positions = append(positions, p.Position)
		k.Parts = append(k.Parts, schema.PackPart{From: int(p.From), Tokens: int(p.Length), Of: int(lengths[p.Position])})
		if i+1 == len(parts) || parts[i+1].Sequence != p.Sequence {
			k.Ends = append(k.Ends, len(k.Parts))
		}
	}
	return positions
}

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

// Batch is one record batch of a stream: its rank's share of a step, or a part of it.
// The consumer owns it, and calls Release when it has sent the bytes. Until then the
// batch counts against the stream's window, also after the stream was closed.
type Batch struct {
	*schema.Batch
	Rank  int
	Epoch uint64
	Step  int64
	// Row is the offset of the batch in its rank's share of the step, in rows. In a loose
	// order, Step and Row count served rows: rows of other steps may fill the share.
	Row int64
	// Last says that the share ends with this batch.
	Last bool
	// Positions are the job's positions of the batch's samples, in the order served: one
	// for each row, unless rows are sequences.
	Positions []int64
	// Resume is the ticket that continues after this batch.
	Resume schema.Ticket
	// Digest is the digest of the share, if the request wants it and this batch ends the
	// share; else "".
	Digest string
	// Faults lists the samples that could not be read, if the request's on_error lets the
	// stream continue.
	Faults []Fault
	Wait   Wait
	// Processor is the CPU time of operators since the previous batch, for cells of this
	// batch or of later ones.
	Processor time.Duration

	rows []schema.Row // of the manifest
	hold batchHold
	held [1]schema.Blob // among the batch's blobs, so that Release unpins hold
}

// Wait is for what the consumer waited before a batch.
type Wait struct {
	// Store is how long the consumer waited because reads of this batch had not arrived
	// from the store; Spill and Peer are the same for the spill and for other nodes. If
	// it waited for several reads, the last one counts.
	Store time.Duration
	Spill time.Duration
	Peer  time.Duration
	// Operators is how long the consumer waited for operators of cells of this batch, or
	// for their turn.
	Operators time.Duration
	// Window is how long reading was stopped since the last batch because the window was
	// full, that is, because the consumer was slower.
	Window time.Duration
	// Encode is how long it took to assemble the batch.
	Encode time.Duration
}

// Fault is a sample that could not be read, or whose operators failed.
type Fault struct {
	Source     string `json:"source,omitempty"` // the sample's source, of a mixture
	Position   int64  `json:"position"`         // in its snapshot
	ID         string `json:"id"`
	Column     string `json:"column"`
	Operator   string `json:"operator,omitempty"` // the operator that failed, if the sample was read
	Cause      string `json:"cause"`
	Substitute *int64 `json:"substitute,omitempty"` // position of the sample sent in its place, if one was
}

// PlaceFaults changes faults of a job on a mixture: they get the names of their sources,
// and positions in the sources' snapshots.
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

// batchHold is what a batch holds in addition to its blobs: a part of the window, and the
// job with its snapshot.
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

// assemble makes a batch of a part, and takes the part over. It handles faults, computes
// columns and the digest, and records the batch in the lineage. The consumer's goroutine
// calls it, so that assembly does not delay the stream's next reads. After an error it
// has released the part and failed the stream.
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
	// The batch refers to the manifest, and takes window memory, until it is released.
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

// epochOf is the number of the epoch at an offset from the ticket's; 0 without a shuffle.
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

// endFirst ends the span of the first batch. Repeated calls do nothing.
func (s *Stream) endFirst() {
	if s.first != nil {
		s.first.End()
	}
}

const (
	// maxSubstitutes is how many samples are tried as substitutes for an unreadable one.
	maxSubstitutes = 16
	// maxCause bounds the bytes of a fault's cause.
	maxCause = 4096
)

// mend handles a part's faults as the request's on_error says: it leaves nulls, reads
// substitutes, or returns an error. It returns each fault for the batch, so no sample is
// replaced silently.
func (s *Stream) mend(p *part) ([]Fault, error) { return s.mended(p, p.faults) }

// mended is mend for given faults of a part.
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

// compute computes the job's computed columns for a mended part. It handles rows whose
// values cannot be computed as on_error says, and returns their faults after the given
// ones. With on_error skip it computes the columns again after the substitutes are read.
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
		if len(wrong) > 0 { // substitute has checked that its values can be computed
			return nil, nil, s.faultError(p, fault{wrong[0].Row, wrong[0].Column, wrong[0].Err})
		}
	}
	p.faults = append(p.faults, added...)
	return columns, append(faults, more...), nil
}

// computable returns an error if a computed column has no value for a sample.
func (s *Stream) computable(pos int64, row schema.Row) error {
	_, wrong, err := s.job.Computed(s.context(), []int64{pos}, []schema.Row{row})
	if err == nil && len(wrong) > 0 {
		err = s.sampleError(pos, row, wrong[0].Column, wrong[0].Err)
	}
	return err
}

// causeOf is the text of an error in a fault. It leaves out the text of an expression,
// which is in the request.
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

// manifestLost fails the stream: without the manifest it cannot know its next blobs.
func (s *Stream) manifestLost(err error) {
	s.fail(fmt.Errorf("manifest of %s: %w", s.job.SnapshotName(), err))
}

// substitute replaces the sample of a row that could not be read by another sample of the
// selection, of a mixture by one of the same source. The candidates are a pure function
// of the plan's seed, the epoch and the failed position, so a repeated stream has the
// same substitutes. It reads in the consumer's goroutine, outside the window.
func (s *Stream) substitute(p *part, f fault) (int64, error) {
	failed := p.positions[f.row]
	selection, base := s.job.Alike(failed)
	n, candidate := selection.Len(), selection.At
	if s.job.Request().Sample != nil { // only samples of this epoch are candidates
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

// readRow reads all blobs of a sample, and runs the operators of the epoch at an offset
// on them. It returns the cells, which the caller releases, and the row of the manifest.
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

// Again reads the blob of a row again, and compares its checksum, because the delivered
// copy is wrong or unreadable. The caller releases the blob. The read asks the tiers in
// order, so a tier with a wrong copy drops it and the next tier is read. An error names
// the sample, and fails the stream.
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

// positionsOf returns the positions of the samples in the pieces, and how the rows are
// packed. It may wait for the owners of the rows.
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

// pack appends the samples of the next rows, which are sequences, to positions and to k.
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

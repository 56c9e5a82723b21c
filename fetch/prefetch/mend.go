package prefetch

import (
	"errors"
	"fmt"
	"strings"

	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/fetch/where"
	"bowstring/schema"
)

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

// substitute puts another sample of the selection into a row whose own could
// not be read. Which ones are tried is a pure function of the plan's seed and
// epoch and the position that failed, so a stream served again is the same.
func (s *Stream) substitute(p *part, f fault) (int64, error) {
	failed := p.positions[f.row]
	n := s.job.Selection().Len()
	var seed uint64
	if sh := s.job.Request().Shuffle; sh != nil {
		seed = sh.Seed
	}
	candidates := plan.NewPerm(uint64(n), seed^uint64(failed), s.epochOf(p.walk.lap))
	causes := []error{f.err}
	for i := range min(n, maxSubstitutes) {
		pos := s.job.Selection().At(int64(candidates.At(uint64(i))))
		if pos == failed {
			continue
		}
		row, at, err := s.readRow(p.walk.lap, pos)
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
func (s *Stream) readRow(lap, pos int64) ([]schema.Blob, schema.Row, error) {
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
			b, err = s.makeNow(c, lap, pos, b)
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

package streams

import (
	"errors"
	"fmt"

	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// maxSubstitutes is how many samples are tried in the place of one that cannot
// be read.
const maxSubstitutes = 16

// mend does with a part's faults what the request's on_error says, and reports
// each. Nothing is ever exchanged silently.
func (s *Stream) mend(p *part) ([]Fault, error) {
	if len(p.faults) == 0 {
		return nil, nil
	}
	faults := make([]Fault, len(p.faults))
	for i, f := range p.faults {
		pos := p.positions[f.row]
		faults[i] = Fault{
			Position: pos, ID: s.job.ShownID(p.rows[f.row].ID()),
			Column: s.columns[f.column].name, Cause: f.err.Error(),
		}
		if made, ok := errors.AsType[*operators.FaultError](f.err); ok {
			faults[i].Operator = made.Operator
		}
	}
	switch s.job.Request().OnError {
	case schema.OnErrorNull:
		return faults, nil // the cell's zero Blob is a null
	case schema.OnErrorSkip:
		substitutes := map[int]int64{} // by row, as several cells of a row may have failed
		for i, f := range p.faults {
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
	f := p.faults[0]
	return nil, s.sampleError(p.positions[f.row], p.rows[f.row], f.column, f.err)
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
			return nil, schema.Row{}, s.sampleError(pos, rows[0], c, err)
		}
		cells[c] = b
	}
	return cells, rows[0], nil
}

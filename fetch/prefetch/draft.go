package prefetch

import (
	"slices"

	"bowstring/fetch/read"
	"bowstring/schema"
)

const (
	// maxDrafted is how many rows are looked up in the manifest ahead of being planned,
	// draftsAtOnce how many drafts of them are begun without giving up the lock.
	maxDrafted   = 4 * runRows
	draftsAtOnce = 2
)

// draft is rows of one share that are to be planned, and are being looked up in the
// manifest. All fields are of the stream's goroutine.
type draft struct {
	from      walk // where drafting stood before it
	positions []int64
	rows      []schema.Row // where they lie, once it is ready; none of a row that was delivered before
	ready     bool
	dropped   bool // nobody waits for it
	used      int  // rows that were planned
}

// loading reports whether planning waits for rows of the manifest.
func (a *ahead) loading() bool { return len(a.drafts) > 0 && !a.drafts[0].ready }

// draft has the rows that come next looked up in the manifest. Where ranks get what their
// nodes own, it is found out first which rows these are.
func (s *owner) draft() {
	a, m := &s.ahead, s.job.Manifest()
	for range draftsAtOnce {
		if a.drafted >= maxDrafted || len(a.drafts) > 0 && m.Resident() && s.job.Layout() == nil || !a.walk.settle() {
			return
		}
		d := &draft{from: a.walk, positions: make([]int64, min(a.walk.left(), runRows))}
		var served []bool // rows that were delivered before, if there are any
		for i := range d.positions {
			if s.order.loose && a.served.has(a.dseq+int64(i)) {
				if served == nil {
					served = make([]bool, len(d.positions))
				}
				served[i] = true
			}
		}
		a.walk.at += int64(len(d.positions))
		a.dseq += int64(len(d.positions))
		a.drafted += len(d.positions)
		a.drafts = append(a.drafts, d)
		shared, known := d.from.shared()
		if !known {
			s.lookUpShare(d, served)
			continue
		}
		d.from.positions(shared, d.positions)
		wanted := but(d.positions, served)
		if rows, ok := m.Try(wanted); ok {
			d.found(rows, served)
		} else if !m.Start(s.context(), wanted, func(rows []schema.Row, err error) {
			s.do(func(s *owner) { s.found(d, d.positions, rows, served, err) })
		}) {
			s.fail(read.ErrClosing())
		}
	}
}

// lookUpShare has it found out which rows a draft has, and where they lie. Meanwhile the job is held: the stream may be
// closed, and what others have of it is not to be given back for them.
func (s *owner) lookUpShare(d *draft, served []bool) {
	ctx, j, m := s.context(), s.job, s.job.Manifest()
	positions := make([]int64, len(d.positions))
	var rows []schema.Row
	look := func() error {
		shared, err := j.Shared(ctx, d.from.lap, d.from.step)
		if err == nil {
			d.from.positions(shared, positions)
			rows, err = m.At(ctx, but(positions, served))
		}
		return err
	}
	j.Retain()
	found := func(err error) {
		s.do(func(s *owner) { s.found(d, positions, rows, served, err) })
		j.Release()
	}
	if !m.Go(look, found) {
		s.fail(read.ErrClosing())
		j.Release() // the stream has a hold, too
	}
}

// but leaves out what was served.
func but(positions []int64, served []bool) []int64 {
	if served == nil {
		return positions
	}
	var left []int64
	for i, pos := range positions {
		if !served[i] {
			left = append(left, pos)
		}
	}
	return left
}

// found takes in where the rows lie, but for those that were delivered before.
func (d *draft) found(rows []schema.Row, served []bool) {
	d.rows, d.ready = rows, true
	if served == nil {
		return
	}
	d.rows = make([]schema.Row, len(d.positions))
	for i := range d.rows {
		if !served[i] {
			d.rows[i], rows = rows[0], rows[1:]
		}
	}
}

// found takes what came of a draft.
func (s *owner) found(d *draft, positions []int64, rows []schema.Row, served []bool, err error) {
	if s.gone || d.dropped {
		return
	}
	if err != nil {
		s.fail(err) // it cannot know which blobs come next
	} else {
		d.positions = positions
		d.found(rows, served)
		s.ahead.news++
	}
	s.look, s.more = true, true
}

// undraft gives up the drafts, so that planning goes on elsewhere.
func (a *ahead) undraft() {
	for _, d := range a.drafts {
		d.dropped = true
	}
	a.drafts, a.drafted = nil, 0
}

// redraft makes a run that is taken out a draft again, from one of its rows on: where they lie is known. Of the
// drafts, those that are used last are given up where they are too many.
func (s *owner) redraft(r *run, first int) {
	a, from := &s.ahead, r.from
	from.at += int64(first)
	if s.job.Manifest().Resident() {
		a.undraft() // it costs nothing to look them up again
		a.walk, a.dseq = from, r.seq+int64(first)
		return
	}
	d := &draft{from: from, positions: r.positions[first:], rows: slices.Clone(r.rows[first:]), ready: true}
	for i := range d.rows {
		if r.state[first+i].taken {
			d.rows[i] = schema.Row{}
		}
	}
	a.drafts = slices.Insert(a.drafts, 0, d)
	a.drafted += len(d.positions)
	for a.drafted > 2*maxDrafted && len(a.drafts) > 1 {
		last := a.drafts[len(a.drafts)-1]
		a.drafts = a.drafts[:len(a.drafts)-1]
		last.dropped = true
		a.walk = last.from
		a.walk.at += int64(last.used)
		n := len(last.positions) - last.used
		a.drafted -= n
		a.dseq -= int64(n)
	}
}

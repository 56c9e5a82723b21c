package prefetch

// What follows is of streams that read no blobs, or nothing at all: they plan what they serve when it is asked for.

// piece is so many rows of a share, from where a walk stands.
type piece struct {
	from walk
	rows int64
}

// nextUnread returns the first n rows that were not delivered, of a stream that reads nothing,
// and counts them as delivered.
func (a *ahead) nextUnread(n int64) (pieces []piece) {
	for range n {
		a.first.settle()
		w := a.first
		a.served.add(a.firstRow)
		a.goOn()
		if k := len(pieces) - 1; k >= 0 && pieces[k].from.lap == w.lap && pieces[k].from.step == w.step &&
			pieces[k].from.at+pieces[k].rows == w.at {
			pieces[k].rows++
		} else {
			pieces = append(pieces, piece{w, 1})
		}
	}
	return pieces
}

// soonUnread returns the positions of about so many rows that nextUnread will return, as far as they are known.
func (a *ahead) soonUnread(n int64) (positions []int64) {
	w := a.first
	for n > 0 && w.settle() {
		shared, known := w.shared()
		if !known {
			return positions
		}
		some := make([]int64, min(n, w.left()))
		w.positions(shared, some)
		positions = append(positions, some...)
		w.at += int64(len(some))
		n -= int64(len(some))
	}
	return positions
}

// positionsOf finds out the positions of rows. No lock is held.
func (s *Stream) positionsOf(pieces []piece) ([]int64, error) {
	var positions []int64
	for _, p := range pieces {
		shared, known := p.from.shared()
		if !known {
			var err error
			if shared, err = s.job.Shared(s.context(), p.from.lap, p.from.step); err != nil {
				return nil, err
			}
		}
		some := make([]int64, p.rows)
		p.from.positions(shared, some)
		positions = append(positions, some...)
	}
	return positions, nil
}

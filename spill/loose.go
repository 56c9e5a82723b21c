package spill

import "sync/atomic"

// loose is the state of a job that uses rows out of order: it may use a row of its epoch as soon as the row is at
// most reach rows ahead, and has used some of them. It is nil for a job that keeps the order.
type loose struct {
	reach int64
	used  []atomic.Uint64 // a ring with a bit per row; the bits of rows behind the job are zero
}

// SetReach allows the job to use a row that is there as soon as it is at most rows rows ahead within its epoch; 0:
// only in its turn. [Job.Use] then marks the rows used early.
func (j *Job) SetReach(rows int64) {
	old := j.loose.Load()
	if rows = max(rows, 0); old.by() == rows {
		return
	}
	if rows == 0 {
		j.loose.Store(nil)
		return
	}
	j.loose.Store(&loose{reach: rows, used: make([]atomic.Uint64, rows/64+1)})
}

// Use records that the job has used a row before its turn. Its next use of that sample is in its next epoch.
func (j *Job) Use(epoch, index int64) {
	l, row := j.loose.Load(), epoch*j.rows+index
	if l == nil || !l.within(row, j.served.Load()) {
		return
	}
	word, bit := l.bit(row)
	word.Or(bit)
}

// Used reports whether the job has used a row before its turn. row counts from the beginning of its first epoch.
func (j *Job) Used(row int64) bool { return j.loose.Load().has(row, j.served.Load()) }

// by is the reach in rows; 0 for nil, a job that keeps the order.
func (l *loose) by() int64 {
	if l == nil {
		return 0
	}
	return l.reach
}

// within reports whether the ring has a bit for a row, given the number of rows served.
func (l *loose) within(row, served int64) bool {
	return row >= served && row < served+64*int64(len(l.used))
}

// bit is the place of a row in the ring of bits.
func (l *loose) bit(row int64) (word *atomic.Uint64, bit uint64) {
	return &l.used[row/64%int64(len(l.used))], 1 << (row & 63)
}

// has reports whether the job has used a row before its turn.
func (l *loose) has(row, served int64) bool {
	if l == nil || !l.within(row, served) {
		return false
	}
	word, bit := l.bit(row)
	return word.Load()&bit != 0
}

// forget clears the bits of rows that the job passes as it moves from one row to another, because rows that come into
// reach use them next. A row that is marked at the same time may keep its bit, which then counts for a later row:
// that sample is kept less well, once.
func (l *loose) forget(from, to int64) {
	if l == nil {
		return
	}
	from = max(from, to-64*int64(len(l.used)))
	for row := from; row < to; {
		word, bit := l.bit(row)
		if row&63 == 0 && row+64 <= to {
			word.Store(0)
			row += 64
			continue
		}
		word.And(^bit)
		row++
	}
}

package lookahead

import (
	"context"

	"bowstring/fetch/layout"
	"bowstring/schema"
)

// blockRows is how many rows are looked up in the manifest at once.
const blockRows = 256

// block is rows that a job will use, looked up ahead of being looked at.
type block struct {
	first     int64 // row, counted from the job's first epoch
	positions []int64
	here      []bool // rows that are served here; the others are not looked up
	rows      []schema.Row
	err       error
	done      chan struct{} // closed when rows or err are there
}

// block returns the block that has a row, if it is there already; otherwise the filler is
// woken when it is. The one that follows is looked up meanwhile.
func (f *filler) block(l *running, row, end int64) *block {
	at := &l.ahead
	if b := at.blocks[0]; b == nil || row < b.first || row >= b.first+int64(len(b.positions)) {
		at.blocks[0], at.blocks[1] = at.blocks[1], nil
		if b := at.blocks[0]; b == nil || row < b.first || row >= b.first+int64(len(b.positions)) {
			at.blocks[0] = f.lookUp(l, row, end)
		}
	}
	b := at.blocks[0]
	if next := b.first + int64(len(b.positions)); at.blocks[1] == nil && next < end &&
		!l.order.job.Manifest().Resident() {
		at.blocks[1] = f.lookUp(l, next, end)
	}
	select {
	case <-b.done:
		return b
	default:
		return nil
	}
}

// lookUp begins to look up rows from one on.
func (f *filler) lookUp(l *running, first, end int64) *block {
	rows := l.order.Rows()
	b := &block{first: first, done: make(chan struct{})}
	var wanted []int64
	for row := first; row < end && row < first+blockRows; row++ {
		pos, here := l.order.at(l.order.plan(row/rows), row%rows)
		b.positions, b.here = append(b.positions, pos), append(b.here, here)
		if here {
			wanted = append(wanted, pos)
		}
	}
	found := func(rows []schema.Row, err error) {
		if b.err = err; err == nil {
			b.rows = make([]schema.Row, len(b.positions))
			for i, here := range b.here {
				if here {
					b.rows[i], rows = rows[0], rows[1:]
				}
			}
		}
		close(b.done)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	m := l.order.job.Manifest()
	if l.order.job.Layout() != nil {
		f.lookUpOwned(l, b, wanted, found)
	} else if rows, ok := m.Try(wanted); ok || len(wanted) == 0 {
		found(rows, nil)
	} else if !m.Start(f.ctx, wanted, found) {
		found(nil, context.Canceled)
	}
	return b
}

// lookUpOwned has found told of those rows of a block whose samples are owned here: the others are for other nodes
// to bring. Of a job that reads the blobs alone by which samples are owned, none but the rows that this node keeps are
// looked up in the manifest: one of many nodes would look at as many rows in vain.
func (f *filler) lookUpOwned(l *running, b *block, positions []int64, found func([]schema.Row, error)) {
	j := l.order.job
	var rows []schema.Row
	look := func() error {
		slots := make([]uint16, len(positions))
		if err := j.Slots(f.ctx, positions, slots); err != nil {
			return err
		}
		columns := j.Projection().BlobColumns()
		alone := len(columns) == 1 && columns[0] == j.SlotColumn()
		var wanted []int64
		for i, pos := range positions {
			mine := !alone || f.ahead.opts.Mine(layout.KeyIn(slots[i]))
			if b.here[i] = mine && l.order.owns(j.SlotOwners(slots[i])); b.here[i] {
				wanted = append(wanted, pos)
			}
		}
		var err error
		rows, err = j.Manifest().At(f.ctx, wanted)
		return err
	}
	j.Retain() // the job may end meanwhile
	told := func(err error) {
		found(rows, err)
		j.Release()
	}
	if !j.Manifest().Go(look, told) {
		found(nil, context.Canceled)
		j.Release()
	}
}

package prefetch

import (
	"sync/atomic"

	"bowstring/fetch/operators"
	"bowstring/schema"
)

// Ranks that get the same samples, and run the same operators, make each cell once. The
// first stream whose blob has arrived makes the cell. The others wait for it, and share
// the result, which is held as long as one of them holds it. Results that are held for
// ranks further behind count like blobs. If the first stream cancels the task, or has no
// room for the result, each of the others makes the cell itself: no stream waits for the
// memory of another.

// cellKey identifies the result for a cell.
type cellKey struct {
	at      spot
	column  int    // ordinal
	program string // all operators of the request, because operators depend on earlier ones
}

// once is a cell that one stream makes for its group, and then its result. It is the
// owner of the blob that all streams of the group get.
type once struct {
	group *rankGroup
	key   cellKey
	refs  atomic.Int32 // holders of the result
	blob  schema.Blob  // the result; set before there is a holder

	// guarded by rankGroup.mu
	done    bool      // blob is set
	waiting []waiting // streams that get the result
}

// waiting is a task of a stream whose cell another stream makes.
type waiting struct {
	stream *Stream
	task   *operators.Task
}

// Unpin implements schema.Owner.
func (c *once) Unpin() {
	if c.refs.Add(-1) > 0 {
		return
	}
	g := c.group
	g.mu.Lock()
	if g.cells[c.key] == c {
		delete(g.cells, c.key)
	}
	g.mu.Unlock()
	c.blob.Release()
}

// Made implements schema.Maker.
func (c *once) Made() *schema.MadeCell { return c.blob.Made() }

// Share implements schema.Sharer.
func (c *once) Share() bool {
	for {
		n := c.refs.Load()
		if n <= 0 {
			return false
		}
		if c.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// makeOnce gives a task to the stage, unless another stream of the group makes or has
// made the same cell.
func (s *owner) makeOnce(t *operators.Task) {
	g, m := s.group, t.Data.(*making)
	if g == nil {
		s.stage.Put(t)
		return
	}
	row, column := m.cell/len(s.columns), m.cell%len(s.columns)
	key := cellKey{s.spotOf(m.run.epochOffset, m.run.index+int64(row)), s.columns[column].ordinal, s.program}
	g.mu.Lock()
	c := g.cells[key]
	switch {
	case c != nil && !c.done:
		c.waiting = append(c.waiting, waiting{s.Stream, t})
		g.mu.Unlock()
	case c != nil && c.Share():
		g.mu.Unlock()
		s.takeMade(t, schema.NewBlob(c.blob.Bytes(), c))
	default:
		m.once = &once{group: g, key: key}
		g.cells[key] = m.once
		g.mu.Unlock()
		s.stage.Put(t)
	}
}

// finish gives the outcome of the task to the waiting streams, and returns the outcome
// for the stream that made it. After an error the waiting streams make the cell
// themselves.
func (c *once) finish(o operators.Outcome) operators.Outcome {
	g := c.group
	if o.Err != nil {
		c.abandon()
		return o
	}
	c.blob = o.Blob
	g.mu.Lock()
	list := c.waiting
	c.waiting, c.done = nil, true
	c.refs.Store(int32(1 + len(list)))
	g.mu.Unlock()
	for _, w := range list {
		blob := schema.NewBlob(c.blob.Bytes(), c)
		if !w.stream.do(func(s *owner) { s.takeMade(w.task, blob) }) {
			w.task.Cell.Release()
			blob.Release()
		}
	}
	o.Blob = schema.NewBlob(c.blob.Bytes(), c)
	return o
}

// abandon makes the waiting streams make the cell themselves. Further calls, and calls on
// nil, do nothing.
func (c *once) abandon() {
	if c == nil {
		return
	}
	g := c.group
	g.mu.Lock()
	if g.cells[c.key] == c {
		delete(g.cells, c.key)
	}
	list := c.waiting
	c.waiting = nil
	g.mu.Unlock()
	for _, w := range list {
		if !w.stream.do(func(s *owner) { s.makeAlone(w.task) }) {
			w.task.Cell.Release()
		}
	}
}

// makeAlone gives a task to the stage for this stream alone.
func (s *owner) makeAlone(t *operators.Task) {
	if s.gone || t.Data.(*making).run.dropped {
		t.Cell.Release()
		return
	}
	s.stage.Put(t)
}

// takeMade takes the result that another stream has made. If it has no room for it, the
// stream makes its own, because only a task of its own can wait for room.
func (s *owner) takeMade(t *operators.Task, blob schema.Blob) {
	m := t.Data.(*making)
	extra := int64(len(blob.Bytes())) - m.run.guess[m.cell]
	if s.gone || m.run.dropped || extra > 0 && !s.hold.TryGrow(extra) {
		blob.Release()
		s.makeAlone(t)
		return
	}
	if extra > 0 {
		s.grown(m, extra)
	}
	s.made(t, operators.Outcome{Blob: blob})
}

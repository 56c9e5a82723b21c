package metamorphic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/schema"
)

// stream is a stream that an operation opens. Only one goroutine reads it, as it is
// ordered to.
type stream struct {
	w       *world
	id      int
	orders  chan op       // reads; closed when there will be no more
	ready   chan struct{} // closed when what follows is set
	stream  *fetch.Stream // nil if it was not opened
	job     *job
	since   span
	take    []int64 // what is taken, in place of a ticket
	ticket  schema.Ticket
	start   *progress
	most    atomic.Int64 // bytes that a batch has at most
	closing atomic.Bool  // Close was called
	shut    atomic.Bool  // Close has returned

	mu     sync.Mutex
	passed []passed // guarded by mu
}

// passed is a batch that came.
type passed struct {
	batch fetch.Batch // without what it points to
	after *progress
}

// stream opens a stream, and has what is ordered of it be read.
func (w *world) stream(o op) {
	w.mu.Lock()
	j, from := w.jobs[o.On], w.streams[o.On]
	if o.Do == "resume" && from == nil || o.Do != "resume" && j == nil {
		w.mu.Unlock()
		return
	}
	s := &stream{w: w, id: o.ID, orders: make(chan op, 1000), ready: make(chan struct{})}
	w.streams[o.ID] = s
	w.mu.Unlock()
	w.call(o, true, func(ctx context.Context, since span) {
		defer close(s.ready)
		s.since = since
		var t schema.Ticket
		var ok bool
		switch o.Do {
		case "stream":
			t, ok = s.fresh(o, j)
		case "take":
			ok = s.positions(o, j)
		case "resume":
			t, ok = s.resume(ctx, o, from)
		}
		if ok {
			defer s.job.leave()
			s.open(ctx, o, t)
		}
	})
	w.calls.Go(s.read)
}

// fresh makes the ticket of a stream that begins a job.
func (s *stream) fresh(o op, j *job) (t schema.Ticket, ok bool) {
	if !j.use() {
		return t, false
	}
	s.job = j
	t = schema.Ticket{Request: j.job.Request(), Rank: o.Rank, Step: min(o.Step, j.job.Plan().Steps()), Stride: o.Stride,
		Epochs: o.Epochs}
	s.start = s.job.progress(t)
	if round := s.start.inRound(); o.Served > 0 && len(round) > 0 && s.start.slots[0].round == 0 &&
		t.Order == schema.OrderFree && t.Remainder != schema.RemainderPad {
		// Some of the first rows that it would serve were served, the last one surely.
		rng := rand.New(rand.NewPCG(o.Draw, 2))
		t.Step, t.Row = s.start.slots[s.start.at].step, 0
		n := min(o.Served, len(round))
		t.Served = make([]byte, (n+7)/8)
		for i, pos := range round[:n] {
			if i < n-1 && rng.IntN(3) > 0 {
				continue
			}
			t.Served[i/8] |= 1 << (i % 8)
			s.start.before(pos)
		}
	}
	return t, true
}

// positions draws what is taken.
func (s *stream) positions(o op, j *job) bool {
	if !j.use() {
		return false
	}
	s.job = j
	rng := rand.New(rand.NewPCG(o.Draw, 3))
	s.take = []int64{}
	for range min(o.N, 5*len(j.rows)) {
		s.take = append(s.take, rng.Int64N(int64(len(j.rows))))
	}
	s.start = &progress{strict: true, stride: 1}
	if len(s.take) > 0 {
		s.start.slots = []slot{{epoch: j.job.EpochNumber(), positions: s.take}}
	}
	return true
}

// resume waits until a stream has served the batch after which to go on, and
// opens the job of that batch's ticket.
func (s *stream) resume(ctx context.Context, o op, from *stream) (t schema.Ticket, ok bool) {
	<-from.ready
	from.mu.Lock()
	n := len(from.passed)
	var p passed
	if n > 0 {
		p = from.passed[max(0, n-1-o.N)]
	}
	from.mu.Unlock()
	if from.start == nil || from.take != nil {
		return t, false
	}
	if n == 0 { // what was not read is to be had by the ticket that it was to be read by
		p = passed{batch: fetch.Batch{Resume: from.ticket}, after: from.start}
	}
	t, err := schema.ParseTicket(p.batch.Resume.Marshal())
	if err != nil {
		s.w.fail("resume ticket of stream %d: %w", from.id, err)
		return t, false
	}
	after := p.after
	if o.World > 0 && o.Rank < int(o.World) && t.Order == "" && t.Remainder != schema.RemainderPad && p.batch.Last &&
		t.Stride <= 1 && t.Row == 0 {
		t.World, t.Rank, after = &schema.World{Size: o.World}, o.Rank, nil
	}
	j := &job{ready: make(chan struct{})}
	s.w.mu.Lock()
	s.w.jobs[-o.ID] = j
	s.w.mu.Unlock()
	var picked *saved
	if t.Selection != nil {
		picked = &saved{positions: from.job.listed}
	}
	s.w.opened(o, j, t.Request, picked, s.since, func() (*fetch.Job, error) { return s.w.engine.Open(ctx, t.Request) })
	close(j.ready)
	if !j.use() {
		return t, false
	}
	s.job = j
	if after == nil {
		if t.Step > j.job.Plan().Steps() {
			j.leave()
			return t, false
		}
		after = j.progress(t)
	}
	s.start = after.clone()
	return t, true
}

// progress is what a ticket of the job is to serve.
func (j *job) progress(t schema.Ticket) *progress {
	p, err := newProgress(len(j.rows), j.picks, t)
	if err != nil {
		panic(err) // the engine has made the same plan
	}
	return p
}

// open opens the stream.
func (s *stream) open(ctx context.Context, o op, t schema.Ticket) {
	r := s.job.job.Request()
	most := r.Batch * maxBlob
	if r.BatchBytes > 0 {
		most = min(most, r.BatchBytes+maxBlob)
	}
	if s.take != nil {
		most = int64(len(s.take)) * maxBlob
	}
	s.most.Store(most * int64(s.w.scale))
	s.ticket = t
	var got *fetch.Stream
	var err error
	if s.take != nil {
		got, err = s.w.engine.Take(ctx, s.job.job, s.take)
	} else {
		got, err = s.w.engine.Stream(ctx, s.job.job, t)
	}
	s.w.note("%s: %s, %d rows to come: %s", o, plain(err), s.start.left(), t.Marshal())
	switch {
	case err == nil:
		s.stream = got
	case s.w.excused(err, s.since):
	default:
		s.w.fail("%s: %w", o, err)
	}
}

// maxBlob is the most bytes of a blob, where blobs are not scaled.
const maxBlob = 400

// read reads as it is ordered, and then closes the stream: others may be waiting for what
// an unread stream holds in its window.
func (s *stream) read() {
	<-s.ready
	if s.stream == nil {
		return // what is ordered stays where it is
	}
	defer s.close()
	at := s.start.clone()
	var over error
	for o := range s.orders {
		came := 0
		for ; came < o.N; came++ {
			if time.Sleep(time.Duration(o.Pause) * time.Millisecond); s.w.failed() {
				break
			}
			shut := s.shut.Load()
			b, err := s.stream.Next()
			if err == nil && (over != nil || shut) {
				s.w.fail("stream %d: a batch after it was closed, or had ended with %v", s.id, over)
			}
			if err != nil {
				s.over(at, over, err)
				over = err
				break
			}
			if err := s.came(at, b); err != nil {
				s.w.fail("stream %d, batch %d: %w", s.id, len(s.passed), err)
			}
			if !o.Hold {
				b.Release()
				continue
			}
			s.w.calls.Go(func() { // not for ever: what it fills, others wait for
				time.Sleep(held)
				b.Release()
			})
		}
		s.w.note("%s: %d came, %d rows to come, %v", o, came, at.left(), over)
	}
}

// over takes the error that a stream has ended with.
func (s *stream) over(at *progress, before, err error) {
	excused := s.w.excused(err, s.since)
	if excused && s.since.ctx.Err() == nil && s.job.job.Request().OnError == schema.OnErrorNull {
		excused = errors.Is(err, schema.ErrUnavailable)
	}
	switch {
	case before != nil:
		if before.Error() != err.Error() && !excused && !s.closing.Load() {
			s.w.fail("stream %d has ended with %w, before with %w", s.id, err, before)
		}
	case errors.Is(err, io.EOF):
		if n := at.left(); n > 0 {
			s.w.fail("stream %d ends with %d rows to come", s.id, n)
		}
	case excused || s.shut.Load() || s.closing.Load() && errors.Is(err, context.Canceled):
	case errors.Is(err, schema.ErrDataLoss) && s.job.shaky:
	default:
		s.w.fail("stream %d has ended with %w", s.id, err)
	}
}

// came checks a batch.
func (s *stream) came(at *progress, b *fetch.Batch) error {
	if err := at.serve(b); err != nil {
		return err
	}
	if err := s.cells(b); err != nil {
		return err
	}
	if r := s.job.job.Request(); r.BatchBytes > 0 && len(b.Positions) > 1 && s.job.blobs() {
		var size int64
		for _, pos := range b.Positions {
			size += int64(len(s.job.rows[pos].image(s.w.scale)))
		}
		if size > r.BatchBytes && len(b.Faults) == 0 {
			return fmt.Errorf("%d rows of %d bytes, with batch_bytes %d", len(b.Positions), size, r.BatchBytes)
		}
	}
	if len(b.Faults) > 0 && !s.job.shaky && !s.w.store.failed(s.since.faults, "missing", "wrong", "unavailable") {
		return fmt.Errorf("faults without a fault: %+v", b.Faults)
	}
	p := passed{batch: *b, after: at.clone()}
	p.batch.Batch = nil
	s.mu.Lock()
	s.passed = append(s.passed, p)
	s.mu.Unlock()
	return nil
}

// blobs says whether images are read.
func (j *job) blobs() bool { return len(j.job.Projection().BlobColumns()) > 0 }

// cells compares every cell of a batch with the sample's.
func (s *stream) cells(b *fetch.Batch) error {
	rec, err := b.Record(memory.DefaultAllocator)
	if err != nil {
		return err
	}
	defer rec.Release()
	if int(rec.NumRows()) != len(b.Positions) || b.Rows != len(b.Positions) {
		return fmt.Errorf("%d rows for %d positions", rec.NumRows(), len(b.Positions))
	}
	for c, f := range rec.Schema().Fields() {
		for row, pos := range b.Positions {
			want := s.job.rows[pos]
			var ok bool
			switch col := rec.Column(c).(type) {
			case *array.Int64:
				ok = col.Value(row) == map[string]int64{"label": want.label(), "position": pos}[f.Name]
			case *array.String:
				ok = col.Value(row) == want.name()
			case *array.FixedSizeBinary:
				id := want.id()
				ok = bytes.Equal(col.Value(row), id[:])
			case array.ExtensionArray:
				id := want.id()
				ok = bytes.Equal(col.Storage().(*array.FixedSizeBinary).Value(row), id[:])
			case *array.LargeBinary:
				image := want.image(s.w.scale)
				lost := slices.ContainsFunc(b.Faults, func(f fetch.Fault) bool {
					return f.Position == pos && f.Substitute == nil
				})
				ok = col.IsNull(row) == (image == nil) && bytes.Equal(col.Value(row), image) || col.IsNull(row) && lost
			default:
				return fmt.Errorf("column %q is a %T", f.Name, col)
			}
			if !ok {
				return fmt.Errorf("column %q of position %d is wrong", f.Name, pos)
			}
		}
	}
	return nil
}

// held is for how long a batch is held that is not released at once.
const held = 500 * time.Millisecond

// close closes the stream, whichever goroutine reads it.
func (s *stream) close() {
	if <-s.ready; s.stream != nil {
		s.closing.Store(true)
		s.stream.Close()
		s.shut.Store(true)
	}
}

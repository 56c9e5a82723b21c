package metamorphic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// patience is for how long the end of all calls is waited for, when all faults
// are over, in virtual time.
const patience = time.Hour

var errGone = errors.New("the caller has gone")

// world is an engine and all who use it.
type world struct {
	t      testing.TB
	store  *ram
	engine *fetch.Engine
	cache  *spill.Cache
	first  op
	scale  int
	calls  sync.WaitGroup
	closes sync.WaitGroup // of the engine

	mu      sync.Mutex
	cancels map[int]context.CancelCauseFunc // of calls, by operation
	jobs    map[int]*job
	streams map[int]*stream
	saves   map[int]*saved
	imports map[int]op
	closing bool
	trace   strings.Builder
	failure error // the first
}

// run does the operations in a bubble, and returns what it did, and what was wrong.
func run(t *testing.T, ops []op) (trace string, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, store: newRAM(), scale: 1, cancels: map[int]context.CancelCauseFunc{},
			jobs: map[int]*job{}, streams: map[int]*stream{}, saves: map[int]*saved{}, imports: map[int]op{},
		}
		w.begin(ops[0])
		for _, o := range ops[1:] {
			if time.Sleep(time.Duration(o.After) * time.Millisecond); w.failed() {
				break
			}
			w.do(o)
		}
		w.end()
		trace, err = w.trace.String(), w.failure
	})
	return trace, err
}

func (w *world) begin(o op) {
	w.first = o
	opts := fetch.Options{
		WindowBytes: o.Window, MaxReads: o.Reads, ReadTimeout: readTimeout, IdleSnapshots: o.Snapshot,
		Logger: slog.New(&log{w}),
	}
	if o.Spill { // with blobs that do not all fit into the smallest there is
		w.scale, opts.Future = 300, &spill.Future{}
		var err error
		// two would wait for a lock, with time at a stand
		w.cache, err = spill.Open(spill.Options{Dir: filepath.Join(w.t.TempDir(), "spill"), Bytes: spill.MinBytes,
			Oracle: opts.Future, Logger: opts.Logger, Writers: 1})
		if err != nil {
			w.t.Fatal(err)
		}
		opts.Spill = w.cache
		opts.WindowBytes *= int64(w.scale)
	}
	var err error
	if w.engine, err = fetch.NewEngine(w.store, opts); err != nil {
		w.t.Fatal(err)
	}
}

// log takes what the engine logs: of faults, that is to be expected; a panic that
// it has caught is none.
type log struct{ w *world }

func (l *log) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler.
func (l *log) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panic") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool {
			text += " " + a.String()
			return true
		})
		l.w.fail("the engine logs: %s", text)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l *log) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l *log) WithGroup(string) slog.Handler { return l }

// end lets all calls come to their end, closes what is open, and looks at what is left.
func (w *world) end() {
	w.store.fail("none", 0)
	w.mu.Lock()
	for _, s := range w.streams {
		close(s.orders)
	}
	w.mu.Unlock()
	w.await("the calls", &w.calls)
	w.mu.Lock()
	for _, cancel := range w.cancels {
		cancel(errGone)
	}
	streams, jobs := w.streams, w.jobs
	w.mu.Unlock()
	for _, s := range streams {
		s.close()
	}
	time.Sleep(time.Minute) // reads without a waiting caller have ended, too
	w.stats(true)
	for _, j := range jobs {
		j.close()
	}
	w.closes.Go(func() {
		if err := w.engine.Close(); err != nil {
			w.fail("closing the engine: %w", err)
		}
	})
	w.await("the engine's end", &w.closes)
	if _, err := w.engine.Open(context.Background(), schema.Request{Dataset: "a"}); err == nil {
		w.fail("a job was opened after the engine's end")
	}
	if w.cache != nil {
		if err := w.cache.Close(); err != nil {
			w.fail("closing the spill: %w", err)
		}
	}
	if n := w.store.pinned.Load(); n != 0 {
		w.fail("%d blobs were not released", n)
	}
	w.store.unmap()
}

// await waits for what comes to its end, now that there are no faults any more.
func (w *world) await(what string, group *sync.WaitGroup) {
	over := make(chan struct{})
	go func() {
		group.Wait()
		close(over)
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-over:
		return
	case <-late.C:
	}
	w.fail("%s did not come in %s; %+v", what, patience, w.engine.Stats())
	w.mu.Lock()
	for _, cancel := range w.cancels {
		cancel(errGone)
	}
	for _, s := range w.streams {
		if s.stream != nil {
			s.stream.Close()
		}
	}
	w.mu.Unlock()
	<-over
}

// fail notes what is wrong, once.
func (w *world) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.note("WRONG: %v", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		w.failure = err
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure != nil
}

// began is when a virtual clock is set to.
var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// note adds a line to what was done.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.trace, "%9.3f ms  %s\n", float64(time.Since(began).Microseconds())/1000,
		fmt.Sprintf(format, args...))
}

// span is what excuses the errors of a call: what has happened since it began.
type span struct {
	ctx    context.Context
	faults int
	event  int64
}

// call runs a call of an operation, with the context that it asks for: for its
// caller to wait for, or beside all others. Its context ends with it, unless it
// is kept for what the call has opened.
func (w *world) call(o op, keep bool, f func(ctx context.Context, since span)) {
	inner, cancel := context.WithCancelCause(context.Background())
	stop := context.CancelFunc(func() {})
	if o.Deadline > 0 {
		inner, stop = context.WithTimeout(inner, time.Duration(o.Deadline)*time.Millisecond)
	}
	ctx := inner
	if o.Checks > 0 {
		ctx = &watched{Context: inner, end: cancel, left: o.Checks}
	}
	w.mu.Lock()
	w.cancels[o.ID] = cancel
	w.mu.Unlock()
	since := span{inner, w.store.faults(), w.store.now()}
	over := make(chan struct{})
	w.calls.Go(func() {
		defer close(over)
		f(ctx, since)
		if !keep {
			cancel(nil)
		}
		context.AfterFunc(inner, stop) // a kept one ends when all do
	})
	if o.Inline { // but not for ever: a store may be silent
		late := time.NewTimer(10 * time.Second)
		defer late.Stop()
		select {
		case <-over:
		case <-late.C:
		}
	}
}

// watched is a context that ends when it has been looked at some times: whatever
// waits for it, or asks, finds that its caller has gone at that very moment.
type watched struct {
	context.Context
	end  context.CancelCauseFunc
	left int64
}

func (c *watched) check() {
	if atomic.AddInt64(&c.left, -1) == 0 {
		c.end(errGone)
	}
}

func (c *watched) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *watched) Err() error {
	c.check()
	return c.Context.Err()
}

// excused says whether something has happened that explains an error.
func (w *world) excused(err error, since span) bool {
	switch {
	case since.ctx.Err() != nil && (errors.Is(err, errGone) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)):
		return true
	case errors.Is(err, schema.ErrDataLoss):
		return w.store.failed(since.faults, "missing", "wrong")
	case errors.Is(err, schema.ErrUnavailable):
		return w.stopping() || w.store.failed(since.faults, "unavailable", "silent")
	}
	return false
}

// stopping reports whether the engine is being closed.
func (w *world) stopping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closing
}

// do does an operation.
func (w *world) do(o op) {
	switch o.Do {
	case "import":
		w.doImport(o)
	case "open":
		w.open(o)
	case "total":
		w.total(o)
	case "save":
		w.save(o)
	case "warm":
		w.warm(o)
	case "done":
		if j := w.job(o.On); j != nil {
			w.calls.Go(j.close)
		}
	case "stream", "take", "resume":
		w.stream(o)
	case "read":
		w.mu.Lock()
		if s := w.streams[o.On]; s != nil {
			s.orders <- o
		}
		w.mu.Unlock()
	case "cancel":
		w.mu.Lock()
		if cancel := w.cancels[o.On]; cancel != nil {
			cancel(errGone)
		}
		w.mu.Unlock()
	case "close":
		w.mu.Lock()
		s := w.streams[o.On]
		w.mu.Unlock()
		if s != nil {
			w.calls.Go(s.close)
		}
	case "drop":
		w.call(o, false, func(ctx context.Context, since span) {
			err := w.engine.Drop(ctx, o.Dataset, o.Number)
			w.store.gone(o.Dataset)
			w.note("%s: %s", o, plain(err))
			if err != nil && !errors.Is(err, schema.ErrNotFound) && !w.excused(err, since) {
				w.fail("drop: %w", err)
			}
		})
	case "gc":
		w.call(o, false, func(ctx context.Context, since span) {
			report, err := w.engine.GC(ctx, store.GCOptions{})
			w.note("%s: %s %+v", o, plain(err), report)
			if err != nil && !w.excused(err, since) {
				w.fail("gc: %w", err)
			}
		})
	case "fault":
		w.note("%s", o)
		w.store.fail(o.Kind, o.Share)
	case "stats":
		w.stats(false)
	case "shutdown":
		w.note("%s", o)
		w.mu.Lock()
		w.closing = true
		w.mu.Unlock()
		w.closes.Go(func() {
			if err := w.engine.Close(); err != nil {
				w.fail("closing the engine: %w", err)
			}
		})
	default:
		w.t.Fatalf("there is no operation %q", o.Do)
	}
}

// stats compares what the engine says of itself with what is open.
func (w *world) stats(over bool) {
	st := w.engine.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong := ""
	switch {
	case over && (st.LiveStreams != 0 || st.WindowUsed != 0 || st.ReadsInFlight != 0 || st.BytesInFlight != 0):
		wrong = "streams are left"
	case st.LiveStreams > len(w.streams):
		wrong = "more streams are open than were opened"
	case st.WindowUsed > st.WindowLimit+int64(maxBlob*w.scale):
		wrong = "windows hold more than they may"
	}
	if wrong != "" && w.failure == nil {
		w.failure = fmt.Errorf("%s: %+v", wrong, st)
	}
}

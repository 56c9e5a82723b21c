package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Options configures a Log. Each zero field except Path has its default.
type Options struct {
	// Path is the file that is written. At most one server may use it at a time.
	Path string
	// MaxBytes is the size at which the file is renamed to PATH.1, PATH.2 and so on.
	// Default 100 MiB.
	MaxBytes int64
	// Keep is how many renamed files are kept, the newest. Default all.
	Keep int
	// Queue bounds the lines about reads that wait to be written. Default 4,096.
	Queue int
	// SyncReads makes [Log.Begin] wait until stable storage has the line, and fail if it
	// cannot. Otherwise Begin waits until the kernel has it, and for Patience at most.
	SyncReads bool
	// Patience bounds how long the start of a read waits for a disk that hangs. Default 1
	// s.
	Patience time.Duration
	// Logger gets a warning if reads could not be recorded. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults sets each zero field to its default.
func (o *Options) EnsureDefaults() {
	if o.MaxBytes == 0 {
		o.MaxBytes = 100 << 20
	}
	if o.Queue == 0 {
		o.Queue = 4096
	}
	if o.Patience == 0 {
		o.Patience = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns a schema.FieldError for the first invalid field.
func (o *Options) Validate() error {
	switch {
	case o.Path == "":
		return &schema.FieldError{Field: "Path", Got: "nothing", Want: "the file to write"}
	case o.MaxBytes < 1:
		return &schema.FieldError{Field: "MaxBytes", Got: fmt.Sprint(o.MaxBytes), Want: "1 or more"}
	case o.Keep < 0:
		return &schema.FieldError{Field: "Keep", Got: fmt.Sprint(o.Keep), Want: "0 for all, or how many"}
	case o.Queue < 1:
		return &schema.FieldError{Field: "Queue", Got: fmt.Sprint(o.Queue), Want: "1 or more"}
	case o.Patience < 0:
		return &schema.FieldError{Field: "Patience", Got: o.Patience.String(), Want: "a positive time"}
	}
	return nil
}

// Log is an open audit log. It is safe for concurrent use. Reads are queued, because they
// are frequent; changes are written by their caller, because they must be on stable storage
// first.
type Log struct {
	logger  *slog.Logger
	opts    Options
	reads   chan entry
	dropped atomic.Int64 // unrecorded reads since the last line that counts them
	total   atomic.Int64 // unrecorded reads since Open
	done    chan struct{}
	now     func() time.Time

	complained time.Time // time of the last warning; only run's goroutine uses it

	closing sync.RWMutex // held for reading during a send to reads
	closed  bool         // guarded by closing

	mu   sync.Mutex
	file *file // guarded by mu
}

// entry is a line that waits to be written.
type entry struct {
	event   Event
	written chan error // gets the outcome, if not nil; capacity 1
}

// Open opens or creates the file. Its goroutine runs until Close.
func Open(opts Options) (*Log, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	f, err := openFile(opts.Path, opts.MaxBytes, opts.Keep)
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	l := &Log{logger: opts.Logger, opts: opts, reads: make(chan entry, opts.Queue), done: make(chan struct{}),
		now: time.Now, file: f}
	go l.run()
	return l, nil
}

// Read records that a read has ended or was refused. It does not block. If the queue is
// full, the event is counted and not recorded.
func (l *Log) Read(e Event) {
	if !l.put(entry{event: stamped(e)}) {
		l.drop()
	}
}

// Begin records that a read begins. It is called before the caller of the read is sent
// anything. With Options.SyncReads, stable storage has the line when Begin returns nil.
//
// Without it, a read goes on in any case, and Begin fails only with ctx's cause. The kernel
// then has the line, or the event is counted and not recorded, or the disk has hung for
// Options.Patience.
func (l *Log) Begin(ctx context.Context, e Event) error {
	line := entry{event: stamped(e), written: make(chan error, 1)}
	if !l.put(line) {
		l.drop()
		if l.opts.SyncReads {
			return errors.New("writing the audit log: it is closed, or the queue of reads is full")
		}
		return nil
	}
	var late <-chan time.Time // never
	if !l.opts.SyncReads {
		timer := time.NewTimer(l.opts.Patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case err := <-line.written:
		if l.opts.SyncReads {
			return err
		}
	case <-late:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// put queues a line. It returns false if the queue is full or the log is closed.
func (l *Log) put(e entry) bool {
	l.closing.RLock()
	defer l.closing.RUnlock()
	if l.closed {
		return false
	}
	select {
	case l.reads <- e:
		return true
	default:
		return false
	}
}

// drop counts a read that is not recorded.
func (l *Log) drop() {
	l.dropped.Add(1)
	l.total.Add(1)
}

// Lost returns how many reads were not recorded since Open.
func (l *Log) Lost() int64 { return l.total.Load() }

// Write records a change. The line is on stable storage when Write returns nil.
func (l *Log) Write(e Event) error {
	line, err := lineOf(stamped(e))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return errors.New("writing the audit log: it is closed")
	}
	if err = l.file.write(line); err == nil {
		err = l.file.sync()
	}
	if err != nil {
		return fmt.Errorf("writing the audit log: %w", err)
	}
	return nil
}

// Close writes the queued lines and closes the file. Further calls do nothing.
func (l *Log) Close() error {
	l.closing.Lock()
	if l.closed {
		l.closing.Unlock()
		return nil
	}
	l.closed = true
	close(l.reads)
	l.closing.Unlock()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.file.close()
	l.file = nil
	return err
}

// atOnce bounds the lines of one batch. Callers of Begin in a batch share one sync of the
// file.
const atOnce = 256

// run writes queued lines until Close. It takes what is queued as one batch.
func (l *Log) run() {
	defer close(l.done)
	for e := range l.reads {
		l.confess()
		batch := append(make([]entry, 0, atOnce), e)
		for more := true; more && len(batch) < atOnce; {
			select {
			case e, ok := <-l.reads:
				if more = ok; ok {
					batch = append(batch, e)
				}
			default:
				more = false
			}
		}
		l.writeAll(batch)
	}
	l.confess()
}

// writeAll writes a batch of lines, and answers the callers that wait for them.
func (l *Log) writeAll(batch []entry) {
	errs := make([]error, len(batch))
	waited := false
	for i := range batch {
		if errs[i] = l.append(batch[i].event); errs[i] != nil {
			l.drop()
			l.complain(errs[i])
		}
		waited = waited || batch[i].written != nil
	}
	var synced error
	if waited && l.opts.SyncReads {
		l.mu.Lock()
		synced = l.file.sync()
		l.mu.Unlock()
	}
	for i := range batch {
		if batch[i].written != nil {
			batch[i].written <- errors.Join(errs[i], synced)
		}
	}
}

// confess writes a line with the number of unrecorded reads, if there are any. A gap in the
// log is thus visible in the log itself.
func (l *Log) confess() {
	n := l.dropped.Swap(0)
	if n == 0 {
		return
	}
	if err := l.append(stamped(Event{Event: Dropped, Count: n})); err != nil {
		l.dropped.Add(n) // to be reported next time
		l.complain(err)
		return
	}
	l.logger.WarnContext(context.Background(), "reads were not recorded in the audit log", "count", n)
}

// complainedEvery is the shortest time between two warnings. The disk of the server's log
// may be full, too.
const complainedEvery = 10 * time.Second

// complain warns that reads are not recorded, at most once every complainedEvery. Only
// run's goroutine calls it.
func (l *Log) complain(err error) {
	now := l.now()
	if !l.complained.IsZero() && now.Sub(l.complained) < complainedEvery {
		return
	}
	l.complained = now
	l.logger.WarnContext(context.Background(), "reads cannot be recorded in the audit log", "error", err, "lost",
		l.Lost())
}

// append writes an event without a sync.
func (l *Log) append(e Event) error {
	line, err := lineOf(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.write(line)
}

// stamped returns the event with the current time. Lines have the time of their event, not
// of their write.
func stamped(e Event) Event {
	e.Time = time.Now().UTC()
	return e
}

// lineOf returns the JSON of an event with a newline.
func lineOf(e Event) ([]byte, error) {
	line, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding a line of the audit log: %w", err)
	}
	return append(line, '\n'), nil
}

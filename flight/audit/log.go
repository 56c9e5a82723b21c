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

// Options tunes a Log. The zero value of each field but Path stands for its default.
type Options struct {
	// Path is the file that is written. One server has it, at a time.
	Path string
	// MaxBytes is how long it may get before it is put aside as PATH.1, PATH.2 and so on.
	// Default 100 MiB.
	MaxBytes int64
	// Keep is how many of those are kept, the newest. Default: all.
	Keep int
	// Queue is how many reads wait to be written, at most. Default 4,096.
	Queue int
	// Logger is told when reads could not be recorded. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.MaxBytes == 0 {
		o.MaxBytes = 100 << 20
	}
	if o.Queue == 0 {
		o.Queue = 4096
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
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
	}
	return nil
}

// Log is a record that is being written. It is safe for concurrent use.
type Log struct {
	logger  *slog.Logger
	reads   chan Event
	dropped atomic.Int64 // reads that were not recorded, since that was recorded last
	total   atomic.Int64 // and ever
	done    chan struct{}

	closing sync.RWMutex // held for reading while something is put in the queue
	closed  bool         // guarded by closing

	mu   sync.Mutex
	file *file // guarded by mu
}

// Open opens or creates the record. Its goroutine ends with Close.
func Open(opts Options) (*Log, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	f, err := openFile(opts.Path, opts.MaxBytes, opts.Keep)
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	l := &Log{logger: opts.Logger, reads: make(chan Event, opts.Queue), done: make(chan struct{}), file: f}
	go l.run()
	return l, nil
}

// Read records what changes nothing. It does not wait; if the queue is full, the event
// is counted and not recorded.
func (l *Log) Read(e Event) {
	l.closing.RLock()
	defer l.closing.RUnlock()
	if l.closed {
		l.drop()
		return
	}
	select {
	case l.reads <- stamped(e):
	default:
		l.drop()
	}
}

func (l *Log) drop() {
	l.dropped.Add(1)
	l.total.Add(1)
}

// Lost is how many reads were not recorded since the Log was opened.
func (l *Log) Lost() int64 { return l.total.Load() }

// Write records what changes something. It is on stable storage when Write returns nil.
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

// Close records what waits, and closes the record.
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

func (l *Log) run() {
	defer close(l.done)
	for e := range l.reads {
		l.confess()
		if err := l.append(e); err != nil {
			l.drop()
			l.logger.WarnContext(context.Background(), "a read could not be recorded in the audit log", "error", err)
		}
	}
	l.confess()
}

// confess records how many reads were not, if any.
func (l *Log) confess() {
	n := l.dropped.Swap(0)
	if n == 0 {
		return
	}
	l.logger.WarnContext(context.Background(), "reads were not recorded in the audit log", "count", n)
	if err := l.append(stamped(Event{Event: Dropped, Count: n})); err != nil {
		l.dropped.Add(n) // to be told next time
	}
}

func (l *Log) append(e Event) error {
	line, err := lineOf(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.write(line)
}

func stamped(e Event) Event {
	e.Time = time.Now().UTC()
	return e
}

func lineOf(e Event) ([]byte, error) {
	line, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding a line of the audit log: %w", err)
	}
	return append(line, '\n'), nil
}

package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Options say how a Store goes about its work. The zero value is for use.
type Options struct {
	// Holder says for people which process this is.
	Holder string
	// Where says for people where the store is.
	Where string
	Log   *slog.Logger
	// RenewEvery is how often the process's row is written while it is at work,
	// 3 s if 0. A collection waits about that long for the other processes.
	RenewEvery time.Duration
	// MarkBytes is how much memory the marks of a collection may take, 1 GiB if 0.
	// It reads the manifests more than once if they do not fit.
	MarkBytes int64
	// Parallel is how many calls of the database a collection has under way at
	// once, 128 if 0.
	Parallel int
	// Stored, if not nil, is called with blobs that were stored anew, and with negative
	// numbers for removed ones.
	Stored func(blobs, bytes int64)
	// LeastEpoch, if not nil, is what the epoch of the next collection is at least.
	// Where epochs are write times, a repair may have written later than the present
	// one, and only a still later one can remove that again.
	LeastEpoch func() Epoch
	// Finish, if not nil, is called when the dead blobs of a collection are
	// removed, before others may begin one, and may change its report.
	Finish func(ctx context.Context, opts store.GCOptions, report *store.GCReport) error
	// References calls visit for each blob that the rows of a manifest chunk
	// refer to; they are read by package schema if it is nil.
	References func(snap *schema.Snapshot, chunk schema.Chunk, blob schema.Blob, visit func(schema.Key)) error
	// InlineRecord is the size up to which a snapshot's record is stored in its row, 1
	// KiB if 0.
	InlineRecord int
}

const (
	defaultRenewEvery = 3 * time.Second
	defaultMarkBytes  = 1 << 30
	defaultParallel   = 128
	// heldFor is how long a snapshot that was read counts as in use, until the
	// function given to SetInUse knows of it.
	heldFor = 30 * time.Second
	// leaveWithin is how long Close tries to take leave of other processes.
	leaveWithin         = 2 * time.Second
	defaultInlineRecord = 1 << 10
)

// Store is the catalog of a store, and how blobs get into it and out of it.
type Store struct {
	db       Database
	contents Contents // db, or nil if it keeps blobs in segments
	segments Segments // db, or nil if it keeps them under the hash of their content
	env      Env
	options  Options
	log      *slog.Logger

	ctx   context.Context // of what runs in the background, until Close
	end   context.CancelCauseFunc
	calls group // under way
	tasks group // goroutines

	mu     sync.Mutex
	closed bool

	member     member
	puts       turns[schema.Key]
	collecting turns[struct{}]

	writes, dedups, writtenBytes atomic.Int64

	memo    *rowMemo
	records *rowMemo // what the records of snapshots decode to
	bugs    bug
}

// New returns the store that the database holds. Close ends it.
func New(db Database, env Env, options Options) *Store {
	if options.RenewEvery == 0 {
		options.RenewEvery = defaultRenewEvery
	}
	if options.MarkBytes == 0 {
		options.MarkBytes = defaultMarkBytes
	}
	if options.Parallel == 0 {
		options.Parallel = defaultParallel
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.References == nil {
		options.References = references
	}
	if options.InlineRecord == 0 {
		options.InlineRecord = defaultInlineRecord
	}
	s := &Store{db: db, env: env, options: options, log: options.Log, memo: &rowMemo{},
		records: &rowMemo{most: memoRecords}, bugs: everywhere}
	s.segments, _ = db.(Segments)
	if s.segments == nil {
		s.contents = db.(Contents) //nolint:forcetypeassert // every database is one of the two
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	s.member.init(env)
	return s
}

// Close waits for running calls, announces to other processes that this one has left, and
// ends. It does not close the database.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	s.end(s.isClosed())
	s.calls.wait(s.env)
	s.tasks.wait(s.env)
	if closed {
		return nil
	}
	s.leave()
	s.tasks.wait(s.env)
	return nil
}

func (s *Store) isClosed() error {
	return fmt.Errorf("%w: the store%s is closed", schema.ErrUnavailable, s.where())
}

func (s *Store) where() string {
	if s.options.Where == "" {
		return ""
	}
	return " in " + s.options.Where
}

// enter begins a call. The caller ends it with s.calls.done.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.isClosed()
	}
	s.calls.add()
	return nil
}

// Counters are what this process has put, in the names of store.Stats.
type Counters struct {
	BlobWrites, BlobDedups, WrittenBytes int64
}

// Counters returns what was put since New.
func (s *Store) Counters() Counters {
	return Counters{s.writes.Load(), s.dedups.Load(), s.writtenBytes.Load()}
}

// uncertainTries is how often a swap is tried whose answers are lost.
const uncertainTries = 5

// update loads a dataset's partition, has decide say what is to be changed, and
// swaps; again, if another swap came first or the outcome is not known. Then
// decide has to see for itself whether an attempt before was made after all.
func (s *Store) update(ctx context.Context, name string, decide func(d *datasetState, e *edit) error) error {
	var open error // why the last attempt's outcome is not known
	uncertain := 0
	for try := 0; ; try++ {
		p, err := s.db.Load(ctx, name)
		if err != nil {
			return errors.Join(err, open)
		}
		d, err := s.memo.decode(name, p)
		if err != nil {
			return err
		}
		e := &edit{uncertain: open != nil}
		switch err := decide(d, e); {
		case errors.Is(err, ErrMoved): // it has seen that the state is no longer this one
			if err := s.backoff(ctx, try); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if e.err != nil || e.empty() {
			return e.err
		}
		switch err := s.db.Swap(ctx, name, d.version, e.change); {
		case err == nil:
			return nil
		case errors.Is(err, ErrMoved):
		case errors.Is(err, ErrUncertain) && ctx.Err() == nil:
			if uncertain++; uncertain == uncertainTries {
				return unavailable(fmt.Errorf("after %d attempts: %w", uncertain, err))
			}
			open = err
		default:
			return err
		}
		if err := s.backoff(ctx, try); err != nil {
			return err
		}
	}
}

// Found makes the state of collections, unless there is one. It may be
// interrupted, and made again.
func Found(ctx context.Context, db Database) error { return FoundAfter(ctx, db, firstEpoch-1) }

// FoundAfter is Found for a database with blobs of epochs up to the given one.
func FoundAfter(ctx context.Context, db Database, latest Epoch) error {
	value, err := json.Marshal(control{Epoch: latest + 1, Whole: true, Ended: time.Now().UTC().Truncate(time.Microsecond)})
	if err != nil {
		return err
	}
	return once(ctx, db, Control, Change{Put: map[string][]byte{rowState: value}})
}

// once makes a swap of a partition that was never written, unless somebody has
// written it.
func once(ctx context.Context, db Database, name string, change Change) error {
	for try := 0; ; try++ {
		p, err := db.Load(ctx, name)
		if err != nil || p.Version > 0 {
			return err
		}
		err = db.Swap(ctx, name, 0, change)
		switch open := errors.Is(err, ErrMoved) || errors.Is(err, ErrUncertain); {
		case err == nil || ctx.Err() != nil || !open:
			return err
		case try == uncertainTries:
			return unavailable(err)
		}
	}
}

// Ready does what the first reader would otherwise wait for.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	return s.ensureReading(ctx)
}

// Locate implements store.Store for stores whose blobs are in no bucket.
func (*Store) Locate(context.Context, schema.BlobRef) (store.Location, bool, error) {
	return store.Location{}, false, nil
}

// Counted is how many blobs the last collection of the whole store left, or the
// store began with, and when that was; zero while a collection runs, or if the
// last one did not come to its end.
func (s *Store) Counted(ctx context.Context) (blobs, bytes int64, at time.Time, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, 0, time.Time{}, err
	}
	defer s.calls.done()
	s.member.mu.Lock()
	seen := s.member.seen
	s.member.mu.Unlock()
	if seen == 0 {
		p, err := s.db.Peek(ctx, Control)
		if err == nil {
			err = s.learn(p)
		}
		if err != nil {
			return 0, 0, time.Time{}, err
		}
	}
	c := s.member.current()
	if !c.Whole {
		c.Ended = time.Time{}
	}
	return c.Blobs, c.Bytes, c.Ended, nil
}

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

// Options configures a Store. The zero value works.
type Options struct {
	// Holder describes this process in messages.
	Holder string
	// Where names the place of the store in messages.
	Where string
	Log   *slog.Logger
	// RenewEvery is how often the process's row is written while the process uses the
	// store. Default: 3 s. A collection waits about that long for the other processes.
	RenewEvery time.Duration
	// MarkBytes bounds the memory for the marks of a collection. Default: 1 GiB. If the
	// marks do not fit, the collection reads the manifests more than once.
	MarkBytes int64
	// Parallel is how many calls to the database a collection makes at once. Default:
	// 128.
	Parallel int
	// Stored, if not nil, is called with the number and size of blobs that were stored
	// for the first time, and with negative numbers for removed ones. It must be safe for
	// concurrent use.
	Stored func(blobs, bytes int64)
	// LeastEpoch, if not nil, returns a lower bound for the epoch of the next collection.
	// If epochs are write times, a repair may have written at a later time than the
	// present epoch, and only a still later one can remove that again.
	LeastEpoch func() Epoch
	// Finish, if not nil, is called when the dead blobs of a collection are removed and
	// before other collections may begin. It may change the report.
	Finish func(ctx context.Context, opts store.GCOptions, report *store.GCReport) error
	// References visits each blob that the rows of a manifest chunk refer to, and
	// releases blob. Default: package schema reads the rows.
	References func(snap *schema.Snapshot, chunk schema.Chunk, blob schema.Blob, visit func(schema.Key)) error
	// InlineRecord is the size up to which a snapshot's record is stored in its row.
	// Default: 1 KiB. Larger rows would make each load of the partition slower.
	InlineRecord int
}

const (
	defaultRenewEvery = 3 * time.Second
	defaultMarkBytes  = 1 << 30
	defaultParallel   = 128
	// heldFor is how long a snapshot counts as in use after Snapshot returned it. By then
	// the function given to SetInUse lists it, if the process uses it.
	heldFor = 30 * time.Second
	// leaveWithin is how long Close tries to remove this process's row and registrations.
	// If it does not succeed, they lapse.
	leaveWithin         = 2 * time.Second
	defaultInlineRecord = 1 << 10
)

// Store is the catalog of a store, and the path of blobs into and out of it. Each kind of
// store embeds one. It is safe for concurrent use from New to Close.
type Store struct {
	db       Database
	contents Contents // db, or nil if db keeps blobs in segments
	segments Segments // db, or nil if db keeps blobs under the hash of their content
	env      Env
	options  Options
	log      *slog.Logger

	ctx   context.Context // of the goroutines in tasks; ends when Close begins
	end   context.CancelCauseFunc
	calls group // running calls of the Store's methods
	tasks group // goroutines

	mu     sync.Mutex
	closed bool

	member     member
	puts       turns[schema.Key] // one put of a blob at a time
	collecting turns[struct{}]   // one collection at a time in this process

	writes, dedups, writtenBytes atomic.Int64

	memo    *rowMemo // decoded rows of partitions
	records *rowMemo // decoded records of snapshots
	bugs    bug      // none outside tests
}

// New returns the store in a database. The caller closes it, and the database afterwards.
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

// Close waits for running calls, removes the row by which other processes know this one,
// and ends. It does not close the database. A second call waits as well.
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

// isClosed is the error of a call after Close.
func (s *Store) isClosed() error {
	return fmt.Errorf("%w: the store%s is closed", schema.ErrUnavailable, s.where())
}

// where is the place of the store, for messages, with a word before it.
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

// Counters count the puts of this process, with the names of store.Stats.
type Counters struct {
	BlobWrites, BlobDedups, WrittenBytes int64
}

// Counters returns the counts since New.
func (s *Store) Counters() Counters {
	return Counters{s.writes.Load(), s.dedups.Load(), s.writtenBytes.Load()}
}

// uncertainTries is how often a swap with unknown outcome is tried before update returns
// an error. Each try loads the partition first, which settles the one before.
const uncertainTries = 5

// update loads the partition of a dataset, calls decide for the changes, and swaps. If
// another swap came first or the outcome is unknown, it begins again, and decide has to
// find out itself whether the earlier attempt was made: e.uncertain says that it may have
// been. decide must not change d's shared values in place. If it changes nothing, nothing
// is written.
func (s *Store) update(ctx context.Context, name string, decide func(d *datasetState, e *edit) error) error {
	var open error // the ErrUncertain of the last attempt; nil if its outcome is known
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
		case errors.Is(err, ErrMoved): // decide has found that the state has changed
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

// Found writes the state of collections of a new store, unless there is one. If it is
// interrupted, it can be called again.
func Found(ctx context.Context, db Database) error { return FoundAfter(ctx, db, firstEpoch-1) }

// FoundAfter is Found for a database that has blobs of epochs up to latest.
func FoundAfter(ctx context.Context, db Database, latest Epoch) error {
	value, err := json.Marshal(control{Epoch: latest + 1, Whole: true, Ended: time.Now().UTC().Truncate(time.Microsecond)})
	if err != nil {
		return err
	}
	return once(ctx, db, Control, Change{Put: map[string][]byte{rowState: value}})
}

// once makes a swap of a partition that was never written. If the partition was written,
// it does nothing.
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

// Ready announces this process now, so that the first reader need not wait for it.
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

// Counted returns the number and size of the blobs that the last collection of the whole
// store left, or that the store began with, and the time of that. The time is zero while
// a collection runs, or if the last one failed.
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

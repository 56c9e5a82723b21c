package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// Options configures a Store. The zero value works.
type Options struct {
	// Logger receives messages for operators, and at debug level those of the database. Default: slog.Default().
	Logger *slog.Logger
	// SegmentBytes is the size of a segment file at which a new one begins. Default: 1 GiB.
	SegmentBytes int64
	// KeepFree is the free disk space in bytes that imports leave, so that the database can still write. Default: 64
	// MiB.
	KeepFree int64
	// CacheBytes is the memory for blocks of the database. Default: 16 MiB.
	CacheBytes int64

	// For tests: the file system of the database and the journal, the boot id, the free space, and faults of
	// segments.
	fs    vfs.FS
	boot  string
	free  func(*os.File) (int64, error)
	fault func(segment.Op, string) error
}

// Store is a store.Store in a directory. It is safe for concurrent use. No other process
// can use the directory from Open to Close.
type Store struct {
	*protocol.Store // the catalog, and ingests

	dir  string
	log  *slog.Logger
	boot string
	opts Options
	lock *dirLock
	// database is the name of the database's directory.
	database string

	// life is read-locked by each call. Close and the first call that changes the store
	// lock it. It guards the fields up to writable.
	life   sync.RWMutex
	closed bool
	broken error // no database is open
	// damaged is why the store can only be read; nil for an intact store.
	damaged error
	db      *pebble.DB
	set     *segment.Set
	left    state           // how the store was left
	ending  context.Context // done when Close begins, to stop long operations
	end     context.CancelFunc
	// writable says that the database and the segments are open for writing, and that the
	// catalog records that durably. Until then no file is changed.
	writable atomic.Bool

	stripes [1024]sync.Mutex // by key: see the package documentation
	places  places           // of recently read blobs

	catalog sync.Mutex       // guards what follows
	synced  map[uint32]int64 // recorded synced lengths of segments, in bytes
	version version          // of the catalog's last change
	journal journal

	nextSegment uint32      // used only by newSegment, which the set does not call concurrently
	sealed      atomic.Bool // a new segment was begun since the last sync

	partitions partitions
	collecting chan struct{} // holds a token while a collection or a repair runs

	reads, readBytes atomic.Int64                        // of Get
	count            struct{ blobs, bytes atomic.Int64 } // blobs in the index
}

var _ store.Store = (*Store)(nil)

// withDefaults returns the options with defaults in place of zeros.
func (opts Options) withDefaults() Options {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.KeepFree == 0 {
		opts.KeepFree = 64 << 20
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 16 << 20
	}
	if opts.boot == "" {
		opts.boot = bootID()
	}
	opts.fs = defaultFS(opts.fs)
	return opts
}

// newStore returns a store without a database. Parallel is 1, because calls to a database
// in this process are fast, and because a touch has to come before the row is read.
func newStore(dir string, opts Options) *Store {
	s := &Store{
		dir: dir, log: opts.Logger, boot: opts.boot, opts: opts, database: pebbleDir,
		journal:    journal{fs: opts.fs, dir: filepath.Join(dir, journalDir)},
		synced:     map[uint32]int64{},
		collecting: make(chan struct{}, 1),
		partitions: partitions{
			versions: map[string]int64{}, passing: map[string]map[string][]byte{}, members: map[string]protocol.Member{},
		},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.Store = protocol.New(database{catalog{s}, blobs{s}}, protocol.System(), protocol.Options{
		Holder: "this process", Where: dir, Log: opts.Logger, Parallel: 1, Finish: s.compact,
	})
	return s
}

// Where names the store in errors.
func (s *Store) Where() string { return "the store in " + s.dir }

// Open opens the store in dir, and creates one if dir does not exist or is empty. If another process has it open,
// Open returns a schema.ErrUnavailable with that process and its server's address. If dir holds something else, or a
// format that this program does not know, Open returns a schema.ErrInvalid and changes nothing. The caller closes the
// store.
func Open(dir string, opts Options) (*Store, error) {
	s, err := open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

// open checks the directory, locks it, creates what is missing, and opens everything for
// reading.
func open(dir string, opts Options) (_ *Store, err error) {
	opts = opts.withDefaults()
	if _, err := checkDirectory(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := newStore(dir, opts)
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	// The lock comes before anything is created or opened.
	if s.lock, err = lockDirectory(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.release())
		}
	}()
	// Check again under the lock, because another process may have created a store.
	if exists, err := checkDirectory(dir); err != nil {
		return nil, err
	} else if !exists {
		if err := createDirectory(dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, segmentsDir), 0o700); err != nil {
		return nil, err
	}
	// Opening for reading needs a database, so an empty one is created first.
	if err := s.makeDatabase(); err != nil {
		return nil, err
	}
	if s.db, err = openDatabase(s.pebble(), opts, reading); err != nil {
		return nil, err
	}
	s.set = s.newSet(true)
	if err := s.recover(); err != nil {
		s.set.Close()
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// pebble is the path of the database.
func (s *Store) pebble() string { return filepath.Join(s.dir, s.database) }

// makeDatabase creates an empty database if there is none. If there are segments or a
// journal, the database was lost, and the error is a schema.ErrDataLoss.
func (s *Store) makeDatabase() error {
	desc, err := pebble.Peek(s.pebble(), s.opts.fs)
	if err == nil && desc.Exists {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return damaged("open the database "+s.pebble(), err)
	}
	ids, err := segment.List(filepath.Join(s.dir, segmentsDir))
	if err != nil {
		return err
	}
	journals, err := journalFiles(s.opts.fs, s.journal.dir)
	if err != nil {
		return err
	}
	if len(ids) > 0 || len(journals) > 0 {
		return damaged("open the database "+s.pebble(), errors.New("it is not there, and segments or a journal are"))
	}
	return newDatabase(s.pebble(), s.opts)
}

// newSet returns a set of segments without segments.
func (s *Store) newSet(readOnly bool) *segment.Set {
	return segment.NewSet(filepath.Join(s.dir, segmentsDir), segment.Options{
		MaxBytes: s.opts.SegmentBytes, KeepFree: s.opts.KeepFree, NewID: s.newSegment, Free: s.opts.free,
		Fault: s.opts.fault, ReadOnly: readOnly,
	})
}

// bootID identifies the current run of the kernel. Unsynced writes to files survive
// during one run and are lost with it. It is "" if the kernel does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SetAddr records the address at which this process serves the store. Another process
// that tries to open the store gets it in the error.
func (s *Store) SetAddr(addr string) error {
	if err := s.enter(context.Background()); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if err := s.lock.setAddr(addr); err != nil {
		return fmt.Errorf("record the server's address: %w", err)
	}
	return nil
}

// enter begins a call; the caller ends it with s.life.RUnlock.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return fmt.Errorf("%w: the store in %s is closed", schema.ErrUnavailable, s.dir)
	}
	if s.broken != nil {
		defer s.life.RUnlock()
		return s.broken
	}
	return nil
}

// enterToWrite is enter for a call that changes the store. The first one opens the store
// for writing.
func (s *Store) enterToWrite(ctx context.Context) error {
	if !s.writable.Load() && ctx.Err() == nil {
		if err := s.prepareToWrite(); err != nil {
			return fmt.Errorf("prepare the store in %s for a change: %w", s.dir, err)
		}
	}
	return s.enter(ctx)
}

// Close implements store.Store. It stops a running collection.
func (s *Store) Close() error {
	s.end()
	err := s.Store.Close()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	// The record of the clean shutdown is the last write. The lock is released after
	// everything is closed.
	err = errors.Join(err, s.leaveClean())
	s.set.Close()
	if s.broken == nil {
		err = errors.Join(err, s.db.Close())
	}
	err = errors.Join(err, s.journal.close(), s.lock.release())
	if err != nil {
		return fmt.Errorf("close the store in %s: %w", s.dir, err)
	}
	return nil
}

// Get implements store.Store. If the segments lack a blob that the index names, it returns a schema.ErrDataLoss.
func (s *Store) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer s.life.RUnlock()
	b, n, err := s.get(ref.Key)
	if err != nil {
		return b, err
	}
	s.reads.Add(1)
	s.readBytes.Add(n)
	return b, nil
}

// get reads a blob, and returns its size. The bytes are in a mapped file, and the caller
// releases the blob.
func (s *Store) get(key schema.Key) (schema.Blob, int64, error) {
	at, changes, ok := s.places.find(&key)
	if ok {
		if b, err := s.set.Get(at); err == nil {
			return b, at.Length, nil
		}
		s.places.forget(&key) // the index may have changed, and otherwise gives the error
		_, changes, _ = s.places.find(&key)
	}
	var last segment.Location
	for {
		e, ok, err := s.entry(key)
		if err != nil {
			return schema.Blob{}, 0, err
		}
		if !ok {
			return schema.Blob{}, 0, fmt.Errorf("%w: the store has no blob %s", schema.ErrNotFound, key)
		}
		b, err := s.set.Get(e.Location)
		if err == nil {
			s.places.put(&key, e.Location, changes)
			return b, e.Length, nil
		}
		// A collection may have moved the blob between the two steps. If the index still names the same place, the
		// blob is lost.
		if !errors.Is(err, segment.ErrRetired) {
			return schema.Blob{}, 0, fmt.Errorf("blob %s: %w", key, err)
		}
		if e.Location == last {
			return schema.Blob{}, 0, fmt.Errorf("%w: blob %s: %w", schema.ErrDataLoss, key, err)
		}
		last = e.Location
	}
}

// entry reads the index entry of a blob; ok is false if there is none.
func (s *Store) entry(key schema.Key) (e entry, ok bool, err error) {
	var buf [33]byte
	v, closer, err := s.db.Get(blobKey(&buf, &key))
	if errors.Is(err, pebble.ErrNotFound) {
		return entry{}, false, nil
	} else if err != nil {
		return entry{}, false, dbError(fmt.Sprintf("look up blob %s", key), err)
	}
	e, err = decodeEntry(v)
	if err := errors.Join(err, closer.Close()); err != nil {
		return entry{}, false, fmt.Errorf("look up blob %s: %w", key, err)
	}
	return e, true, nil
}

// stripe is the lock of a key's index entry.
func (s *Store) stripe(key *schema.Key) *sync.Mutex {
	return &s.stripes[binary.LittleEndian.Uint16(key[:])%uint16(len(s.stripes))]
}

// Traits implements store.Store.
func (s *Store) Traits() store.Traits { return store.Traits{Mapped: true, Replicas: 1} }

// Addressed implements store.Store. All keys are hashes.
func (s *Store) Addressed(schema.Key) (store.AttachedTable, bool) {
	return store.AttachedTable{}, false
}

// Refer implements store.Store.
func (s *Store) Refer(_ context.Context, tables []store.AttachedTable) error {
	return fmt.Errorf("%w: the blobs are cells of table %s, which a store in a directory cannot reach: copy them by value",
		schema.ErrInvalid, tables[0])
}

// Stats implements store.Store.
func (s *Store) Stats() store.Stats {
	put := s.Counters()
	return store.Stats{
		BlobReads:    s.reads.Load(),
		BlobBytes:    s.readBytes.Load(),
		BlobWrites:   put.BlobWrites,
		BlobDedups:   put.BlobDedups,
		WrittenBytes: put.WrittenBytes,
		Blobs:        s.count.blobs.Load(),
		StoredBytes:  s.count.bytes.Load(),
	}
}

// number reads a u32 of the catalog, 0 if there is none.
func (s *Store) number(key []byte) (uint32, error) {
	v, err := s.value(key)
	if err != nil || v == nil {
		return 0, err
	}
	if len(v) != 4 {
		return 0, fmt.Errorf("%w: catalog record %s of %d bytes, not 4", schema.ErrDataLoss, key, len(v))
	}
	return binary.LittleEndian.Uint32(v), nil
}

package cql

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Options tunes a Store beyond what its address says. The zero value is good
// for any use, but makes no tables.
type Options struct {
	// Logger gets what an operator should know, and at debug level what the
	// driver says. Default: slog.Default().
	Logger *slog.Logger
	// Create makes the keyspace and the tables where they are missing.
	// Without, a missing store is a schema.ErrNotFound.
	Create bool
	// Dialer makes the connections. Default: a net.Dialer.
	Dialer Dialer
	// MarkBytes is the memory for what a collection knows to be in use, 8 bytes a blob. A
	// collection that needs more goes over the store several times. Default: 256 MiB.
	MarkBytes int64
}

// Store is a store.Store in a keyspace of Scylla or Cassandra. It is safe for
// concurrent use, by several processes too.
type Store struct {
	config   *Config
	options  Options
	log      *slog.Logger
	dc       string // where the driver sends requests first
	nodes    int    // in dc, when the store was opened
	spread   bool   // over several datacenters
	db       *gocql.Session
	steering *steering // of db
	clock    clock

	// life is read-locked by each call and locked by Close.
	life   sync.RWMutex
	closed bool
	ending context.Context //nolint:containedctx // done when Close begins, to stop what takes long
	end    context.CancelFunc

	lease lease
	puts  putting

	collecting chan struct{} // holds a token while a collection runs in this process

	foreign foreignTables

	asking  sync.WaitGroup // silent hosts
	buffers arena

	reads, readBytes, writes, dedups, writtenBytes atomic.Int64
	census                                         census
}

var _ store.Store = (*Store)(nil)

// Open opens the store that uri names; see [Config] for what an address may say.
func Open(ctx context.Context, uri string, opts Options) (*Store, error) {
	config, err := ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("store address: %w", err)
	}
	s, err := open(ctx, config, opts)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", config, err)
	}
	return s, nil
}

func open(ctx context.Context, config *Config, opts Options) (_ *Store, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.MarkBytes <= 0 {
		opts.MarkBytes = 256 << 20
	}
	s := newStore(config, opts)
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	v, err := s.look(ctx, opts.Create)
	if err != nil {
		return nil, err
	}
	s.dc, s.nodes, s.spread = v.dc, v.nodes, v.spread > 1
	if s.db, err = s.session(ctx, config.Keyspace); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.db.Close()
		}
	}()
	s.lease.init(s)
	if err := s.loadAttached(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// newStore makes what needs no server.
func newStore(config *Config, opts Options) *Store {
	s := &Store{
		config: config, options: opts, log: opts.Logger,
		collecting: make(chan struct{}, 1),
		buffers:    arena{period: arenaPeriod, spare: arenaSpare},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.puts.init()
	s.foreign.tables.Store(&map[[prefixLen]byte]*foreignTable{})
	return s
}

// String is the store's address, without credentials.
func (s *Store) String() string { return s.config.String() }

// enter begins a call; the caller ends it with s.life.RUnlock.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return fmt.Errorf("%w: the store %s is closed", schema.ErrUnavailable, s)
	}
	return nil
}

// Close implements store.Store. A collection under way is stopped.
func (s *Store) Close() error {
	s.end()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.census.wait()
	s.lease.close()
	s.foreign.close()
	s.asking.Wait()
	s.db.Close()
	return s.buffers.close()
}

// stopped is the reason to give up what takes long.
func (s *Store) stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.ending.Err() != nil {
		return fmt.Errorf("%w: the store %s is being closed", schema.ErrUnavailable, s)
	}
	return nil
}

// catalogLevel is the consistency of the catalog and the leases.
func (s *Store) catalogLevel() gocql.Consistency {
	if s.config.LocalSerial {
		return gocql.LocalQuorum
	}
	return gocql.Quorum
}

// serialLevel is the consistency of reads that must see every transaction.
func (s *Store) serialLevel() gocql.Consistency {
	if s.config.LocalSerial {
		return gocql.Consistency(gocql.LocalSerial) //nolint:unconvert // of another type in gocql itself
	}
	return gocql.Consistency(gocql.Serial) //nolint:unconvert // of another type in gocql itself
}

// clock gives write times in microseconds, each later than the one before.
type clock struct{ last atomic.Int64 }

func (c *clock) now() int64 {
	for {
		last := c.last.Load()
		next := max(time.Now().UnixMicro(), last+1)
		if c.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// holder says for people who holds a lease.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}

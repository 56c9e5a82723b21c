package cql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

var _ store.Store = (*Store)(nil)

// Options configures a Store beyond its address. The zero value works.
type Options struct {
	// Logger receives messages for operators, and at debug level those of the driver. Default: slog.Default().
	Logger *slog.Logger
	// Dialer makes the connections. Default: a net.Dialer.
	Dialer Dialer
	// MarkBytes is the memory for the blobs that a collection knows to be in use, 8 bytes per blob. A collection that
	// needs more reads the store several times. Default: 256 MiB.
	MarkBytes int64
	// Lapse is how long the servers keep the row of a process that does not renew it, in whole seconds and at least
	// one. Collections wait that long for a process that has died. A process that is suspended for longer has to
	// restart its imports. Default: 1 minute.
	Lapse time.Duration
	// Renew is how often a process renews its row; 3 s if 0. Collections wait about that long for it.
	Renew time.Duration
	// Clock returns the time. Default: time.Now. Tests use clocks that are wrong.
	Clock func() time.Time
}

// Store is a store.Store in a keyspace of Scylla or Cassandra. It is safe for concurrent use, also by several
// processes.
type Store struct {
	*protocol.Store // the catalog, ingests and collections, over database

	config   *Config
	options  Options
	log      *slog.Logger
	dc       string // the datacenter that the driver prefers
	conns    int    // per host
	spread   bool   // several datacenters have replicas
	db       *gocql.Session
	steering *steering // of db
	later    later
	spares   spares // of the first session
	pageRows int    // page size for partitions of the catalog

	// life is read-locked by each call and locked by Close.
	life   sync.RWMutex
	closed bool
	ending context.Context //nolint:containedctx // done when Close begins, to stop long operations
	end    context.CancelFunc
	// connected ends the connections of all sessions.
	connected  context.Context //nolint:containedctx // done when the sessions are closed, or take long to close
	disconnect context.CancelFunc

	census census

	foreign foreignTables

	asking    sync.WaitGroup // probes of silent hosts
	gathering *gathering     // nil in some tests
	buffers   arena

	reads, readBytes atomic.Int64
}

// Open opens the store of an address; see [Config] for the form of addresses. If there is no store, it returns a
// schema.ErrNotFound; [Init] creates one. The caller closes the store.
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

// open connects, checks that there is a store, and starts the protocol.
func open(ctx context.Context, config *Config, opts Options) (_ *Store, err error) {
	opts.ensureDefaults()
	s := newStore(config, opts)
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	stop := context.AfterFunc(ctx, s.disconnect) // otherwise closing a half-open session may take long
	defer stop()
	if err := s.reach(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.db.Close() // no blob was read, so no statement is in flight
		}
	}()
	s.Store = protocol.New(database{s}, protocol.SystemAt(opts.Clock), protocol.Options{
		Holder: holder(), Where: s.where(nil, ""), Log: s.log, MarkBytes: opts.MarkBytes, Stored: s.census.add,
		LeastEpoch: s.now, RenewEvery: opts.Renew,
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Store.Close())
		}
	}()
	// Both are needed before the first read, and each is a round trip.
	g, within := errgroup.WithContext(ctx)
	g.Go(func() error { return s.loadAttached(within) })
	g.Go(func() error { return s.recount(within) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	return s, nil
}

// reach checks that there is a store of this format, and connects to it.
func (s *Store) reach(ctx context.Context) error {
	within, cancel := context.WithCancel(ctx)
	defer s.spares.close()
	defer cancel() // first
	v, err := s.inspect(within)
	if err == nil {
		err = v.ready(s.config)
	}
	if err != nil {
		return err
	}
	return s.join(ctx, v)
}

// ensureDefaults sets fields that are zero to their defaults.
func (o *Options) ensureDefaults() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MarkBytes <= 0 {
		o.MarkBytes = 256 << 20
	}
	if o.Lapse <= 0 {
		o.Lapse = memberTTL
	}
	o.Lapse = max(o.Lapse, time.Second) // 0 would mean forever to the servers
	if o.Clock == nil {
		o.Clock = time.Now
	}
}

// join opens the session that everything except schema statements uses.
func (s *Store) join(ctx context.Context, v *survey) (err error) {
	s.dc, s.conns, s.spread = v.dc, s.config.connsPerHost(v.nodes[v.dc], v.answered), len(v.replication) > 1
	s.db, s.steering, err = s.session(ctx, s.config.Keyspace, s.conns)
	if err == nil {
		s.gathering = newGathering(s)
	}
	return err
}

// newStore makes the parts of a store that need no server.
func newStore(config *Config, opts Options) *Store {
	s := &Store{
		config: config, options: opts, log: opts.Logger,
		pageRows: rowsAtOnce,
		buffers:  arena{period: arenaPeriod, spare: arenaSpare},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.connected, s.disconnect = context.WithCancel(context.Background())
	s.later.known = map[string]*opening{}
	s.foreign.Store(&map[[prefixLen]byte]*foreignTable{})
	return s
}

// String is the store's address, without credentials.
func (s *Store) String() string { return s.config.String() }

// Where names the keyspace and its servers, for errors.
func (s *Store) Where() string { return s.where(nil, "") }

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

// closeAfter bounds how long the driver may take to close its sessions. It waits for answers to heartbeats and for
// connections that it is making, with servers that do not answer for half a minute.
const closeAfter = time.Second

// Close implements store.Store. It stops a running collection. Probes and gathered
// statements end before the sessions are closed.
func (s *Store) Close() error {
	s.end()
	err := s.Store.Close()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.asking.Wait()
	s.gathering.running.Wait()
	// No request is in flight any more, so cutting connections loses nothing.
	patience := time.AfterFunc(closeAfter, s.disconnect)
	defer patience.Stop()
	s.later.close()
	s.db.Close()
	s.disconnect()
	return errors.Join(err, s.buffers.close())
}

// catalogLevel is the consistency of the catalog and the members.
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

// exec runs an idempotent statement without a result.
func (s *Store) exec(ctx context.Context, q *gocql.Query, table, doing string) error {
	return s.rows(ctx, q, table, doing, func(scanner) error { return nil })
}

// scanner reads the next row, and returns false after the last one.
type scanner func(dest ...any) bool

// rows runs an idempotent query, and calls read for its rows.
func (s *Store) rows(ctx context.Context, q *gocql.Query, table, doing string, read func(scanner) error) error {
	iter := q.WithContext(ctx).Iter()
	host := iter.Host()
	err := read(iter.Scan)
	if closed := iter.Close(); closed != nil && err == nil {
		err = s.fault(ctx, closed, host, table, doing)
	}
	return err
}

// row is rows for one row, and reports whether there is one.
func (s *Store) row(ctx context.Context, q *gocql.Query, table, doing string, dest ...any) (found bool, err error) {
	err = s.rows(ctx, q, table, doing, func(scan scanner) error {
		found = scan(dest...)
		return nil
	})
	return found, err
}

// GC implements store.Store. The servers free the space of deleted blobs when they compact, after the tables'
// gc_grace_seconds.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	report, err := s.Store.GC(ctx, opts, inUse)
	if err == nil && !opts.DryRun {
		err = s.recount(ctx)
	}
	return report, err
}

// census is the number and size of the blobs, as far as known: what the last collection
// counted, and what this process has added or removed since. It is safe for concurrent
// use.
type census struct {
	mu           sync.Mutex
	blobs, bytes int64 // as counted
	at           time.Time
	added        struct{ blobs, bytes int64 }
	failed       time.Time // when the last request failed
}

// add counts blobs that were stored, or, with negative numbers, removed.
func (n *census) add(blobs, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.added.blobs += blobs
	n.added.bytes += bytes
}

// censusWait bounds how long Stats waits for the server.
const censusWait = 3 * time.Second

// censusPause is how long Stats makes no request after one has failed. Otherwise every
// scrape of metrics would wait for a server that is down.
const censusPause = 30 * time.Second

// recount reads the result of the last collection.
func (s *Store) recount(ctx context.Context) error {
	blobs, bytes, at, err := s.Counted(ctx)
	n := &s.census
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = time.Time{}
	if err != nil {
		n.failed = time.Now()
	}
	if err == nil && !at.IsZero() && !at.Equal(n.at) {
		n.blobs, n.bytes, n.at = blobs, bytes, at
		n.added.blobs, n.added.bytes = 0, 0
	}
	return err
}

// Stats implements store.Store. Changes by other processes are included after the next
// collection.
func (s *Store) Stats() store.Stats {
	n := &s.census
	n.mu.Lock()
	pause := time.Since(n.failed) < censusPause
	n.mu.Unlock()
	if !pause {
		ctx, cancel := context.WithTimeout(context.Background(), censusWait)
		defer cancel()
		if err := s.recount(ctx); err != nil {
			s.log.Debug("how many blobs there are is not known anew", "error", err)
		}
	}
	put := s.Counters()
	n.mu.Lock()
	defer n.mu.Unlock()
	return store.Stats{
		BlobReads:    s.reads.Load(),
		BlobBytes:    s.readBytes.Load(),
		BlobWrites:   put.BlobWrites,
		BlobDedups:   put.BlobDedups,
		WrittenBytes: put.WrittenBytes,
		Blobs:        n.blobs + n.added.blobs,
		StoredBytes:  n.bytes + n.added.bytes,
		CountedAt:    n.at,
	}
}

// Traits implements store.Store.
func (s *Store) Traits() store.Traits {
	replicas := int(s.steering.replicas.Load())
	if replicas <= 0 {
		replicas = replicasGuess
	}
	return store.Traits{Addresses: len(*s.foreign.Load()) > 0, Replicas: replicas}
}

// Addressed implements store.Store: cells of attached tables have addresses.
func (s *Store) Addressed(key schema.Key) (store.AttachedTable, bool) {
	t := s.foreign.of(key)
	if t == nil {
		return store.AttachedTable{}, false
	}
	return store.AttachedTable{Keyspace: t.keyspace, Table: t.table, ID: t.id, Data: t.data}, true
}

// Refer implements store.Store. The tables have to be in this store's cluster, with a primary key of one uuid under
// that name, and a blob column.
func (s *Store) Refer(ctx context.Context, tables []store.AttachedTable) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	var list []*foreignTable
	for _, t := range tables {
		name := t.Keyspace + "." + t.Table
		if !tableName.MatchString(name) {
			return bad("attached table", name, "KEYSPACE.TABLE")
		}
		a := attachment{s: s, opts: AttachOptions{Columns: []string{t.Data}}}
		src, err := a.open(ctx, name, true)
		if err != nil {
			return fmt.Errorf("refer to attached table %s: %w", t, err)
		}
		i := slices.IndexFunc(src.columns, func(c column) bool { return c.name == t.Data && c.table != nil })
		if src.id != t.ID || i < 0 {
			return fmt.Errorf("%w: table %s of this cluster has no blob column %s beside a key %s", schema.ErrInvalid,
				name, t.Data, t.ID)
		}
		list = append(list, src.columns[i].table)
	}
	return s.register(ctx, list)
}

// Repair implements store.Store. It writes every part again, in a later epoch than the existing one, so that all
// replicas get it.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	if t := s.foreign.of(ref.Key); t != nil {
		return fmt.Errorf("%w: blob %s is a cell of table %s, which another program keeps: repair it there",
			schema.ErrInvalid, ref.Key, t.name())
	}
	written, err := s.writtenAt(ctx, ref)
	if err != nil {
		return err
	}
	// A manual deletion has a write time up to now, which cannot be read.
	written = max(written, s.now())
	return s.RepairAfter(ctx, ref, data, written)
}

// now is the epoch of a manual write at this moment.
func (s *Store) now() protocol.Epoch { return protocol.Epoch(s.options.Clock().UnixMicro()) }

// writtenAt is the latest epoch of a blob's parts, 0 if there are none.
func (s *Store) writtenAt(ctx context.Context, ref schema.BlobRef) (protocol.Epoch, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	var latest atomic.Int64
	err := eachPart(ctx, partsOf(ref.Size), func(ctx context.Context, part int) error {
		at, err := s.partWritten(ctx, ref.Key, part)
		for seen := latest.Load(); at > seen && !latest.CompareAndSwap(seen, at); seen = latest.Load() {
		}
		return err
	})
	return protocol.Epoch(latest.Load()), err
}

// holder describes this process, for messages.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}

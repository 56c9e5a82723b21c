package cql

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

const (
	// leaseTTL is how long a process is taken for alive after it last said so.
	leaseTTL = 60 * time.Second
	// renewEvery is how often it says so; a collection waits about that long
	// for the other processes to take note of it.
	renewEvery = 3 * time.Second
	// heldFor is how long a snapshot that was read counts as in use, until the
	// function given to SetInUse knows of it.
	heldFor = 30 * time.Second
)

const (
	// collectorID is the lease of which there can be one: the running collection's.
	collectorID = "gc"

	writeLease   = "INSERT INTO " + tableLeases + " (id, holder, collection, ingest, snapshots) VALUES (?, ?, ?, ?, ?) USING TTL ?"
	deleteLease  = "DELETE FROM " + tableLeases + " WHERE id = ?"
	selectLeases = "SELECT id, holder, collection, ingest, snapshots FROM " + tableLeases
	selectLease  = "SELECT holder, collection FROM " + tableLeases + " WHERE id = ?"
)

// lease is this process's row among those at work. It is written before the
// process relies on anything that a collection must know of, and the
// collector's row is read after that: so either the collection sees the lease,
// or the process sees the collection.
type lease struct {
	s  *Store
	id string

	renewing sync.Mutex   // held while a renewal runs
	renewed  atomic.Int64 // when the last that succeeded began, as time since epoch; 0 for never
	epoch    time.Time

	mu       sync.Mutex
	ingests  map[*ingest]struct{}
	covered  int64                // when the oldest ingest began that the row speaks of, 0 for none
	held     map[string]time.Time // snapshots read, by name, and when
	inUse    func() []*schema.Snapshot
	seen     gocql.UUID // the collection that this process knows to run, zero for none
	readOnly bool       // the user may not write leases

	started bool // guarded by renewing
	done    chan struct{}
}

func (l *lease) init(s *Store) {
	l.s, l.id, l.epoch = s, gocql.MustRandomUUID().String(), time.Now()
	l.ingests, l.held = map[*ingest]struct{}{}, map[string]time.Time{}
	l.done = make(chan struct{})
}

// SetInUse gives the store a function that lists the snapshots which this
// process reads, so that collections of other processes spare them. Without,
// every snapshot that [Store.Snapshot] has returned counts as in use until Close.
func (s *Store) SetInUse(inUse func() []*schema.Snapshot) {
	s.lease.mu.Lock()
	s.lease.inUse = inUse
	s.lease.mu.Unlock()
}

// ensure makes the lease if there is none yet, and starts renewing it.
func (l *lease) ensure(ctx context.Context) error {
	if l.renewed.Load() != 0 {
		return nil
	}
	return l.renew(ctx)
}

// renew writes the lease, and takes note of a collection.
func (l *lease) renew(ctx context.Context) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	for {
		begun := time.Since(l.epoch)
		if err := l.write(ctx); err != nil {
			return fmt.Errorf("renew the lease of this process: %w", err)
		}
		if last := time.Duration(l.renewed.Load()); last != 0 && time.Since(l.epoch)-last >= leaseTTL {
			l.lapse()
		}
		l.renewed.Store(int64(max(begun, 1)))
		_, running, err := l.s.collector(ctx)
		if err != nil {
			return err
		}
		l.mu.Lock()
		changed := running != l.seen
		l.mu.Unlock()
		if !changed {
			break
		}
		// From here on puts know; those under way are done when this returns.
		l.s.puts.setCollecting(running != gocql.UUID{})
		l.mu.Lock()
		l.seen = running
		l.mu.Unlock()
	}
	if !l.started {
		l.started = true
		go l.keep()
	}
	return nil
}

// lapse fails the open ingests: for a while nothing said that they were there.
func (l *lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for in := range l.ingests {
		in.lost.Store(true)
	}
}

func (l *lease) write(ctx context.Context) error {
	l.mu.Lock()
	inUse := l.inUse
	l.mu.Unlock()
	names := map[string]struct{}{}
	if inUse != nil { // called without the lock: it is the engine's
		for _, snap := range inUse() {
			names[snapshotName(snap.Dataset, snap.Number)] = struct{}{}
		}
	}
	l.mu.Lock()
	for name, at := range l.held {
		if inUse != nil && time.Since(at) > heldFor {
			delete(l.held, name)
			continue
		}
		names[name] = struct{}{}
	}
	oldest := l.oldest()
	seen := l.seen
	l.mu.Unlock()
	var ingest *int64
	if oldest != 0 {
		ingest = &oldest
	}
	q := l.s.db.Query(writeLease, l.id, holder(), seen, ingest, slices.Sorted(maps.Keys(names)), int(leaseTTL.Seconds()))
	if err := l.s.exec(ctx, q.Consistency(l.s.catalogLevel()), tableLeases, "write a lease"); err != nil {
		return err
	}
	l.mu.Lock()
	l.covered = oldest
	l.mu.Unlock()
	return nil
}

// oldest is when the oldest open ingest began, 0 if none is open. The caller
// holds mu.
func (l *lease) oldest() int64 {
	var oldest int64
	for in := range l.ingests {
		if oldest == 0 || in.began < oldest {
			oldest = in.began
		}
	}
	return oldest
}

// keep renews the lease until the store is closed.
func (l *lease) keep() {
	defer close(l.done)
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.s.ending.Done():
			return
		}
		ctx, cancel := context.WithTimeout(l.s.ending, leaseTTL/4)
		if err := l.renew(ctx); err != nil && l.s.ending.Err() == nil {
			l.s.log.Warn("the lease could not be renewed; imports stop unless it can be soon", "error", err)
		}
		cancel()
	}
}

// fresh is an error if the lease has not been renewed for so long that the
// store may soon count this process as gone.
func (l *lease) fresh() error {
	if age := time.Since(l.epoch) - time.Duration(l.renewed.Load()); age > leaseTTL/2 {
		return fmt.Errorf("%w: the lease of this process could not be renewed for %v: is %s reachable?",
			schema.ErrUnavailable, age.Round(time.Second), l.s.where(nil, tableLeases))
	}
	return nil
}

// close ends the renewals and takes the row away. The store is closed to calls.
func (l *lease) close() {
	l.renewing.Lock()
	started := l.started
	l.renewing.Unlock()
	if !started {
		return
	}
	<-l.done
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.s.exec(ctx, l.s.db.Query(deleteLease, l.id).Consistency(l.s.catalogLevel()), tableLeases, "give up the lease"); err != nil {
		l.s.log.Debug("the lease lapses by itself", "error", err)
	}
}

// hold notes that a snapshot was read. If a collection runs, the caller must
// renew the lease and look again whether the snapshot is still there.
func (l *lease) hold(name string) (collecting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[name] = time.Now()
	return l.seen != gocql.UUID{}
}

// ensureReading is ensure for readers, which may go without a lease if the
// user may only read.
func (l *lease) ensureReading(ctx context.Context) error {
	l.mu.Lock()
	readOnly := l.readOnly
	l.mu.Unlock()
	if readOnly {
		return nil
	}
	err := l.ensure(ctx)
	if code, ok := codeOf(err); !ok || code != codeUnauthorized {
		return err
	}
	l.mu.Lock()
	first := !l.readOnly
	l.readOnly = true
	l.mu.Unlock()
	if first {
		l.s.log.WarnContext(ctx, "the user may not write leases: a collection will not know what this process reads", "error", err)
	}
	return nil
}

// snapshotName is what a lease calls a snapshot.
func snapshotName(dataset string, number int64) string { return fmt.Sprintf("%s@%d", dataset, number) }

// collector returns who collects, the zero token if nobody does.
func (s *Store) collector(ctx context.Context) (holder string, token gocql.UUID, err error) {
	iter := s.db.Query(selectLease, collectorID).WithContext(ctx).Consistency(s.serialLevel()).Iter()
	host := iter.Host()
	iter.Scan(&holder, &token)
	if err := iter.Close(); err != nil {
		return "", token, s.fault(ctx, err, host, tableLeases, "look for a collection")
	}
	return holder, token, nil
}

// exec runs a statement that may be repeated without harm.
func (s *Store) exec(ctx context.Context, q *gocql.Query, table, doing string) error {
	iter := q.WithContext(ctx).Iter()
	host := iter.Host()
	if err := iter.Close(); err != nil {
		return s.fault(ctx, err, host, table, doing)
	}
	return nil
}

// putting is what puts and collections in one process agree upon.
type putting struct {
	// barrier is read-locked by each put.
	barrier    sync.RWMutex
	collecting bool // guarded by barrier: a collection runs, here or elsewhere

	mu     sync.Mutex
	flight map[schema.Key]chan struct{} // blobs being put, closed when done
}

func (p *putting) init() { p.flight = map[schema.Key]chan struct{}{} }

// setCollecting returns when all puts that did not know are done.
func (p *putting) setCollecting(on bool) {
	p.barrier.Lock()
	p.collecting = on
	p.barrier.Unlock()
}

// begin waits until no other put of the key is under way here, which would
// store it twice. The caller calls end.
func (p *putting) begin(ctx context.Context, key schema.Key) error {
	for {
		p.mu.Lock()
		other, busy := p.flight[key]
		if !busy {
			p.flight[key] = make(chan struct{})
			p.mu.Unlock()
			p.barrier.RLock()
			return nil
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *putting) end(key schema.Key) {
	p.barrier.RUnlock()
	p.mu.Lock()
	close(p.flight[key])
	delete(p.flight, key)
	p.mu.Unlock()
}

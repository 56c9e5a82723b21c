package cql

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	// collectorTTL is after how long without a sign of life another process may collect.
	collectorTTL = 2 * time.Minute
	// collectorRenew is how often the sign is given.
	collectorRenew = 10 * time.Second
	// scanRanges is into how many intervals of tokens a table is cut to be read,
	scanRanges = 64
	// and scanners how many are read at once.
	scanners = 4
	// sweepers is how many blobs are removed at once.
	sweepers = 32
)

const (
	insertCollector = "INSERT INTO " + tableLeases + " (id, holder, collection) VALUES ('" + collectorID + "', ?, ?) IF NOT EXISTS USING TTL ?"
	renewCollector  = "UPDATE " + tableLeases + " USING TTL ? SET holder = ?, collection = ? WHERE id = '" + collectorID + "' IF collection = ?"
	deleteCollector = "DELETE FROM " + tableLeases + " WHERE id = '" + collectorID + "' IF collection = ?"

	selectIndex = "SELECT key, size, parts, WRITETIME(size), WRITETIME(parts) FROM " + tableBlobs + " WHERE token(key) > ? AND token(key) <= ?"
	unsizeBlob  = "DELETE size FROM " + tableBlobs + " WHERE key = ?"
	deleteBlob  = "DELETE FROM " + tableBlobs + " WHERE key = ?"
)

// GC implements store.Store.
//
// It excludes other collections of the same store, in any process, with a
// schema.ErrUnavailable that says who collects. What a put has touched within
// the grace counts as live. FreedBytes are those of deleted blobs; the servers
// give the space back when they compact, after the tables' gc_grace_seconds.
// Blobs that an import left unfinished are removed and not counted.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.enter(ctx); err != nil {
		return store.GCReport{}, err
	}
	defer s.life.RUnlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.ending, func() { cancel(s.stopped(context.Background())) })
	defer stop()
	select {
	case s.collecting <- struct{}{}:
		defer func() { <-s.collecting }()
	case <-ctx.Done():
		return store.GCReport{}, context.Cause(ctx)
	}
	c := &collection{s: s, opts: opts}
	if err := c.run(ctx, inUse); err != nil {
		return c.report, fmt.Errorf("collect garbage: %w", err)
	}
	return c.report, nil
}

// collection is one run of GC.
type collection struct {
	s     *Store
	opts  store.GCOptions
	token gocql.UUID

	renewing sync.Mutex
	renewed  time.Time // guarded by renewing

	keep      int64 // what was touched at this time or later stays
	snapshots []*schema.Snapshot
	bitmaps   []schema.Key
	forget    []catalogRow // dropped snapshots that nobody reads

	mu     sync.Mutex
	report store.GCReport // guarded by mu while scanning
}

func (c *collection) run(ctx context.Context, inUse func() []*schema.Snapshot) (err error) {
	if err := c.announce(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.retract()) }()
	if err := c.agree(ctx); err != nil {
		return err
	}
	if err := c.roots(ctx, inUse); err != nil {
		return err
	}
	passes := c.passes()
	for pass := range passes {
		m := &marks{pass: pass, passes: passes}
		if err := c.mark(ctx, m); err != nil {
			return err
		}
		if err := c.sweep(ctx, m); err != nil {
			return err
		}
	}
	if c.opts.DryRun {
		return nil
	}
	c.s.census.set(c.report.LiveBlobs, c.report.LiveBytes)
	return c.forgetDropped(ctx)
}

// announce takes the collector's lease.
func (c *collection) announce(ctx context.Context) error {
	c.token = gocql.MustRandomUUID()
	for range uncertainTries {
		begun := time.Now()
		applied, err := c.s.cas(ctx, tableLeases, insertCollector, holder(), c.token, int(collectorTTL.Seconds()))
		if applied {
			c.renewed = begun
			return nil
		}
		if err != nil && !errors.Is(err, errUncertain) {
			return err
		}
		// Not applied, perhaps because this very transaction was, unseen.
		who, token, err := c.s.collector(ctx)
		switch {
		case err != nil:
			return err
		case token == c.token:
			c.renewed = begun
			return nil
		case token != gocql.UUID{}:
			return fmt.Errorf("%w: another collection runs (%s); if it has died, another can begin after %v", schema.ErrUnavailable, who, collectorTTL)
		}
	}
	return fmt.Errorf("%w: the lease of the collection could not be had", schema.ErrUnavailable)
}

// retract gives the lease back, also when the collection was stopped.
func (c *collection) retract() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.s.config.Timeout)
	defer cancel()
	if _, err := c.s.cas(ctx, tableLeases, deleteCollector, c.token); err != nil {
		c.s.log.Warn("the lease of the collection lapses by itself", "after", collectorTTL, "error", err)
	}
	if c.s.lease.renewed.Load() == 0 {
		c.s.puts.setCollecting(false)
		return nil
	}
	if err := c.s.lease.renew(ctx); err != nil { // puts are cautious until a renewal succeeds
		c.s.log.Debug("renew the lease after a collection", "error", err)
	}
	return nil
}

// alive renews the collector's lease now and then, and is an error when the
// collection must stop because another may have begun.
func (c *collection) alive(ctx context.Context) error {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if time.Since(c.renewed) < collectorRenew {
		return nil
	}
	begun := time.Now()
	applied, err := c.s.cas(ctx, tableLeases, renewCollector, int(collectorTTL.Seconds()), holder(), c.token, c.token)
	switch {
	case err == nil && applied:
		c.renewed = begun
	case err == nil:
		return fmt.Errorf("%w: the lease of the collection was lost", schema.ErrUnavailable)
	case time.Since(c.renewed) > collectorTTL/2:
		return err
	}
	return nil
}

// agree waits until every process at work knows of the collection, and finds
// out when the oldest open ingest began.
func (c *collection) agree(ctx context.Context) error {
	l := &c.s.lease
	if l.renewed.Load() != 0 {
		if err := l.renew(ctx); err != nil {
			return err
		}
	} else {
		c.s.puts.setCollecting(true)
	}
	c.keep = c.s.clock.now()
	l.mu.Lock()
	if oldest := l.oldest(); oldest != 0 {
		c.keep = min(c.keep, oldest)
	}
	l.mu.Unlock()
	told := false
	for {
		rows, err := c.s.leases(ctx)
		if err != nil {
			return err
		}
		var waiting []string
		for _, row := range rows {
			switch {
			case row.id == l.id || row.id == collectorID:
			case row.token != c.token:
				waiting = append(waiting, row.holder)
			case row.ingest != 0:
				c.keep = min(c.keep, row.ingest)
			}
		}
		if len(waiting) == 0 {
			c.keep -= c.s.config.Grace.Microseconds()
			return nil
		}
		if !told {
			told = true
			c.s.log.InfoContext(ctx, "waiting for other processes to take note of the collection", "processes", waiting)
		}
		if err := c.alive(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(renewEvery / 6): // their rows are polled: nothing tells
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leaseRow is the lease of a process.
type leaseRow struct {
	id, holder string
	token      gocql.UUID
	ingest     int64
	snapshots  []string
}

func (s *Store) leases(ctx context.Context) ([]leaseRow, error) {
	iter := s.db.Query(selectLeases).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var rows []leaseRow
	for {
		var row leaseRow
		var ingest *int64
		if !iter.Scan(&row.id, &row.holder, &row.token, &ingest, &row.snapshots) {
			break
		}
		if ingest != nil {
			row.ingest = *ingest
		}
		rows = append(rows, row)
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableLeases, "list the leases")
	}
	return rows, nil
}

// roots lists what the blobs in use hang on. The order matters: a selection
// that is listed had its snapshot before, and one whose snapshot is not found
// after is left over; what a process reads that is not in the catalog any more
// has been in its lease since before it was dropped.
func (c *collection) roots(ctx context.Context, inUse func() []*schema.Snapshot) error {
	s := c.s
	listed := s.clock.now()
	selections, err := s.selections(ctx, "")
	if err != nil {
		return err
	}
	rows, err := s.catalog(ctx)
	if err != nil {
		return err
	}
	leases, err := s.leases(ctx)
	if err != nil {
		return err
	}
	held := map[string]bool{}
	for _, lease := range leases {
		if lease.id == s.lease.id {
			continue // inUse knows better
		}
		for _, name := range lease.snapshots {
			held[name] = true
		}
	}
	live := map[string]bool{}
	for _, row := range rows {
		name := snapshotName(row.dataset, row.number)
		if !row.live && !held[name] {
			c.forget = append(c.forget, row)
			continue
		}
		snap, err := s.record(ctx, row.dataset, row.number, true)
		if err != nil {
			return err
		}
		if snap == nil {
			continue // forgotten by a collection that ended just before
		}
		live[name] = row.live
		c.snapshots = append(c.snapshots, snap)
	}
	if inUse != nil {
		for _, snap := range inUse() {
			if snap != nil {
				c.snapshots = append(c.snapshots, snap)
			}
		}
	}
	before := time.Now().Add(-store.ExpiredGrace)
	for _, sel := range selections {
		if live[snapshotName(sel.Dataset, sel.Snapshot)] && !sel.Expired(before) {
			c.bitmaps = append(c.bitmaps, sel.Bitmap.Key)
		} else if !c.opts.DryRun {
			if err := s.forgetSelection(ctx, sel, listed); err != nil {
				return err
			}
		}
	}
	return nil
}

// passes is how often the store must be gone over so that the marks of one
// pass fit into memory. Blobs that several rows share are counted for each, so
// it may be more than needed.
func (c *collection) passes() int {
	refs := int64(len(c.bitmaps))
	seen := map[schema.Key]bool{}
	for _, snap := range c.snapshots {
		columns := int64(len(schema.BlobFields(snap.Schema)))
		for _, chunk := range snap.Chunks {
			if !seen[chunk.Key] {
				seen[chunk.Key] = true
				refs += 1 + chunk.Rows*columns
			}
		}
	}
	return int(max(1, (refs*8+c.s.options.MarkBytes-1)/c.s.options.MarkBytes))
}

// mark fills m with what the roots refer to.
func (c *collection) mark(ctx context.Context, m *marks) error {
	for i := range c.bitmaps {
		m.add(&c.bitmaps[i])
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(scanners)
	seen := map[schema.Key]bool{}
	for _, snap := range c.snapshots {
		for i, chunk := range snap.Chunks {
			if seen[chunk.Key] {
				continue
			}
			seen[chunk.Key] = true
			g.Go(func() error {
				if err := c.alive(gctx); err != nil {
					return err
				}
				if err := c.markChunk(gctx, m, snap, chunk); err != nil {
					return fmt.Errorf("the references of %s, chunk %d, cannot be read, so nothing may be freed: %w",
						snapshotName(snap.Dataset, snap.Number), i, err)
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	m.settle()
	return nil
}

func (c *collection) markChunk(ctx context.Context, m *marks, snap *schema.Snapshot, chunk schema.Chunk) error {
	blob, err := c.s.get(ctx, chunk.BlobRef)
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %v", schema.ErrDataLoss, err) //nolint:errorlint // a blob that is missing here is lost, not absent
	} else if err != nil {
		return err
	}
	part := &schema.Snapshot{Dataset: snap.Dataset, Number: snap.Number, Schema: snap.Schema, Chunks: []schema.Chunk{chunk}}
	man, err := schema.OpenManifest(part, []schema.Blob{blob})
	if err != nil {
		return err
	}
	defer man.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for col := range schema.BlobFields(snap.Schema) {
		for pos := range man.Rows() {
			if ref, ok := man.Blob(col, pos); ok {
				m.add(&ref.Key)
			}
		}
	}
	m.add(&chunk.Key)
	return nil
}

// marks is the set of blobs that are referred to, as sorted prefixes of their
// keys: eight bytes a blob. Two keys that share a prefix only make a dead blob
// stay. In one of several passes it has only a slice of all keys.
type marks struct {
	pass, passes int

	mu       sync.Mutex
	prefixes []uint64
	sorted   int // so many of them are sorted and distinct
}

// covers says whether the key is one of this pass.
func (m *marks) covers(prefix uint64) bool {
	slice, _ := bits.Mul64(prefix, uint64(m.passes))
	return int(slice) == m.pass
}

func (m *marks) add(k *schema.Key) {
	p := keyPrefix(k)
	if !m.covers(p) {
		return
	}
	m.prefixes = append(m.prefixes, p)
	// Snapshots of a dataset share most of their blobs.
	if len(m.prefixes) > 2*m.sorted+1<<16 {
		m.settle()
	}
}

func (m *marks) settle() {
	slices.Sort(m.prefixes)
	m.prefixes = slices.Compact(m.prefixes)
	m.sorted = len(m.prefixes)
}

func (m *marks) has(prefix uint64) bool {
	_, ok := slices.BinarySearch(m.prefixes, prefix)
	return ok
}

func keyPrefix(k *schema.Key) uint64 {
	var p uint64
	for _, b := range k[:8] {
		p = p<<8 | uint64(b)
	}
	return p
}

// indexRow is a row of the table blobs.
type indexRow struct {
	key     schema.Key
	size    int64 // -1 if the blob is not complete
	parts   int
	touched int64 // latest write time
}

// scanIndex reads the table blobs, several intervals of tokens at a time. visit
// is called from several goroutines.
func (s *Store) scanIndex(ctx context.Context, level gocql.Consistency, visit func(context.Context, indexRow) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(scanners)
	for _, r := range ring(scanRanges) {
		g.Go(func() error { return s.scanRange(ctx, level, r, visit) })
	}
	return g.Wait()
}

func (s *Store) scanRange(ctx context.Context, level gocql.Consistency, r pair, visit func(context.Context, indexRow) error) error {
	iter := s.db.Query(selectIndex, r.start, r.end).WithContext(ctx).Consistency(level).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	for {
		var key []byte
		var size, sized, touched *int64
		var parts *int
		if !iter.Scan(&key, &size, &parts, &sized, &touched) {
			break
		}
		if len(key) != len(schema.Key{}) {
			return errors.Join(fmt.Errorf("%w: %s has a key of %d bytes", schema.ErrDataLoss, s.where(host, tableBlobs), len(key)), iter.Close())
		}
		row := indexRow{key: schema.Key(key), size: -1}
		if size != nil {
			row.size, row.parts, row.touched = *size, partsOf(*size), *sized
		}
		if parts != nil {
			row.parts, row.touched = max(row.parts, *parts), max(row.touched, *touched)
		}
		if err := visit(ctx, row); err != nil {
			return errors.Join(err, iter.Close())
		}
	}
	if err := iter.Close(); err != nil {
		return s.fault(ctx, err, host, tableBlobs, "scan")
	}
	return nil
}

// scanLevel is the consistency at which the collection reads what puts have
// written at the consistency of writes. Where that is a quorum of a datacenter
// and there are several, only all replicas together know of every put.
func (s *Store) scanLevel() gocql.Consistency {
	if s.spread && !s.config.LocalSerial {
		return gocql.All
	}
	if s.config.Write == gocql.LocalQuorum {
		return gocql.LocalQuorum
	}
	return s.indexLevel()
}

// sweep counts, and removes what is dead.
func (c *collection) sweep(ctx context.Context, m *marks) error {
	remove, gctx := errgroup.WithContext(ctx)
	remove.SetLimit(sweepers)
	err := c.s.scanIndex(gctx, c.s.scanLevel(), func(ctx context.Context, row indexRow) error {
		prefix := keyPrefix(&row.key)
		if !m.covers(prefix) {
			return nil
		}
		dead := row.touched < c.keep && !m.has(prefix)
		c.count(row, dead)
		if !dead || c.opts.DryRun {
			return nil
		}
		if err := c.alive(ctx); err != nil {
			return err
		}
		remove.Go(func() error { return c.remove(gctx, row) })
		return nil
	})
	// The cause of what fails on either side is on one of them.
	return errors.Join(remove.Wait(), err)
}

func (c *collection) count(row indexRow, dead bool) {
	if row.size < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !dead:
		c.report.LiveBlobs++
		c.report.LiveBytes += row.size
	default:
		c.report.DeadBlobs++
		c.report.DeadBytes += row.size
	}
}

// remove deletes a blob: first what says that it is complete, last what leads
// to its parts, so that whoever takes over after a crash finds them. Each
// deletion is as old as the youngest write that was seen, and leaves what is
// written later alone.
func (c *collection) remove(ctx context.Context, row indexRow) error {
	s := c.s
	run := func(stmt, table string, args ...any) error {
		q := s.db.Query(stmt, args...).Consistency(s.config.Write).WithTimestamp(row.touched)
		return s.exec(ctx, q, table, "remove blob "+row.key.String())
	}
	if row.size >= 0 {
		if err := run(unsizeBlob, tableBlobs, row.key[:]); err != nil {
			return err
		}
	}
	for part := range row.parts {
		if err := run(deletePart, tableParts, row.key[:], part); err != nil {
			return err
		}
	}
	if err := run(deleteBlob, tableBlobs, row.key[:]); err != nil {
		return err
	}
	if row.size >= 0 {
		c.mu.Lock()
		c.report.FreedBytes += row.size
		c.mu.Unlock()
	}
	return nil
}

// forgetDropped removes the records of dropped snapshots that nobody reads.
// Their numbers are not given out again, so nothing is ever written there.
func (c *collection) forgetDropped(ctx context.Context) error {
	for _, row := range c.forget {
		q := c.s.db.Query(forgetSnapshot, row.dataset, row.number).Consistency(c.s.catalogLevel())
		if err := c.s.exec(ctx, q, tableSnapshots, "forget a dropped snapshot"); err != nil {
			return err
		}
	}
	return nil
}

// census is how many blobs there are, counted when it is first asked for and
// kept up to date with what this process does.
type census struct {
	mu    sync.Mutex
	done  chan struct{} // nil before the count has begun, closed after it
	known atomic.Bool   // the count has begun

	blobs, bytes atomic.Int64
}

// censusWait is how long Stats waits for the first count of a large store,
// which goes on if it is not done by then.
const censusWait = 3 * time.Second

func (n *census) add(blobs, bytes int64) {
	if n.known.Load() {
		n.blobs.Add(blobs)
		n.bytes.Add(bytes)
	}
}

func (n *census) set(blobs, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done == nil {
		n.done = make(chan struct{})
		close(n.done)
	}
	n.known.Store(true)
	n.blobs.Store(blobs)
	n.bytes.Store(bytes)
}

// begin starts the count, unless it was started before.
func (n *census) begin(s *Store) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done == nil {
		done := make(chan struct{})
		n.done = done
		n.known.Store(true)
		go func() {
			defer close(done)
			err := s.scanIndex(s.ending, s.config.Read, func(_ context.Context, row indexRow) error {
				if row.size >= 0 {
					n.blobs.Add(1)
					n.bytes.Add(row.size)
				}
				return nil
			})
			if err != nil && s.ending.Err() == nil {
				s.log.Warn("the blobs could not be counted", "error", err)
			}
		}()
	}
	return n.done
}

func (n *census) wait() {
	n.mu.Lock()
	done := n.done
	n.mu.Unlock()
	if done != nil {
		<-done
	}
}

// Stats implements store.Store. The first call counts the blobs in the store,
// for three seconds at most; what other processes add or remove is not noticed
// until the next collection here.
func (s *Store) Stats() store.Stats {
	if s.enter(context.Background()) == nil {
		select {
		case <-s.census.begin(s):
		case <-time.After(censusWait):
		}
		s.life.RUnlock()
	}
	return store.Stats{
		BlobReads:    s.reads.Load(),
		BlobBytes:    s.readBytes.Load(),
		BlobWrites:   s.writes.Load(),
		BlobDedups:   s.dedups.Load(),
		WrittenBytes: s.writtenBytes.Load(),
		Blobs:        s.census.blobs.Load(),
		StoredBytes:  s.census.bytes.Load(),
	}
}

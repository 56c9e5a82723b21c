package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// catalog implements the protocol's Catalog and Members. No other process has the store
// open, so versions and members are kept in memory.
type catalog struct{ *Store }

// partitions is the state of the catalog's partitions that is not in the database.
type partitions struct {
	mu sync.Mutex
	// versions are those of the partitions that this process has read or written. A
	// partition with rows from an earlier process begins at version 1.
	versions map[string]int64
	// passing are the rows that mean nothing to the next process that opens the store, by
	// partition.
	passing map[string]map[string][]byte
	// members is this process, once it has announced itself.
	members map[string]protocol.Member // this process, once it has announced itself
}

// rowKey is the database key of a partition's row: prefix, name, a zero byte, row.
func rowKey(partition, row string) []byte { return append(namePrefix(prefixRow, partition), row...) }

// splitRowKey is the inverse of rowKey.
func splitRowKey(key []byte) (partition, row string, ok bool) {
	name, rest, ok := bytes.Cut(key, []byte{0})
	if !ok || len(name) < 2 {
		return "", "", false
	}
	return string(name[1:]), string(rest), true
}

// Partitions implements protocol.Catalog.
func (c catalog) Partitions(ctx context.Context) (names []string, err error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.life.RUnlock()
	c.partitions.mu.Lock()
	names = slices.Collect(maps.Keys(c.partitions.versions))
	c.partitions.mu.Unlock()
	// Partitions with nothing but passing rows are in memory only.
	it, err := c.db.NewIter(within(prefixRow))
	if err != nil {
		return nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for valid := it.First(); valid; {
		name, _, ok := splitRowKey(it.Key())
		if !ok {
			return nil, badRowKey(it.Key())
		}
		names = append(names, name)
		// The other rows of the partition are skipped with one seek.
		next := namePrefix(prefixRow, name)
		next[len(next)-1]++
		valid = it.SeekGE(next)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Load implements protocol.Catalog. The version is read before the rows. If a swap comes
// between the two, the rows are newer than the version, and a swap for that version
// fails. They cannot be older.
func (c catalog) Load(ctx context.Context, name string) (p protocol.Partition, err error) {
	if err := c.enter(ctx); err != nil {
		return p, err
	}
	defer c.life.RUnlock()
	if p, err = c.known(name); err != nil {
		return p, err
	}
	prefix := namePrefix(prefixRow, name)
	it, err := c.db.NewIter(within(prefix...))
	if err != nil {
		return p, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		p.Rows[string(it.Key()[len(prefix):])] = bytes.Clone(it.Value())
	}
	return p, nil
}

// Peek implements protocol.Catalog.
func (c catalog) Peek(ctx context.Context, name string, rows ...string) (p protocol.Partition, err error) {
	if len(rows) == 0 {
		return c.Load(ctx, name)
	}
	if err := c.enter(ctx); err != nil {
		return p, err
	}
	defer c.life.RUnlock()
	if p, err = c.known(name); err != nil {
		return p, err
	}
	maps.DeleteFunc(p.Rows, func(row string, _ []byte) bool { return !slices.Contains(rows, row) })
	for _, row := range rows {
		v, err := c.value(rowKey(name, row))
		if err != nil {
			return p, err
		}
		if v != nil {
			p.Rows[row] = v
		}
	}
	return p, nil
}

// known returns the version and the passing rows of a partition. Rows has no other rows
// yet.
func (c catalog) known(name string) (p protocol.Partition, err error) {
	parts := &c.partitions
	parts.mu.Lock()
	defer parts.mu.Unlock()
	p.Rows = map[string][]byte{}
	maps.Copy(p.Rows, parts.passing[name])
	// A version is only kept for partitions that have been read or written by this
	// process.
	if p.Version = parts.versions[name]; p.Version > 0 {
		return p, nil
	}
	it, err := c.db.NewIter(within(namePrefix(prefixRow, name)...))
	if err != nil {
		return p, dbError("read the catalog", err)
	}
	if it.First() {
		p.Version, parts.versions[name] = 1, 1
	}
	return p, dbError("read the catalog", it.Close())
}

// Swap implements protocol.Catalog. Store.catalog serializes swaps. A swap that writes
// rows is durable when it returns. One of passing rows only changes memory.
func (c catalog) Swap(ctx context.Context, name string, version int64, swap protocol.Change) error {
	if err := c.enterToWrite(ctx); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.catalog.Lock()
	defer c.catalog.Unlock()
	// The call may have waited for the lock.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	now, err := c.known(name)
	if err != nil {
		return err
	}
	if now.Version != version {
		return protocol.ErrMoved
	}
	rows := change{}
	for row, v := range swap.Put {
		if !protocol.Passing(row) {
			rows[string(rowKey(name, row))] = v
		}
	}
	for _, row := range swap.Delete {
		if !protocol.Passing(row) {
			rows[string(rowKey(name, row))] = nil
		}
	}
	if len(rows) > 0 {
		if err := c.update(rows); err != nil {
			return err
		}
	}
	// Memory changes only after the rows are durable. Readers may see the rows before the
	// new version, and their swaps then fail.
	c.partitions.swapped(name, version+1, swap)
	return nil
}

// swapped records a swap that was made.
func (p *partitions) swapped(name string, version int64, swap protocol.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.versions[name] = version
	for row, v := range swap.Put {
		if protocol.Passing(row) {
			if p.passing[name] == nil {
				p.passing[name] = map[string][]byte{}
			}
			p.passing[name][row] = v
		}
	}
	for _, row := range swap.Delete {
		delete(p.passing[name], row)
	}
}

// Announce implements protocol.Members. The row is read by this process only.
func (c catalog) Announce(_ context.Context, m protocol.Member) error {
	p := &c.partitions
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members[m.ID] = m
	return nil
}

// Members implements protocol.Members.
func (c catalog) Members(context.Context) ([]protocol.Member, error) {
	p := &c.partitions
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.members)), nil
}

// Leave implements protocol.Members.
func (c catalog) Leave(_ context.Context, id string) error {
	p := &c.partitions
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.members, id)
	return nil
}

var (
	_ protocol.Database = database{}
	_ protocol.Contents = database{}
)

// database is the store as the protocol sees it.
type database struct {
	catalog
	blobs
}

// Sync implements protocol.Blobs. It makes the appended bytes durable. The swap that
// follows makes the index durable, because the write-ahead log is sequential.
func (d database) Sync(ctx context.Context) error {
	s := d.catalog.Store
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.set.Sync()
}

// badRowKey is the error for a key that rowKey cannot have made.
func badRowKey(key []byte) error { return fmt.Errorf("%w: a row's key %q", schema.ErrDataLoss, key) }

// value reads a small record of the database; nil if there is none. The caller owns the
// bytes.
func (s *Store) value(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, dbError("read the catalog", err)
	}
	v = append([]byte{}, v...)
	return v, closer.Close()
}

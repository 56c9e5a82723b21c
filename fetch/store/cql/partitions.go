package cql

import (
	"context"
	"errors"
	"fmt"

	"github.com/gocql/gocql"

	"bowstring/fetch/store/protocol"
)

const (
	selectPartitions = "SELECT DISTINCT partition FROM " + tableCatalog
	selectPartition  = "SELECT row, value, version FROM " + tableCatalog + " WHERE partition = ?"
	selectRows       = selectPartition + " AND row IN ?"
	selectVersion    = "SELECT DISTINCT partition, version FROM " + tableCatalog + " WHERE partition = ?"

	// A swap is a batch of these, all in one partition. The first has the
	// condition, which for a partition that was never written is that there is
	// no version.
	swapNew    = "UPDATE " + tableCatalog + " SET version = ? WHERE partition = ? IF version = null"
	swapOld    = "UPDATE " + tableCatalog + " SET version = ? WHERE partition = ? IF version = ?"
	swapPut    = "INSERT INTO " + tableCatalog + " (partition, row, value) VALUES (?, ?, ?)"
	swapDelete = "DELETE FROM " + tableCatalog + " WHERE partition = ? AND row = ?"
)

// rowsAtOnce is the page size where rows are small.
const rowsAtOnce = 5000

// database is the store as the protocol sees it.
type database struct{ s *Store }

var _ protocol.Database = database{}

// Partitions implements protocol.Catalog. A partition whose rows are all
// deleted has its version left, and is listed.
func (d database) Partitions(ctx context.Context) ([]string, error) {
	s := d.s
	iter := s.db.Query(selectPartitions).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var names []string
	var name string
	for iter.Scan(&name) {
		names = append(names, name)
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableCatalog, "list the catalog")
	}
	return names, nil
}

// Load implements protocol.Catalog. A read at serial consistency completes a
// transaction that was accepted, and supersedes one that was not.
func (d database) Load(ctx context.Context, name string) (protocol.Partition, error) {
	return d.whole(ctx, name, d.s.serialLevel())
}

// Peek implements protocol.Catalog. What one replica alone has is written to a
// quorum before it is shown: that is the servers' read repair.
func (d database) Peek(ctx context.Context, name string, rows ...string) (protocol.Partition, error) {
	level := d.s.catalogLevel()
	if len(rows) == 0 {
		return d.whole(ctx, name, level)
	}
	p, _, err := d.read(ctx, level, rowsAtOnce, selectRows, name, rows)
	if err != nil || len(p.Rows) > 0 {
		return p, err
	}
	// Without rows there is no version. One that is read before the rows may be
	// too old for a swap, and never too new.
	before, err := d.version(ctx, name, level)
	if err != nil || before == 0 {
		return p, err
	}
	if p, _, err = d.read(ctx, level, rowsAtOnce, selectRows, name, rows); err == nil && len(p.Rows) == 0 {
		p.Version = before
	}
	return p, err
}

func (d database) version(ctx context.Context, name string, level gocql.Consistency) (int64, error) {
	s := d.s
	iter := s.db.Query(selectVersion, name).WithContext(ctx).Consistency(level).Iter()
	host := iter.Host()
	var version int64
	iter.Scan(&name, &version)
	if err := iter.Close(); err != nil {
		return 0, s.fault(ctx, err, host, tableCatalog, fmt.Sprintf("read the version of partition %q", name))
	}
	return version, nil
}

// whole reads a partition as it was at one moment. Each page is; a partition that
// has several, and changes between them, is read again in larger ones.
func (d database) whole(ctx context.Context, name string, level gocql.Consistency) (protocol.Partition, error) {
	for size := d.s.pageRows; ; size *= 4 {
		p, torn, err := d.read(ctx, level, size, selectPartition, name)
		if err != nil || !torn {
			return p, err
		}
	}
}

// read reads rows of a partition. They are torn if not all are of one version.
func (d database) read(
	ctx context.Context, level gocql.Consistency, size int, stmt, name string, more ...any,
) (p protocol.Partition, torn bool, err error) {
	s := d.s
	iter := s.db.Query(stmt, append([]any{name}, more...)...).WithContext(ctx).Consistency(level).PageSize(size).Iter()
	host := iter.Host()
	p.Rows = map[string][]byte{}
	for first := true; ; first = false {
		var row *string // none in a partition that has a version and no rows
		var value []byte
		var version int64
		if !iter.Scan(&row, &value, &version) {
			break
		}
		torn = torn || !first && version != p.Version
		p.Version = version
		if row != nil {
			p.Rows[*row] = value
		}
	}
	if err := iter.Close(); err != nil {
		return protocol.Partition{}, false, s.fault(ctx, err, host, tableCatalog,
			fmt.Sprintf("read partition %q of the catalog", name))
	}
	return p, torn, nil
}

// Swap implements protocol.Catalog. The driver never repeats it: it could not
// tell its own success from somebody else's.
func (d database) Swap(ctx context.Context, name string, version int64, change protocol.Change) error {
	s := d.s
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	//nolint:staticcheck // without the replacement the driver has no other
	b := s.db.NewBatch(gocql.UnloggedBatch).WithContext(ctx).DefaultTimestamp(false).RetryPolicy(movingRetries(0))
	b.SetConsistency(s.catalogLevel())
	if version == 0 {
		b.Query(swapNew, int64(1), name)
	} else {
		b.Query(swapOld, version+1, name, version)
	}
	for row, value := range change.Put {
		if value == nil {
			value = []byte{} // nil would be a null
		}
		b.Query(swapPut, name, row, value)
	}
	for _, row := range change.Delete {
		if _, put := change.Put[row]; !put { // of two changes at the same time the deletion would win
			b.Query(swapDelete, name, row)
		}
	}
	applied, iter, err := s.db.MapExecuteBatchCAS(b, map[string]any{})
	if iter != nil {
		err = errors.Join(err, iter.Close())
	}
	doing := fmt.Sprintf("change partition %q of the catalog", name)
	switch {
	case err == nil && applied:
		return nil
	case err == nil:
		return fmt.Errorf("%s: %w", doing, protocol.ErrMoved)
	case uncertain(err):
		return fmt.Errorf("%w: %w", protocol.ErrUncertain, s.fault(ctx, err, nil, tableCatalog, doing))
	default:
		return s.fault(ctx, err, nil, tableCatalog, doing)
	}
}

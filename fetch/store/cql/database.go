package cql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// The version of a partition is a static column, so that one condition covers all rows of
// the partition.
const (
	selectPartitions = "SELECT DISTINCT partition FROM " + tableCatalog
	selectPartition  = "SELECT row, value, version FROM " + tableCatalog + " WHERE partition = ?"
	selectRows       = selectPartition + " AND row IN ?"
	selectVersion    = "SELECT DISTINCT partition, version FROM " + tableCatalog + " WHERE partition = ?"

	// A swap is a batch of these in one partition. The first has the condition; for a partition that was never
	// written, the condition is that there is no version.
	swapNew    = "UPDATE " + tableCatalog + " SET version = ? WHERE partition = ? IF version = null"
	swapOld    = "UPDATE " + tableCatalog + " SET version = ? WHERE partition = ? IF version = ?"
	swapPut    = "INSERT INTO " + tableCatalog + " (partition, row, value) VALUES (?, ?, ?)"
	swapDelete = "DELETE FROM " + tableCatalog + " WHERE partition = ? AND row = ?"
)

// rowsAtOnce is the page size of queries with small rows.
const rowsAtOnce = 5000

// database is the store as the protocol sees it.
type database struct{ s *Store }

var (
	_ protocol.Database = database{}
	_ protocol.Contents = database{}
)

// Partitions implements protocol.Catalog. A partition whose rows are all deleted still has its version, and is
// listed.
func (d database) Partitions(ctx context.Context) ([]string, error) {
	s := d.s
	var names []string
	q := s.db.Query(selectPartitions).Consistency(s.catalogLevel()).PageSize(rowsAtOnce)
	err := s.rows(ctx, q, tableCatalog, "list the catalog", func(scan scanner) error {
		var name string
		for scan(&name) {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// Load implements protocol.Catalog. A read at serial consistency completes a transaction
// that was accepted, and supersedes one that was not. So the outcome of every earlier
// swap is settled.
func (d database) Load(ctx context.Context, name string) (protocol.Partition, error) {
	return d.whole(ctx, name, d.s.serialLevel())
}

// Peek implements protocol.Catalog. It reads at a quorum, and swaps are answered by a
// quorum, so it shows every swap that was answered. Data that only one replica has is
// written to a quorum before it is returned: that is the servers' read repair. So a later
// Peek shows it too.
func (d database) Peek(ctx context.Context, name string, rows ...string) (protocol.Partition, error) {
	level := d.s.catalogLevel()
	// The whole partition is wanted, with its version.
	if len(rows) == 0 {
		return d.whole(ctx, name, level)
	}
	p, _, err := d.read(ctx, level, rowsAtOnce, selectRows, name, rows)
	if err != nil || len(p.Rows) > 0 {
		return p, err
	}
	// Without rows there is no version. A version that is read before the rows may be too old for a swap, but never
	// too new.
	before, err := d.version(ctx, name, level)
	if err != nil || before == 0 {
		return p, err
	}
	if p, _, err = d.read(ctx, level, rowsAtOnce, selectRows, name, rows); err == nil && len(p.Rows) == 0 {
		p.Version = before
	}
	return p, err
}

// version reads the version of a partition, 0 if it was never written.
func (d database) version(ctx context.Context, name string, level gocql.Consistency) (int64, error) {
	var version int64
	_, err := d.s.row(ctx, d.s.db.Query(selectVersion, name).Consistency(level), tableCatalog,
		fmt.Sprintf("read the version of partition %q", name), &name, &version)
	return version, err
}

// whole reads a partition as of one moment. Each page is consistent. If a partition has several pages and changes
// between them, it is read again in larger pages.
func (d database) whole(ctx context.Context, name string, level gocql.Consistency) (protocol.Partition, error) {
	for size := d.s.pageRows; ; size *= 4 {
		p, torn, err := d.read(ctx, level, size, selectPartition, name)
		if err != nil || !torn {
			return p, err
		}
	}
}

// read reads rows of a partition. torn says that they have different versions: the
// partition has changed between two pages.
func (d database) read(
	ctx context.Context, level gocql.Consistency, size int, stmt, name string, more ...any,
) (p protocol.Partition, torn bool, err error) {
	p.Rows = map[string][]byte{}
	q := d.s.db.Query(stmt, append([]any{name}, more...)...).Consistency(level).PageSize(size)
	err = d.s.rows(ctx, q, tableCatalog, fmt.Sprintf("read partition %q of the catalog", name), func(scan scanner) error {
		for first := true; ; first = false {
			var row *string // nil in a partition with a version and no rows
			var value []byte
			var version int64
			if !scan(&row, &value, &version) {
				return nil
			}
			torn = torn || !first && version != p.Version
			p.Version = version
			if row != nil {
				p.Rows[*row] = value
			}
		}
	})
	return p, torn, err
}

// Swap implements protocol.Catalog. The driver never repeats it, because it could not distinguish its own success
// from another process's.
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
	// The batch is one transaction, because all of its statements are for one partition.
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

const (
	writeMember = "INSERT INTO " + tableMembers + " (id, holder, acked, beat, holds) VALUES (?, ?, ?, ?, ?) " +
		"USING TTL ?"
	deleteMember  = "DELETE FROM " + tableMembers + " WHERE id = ?"
	selectMembers = "SELECT id, holder, acked, beat, holds FROM " + tableMembers
)

// memberTTL is the default of Options.Lapse: twenty renewals, so that some may be late.
const memberTTL = time.Minute

// Announce implements protocol.Members. The beat is the write time, so that no clock decides which of two rows is
// newer.
func (d database) Announce(ctx context.Context, m protocol.Member) error {
	s := d.s
	if m.Beat <= 0 {
		// The driver would replace 0 with the current time.
		return fmt.Errorf("%w: beat %d of member %s", schema.ErrInvalid, m.Beat, m.ID)
	}
	q := s.db.Query(writeMember, m.ID, m.Holder, int64(m.Acked), m.Beat, m.Holds, int(s.options.Lapse.Seconds())).
		Consistency(s.catalogLevel()).WithTimestamp(m.Beat)
	err := s.exec(ctx, q, tableMembers, "announce this process")
	if code, ok := codeOf(err); ok && code == codeUnauthorized {
		err = fmt.Errorf("%w: %w", protocol.ErrReadOnly, err)
	}
	return err
}

// Members implements protocol.Members.
func (d database) Members(ctx context.Context) ([]protocol.Member, error) {
	s := d.s
	var list []protocol.Member
	q := s.db.Query(selectMembers).Consistency(s.catalogLevel()).PageSize(rowsAtOnce)
	err := s.rows(ctx, q, tableMembers, "list the processes at work", func(scan scanner) error {
		for {
			var m protocol.Member
			var acked int64
			if !scan(&m.ID, &m.Holder, &acked, &m.Beat, &m.Holds) {
				return nil
			}
			m.Acked = protocol.Epoch(acked)
			list = append(list, m)
		}
	})
	return list, err
}

// Leave implements protocol.Members. Its write time is the time of day in microseconds, which is far above any count
// of beats.
func (d database) Leave(ctx context.Context, id string) error {
	s := d.s
	q := s.db.Query(deleteMember, id).Consistency(s.catalogLevel())
	return s.exec(ctx, q, tableMembers, "take leave")
}

const (
	selectRow   = "SELECT size, parts, WRITETIME(size), WRITETIME(parts) FROM " + tableBlobs + " WHERE key = ?"
	selectIndex = "SELECT key, size, parts, WRITETIME(size), WRITETIME(parts) FROM " + tableBlobs +
		" WHERE token(key) > ? AND token(key) <= ?"
	touchBlob  = "UPDATE " + tableBlobs + " SET parts = ? WHERE key = ?"
	finishBlob = "UPDATE " + tableBlobs + " SET size = ?, parts = ? WHERE key = ?"
	unsizeBlob = "DELETE size FROM " + tableBlobs + " WHERE key = ?"
	deleteBlob = "DELETE FROM " + tableBlobs + " WHERE key = ?"

	// It shows that the bytes are there, without transferring them.
	findPart = "SELECT WRITETIME(data) FROM " + tableParts + " WHERE key = ? AND part = ?"
)

const (
	// scanRanges is the number of token intervals by which a table is read, and scanners
	// how many of them are read at once.
	scanRanges = 64
	// and scanners how many are read at once.
	scanners = 4
)

// indexRow is a row of the table blobs. The write times are epochs.
type indexRow struct {
	size           *int64 // nil if the blob is incomplete
	parts          *int
	sized, touched *int64
}

// of is the protocol's view of the row. A row without size is incomplete.
func (r *indexRow) of(key schema.Key) protocol.BlobRow {
	row := protocol.BlobRow{Key: key, Size: -1}
	if r.touched != nil {
		row.Touched = protocol.Epoch(*r.touched)
	}
	if r.size != nil {
		row.Size, row.Stored = *r.size, protocol.Epoch(*r.sized)
		row.Touched = max(row.Touched, row.Stored)
	}
	return row
}

// partCount is the greatest number of parts that may exist: a failed write may have left
// more than the size says.
func (r *indexRow) partCount() int {
	n := 0
	if r.size != nil {
		n = partsOf(*r.size)
	}
	if r.parts != nil {
		n = max(n, *r.parts)
	}
	return n
}

// Row implements protocol.Contents.
func (d database) Row(ctx context.Context, key schema.Key) (protocol.BlobRow, error) {
	r, err := d.s.indexRow(ctx, key)
	if err != nil {
		return protocol.BlobRow{}, err
	}
	return r.of(key), nil
}

// indexRow reads the row of a blob; the zero value if there is none.
func (s *Store) indexRow(ctx context.Context, key schema.Key) (r indexRow, err error) {
	q := s.db.Query(selectRow, key[:]).Consistency(s.indexLevel())
	_, err = s.row(ctx, q, tableBlobs, "look for a blob", &r.size, &r.parts, &r.sized, &r.touched)
	return r, err
}

// indexLevel is the consistency of reads of the table blobs. Together with that of writes it must make a quorum. It
// is never one replica's: a failed write may have left data on one replica, which must not be shown and disappear
// later; a quorum read repairs it.
func (s *Store) indexLevel() gocql.Consistency {
	switch s.config.Write {
	case gocql.LocalQuorum, gocql.Quorum:
		return s.config.Write
	case gocql.All:
		return gocql.Quorum
	default:
		return gocql.All
	}
}

// Touch implements protocol.Contents. It records how many parts of the blob may exist, so
// that a collection finds those of an unfinished write.
func (d database) Touch(ctx context.Context, ref schema.BlobRef, at protocol.Epoch) error {
	return d.s.write(ctx, at, tableBlobs, touchBlob, partsOf(ref.Size), ref.Key[:])
}

// Write implements protocol.Contents. The size is written last, because it marks the blob
// as complete.
func (d database) Write(ctx context.Context, ref schema.BlobRef, data []byte, at protocol.Epoch) error {
	if err := d.s.putParts(ctx, ref, data, at); err != nil {
		return err
	}
	return d.s.write(ctx, at, tableBlobs, finishBlob, ref.Size, partsOf(ref.Size), ref.Key[:])
}

// putParts writes the parts separately: a batch would have to pass through one coordinator, and servers refuse large
// batches.
func (s *Store) putParts(ctx context.Context, ref schema.BlobRef, data []byte, at protocol.Epoch) error {
	if data == nil {
		data = []byte{} // nil would be a null
	}
	return eachPart(ctx, partsOf(ref.Size), func(ctx context.Context, part int) error {
		cell := data[part*PartBytes : min((part+1)*PartBytes, len(data))]
		return s.write(ctx, at, tableParts, insertPart, ref.Key[:], part, cell)
	})
}

// eachPart calls do for every part of a blob, up to partsAtOnce at a time, and returns
// the first error.
func eachPart(ctx context.Context, n int, do func(ctx context.Context, part int) error) error {
	if n == 1 {
		return do(ctx, 0)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for part := range n {
		g.Go(func() error { return do(ctx, part) })
	}
	return g.Wait()
}

// write runs a statement on a table whose write times are epochs. If two writes are of
// one cell, the one with the later epoch wins, in whatever order they arrive.
func (s *Store) write(ctx context.Context, at protocol.Epoch, table, stmt string, args ...any) error {
	if at <= 0 {
		// The driver would replace it with the current time
		return fmt.Errorf("%w: a write in epoch %d", schema.ErrInvalid, at)
	}
	q := s.db.Query(stmt, args...).Consistency(s.config.Write).WithTimestamp(int64(at))
	return s.exec(ctx, q, table, "write")
}

// Whole implements protocol.Contents. It checks every part, because a complete row only
// shows that the parts existed once. A deleted row may come back with a replica that was
// down for longer than the servers keep tombstones.
func (d database) Whole(ctx context.Context, ref schema.BlobRef) (bool, error) {
	s := d.s
	err := eachPart(ctx, partsOf(ref.Size), func(ctx context.Context, part int) error {
		at, err := s.partWritten(ctx, ref.Key, part)
		if err == nil && at == 0 {
			err = gocql.ErrNotFound
		}
		return err
	})
	if errors.Is(err, gocql.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// partWritten is the write time of a part, which is an epoch; 0 if the part does not
// exist.
func (s *Store) partWritten(ctx context.Context, key schema.Key, part int) (int64, error) {
	var written *int64
	q := s.db.Query(findPart, key[:], part).Consistency(s.indexLevel())
	if _, err := s.row(ctx, q, tableParts, "look for a part of a blob", &written); err != nil || written == nil {
		return 0, err
	}
	return *written, nil
}

// Read implements protocol.Blobs.
func (d database) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	return d.s.get(ctx, ref)
}

// Scan implements protocol.Blobs. It reads several token intervals at a time.
func (d database) Scan(ctx context.Context, visit func(context.Context, protocol.BlobRow) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(scanners)
	for _, r := range ring(scanRanges) {
		g.Go(func() error { return d.s.scanRange(ctx, r, visit) })
	}
	return g.Wait()
}

// scanRange visits the rows of one token interval.
func (s *Store) scanRange(ctx context.Context, between pair,
	visit func(context.Context, protocol.BlobRow) error) error {
	q := s.db.Query(selectIndex, between.start, between.end).Consistency(s.scanLevel()).PageSize(rowsAtOnce)
	return s.rows(ctx, q, tableBlobs, "scan", func(scan scanner) error {
		for {
			var key []byte
			var r indexRow
			if !scan(&key, &r.size, &r.parts, &r.sized, &r.touched) {
				return nil
			}
			if len(key) != len(schema.Key{}) {
				return fmt.Errorf("%w: %s has a key of %d bytes", schema.ErrDataLoss, s.where(nil, tableBlobs), len(key))
			}
			if err := visit(ctx, r.of(schema.Key(key))); err != nil {
				return err
			}
		}
	})
}

// scanLevel is the consistency at which a collection reads what puts have written. If writes need a quorum of one
// datacenter and there are several, only all replicas together know of every put.
func (s *Store) scanLevel() gocql.Consistency {
	if s.spread && !s.config.LocalSerial {
		return gocql.All
	}
	if s.config.Write == gocql.LocalQuorum {
		return gocql.LocalQuorum
	}
	return s.indexLevel()
}

// Delete implements protocol.Blobs. It deletes first the size, which marks the blob as complete, and last the row
// that leads to its parts, so that after a crash the next collection finds them. The write time of a deletion is just
// before the epoch.
func (d database) Delete(ctx context.Context, row protocol.BlobRow, before protocol.Epoch) error {
	s, at := d.s, before-1
	if at <= 0 {
		return nil // nothing was written before the first epoch
	}
	var n int
	if row.Size >= 0 {
		n = partsOf(row.Size)
		if err := s.write(ctx, at, tableBlobs, unsizeBlob, row.Key[:]); err != nil {
			return err
		}
	} else {
		// An unfinished write has left parts, and only the row says how many there may
		// be.
		r, err := s.indexRow(ctx, row.Key)
		if err != nil {
			return err
		}
		n = r.partCount()
	}
	if n > 0 {
		err := eachPart(ctx, n, func(ctx context.Context, part int) error {
			return s.write(ctx, at, tableParts, deletePart, row.Key[:], part)
		})
		if err != nil {
			return err
		}
	}
	return s.write(ctx, at, tableBlobs, deleteBlob, row.Key[:])
}

// Sync implements protocol.Blobs. The servers answer when a write is durable as far as their commit log is.
func (d database) Sync(context.Context) error { return nil }

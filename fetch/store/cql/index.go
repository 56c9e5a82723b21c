package cql

import (
	"context"
	"errors"
	"fmt"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

const (
	selectRow   = "SELECT size, parts, WRITETIME(size), WRITETIME(parts) FROM " + tableBlobs + " WHERE key = ?"
	selectIndex = "SELECT key, size, parts, WRITETIME(size), WRITETIME(parts) FROM " + tableBlobs +
		" WHERE token(key) > ? AND token(key) <= ?"
	touchBlob  = "UPDATE " + tableBlobs + " SET parts = ? WHERE key = ?"
	finishBlob = "UPDATE " + tableBlobs + " SET size = ?, parts = ? WHERE key = ?"
	unsizeBlob = "DELETE size FROM " + tableBlobs + " WHERE key = ?"
	deleteBlob = "DELETE FROM " + tableBlobs + " WHERE key = ?"

	// It says that the bytes are there, and brings none.
	findPart = "SELECT WRITETIME(data) FROM " + tableParts + " WHERE key = ? AND part = ?"
)

const (
	// scanRanges is into how many intervals of tokens a table is cut to be read,
	scanRanges = 64
	// and scanners how many are read at once.
	scanners = 4
)

// indexRow is a row of the table blobs. The write times are epochs.
type indexRow struct {
	size           *int64 // nil if not all of the blob is there
	parts          *int
	sized, touched *int64
}

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

// partCount is how many parts there may be.
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

// Row implements protocol.Blobs.
func (d database) Row(ctx context.Context, key schema.Key) (protocol.BlobRow, error) {
	r, err := d.s.indexRow(ctx, key)
	if err != nil {
		return protocol.BlobRow{}, err
	}
	return r.of(key), nil
}

func (s *Store) indexRow(ctx context.Context, key schema.Key) (r indexRow, err error) {
	iter := s.db.Query(selectRow, key[:]).WithContext(ctx).Consistency(s.indexLevel()).Iter()
	host := iter.Host()
	iter.Scan(&r.size, &r.parts, &r.sized, &r.touched)
	if err := iter.Close(); err != nil {
		return indexRow{}, s.fault(ctx, err, host, tableBlobs, "look for a blob")
	}
	return r, nil
}

// indexLevel is the consistency at which the table blobs is read: with that of
// writes it must make a quorum. It is never one replica's: what a write that failed
// has left there must not be shown and be gone later, and a quorum repairs it.
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

// Touch implements protocol.Blobs. It says that parts of the blob may be there.
func (d database) Touch(ctx context.Context, ref schema.BlobRef, at protocol.Epoch) error {
	return d.s.write(ctx, at, tableBlobs, touchBlob, partsOf(ref.Size), ref.Key[:])
}

// Write implements protocol.Blobs.
func (d database) Write(ctx context.Context, ref schema.BlobRef, data []byte, at protocol.Epoch) error {
	if err := d.s.putParts(ctx, ref, data, at); err != nil {
		return err
	}
	return d.s.write(ctx, at, tableBlobs, finishBlob, ref.Size, partsOf(ref.Size), ref.Key[:])
}

// putParts writes the parts singly: a batch would have to pass through one
// coordinator, and servers refuse large ones.
func (s *Store) putParts(ctx context.Context, ref schema.BlobRef, data []byte, at protocol.Epoch) error {
	if data == nil {
		data = []byte{} // nil would be a null
	}
	return eachPart(ctx, partsOf(ref.Size), func(ctx context.Context, part int) error {
		cell := data[part*PartBytes : min((part+1)*PartBytes, len(data))]
		return s.write(ctx, at, tableParts, insertPart, ref.Key[:], part, cell)
	})
}

// eachPart calls do for every part of a blob, some at the same time.
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

// write runs a statement on what is ordered by epochs.
func (s *Store) write(ctx context.Context, at protocol.Epoch, table, stmt string, args ...any) error {
	if at <= 0 {
		return fmt.Errorf("%w: a write in epoch %d", schema.ErrInvalid, at) // the driver would take it for now
	}
	q := s.db.Query(stmt, args...).Consistency(s.config.Write).WithTimestamp(int64(at))
	return s.exec(ctx, q, table, "write")
}

// Whole implements protocol.Blobs. That the row is complete says that the parts
// were there once: one that was deleted may come back with a replica that was
// down for longer than the servers remember deletions.
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

// partWritten is when a part was written, 0 if it is not there.
func (s *Store) partWritten(ctx context.Context, key schema.Key, part int) (int64, error) {
	iter := s.db.Query(findPart, key[:], part).WithContext(ctx).Consistency(s.indexLevel()).Iter()
	host := iter.Host()
	var written *int64
	iter.Scan(&written)
	if err := iter.Close(); err != nil {
		return 0, s.fault(ctx, err, host, tableParts, "look for a part of a blob")
	}
	if written == nil {
		return 0, nil
	}
	return *written, nil
}

// Read implements protocol.Blobs.
func (d database) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	return d.s.get(ctx, ref)
}

// Scan implements protocol.Blobs. It reads several intervals of tokens at a time.
func (d database) Scan(ctx context.Context, visit func(context.Context, protocol.BlobRow) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(scanners)
	for _, r := range ring(scanRanges) {
		g.Go(func() error { return d.s.scanRange(ctx, r, visit) })
	}
	return g.Wait()
}

func (s *Store) scanRange(ctx context.Context, between pair,
	visit func(context.Context, protocol.BlobRow) error) error {
	iter := s.db.Query(selectIndex, between.start,
		between.end).WithContext(ctx).Consistency(s.scanLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	for {
		var key []byte
		var r indexRow
		if !iter.Scan(&key, &r.size, &r.parts, &r.sized, &r.touched) {
			break
		}
		if len(key) != len(schema.Key{}) {
			return errors.Join(fmt.Errorf("%w: %s has a key of %d bytes", schema.ErrDataLoss, s.where(host, tableBlobs),
				len(key)), iter.Close())
		}
		if err := visit(ctx, r.of(schema.Key(key))); err != nil {
			return errors.Join(err, iter.Close())
		}
	}
	if err := iter.Close(); err != nil {
		return s.fault(ctx, err, host, tableBlobs, "scan")
	}
	return nil
}

// scanLevel is the consistency at which a collection reads what puts have
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

// Delete implements protocol.Blobs: first what says that the blob is complete,
// last what leads to its parts, so that whoever takes over after a crash finds
// them. A deletion is of the moment before the epoch.
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

// Sync implements protocol.Blobs: the servers answer when what they wrote is durable
// as far as their commit log is.
func (d database) Sync(context.Context) error { return nil }

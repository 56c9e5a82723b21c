package cql

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// PartBytes is the size of every part of a blob but the last. It is part of
// the format: readers compute from a blob's size which parts it has.
const PartBytes = 1 << 20

// partsOf is the number of parts of a blob of that size. An empty blob has one.
func partsOf(size int64) int { return int(max(1, (size+PartBytes-1)/PartBytes)) }

// partsAtOnce bounds how many parts of one blob are in flight.
const partsAtOnce = 16

// maxBlob bounds what a reference may make Get allocate.
const maxBlob = 1 << 40

const (
	selectPart = "SELECT data FROM " + tableParts + " WHERE key = ? AND part = ?"
	insertPart = "INSERT INTO " + tableParts + " (key, part, data) VALUES (?, ?, ?)"
	deletePart = "DELETE FROM " + tableParts + " WHERE key = ? AND part = ?"
)

// Get implements fetch.Store. The parts of a large blob are read at the same
// time. A blob of another size than ref says is a schema.ErrDataLoss.
func (s *Store) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer s.life.RUnlock()
	if ref.Size < 0 || ref.Size >= maxBlob {
		return schema.Blob{}, fmt.Errorf("%w: blob %s of %d bytes", schema.ErrInvalid, ref.Key, ref.Size)
	}
	b, err := s.get(ctx, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	s.reads.Add(1)
	s.readBytes.Add(ref.Size)
	return b, nil
}

func (s *Store) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if t := s.foreign.of(ref.Key); t != nil {
		return s.getForeign(ctx, t, ref)
	}
	buf := newBuffer(ref.Size)
	err := s.readParts(ctx, ref, buf.data)
	if errors.Is(err, schema.ErrNotFound) {
		// It may have been attached by another process since this one looked.
		if err := s.loadAttached(ctx); err != nil {
			buf.Unpin()
			return schema.Blob{}, err
		}
		if t := s.foreign.of(ref.Key); t != nil {
			buf.Unpin()
			return s.getForeign(ctx, t, ref)
		}
	}
	if err != nil {
		buf.Unpin()
		return schema.Blob{}, err
	}
	return schema.NewBlob(buf.data, buf), nil
}

// readParts fills data. When it returns, nothing writes there any more.
func (s *Store) readParts(ctx context.Context, ref schema.BlobRef, data []byte) error {
	if n := partsOf(ref.Size); n > 1 {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(partsAtOnce)
		for i := range n {
			g.Go(func() error {
				return s.readPart(ctx, &ref, i, data[i*PartBytes:min((i+1)*PartBytes, len(data))])
			})
		}
		return g.Wait()
	}
	return s.readPart(ctx, &ref, 0, data)
}

func (s *Store) readPart(ctx context.Context, ref *schema.BlobRef, part int, dst []byte) error {
	key := ref.Key // escapes, once
	levels := [...]gocql.Consistency{s.config.Read, gocql.LocalQuorum, gocql.Quorum}
	for i, level := range levels {
		if i > 0 && level == levels[i-1] {
			continue
		}
		err := s.readCell(ctx, s.db.Query(selectPart, key[:], part).Consistency(level), tableParts, dst)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, gocql.ErrNotFound):
			// The replica asked may have missed the write: blobs are written at a quorum.
		default:
			return fmt.Errorf("read blob %s: %w", ref.Key, err)
		}
	}
	return fmt.Errorf("%w: the store has no blob %s (part %d of %d, %s)",
		schema.ErrNotFound, ref.Key, part+1, partsOf(ref.Size), s.where(nil, tableParts))
}

// readCell runs a query for one cell, and copies it to dst, whose length it
// must have. No row is a gocql.ErrNotFound.
func (s *Store) readCell(ctx context.Context, q *gocql.Query, table string, dst []byte) error {
	into := cell{dst: dst}
	iter := q.WithContext(ctx).Iter()
	host := iter.Host()
	found := iter.Scan(&into)
	err := iter.Close()
	switch {
	case err != nil:
		return s.fault(ctx, err, host, table, "read")
	case !found || into.null:
		return gocql.ErrNotFound
	case into.size != len(dst):
		return fmt.Errorf("%w: %s: a cell has %d bytes, the manifest says %d", schema.ErrDataLoss, s.where(host, table), into.size, len(dst))
	}
	return nil
}

// cell receives a blob from the driver's buffer, which is only lent.
type cell struct {
	dst  []byte
	size int
	null bool
}

// UnmarshalCQL implements gocql.Unmarshaler.
func (c *cell) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	c.null = data == nil
	c.size = len(data)
	if len(data) == len(c.dst) {
		copy(c.dst, data)
	}
	return nil
}

// buffer is the memory of a blob that was read. It belongs to the holder of
// the blob until Unpin, which puts it back for another.
type buffer struct {
	data  []byte
	class int
}

// Sizes of buffers grow by a quarter of a power of two, so that at most a
// fifth of one is wasted; blobs above the largest are left to the garbage collector.
const (
	leastBits = 10 // smaller blobs share a class
	mostBits  = 26
)

var buffers [(mostBits-leastBits)*4 + 1]sync.Pool

// classOf returns the class of buffers that hold n bytes, and their size. The
// class is -1 if there is none.
func classOf(n int64) (class int, size int64) {
	if n <= 1<<leastBits {
		return 0, 1 << leastBits
	}
	exp := bits.Len64(uint64(n-1)) - 1 // 2^exp < n <= 2^(exp+1)
	if exp >= mostBits {
		return -1, n
	}
	quarter := int64(1) << (exp - 2)
	steps := (n - int64(1)<<exp + quarter - 1) / quarter // 1 to 4
	class = (exp-leastBits)*4 + int(steps)
	if class >= len(buffers) {
		return -1, n
	}
	return class, int64(1)<<exp + steps*quarter
}

func newBuffer(n int64) *buffer {
	class, size := classOf(n)
	if class >= 0 {
		if b, ok := buffers[class].Get().(*buffer); ok {
			b.data = b.data[:n]
			return b
		}
	}
	return &buffer{data: make([]byte, n, size), class: class}
}

// Unpin implements schema.Owner.
func (b *buffer) Unpin() {
	if b.class >= 0 {
		b.data = b.data[:0]
		buffers[b.class].Put(b)
	}
}

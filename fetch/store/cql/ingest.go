package cql

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	touchBlob  = "UPDATE " + tableBlobs + " SET parts = ? WHERE key = ?"
	finishBlob = "UPDATE " + tableBlobs + " SET size = ?, parts = ? WHERE key = ?"
	selectBlob = "SELECT size, WRITETIME(parts) FROM " + tableBlobs + " WHERE key = ?"
)

// ingest is a store.Ingest. While it is open no collection, in any process,
// frees a blob that was touched since it began, and each blob put through it is.
type ingest struct {
	s       *Store
	dataset string
	began   int64 // by the store's clock
	closed  atomic.Bool
	lost    atomic.Bool // the lease lapsed meanwhile
}

// Begin implements store.Store.
func (s *Store) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	if err := schema.CheckName("dataset", dataset); err != nil {
		return nil, err
	}
	in := &ingest{s: s, dataset: dataset, began: s.clock.now()}
	l := &s.lease
	l.mu.Lock()
	l.ingests[in] = struct{}{}
	// What the lease says protects this ingest too if an older one is in it.
	covered := l.covered != 0 && l.covered <= in.began
	l.mu.Unlock()
	if !covered || l.fresh() != nil {
		if err := l.renew(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("begin an ingest into %q: %w", dataset, err), in.Close())
		}
	}
	return in, nil
}

// enter begins a call on the ingest; the caller ends it with s.life.RUnlock.
func (in *ingest) enter(ctx context.Context) error {
	if in.closed.Load() {
		return fmt.Errorf("%w: the ingest into %q is closed", schema.ErrInvalid, in.dataset)
	}
	if err := in.s.enter(ctx); err != nil {
		return err
	}
	err := in.s.lease.fresh()
	if err == nil && in.lost.Load() {
		err = fmt.Errorf("%w: the ingest into %q was out of touch with the store for %v, in which a collection may have freed what it had put: begin again",
			schema.ErrUnavailable, in.dataset, leaseTTL)
	}
	if err != nil {
		in.s.life.RUnlock()
	}
	return err
}

// Put implements store.Ingest. A blob that is there costs one round trip, one
// that is not costs three.
func (in *ingest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if err := in.enter(ctx); err != nil {
		return schema.BlobRef{}, err
	}
	defer in.s.life.RUnlock()
	ref := schema.RefOf(data)
	if err := in.s.puts.begin(ctx, ref.Key); err != nil {
		return schema.BlobRef{}, err
	}
	defer in.s.puts.end(ref.Key)
	if err := in.put(ctx, ref, data); err != nil {
		return schema.BlobRef{}, fmt.Errorf("store blob %s: %w", ref.Key, err)
	}
	return ref, nil
}

func (in *ingest) put(ctx context.Context, ref schema.BlobRef, data []byte) error {
	s := in.s
	at := s.clock.now()
	var old blobRow
	if s.puts.collecting {
		// The collection may have found the blob dead before it is touched
		// here: only what it cannot have found dead may be left as it is.
		var err error
		if old, err = s.blobRow(ctx, ref.Key); err != nil {
			return err
		}
		if err := s.touch(ctx, ref, at); err != nil {
			return err
		}
		if old.complete(ref) && old.touched >= in.began {
			s.dedups.Add(1)
			return nil
		}
	} else {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return s.touch(ctx, ref, at) })
		g.Go(func() (err error) {
			old, err = s.blobRow(ctx, ref.Key)
			return err
		})
		if err := g.Wait(); err != nil {
			return err
		}
		if old.complete(ref) {
			s.dedups.Add(1)
			return nil
		}
	}
	if err := s.putParts(ctx, ref, data, at); err != nil {
		return err
	}
	q := s.db.Query(finishBlob, ref.Size, partsOf(ref.Size), ref.Key[:]).Consistency(s.config.Write).WithTimestamp(at)
	if err := s.exec(ctx, q, tableBlobs, "write"); err != nil {
		return err
	}
	s.writtenBytes.Add(ref.Size)
	if old.complete(ref) { // stored again for the sake of a collection
		s.dedups.Add(1)
		return nil
	}
	s.writes.Add(1)
	s.census.add(1, ref.Size)
	return nil
}

// blobRow is the row of a blob in the table blobs.
type blobRow struct {
	size    *int64 // nil if not all of the blob is there
	touched int64  // write time of parts
}

func (r blobRow) complete(ref schema.BlobRef) bool { return r.size != nil && *r.size == ref.Size }

func (s *Store) blobRow(ctx context.Context, key schema.Key) (blobRow, error) {
	var r blobRow
	var touched *int64
	iter := s.db.Query(selectBlob, key[:]).WithContext(ctx).Consistency(s.indexLevel()).Iter()
	host := iter.Host()
	iter.Scan(&r.size, &touched)
	if err := iter.Close(); err != nil {
		return blobRow{}, s.fault(ctx, err, host, tableBlobs, "look for a blob")
	}
	if touched != nil {
		r.touched = *touched
	}
	return r, nil
}

// indexLevel is the consistency at which the table blobs is read: with that of
// writes it must make a quorum.
func (s *Store) indexLevel() gocql.Consistency {
	switch s.config.Write {
	case gocql.LocalQuorum, gocql.Quorum:
		return s.config.Write
	case gocql.All:
		return gocql.LocalOne
	default:
		return gocql.All
	}
}

// touch says that the blob is wanted, and that parts of it may be there, so
// that a collection finds these whatever becomes of the put.
func (s *Store) touch(ctx context.Context, ref schema.BlobRef, at int64) error {
	q := s.db.Query(touchBlob, partsOf(ref.Size), ref.Key[:]).Consistency(s.config.Write).WithTimestamp(at)
	return s.exec(ctx, q, tableBlobs, "write")
}

// putParts writes the parts singly: a batch would have to pass through one
// coordinator, and servers refuse large ones.
func (s *Store) putParts(ctx context.Context, ref schema.BlobRef, data []byte, at int64) error {
	write := func(ctx context.Context, part int, b []byte) error {
		if b == nil {
			b = []byte{} // nil would be a null
		}
		q := s.db.Query(insertPart, ref.Key[:], part, b).Consistency(s.config.Write).WithTimestamp(at)
		return s.exec(ctx, q, tableParts, "write")
	}
	n := partsOf(ref.Size)
	if n == 1 {
		return write(ctx, 0, data)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for i := range n {
		g.Go(func() error { return write(ctx, i, data[i*PartBytes:min((i+1)*PartBytes, len(data))]) })
	}
	return g.Wait()
}

// present reports a schema.ErrInvalid if a blob that is to be referred to is
// not in the store.
func (s *Store) present(ctx context.Context, ref schema.BlobRef) error {
	row, err := s.blobRow(ctx, ref.Key)
	if err != nil {
		return err
	}
	if !row.complete(ref) {
		return fmt.Errorf("%w: blob %s of %d bytes was not put", schema.ErrInvalid, ref.Key, ref.Size)
	}
	return nil
}

// Close implements store.Ingest.
func (in *ingest) Close() error {
	if in.closed.CompareAndSwap(false, true) {
		l := &in.s.lease
		l.mu.Lock()
		delete(l.ingests, in)
		l.mu.Unlock()
	}
	return nil
}

package local

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// SetInUse implements store.Store. No other process collects.
func (s *Store) SetInUse(func() []*schema.Snapshot) {}

// Traits implements store.Store.
func (s *Store) Traits() store.Traits { return store.Traits{Mapped: true, Replicas: 1} }

// Addressed implements store.Store: all keys are hashes.
func (s *Store) Addressed(schema.Key) (store.AttachedTable, bool) {
	return store.AttachedTable{}, false
}

// Refer implements store.Store.
func (s *Store) Refer(_ context.Context, tables []store.AttachedTable) error {
	return fmt.Errorf("%w: the blobs are cells of table %s, which a store in a directory cannot reach: copy them by value",
		schema.ErrInvalid, tables[0])
}

// Selections implements store.Store.
func (s *Store) Selections(ctx context.Context, dataset string) ([]*schema.Selection, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	prefix := []byte{prefixSelection}
	if dataset != "" {
		prefix = namePrefix(prefixSelection, dataset)
	}
	return s.selections(s.db, prefix)
}

// Repair implements store.Store. The bytes go to the end of the segments,
// and what was there is freed by a later collection.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if ref.Check(data) != nil || sha256.Sum256(data) != ref.Key {
		return fmt.Errorf("%w: a repair of blob %s with other bytes", schema.ErrInvalid, ref.Key)
	}
	// A collection that moves the old bytes would find the index changed.
	select {
	case s.collecting <- struct{}{}:
		defer func() { <-s.collecting }()
	case <-s.ending.Done():
		return stopped(ctx, s)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := s.replace(ref, data); err != nil {
		return fmt.Errorf("repair blob %s: %w", ref.Key, err)
	}
	return nil
}

// replace appends data and has the index name it.
func (s *Store) replace(ref schema.BlobRef, data []byte) error {
	loc, err := s.set.Append(ref.Key, ref.Sum, data)
	if err != nil {
		return err
	}
	// The index may reach the disk at any time, and must not lead to nothing then.
	if err := s.set.Sync(); err != nil {
		return err
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	stripe := s.stripe(&ref.Key)
	stripe.Lock()
	defer stripe.Unlock()
	old, found, err := s.entry(ref.Key)
	if err != nil && !errors.Is(err, schema.ErrDataLoss) {
		return err
	}
	grown := count{1, ref.Size}
	if found {
		grown = count{0, ref.Size - old.Length}
	}
	defer s.places.forget(&ref.Key)
	e := entry{Location: loc, sum: ref.Sum, touch: s.epoch.Load()}
	var key [33]byte
	var value [entrySize]byte
	if err := s.update(change{}); err != nil { // of the segments, how far they are synced
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	err = errors.Join(
		b.Set(blobKey(&key, &ref.Key), e.encode(&value), nil),
		b.Merge(keyCount, grown.encode(), nil),
		b.Commit(pebble.Sync),
	)
	if err != nil {
		return dbError(fmt.Sprintf("index blob %s", ref.Key), err)
	}
	s.writes.Add(1)
	s.writtenBytes.Add(ref.Size)
	s.blobs.Add(grown.blobs)
	s.storedBytes.Add(grown.bytes)
	return nil
}

// Adopt implements store.Ingest.
func (in *ingest) Adopt(ctx context.Context, ref schema.BlobRef) (bool, error) {
	if err := in.enter(ctx); err != nil {
		return false, err
	}
	s := in.s
	defer s.life.RUnlock()
	stripe := s.stripe(&ref.Key)
	stripe.Lock()
	defer stripe.Unlock()
	e, found, err := s.entry(ref.Key)
	if err != nil || !found || e.Length != ref.Size || e.sum != ref.Sum || !s.set.Holds(e.Location) {
		return false, err
	}
	return true, in.keep(ref, e)
}

// keep touches a blob that is stored, for a put of it. Its stripe is held.
func (in *ingest) keep(ref schema.BlobRef, e entry) error {
	s := in.s
	if e.touch < in.epoch {
		e.touch = s.epoch.Load()
		var key [33]byte
		var value [entrySize]byte
		if err := s.db.Set(blobKey(&key, &ref.Key), e.encode(&value), pebble.NoSync); err != nil {
			return dbError(fmt.Sprintf("index blob %s", ref.Key), err)
		}
	}
	s.dedups.Add(1)
	return nil
}

// Restorable implements store.Store.
func (s *Store) Restorable(ctx context.Context, snap *schema.Snapshot) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	last, err := s.lastNumber(snap.Dataset)
	if err != nil {
		return err
	}
	return store.CheckRestore(snap, last)
}

// Restore implements store.Ingest.
func (in *ingest) Restore(ctx context.Context, snap schema.Snapshot) error {
	_, err := in.commit(ctx, snap, true)
	return err
}

// LastNumber implements store.Store.
func (s *Store) LastNumber(ctx context.Context, dataset string) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	return s.lastNumber(dataset)
}

// Advance implements store.Store.
func (s *Store) Advance(ctx context.Context, dataset string, last int64) error {
	if err := schema.CheckName("dataset", dataset); err != nil {
		return err
	}
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.catalog.Lock()
	defer s.catalog.Unlock()
	if now, err := s.lastNumber(dataset); err != nil || now >= last {
		return err
	}
	return s.update(change{string(counterKey(dataset)): binary.LittleEndian.AppendUint64(nil, uint64(last))})
}

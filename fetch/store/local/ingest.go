package local

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// ingest is a store.Ingest. While it is open, no collection frees a blob that
// was touched in its epoch or later, and each blob put through it is.
type ingest struct {
	s       *Store
	dataset string
	epoch   uint32
	closed  atomic.Bool
}

// Begin implements store.Store.
func (s *Store) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	if err := s.enterToWrite(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	if err := schema.CheckName("dataset", dataset); err != nil {
		return nil, err
	}
	s.ingestsMu.Lock()
	defer s.ingestsMu.Unlock()
	// An epoch of its own tells its blobs from all that were put before.
	epoch, err := s.nextEpoch(pebble.NoSync)
	if err != nil {
		return nil, err
	}
	in := &ingest{s: s, dataset: dataset, epoch: epoch}
	s.ingests[in] = struct{}{}
	return in, nil
}

// enter begins a call on the ingest; the caller ends it with s.life.RUnlock.
func (in *ingest) enter(ctx context.Context) error {
	if in.closed.Load() {
		return fmt.Errorf("%w: the ingest into %q is closed", schema.ErrInvalid, in.dataset)
	}
	return in.s.enter(ctx)
}

// Put implements store.Ingest.
func (in *ingest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if err := in.enter(ctx); err != nil {
		return schema.BlobRef{}, err
	}
	s := in.s
	defer s.life.RUnlock()
	ref := schema.RefOf(data)
	if err := in.put(ref, data); err != nil {
		return schema.BlobRef{}, err
	}
	return ref, s.syncSealed()
}

// put stores a blob unless it is there.
func (in *ingest) put(ref schema.BlobRef, data []byte) error {
	s := in.s
	stripe := s.stripe(&ref.Key)
	stripe.Lock()
	defer stripe.Unlock()
	old, found, err := s.entry(ref.Key)
	if err != nil {
		return err
	}
	if found && old.Length == ref.Size && s.set.Holds(old.Location) {
		return in.keep(ref, old)
	}

	loc, err := s.set.Append(ref.Key, ref.Sum, data)
	if err != nil {
		return fmt.Errorf("store blob %s: %w", ref.Key, err)
	}
	defer s.places.forget(&ref.Key)
	e := entry{Location: loc, sum: ref.Sum, touch: s.epoch.Load()}
	grown := count{1, ref.Size}
	if found { // an entry whose bytes a crash took
		grown = count{0, ref.Size - old.Length}
	}
	var key [33]byte
	var value [entrySize]byte
	b := s.db.NewBatch()
	defer b.Close()
	err = errors.Join(
		b.Set(blobKey(&key, &ref.Key), e.encode(&value), nil),
		b.Merge(keyCount, grown.encode(), nil),
		b.Commit(pebble.NoSync),
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

// Commit implements store.Ingest.
func (in *ingest) Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	return in.commit(ctx, snap, false)
}

// commit commits snap as the next one, or restores it as what it was elsewhere.
func (in *ingest) commit(ctx context.Context, snap schema.Snapshot, restore bool) (*schema.Snapshot, error) {
	if err := in.enter(ctx); err != nil {
		return nil, err
	}
	s := in.s
	defer s.life.RUnlock()
	if err := store.CheckCommit(in.dataset, &snap); err != nil {
		return nil, err
	}
	snap.Dataset = in.dataset
	for _, c := range snap.Chunks {
		if err := s.present(c.BlobRef); err != nil {
			return nil, fmt.Errorf("manifest chunk: %w", err)
		}
	}
	// Before the lock: concurrent commits share what is synced, and one that
	// is bound to fail costs the others nothing.
	if err := in.number(&snap, restore); err != nil {
		return nil, err
	}
	if err := s.set.Sync(); err != nil {
		return nil, err
	}

	s.catalog.Lock()
	defer s.catalog.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := in.number(&snap, restore); err != nil {
		return nil, err
	}
	record, err := json.Marshal(&snap)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot: %w", err)
	}
	err = s.update(change{
		string(snapshotKey(in.dataset, snap.Number)): record,
		string(counterKey(in.dataset)):               binary.LittleEndian.AppendUint64(nil, uint64(snap.Number)),
	})
	if err != nil {
		return nil, err
	}
	// As any reader will find it, and sharing no memory with the caller's.
	return decodeSnapshot(in.dataset, snap.Number, record)
}

// number gives snap its number and time, unless it is restored and has them. It
// reports a schema.ErrConflict if snap cannot be the newest snapshot.
func (in *ingest) number(snap *schema.Snapshot, restore bool) error {
	last, err := in.s.lastNumber(in.dataset)
	if err != nil {
		return err
	}
	if restore {
		return store.CheckRestore(snap, last)
	}
	newest, err := in.s.newest(in.dataset)
	if err != nil {
		return err
	}
	snap.Number = last + 1
	snap.Created = time.Now().UTC().Truncate(time.Microsecond)
	return store.CheckParent(in.dataset, snap.Parent, newest)
}

// lastNumber is the highest snapshot number ever given out, 0 for none.
func (s *Store) lastNumber(dataset string) (int64, error) {
	v, err := s.value(counterKey(dataset))
	if err != nil || v == nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: the counter of dataset %q has %d bytes, not 8", schema.ErrDataLoss, dataset, len(v))
	}
	return int64(binary.LittleEndian.Uint64(v)), nil
}

// present reports a schema.ErrInvalid if a blob that is to be referred to is
// not in the store.
func (s *Store) present(ref schema.BlobRef) error {
	e, ok, err := s.entry(ref.Key)
	if err != nil {
		return err
	}
	if !ok || e.Length != ref.Size || !s.set.Holds(e.Location) {
		return fmt.Errorf("%w: blob %s of %d bytes was not put", schema.ErrInvalid, ref.Key, ref.Size)
	}
	return nil
}

// SaveSelection implements store.Ingest.
func (in *ingest) SaveSelection(ctx context.Context, sel schema.Selection) error {
	s, own := in.s, in
	if err := own.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if sel.Dataset != own.dataset {
		return fmt.Errorf("%w: a selection of %q saved through an ingest into %q", schema.ErrInvalid, sel.Dataset,
			own.dataset)
	}
	if err := s.present(sel.Bitmap); err != nil {
		return fmt.Errorf("selection bitmap: %w", err)
	}
	if err := s.set.Sync(); err != nil {
		return err
	}

	s.catalog.Lock()
	defer s.catalog.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	v, err := s.value(snapshotKey(sel.Dataset, sel.Snapshot))
	if err != nil {
		return err
	}
	if v == nil {
		return s.missing(sel.Dataset, sel.Snapshot)
	}
	key := selectionKey(sel.Dataset, sel.Key())
	if v, err = s.value(key); err != nil {
		return err
	}
	if v != nil {
		old, err := decodeSelection(v)
		if err != nil {
			return err
		}
		if !old.Expired(time.Now()) {
			if !old.Extend(sel.Expires) {
				return nil
			}
			return s.putSelection(old)
		}
	}
	if sel.Most > 0 {
		others, err := s.selections(s.db, namePrefix(prefixSelection, sel.Dataset))
		if err != nil {
			return err
		}
		if err := store.SelectionLimit(&sel, slices.Values(others), time.Now()); err != nil {
			return err
		}
	}
	if sel.Created.IsZero() {
		sel.Created = time.Now().UTC().Truncate(time.Microsecond)
	}
	return s.putSelection(&sel)
}

// Close implements store.Ingest.
func (in *ingest) Close() error {
	if in.closed.CompareAndSwap(false, true) {
		in.s.ingestsMu.Lock()
		delete(in.s.ingests, in)
		in.s.ingestsMu.Unlock()
	}
	return nil
}

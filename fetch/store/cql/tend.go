package cql

import (
	"context"
	"fmt"
	"sync/atomic"

	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

var (
	_ store.SelectionLister = (*Store)(nil)
	_ store.Repairer        = (*Store)(nil)
	_ store.Replicated      = (*Store)(nil)
	_ store.Addresser       = (*Store)(nil)
	_ store.Restorer        = (*Store)(nil)
	_ store.Adopter         = (*ingest)(nil)
)

// Selections implements store.SelectionLister.
func (s *Store) Selections(ctx context.Context, dataset string) ([]*schema.Selection, error) {
	return s.catalog.Selections(ctx, dataset)
}

// Replicas implements store.Replicated.
func (s *Store) Replicas() int {
	if n := int(s.steering.replicas.Load()); n > 0 {
		return n
	}
	return replicasGuess
}

// Addressed implements store.Addresser: cells of attached tables are.
func (s *Store) Addressed(key schema.Key) bool { return s.foreign.of(key) != nil }

// Repair implements store.Repairer. Every part is written again, in a later epoch
// than what is there, so that all replicas come to have it.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	if t := s.foreign.of(ref.Key); t != nil {
		return fmt.Errorf("%w: blob %s is a cell of table %s, which another program keeps: repair it there",
			schema.ErrInvalid, ref.Key, t.name())
	}
	written, err := s.writtenAt(ctx, ref)
	if err != nil {
		return err
	}
	// Who deleted it by hand did so at some time until now, which cannot be read.
	written = max(written, s.now())
	return s.catalog.RepairAfter(ctx, ref, data, written)
}

// now is the epoch of what somebody writes by hand at this moment.
func (s *Store) now() protocol.Epoch { return protocol.Epoch(s.options.Clock().UnixMicro()) }

// writtenAt is the latest epoch that a part of a blob is of, 0 if there is none.
func (s *Store) writtenAt(ctx context.Context, ref schema.BlobRef) (protocol.Epoch, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	var latest atomic.Int64
	err := eachPart(ctx, partsOf(ref.Size), func(ctx context.Context, part int) error {
		at, err := s.partWritten(ctx, ref.Key, part)
		for seen := latest.Load(); at > seen && !latest.CompareAndSwap(seen, at); seen = latest.Load() {
		}
		return err
	})
	return protocol.Epoch(latest.Load()), err
}

// Restorable implements store.Restorer.
func (s *Store) Restorable(ctx context.Context, snap *schema.Snapshot) error {
	return s.catalog.Restorable(ctx, snap)
}

// Restore implements store.Restorer.
func (s *Store) Restore(ctx context.Context, in store.Ingest, snap *schema.Snapshot) error {
	own, ok := in.(*ingest)
	if !ok || own.s != s {
		return fmt.Errorf("%w: the ingest is not one of this store", schema.ErrInvalid)
	}
	return own.Ingest.Restore(ctx, *snap)
}

// LastNumber implements store.Numberer.
func (s *Store) LastNumber(ctx context.Context, dataset string) (int64, error) {
	return s.catalog.LastNumber(ctx, dataset)
}

// Advance implements store.Restorer.
func (s *Store) Advance(ctx context.Context, dataset string, last int64) error {
	return s.catalog.Advance(ctx, dataset, last)
}

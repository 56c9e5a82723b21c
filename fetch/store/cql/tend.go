package cql

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// Selections implements store.Store.
func (s *Store) Selections(ctx context.Context, dataset string) ([]*schema.Selection, error) {
	return s.catalog.Selections(ctx, dataset)
}

// Traits implements store.Store.
func (s *Store) Traits() store.Traits {
	replicas := int(s.steering.replicas.Load())
	if replicas <= 0 {
		replicas = replicasGuess
	}
	return store.Traits{Addresses: len(*s.foreign.Load()) > 0, Replicas: replicas}
}

// Addressed implements store.Store: cells of attached tables are.
func (s *Store) Addressed(key schema.Key) (store.AttachedTable, bool) {
	t := s.foreign.of(key)
	if t == nil {
		return store.AttachedTable{}, false
	}
	return store.AttachedTable{Keyspace: t.keyspace, Table: t.table, ID: t.id, Data: t.data}, true
}

// Refer implements store.Store. The tables have to be in this store's cluster, with a primary key of one
// uuid under that name, and a column of blobs.
func (s *Store) Refer(ctx context.Context, tables []store.AttachedTable) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	var list []*foreignTable
	for _, t := range tables {
		name := t.Keyspace + "." + t.Table
		if !tableName.MatchString(name) {
			return bad("attached table", name, "KEYSPACE.TABLE")
		}
		a := attachment{s: s, opts: AttachOptions{Columns: []string{t.Data}}}
		src, err := a.open(ctx, name, true)
		if err != nil {
			return fmt.Errorf("refer to attached table %s: %w", t, err)
		}
		i := slices.IndexFunc(src.columns, func(c column) bool { return c.name == t.Data && c.table != nil })
		if src.id != t.ID || i < 0 {
			return fmt.Errorf("%w: table %s of this cluster has no blob column %s beside a key %s", schema.ErrInvalid,
				name, t.Data, t.ID)
		}
		list = append(list, src.columns[i].table)
	}
	return s.register(ctx, list)
}

// Repair implements store.Store. Every part is written again, in a later epoch
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

// Restorable implements store.Store.
func (s *Store) Restorable(ctx context.Context, snap *schema.Snapshot) error {
	return s.catalog.Restorable(ctx, snap)
}

// LastNumber implements store.Store.
func (s *Store) LastNumber(ctx context.Context, dataset string) (int64, error) {
	return s.catalog.LastNumber(ctx, dataset)
}

// Advance implements store.Store.
func (s *Store) Advance(ctx context.Context, dataset string, last int64) error {
	return s.catalog.Advance(ctx, dataset, last)
}

package metamorphic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/store"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// intake is an ingest under way.
type intake struct {
	store.Ingest // nil: what an engine does not ask for

	memory  *ram
	dataset string
	keys    map[schema.Key]bool // guarded by memory.mu
	done    bool                // guarded by memory.mu
}

// Begin implements store.Store.
func (m *ram) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	if err := schema.CheckName("dataset", dataset); err != nil {
		return nil, err
	}
	if err := wait(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	in := &intake{memory: m, dataset: dataset, keys: map[schema.Key]bool{}}
	m.ingests[in] = struct{}{}
	return in, nil
}

// Put implements store.Ingest.
func (in *intake) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	ref := schema.RefOf(data)
	if in.memory.chance(ref.Key, 1)%16 == 0 {
		if err := wait(ctx, time.Millisecond); err != nil {
			return ref, err
		}
	}
	if ctx.Err() != nil {
		return ref, context.Cause(ctx)
	}
	m := in.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if in.done {
		return ref, fmt.Errorf("%w: the ingest is closed", schema.ErrInvalid)
	}
	if m.blobs[ref.Key] == nil {
		m.blobs[ref.Key] = append([]byte{}, data...)
	}
	in.keys[ref.Key] = true
	return ref, nil
}

// Commit implements store.Ingest.
func (in *intake) Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	if err := wait(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	m := in.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := store.CheckCommit(in.dataset, &snap); err != nil {
		return nil, err
	}
	if in.done {
		return nil, fmt.Errorf("%w: the ingest is closed", schema.ErrInvalid)
	}
	if err := store.CheckParent(in.dataset, snap.Parent, m.newestLocked(in.dataset)); err != nil {
		return nil, err
	}
	for _, c := range snap.Chunks {
		if m.blobs[c.Key] == nil {
			return nil, fmt.Errorf("%w: chunk %s was not put", schema.ErrInvalid, c.Key)
		}
	}
	for _, set := range snap.Sets {
		if m.blobs[set.Blob.Key] == nil {
			return nil, fmt.Errorf("%w: object set %s was not put", schema.ErrInvalid, set.Prefix)
		}
	}
	m.clock++
	m.last[in.dataset]++
	snap.Dataset, snap.Number, snap.Created = in.dataset, m.last[in.dataset], time.Now()
	if m.current[in.dataset] == nil {
		m.current[in.dataset] = map[int64]*schema.Snapshot{}
	}
	m.current[in.dataset][snap.Number] = &snap
	m.log[name(in.dataset, snap.Number)] = &history{snap: &snap, committed: m.clock}
	for _, c := range snap.Chunks {
		if in.keys[c.Key] { // else it is the parent's
			m.chunks[c.Key] = slices.Collect(maps.Keys(in.keys))
		}
	}
	return &snap, nil
}

// Close implements store.Ingest.
func (in *intake) Close() error {
	in.memory.mu.Lock()
	defer in.memory.mu.Unlock()
	in.done = true
	delete(in.memory.ingests, in)
	return nil
}

// The store that the engine is tested over does what a store has to, where its
// faults are off.
func TestMemory(t *testing.T) {
	// It counts nothing, keeps what came with a manifest as long as that, and is
	// neither closed nor opened again.
	skip := []string{
		"dedup", "concurrent puts of one blob", "numbers are never reused", "reopen", "gc frees what is dead",
		"gc spares open ingests", "gc spares what the parent refers to", "gc during alterations",
		"close", "close during calls", "stress",
		"tags", "snapshots are restored", "ingests adopt", "repair", "selections are listed", // not asked for by an engine
		"proofs", "concurrent provers", "gc spares proofs", // its blobs have checksums
	}
	for _, c := range storetest.Cases() {
		if slices.Contains(skip, c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newRAM()
				defer m.unmap()
				if err := c.Check(t.Context(), func() (store.Store, error) { return m, nil }); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

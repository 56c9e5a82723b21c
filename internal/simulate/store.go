package simulate

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// farStore is the store that all nodes share.
type farStore struct {
	store.Store // nil: what no engine asks for

	datasets map[string]*made
	latency  atomic.Int64 // nanoseconds
	turns    *server
	rate     float64 // reads a second; 0: no limit

	blobs, blobBytes, pages, pageBytes atomic.Int64
}

// nearStore is the store as a node has it.
type nearStore struct {
	*farStore
	node *node
}

// Get implements store.Store. It takes a turn of the store, its latency, and the way to the node.
func (s nearStore) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	page, isPage := s.page(ref.Key)
	done := s.turns.take(per(1, s.rate))
	if err := sleepUntil(ctx, done.Add(time.Duration(s.latency.Load()))); err != nil {
		return schema.Blob{}, err
	}
	if err := s.node.receive(ctx, ref.Size); err != nil {
		return schema.Blob{}, err
	}
	if isPage {
		s.pages.Add(1)
		s.pageBytes.Add(ref.Size)
		return schema.NewBlob(page, nil), nil
	}
	s.blobs.Add(1)
	s.blobBytes.Add(ref.Size)
	return schema.NewBlob(content(ref.Size), nil), nil
}

func (s *farStore) page(key schema.Key) ([]byte, bool) {
	for _, d := range s.datasets {
		if page, ok := d.pages[key]; ok {
			return page, true
		}
	}
	return nil, false
}

// Datasets implements store.Store.
func (s *farStore) Datasets(context.Context) ([]store.Dataset, error) {
	var list []store.Dataset
	for name := range s.datasets {
		list = append(list, store.Dataset{Name: name, Snapshots: []int64{1}})
	}
	return list, nil
}

// Snapshot implements store.Store.
func (s *farStore) Snapshot(_ context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	d := s.datasets[dataset]
	if d == nil || number > 1 {
		return nil, fmt.Errorf("%w: dataset %q, snapshot %d", schema.ErrNotFound, dataset, number)
	}
	return d.snap, nil
}

// SetInUse implements store.Store: nothing is ever collected.
func (*farStore) SetInUse(func() []*schema.Snapshot) {}

// Traits implements store.Store.
func (*farStore) Traits() store.Traits { return store.Traits{Replicas: 1} }

// Where implements store.Store.
func (*farStore) Where() string { return "the simulated store" }

// Stats implements store.Store.
func (s *farStore) Stats() store.Stats {
	return store.Stats{BlobReads: s.blobs.Load(), BlobBytes: s.blobBytes.Load()}
}

// Close implements store.Store.
func (*farStore) Close() error { return nil }

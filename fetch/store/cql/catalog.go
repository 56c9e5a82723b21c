package cql

import (
	"context"
	"sync"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// What follows is done by the protocol that all stores share.
var _ store.Store = (*Store)(nil)

// Datasets implements store.Store.
func (s *Store) Datasets(ctx context.Context) ([]store.Dataset, error) {
	return s.catalog.Datasets(ctx)
}

// Names implements store.Store.
func (s *Store) Names(ctx context.Context) ([]string, error) { return s.catalog.Names(ctx) }

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	return s.catalog.Snapshot(ctx, dataset, number)
}

// Begin implements store.Store.
func (s *Store) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	return s.catalog.Begin(ctx, dataset)
}

// Drop implements store.Store.
func (s *Store) Drop(ctx context.Context, dataset string, number int64) error {
	return s.catalog.Drop(ctx, dataset, number)
}

// Selection implements store.Store.
func (s *Store) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	return s.catalog.Selection(ctx, dataset, name)
}

// RenewSelection implements store.Store.
func (s *Store) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	return s.catalog.RenewSelection(ctx, dataset, name, until)
}

// Tag implements store.Store.
func (s *Store) Tag(ctx context.Context, dataset, name string, number int64) error {
	return s.catalog.Tag(ctx, dataset, name, number)
}

// Untag implements store.Store.
func (s *Store) Untag(ctx context.Context, dataset, name string) error {
	return s.catalog.Untag(ctx, dataset, name)
}

// Tagged implements store.Store.
func (s *Store) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	return s.catalog.Tagged(ctx, dataset, name)
}

// SetInUse implements store.Store.
func (s *Store) SetInUse(inUse func() []*schema.Snapshot) { s.catalog.SetInUse(inUse) }

// GC implements store.Store. The servers give the space of what was deleted back
// when they compact, after the tables' gc_grace_seconds.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	report, err := s.catalog.GC(ctx, opts, inUse)
	if err == nil && !opts.DryRun {
		err = s.recount(ctx)
	}
	return report, err
}

// census is what is known of how many blobs there are, which nobody counts for
// its own sake: the last collection did, and this process has added since.
type census struct {
	mu           sync.Mutex
	blobs, bytes int64 // as they were counted
	at           time.Time
	added        struct{ blobs, bytes int64 }
	failed       time.Time // when the server was asked in vain
}

func (n *census) add(blobs, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.added.blobs += blobs
	n.added.bytes += bytes
}

// censusWait is how long Stats waits for the server, if it has to ask it.
const censusWait = 3 * time.Second

// censusPause is for how long it does not ask again where it got no answer: who
// looks every few seconds, as a scrape does, would wait each time.
const censusPause = 30 * time.Second

// recount takes note of a collection that has ended since.
func (s *Store) recount(ctx context.Context) error {
	blobs, bytes, at, err := s.catalog.Counted(ctx)
	n := &s.census
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = time.Time{}
	if err != nil {
		n.failed = time.Now()
	}
	if err == nil && !at.IsZero() && !at.Equal(n.at) {
		n.blobs, n.bytes, n.at = blobs, bytes, at
		n.added.blobs, n.added.bytes = 0, 0
	}
	return err
}

// Stats implements store.Store. What other processes add or remove is not
// noticed until the next collection.
func (s *Store) Stats() store.Stats {
	n := &s.census
	n.mu.Lock()
	pause := time.Since(n.failed) < censusPause
	n.mu.Unlock()
	if !pause {
		ctx, cancel := context.WithTimeout(context.Background(), censusWait)
		defer cancel()
		if err := s.recount(ctx); err != nil {
			s.log.Debug("how many blobs there are is not known anew", "error", err)
		}
	}
	put := s.catalog.Counters()
	n.mu.Lock()
	defer n.mu.Unlock()
	return store.Stats{
		BlobReads:    s.reads.Load(),
		BlobBytes:    s.readBytes.Load(),
		BlobWrites:   put.BlobWrites,
		BlobDedups:   put.BlobDedups,
		WrittenBytes: put.WrittenBytes,
		Blobs:        n.blobs + n.added.blobs,
		StoredBytes:  n.bytes + n.added.bytes,
		CountedAt:    n.at,
	}
}

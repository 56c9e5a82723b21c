package command

import (
	"context"
	"errors"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
)

// sink is where an import goes. Without a Commit, nothing of it can be seen.
type sink interface {
	// Write takes a batch, which is valid during the call only.
	Write(ctx context.Context, b *source.Batch) error
	// Commit makes the snapshot and says in sum which it is.
	Commit(ctx context.Context, sum *summary) error
	Close() error
}

// storeSink writes into a store.
type storeSink struct {
	store  store.Store
	w      *ingest.Writer
	before store.Stats
}

func (s *storeSink) Write(ctx context.Context, b *source.Batch) error {
	return s.w.Write(ctx, b.Split, b.IDs, b.Meta, b.Blobs)
}

func (s *storeSink) Commit(ctx context.Context, sum *summary) error {
	snap, changed, err := s.w.Commit(ctx)
	if err != nil {
		return err
	}
	sum.Snapshot, sum.Changed, sum.Notes = snap.Number, changed, append(sum.Notes, s.w.Notes()...)
	// Manifest chunks are blobs, too, and count where all is there already.
	dedups := min(s.store.Stats().BlobDedups-s.before.BlobDedups, sum.Blobs)
	sum.Dedups = &dedups
	return nil
}

func (s *storeSink) Close() error { return errors.Join(s.w.Close(), s.store.Close()) }

package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"bowstring/schema"
)

// OpenDamaged opens a store whose database is damaged, for reading: what is whole stays
// readable. The catalog is that one of the two copies which is whole, and the index is made in memory
// from the headers in the segments, about 100 bytes a blob. Nothing in the directory is changed. A
// call that would change the store is a schema.ErrDataLoss that says how to mend it. If
// neither copy of the catalog is whole, that is the error.
func OpenDamaged(ctx context.Context, dir string, opts Options) (*Store, error) {
	s, err := openDamaged(ctx, dir, opts.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("open the damaged store in %s: %w", dir, err)
	}
	return s, nil
}

func openDamaged(ctx context.Context, dir string, opts Options) (_ *Store, err error) {
	if exists, err := checkFormat(dir); err != nil {
		return nil, err
	} else if !exists {
		return nil, fmt.Errorf("%w: there is no store in %s", schema.ErrNotFound, dir)
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.release())
		}
	}()
	b := &rebuilding{
		ctx: ctx, opts: RebuildOptions{Logger: opts.Logger, Progress: func(RebuildProgress) {}},
		old: newStore(dir, opts), reading: true,
	}
	defer b.old.end()
	if err := b.findCatalog(); err != nil {
		return nil, err
	}
	inMemory := opts
	inMemory.fs = vfs.NewMem()
	s := newStore(dir, inMemory)
	s.damaged = damaged("change the store in "+dir,
		errors.New("its database is damaged, so that it is open for reading only"))
	if s.db, err = openDatabase(s.pebble(), inMemory, writing); err != nil {
		s.end()
		return nil, err
	}
	s.set = s.newSet(true)
	b.s = s
	if err := b.fill(); err != nil {
		s.end()
		s.set.Close()
		return nil, errors.Join(err, s.db.Close())
	}
	for _, damage := range b.report.Damage {
		s.log.WarnContext(ctx, "a stretch of a segment is damaged", "damage", damage)
	}
	s.count.blobs.Store(b.report.Blobs)
	s.count.bytes.Store(b.report.Bytes)
	s.lock = lock
	return s, nil
}

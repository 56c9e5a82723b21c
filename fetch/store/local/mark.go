package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"bowstring/schema"
)

// marks is the set of blobs that are referred to, as sorted prefixes of their
// keys: eight bytes a blob. Two keys that share a prefix only make a dead blob
// stay.
type marks struct {
	prefixes []uint64
	sorted   int // so many of them are sorted and distinct
	chunks   map[schema.Key]struct{}
}

func (m *marks) add(k *schema.Key) {
	m.prefixes = append(m.prefixes, keyPrefix(k))
	// Snapshots of a dataset share most of their blobs.
	if len(m.prefixes) > 2*m.sorted+1<<16 {
		m.settle()
	}
}

func (m *marks) settle() {
	slices.Sort(m.prefixes)
	m.prefixes = slices.Compact(m.prefixes)
	m.sorted = len(m.prefixes)
}

func keyPrefix(k *schema.Key) uint64 { return binary.BigEndian.Uint64(k[:]) }

// cursor asks for membership of ascending keys, as the index yields them.
type cursor struct {
	rest []uint64
}

func (c *cursor) has(k *schema.Key) bool {
	p := keyPrefix(k)
	for len(c.rest) > 0 && c.rest[0] < p {
		c.rest = c.rest[1:]
	}
	return len(c.rest) > 0 && c.rest[0] == p
}

// snapshot marks a snapshot's chunks and all blobs that they name.
func (m *marks) snapshot(ctx context.Context, s *Store, snap *schema.Snapshot) error {
	for i, c := range snap.Chunks {
		if _, done := m.chunks[c.Key]; done {
			continue
		}
		if err := stopped(ctx, s); err != nil {
			return err
		}
		if err := m.chunk(s, snap, c); err != nil {
			return fmt.Errorf("the references of %s@%d, chunk %d, cannot be read, so nothing may be freed: %w",
				snap.Dataset, snap.Number, i, err)
		}
	}
	return nil
}

func (m *marks) chunk(s *Store, snap *schema.Snapshot, c schema.Chunk) error {
	err := s.eachRef(snap, c, func(ref schema.BlobRef) error {
		m.add(&ref.Key)
		return nil
	})
	if err != nil {
		return err
	}
	m.add(&c.Key)
	m.chunks[c.Key] = struct{}{}
	return nil
}

// eachRef visits the references in a chunk of a snapshot's manifest, and those of its pages.
func (s *Store) eachRef(snap *schema.Snapshot, c schema.Chunk, visit func(schema.BlobRef) error) error {
	get := func(ref schema.BlobRef) (schema.Blob, error) {
		blob, _, err := s.get(ref.Key)
		if errors.Is(err, schema.ErrNotFound) {
			err = fmt.Errorf("%w: a blob that a snapshot names is gone: %s", schema.ErrDataLoss, ref.Key)
		}
		return blob, err
	}
	return schema.EachPage(snap, c, get, func(page schema.Chunk, _ int64, man *schema.Manifest) error {
		if c.Pages > 0 {
			if err := visit(page.BlobRef); err != nil {
				return err
			}
		}
		for col := range schema.BlobFields(snap.Schema) {
			for pos := range man.Rows() {
				if ref, ok := man.Blob(col, pos); ok {
					if err := visit(ref); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// stopped is the reason to give up what takes long.
func stopped(ctx context.Context, s *Store) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.ending.Err() != nil {
		return fmt.Errorf("%w: the store in %s is being closed", schema.ErrUnavailable, s.dir)
	}
	return nil
}

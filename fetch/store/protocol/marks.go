package protocol

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"bowstring/schema"
)

// marks is the set of blobs that are referred to, as sorted prefixes of their
// keys: eight bytes a blob. Two keys that share a prefix only make a dead blob
// stay. In one of several passes it has only a slice of all keys.
type marks struct {
	pass, passes int

	mu       sync.Mutex
	prefixes []uint64
	sorted   int // so many of them are sorted and distinct
}

// covers says whether the key is one of this pass.
func (m *marks) covers(prefix uint64) bool {
	slice, _ := bits.Mul64(prefix, uint64(m.passes))
	return int(slice) == m.pass
}

func (m *marks) add(k schema.Key) {
	p := keyPrefix(k)
	if !m.covers(p) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prefixes = append(m.prefixes, p)
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

// has is asked when all marks are made.
func (m *marks) has(prefix uint64) bool {
	_, ok := slices.BinarySearch(m.prefixes, prefix)
	return ok
}

func keyPrefix(k schema.Key) uint64 { return binary.BigEndian.Uint64(k[:]) }

// chunkOf is a manifest chunk, and a snapshot that has it.
type chunkOf struct {
	snap  rooted
	index int
}

// chunks lists the manifest chunks of the roots, each once.
func (r *roots) chunks() []chunkOf {
	var list []chunkOf
	seen := map[schema.Key]bool{}
	for _, live := range []bool{true, false} { // what must be there first
		for _, snap := range r.snapshots {
			if snap.live != live {
				continue
			}
			for i, chunk := range snap.Chunks {
				if !seen[chunk.Key] {
					seen[chunk.Key] = true
					list = append(list, chunkOf{snap, i})
				}
			}
		}
	}
	return list
}

// mark fills m with what the roots refer to.
func (c *collection) mark(ctx context.Context, m *marks, chunks []chunkOf) error {
	s := c.s
	for _, key := range c.roots.keys {
		m.add(key)
	}
	err := each(ctx, s.env, s.options.Parallel, len(chunks), func(ctx context.Context, i int) error {
		snap, chunk := chunks[i].snap, chunks[i].snap.Chunks[chunks[i].index]
		if err := c.superseded(); err != nil {
			return err
		}
		if err := c.pace.read(ctx, chunk.Size); err != nil {
			return err
		}
		err := c.markChunk(ctx, m, snap.Snapshot, chunk)
		if errors.Is(err, schema.ErrDataLoss) && !snap.live {
			s.log.WarnContext(ctx, "a dropped snapshot that is being read has lost blobs", "error", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("the references of %s, chunk %d, cannot be read, so nothing may be freed: %w",
				snapshotName(snap.Dataset, snap.Number), chunks[i].index, err)
		}
		return nil
	})
	m.settle()
	return err
}

func (c *collection) markChunk(ctx context.Context, m *marks, snap *schema.Snapshot, chunk schema.Chunk) error {
	blob, err := c.s.db.Read(ctx, chunk.BlobRef)
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %v", schema.ErrDataLoss, err) //nolint:errorlint // a blob that is missing here is lost, not absent
	} else if err != nil {
		return err
	}
	m.add(chunk.Key)
	if chunk.Pages == 0 {
		return c.s.options.References(snap, chunk, blob, m.add)
	}
	pages, err := chunk.OpenIndex(blob.Bytes())
	blob.Release()
	if err != nil {
		return err
	}
	for i, page := range pages {
		if err := c.pace.read(ctx, page.Size); err != nil {
			return err
		}
		if err := c.markChunk(ctx, m, snap, page); err != nil {
			return fmt.Errorf("page %d: %w", i, err)
		}
	}
	return nil
}

// references visits what the rows of a chunk refer to. It releases the blob.
func references(snap *schema.Snapshot, chunk schema.Chunk, blob schema.Blob, visit func(schema.Key)) error {
	// One chunk at a time: a manifest of the whole would pin it all.
	part := &schema.Snapshot{Dataset: snap.Dataset, Number: snap.Number, Schema: snap.Schema,
		Chunks: []schema.Chunk{chunk}}
	man, err := schema.OpenManifest(part, []schema.Blob{blob})
	if err != nil {
		return err
	}
	defer man.Close()
	for col := range schema.BlobFields(snap.Schema) {
		for pos := range man.Rows() {
			if ref, ok := man.Blob(col, pos); ok {
				visit(ref.Key)
			}
		}
	}
	return nil
}

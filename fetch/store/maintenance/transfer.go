package maintenance

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// transfer brings the blobs of one scope to the target of a copy, through an ingest.
type transfer struct {
	*copier
	in     store.Ingest
	scope  Scope
	hashed func(schema.Key) bool // which keys of the scope's source are hashes of what they name
}

// transfer sees to it that the target has every blob of a scope: what is there already is not read, anything else is
// read, checked, and put. A blob that is damaged is a schema.ErrDataLoss.
//
// It returns the snapshots of the scope as they are there: those that have cells of other
// programs' tables have manifests of their own where these are copied by value.
func (c *copier) transfer(ctx context.Context, in store.Ingest, scope Scope) ([]*schema.Snapshot, error) {
	t := &transfer{copier: c, in: in, scope: scope, hashed: c.hashedIn(scope.Source)}
	snaps := scope.Snapshots
	if len(c.attached.chunks) > 0 && (c.opts.Attached != ByReference || c.packed()) {
		var err error
		if snaps, err = t.remake(ctx); err != nil {
			return nil, err
		}
	}
	passes := t.scope.Passes()
	for n := range lists(passes) {
		refs, err := t.scope.list(ctx, n, passes, nil)
		if err != nil {
			return nil, err
		}
		if err := c.pool.each(ctx, refs, 0, t.visit, nil); err != nil {
			return nil, err
		}
	}
	return snaps, nil
}

func (t *transfer) visit(ctx context.Context, ref schema.BlobRef) error {
	hashed, src := t.hashed(ref.Key), t.scope.Source
	switch {
	case hashed:
		if there, err := t.adopt(ctx, ref); there || err != nil {
			return err
		}
	case t.opts.Attached != ByReference:
		return fmt.Errorf("%w: a manifest chunk has cells of attached tables after blobs of the store",
			schema.ErrInvalid)
	case t.inBucket(ref.Key):
		t.count(ref, false)
		return nil
	default: // read through the target, so that it is seen to reach the cells
		src = t.to
	}
	b, err := t.read(ctx, src, ref, hashed)
	if err != nil {
		return err
	}
	defer b.Release()
	if !hashed {
		return nil
	}
	return t.put(ctx, ref, b.Bytes())
}

// inBucket reports whether a key is an address in an object set of what is copied.
func (c *copier) inBucket(key schema.Key) bool {
	_, ok := c.inSets[prefixOf(key)]
	return ok
}

// hashedIn says which keys of a store are hashes. A target that what is copied is not committed to yet may not know of
// its sets.
func (c *copier) hashedIn(src store.Store) func(schema.Key) bool {
	hashed := hashedIn(src)
	return func(key schema.Key) bool { return !c.inBucket(key) && hashed(key) }
}

// adopt makes a blob that the target has the ingest's own, and reports whether it has.
func (t *transfer) adopt(ctx context.Context, ref schema.BlobRef) (bool, error) {
	there, err := t.in.Adopt(ctx, ref)
	if there {
		t.count(ref, false)
	}
	return there, err
}

// put puts a blob. data is not kept.
func (t *transfer) put(ctx context.Context, ref schema.BlobRef, data []byte) error {
	got, err := t.in.Put(ctx, data)
	if err == nil && got != ref {
		err = fmt.Errorf("%w: blob %s was put as %s", schema.ErrDataLoss, ref.Key, got.Key)
	}
	if err == nil {
		t.count(ref, true)
	}
	return err
}

// putNew puts what has no reference yet, and returns it.
func (t *transfer) putNew(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if t.to.Traits().Segments {
		ref, err := t.in.Put(ctx, data)
		if err == nil {
			t.count(ref, true)
		}
		return ref, err
	}
	ref := schema.RefOf(data)
	there, err := t.adopt(ctx, ref)
	if err == nil && !there {
		err = t.put(ctx, ref, data)
	}
	return ref, err
}

func (c *copier) count(ref schema.BlobRef, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done.Blobs++
	c.done.Bytes += ref.Size
	if sent {
		c.done.Sent++
		c.done.SentBytes += ref.Size
	}
	if c.opts.Progress != nil {
		c.opts.Progress(c.done)
	}
}

// read reads a blob and checks it. The caller releases it.
func (t *transfer) read(ctx context.Context, src store.Store, ref schema.BlobRef, hashed bool) (schema.Blob, error) {
	if err := t.pace.wait(ctx, ref.Size); err != nil {
		return schema.Blob{}, err
	}
	b, err := get(ctx, src, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	if err := checkIn(ctx, src, ref, b.Bytes(), hashed); err != nil {
		b.Release()
		if !lost(err) {
			return schema.Blob{}, err
		}
		return schema.Blob{}, fmt.Errorf("%w: bowstring verify says what else is damaged there, and can repair it", err)
	}
	return b, nil
}

// remake makes manifests anew. Bytes of cells that are copied by value go to the target,
// under their hash if it has hashes, and pages of manifests name them by it. A cell that
// is copied by reference and is stored in a bucket keeps its address there. Ids, metadata
// and the order of rows stay. remake takes the chunks and object sets out of the scope,
// and returns the snapshots with those that were made in their place. One page at a time
// is in memory, and the cells in flight.
func (t *transfer) remake(ctx context.Context) ([]*schema.Snapshot, error) {
	made := map[schema.Key]schema.Chunk{} // by the key of the chunk that it is made of; snapshots share them
	for _, c := range t.scope.chunks() {
		if !t.attached.chunks[c.chunk().Key] {
			continue
		}
		chunk, err := t.remakeChunk(ctx, c)
		if err != nil {
			return nil, err
		}
		made[c.chunk().Key] = chunk
	}
	var whole, rest []*schema.Snapshot
	for _, snap := range t.scope.Snapshots {
		next, part := *snap, *snap
		next.Chunks, part.Chunks = slices.Clone(snap.Chunks), nil
		for i, c := range snap.Chunks {
			if chunk, ok := made[c.Key]; ok {
				next.Chunks[i] = chunk
			} else {
				part.Chunks = append(part.Chunks, c)
			}
		}
		if t.remakesSets() {
			var err error
			if next.Sets, err = t.objectSets(ctx, snap.Sets); err != nil {
				return nil, err
			}
			part.Sets = nil
		}
		whole, rest = append(whole, &next), append(rest, &part)
	}
	t.scope.Snapshots = rest
	return whole, nil
}

// remakesSets reports whether object sets have other keys in the target.
func (t *transfer) remakesSets() bool { return t.packed() && t.scope.Source == t.from }

// objectSets brings object sets to the target, and returns them as they are named there.
func (t *transfer) objectSets(ctx context.Context, sets []schema.SetRef) ([]schema.SetRef, error) {
	made := slices.Clone(sets)
	for i, set := range made {
		ref, ok := t.madeSets[set.Blob.Key]
		if !ok || !t.to.Traits().Segments { // that of another snapshot is made this ingest's own
			b, err := t.read(ctx, t.scope.Source, set.Blob, t.hashed(set.Blob.Key))
			if err != nil {
				return nil, fmt.Errorf("object set %s: %w", set.Prefix, err)
			}
			ref, err = t.putNew(ctx, b.Bytes())
			b.Release()
			if err != nil {
				return nil, fmt.Errorf("object set %s: %w", set.Prefix, err)
			}
		}
		made[i].Blob = ref
	}
	return made, nil
}

func (t *transfer) remakeChunk(ctx context.Context, c chunkOf) (schema.Chunk, error) {
	builder := schema.NewChunkBuilder(memory.DefaultAllocator, c.snap.Schema)
	defer builder.Release()
	var pages schema.PageList
	err := t.scope.eachPage(ctx, c, nil, func(p pageOf, m *schema.Manifest) error {
		page, err := t.remakePage(ctx, builder, p, m)
		if err == nil {
			pages.Add(page)
		}
		return err
	})
	if err != nil {
		return schema.Chunk{}, err
	}
	data, chunk := pages.Finish()
	if data != nil {
		if chunk.BlobRef, err = t.putNew(ctx, data); err != nil {
			return schema.Chunk{}, err
		}
	}
	if was := c.chunk(); chunk.Rows != was.Rows || chunk.Pages != was.Pages {
		return schema.Chunk{}, fmt.Errorf("%w: manifest chunk %d of %s@%d became %d rows in %d pages of %d in %d",
			schema.ErrDataLoss, c.index, c.snap.Dataset, c.snap.Number, chunk.Rows, chunk.Pages, was.Rows, was.Pages)
	}
	return chunk, nil
}

func (t *transfer) remakePage(
	ctx context.Context, builder *schema.ChunkBuilder, p pageOf, m *schema.Manifest,
) (schema.Chunk, error) {
	s, rows := p.snap.Schema, m.Rows()
	ids := make([]schema.ID, rows)
	for row := range rows {
		ids[row] = m.ID(row)
	}
	blobs := make([][]*schema.BlobRef, len(schema.BlobFields(s)))
	var cells []*schema.BlobRef // those of blobs that are not null
	for col := range blobs {
		blobs[col] = make([]*schema.BlobRef, rows)
		for row := range rows {
			if ref, ok := m.Blob(col, row); ok {
				blobs[col][row] = &ref
				cells = append(cells, &ref)
			}
		}
	}
	if err := t.values(ctx, cells); err != nil {
		return schema.Chunk{}, err
	}
	meta, err := metadata(s, m)
	if err != nil {
		return schema.Chunk{}, err
	}
	defer meta.Release()
	if err := builder.AppendBatch(ids, meta, blobs); err != nil {
		return schema.Chunk{}, err
	}
	data, page, err := builder.Finish()
	if err == nil {
		page.BlobRef, err = t.putNew(ctx, data)
	}
	return page, err
}

// values brings the bytes of cells to the target, and has the references name them there.
func (t *transfer) values(ctx context.Context, cells []*schema.BlobRef) error {
	if t.opts.Attached == ByReference {
		cells = slices.DeleteFunc(cells, func(cell *schema.BlobRef) bool {
			stays := t.inBucket(cell.Key)
			if stays {
				t.count(*cell, false)
			}
			return stays
		})
	}
	refs := make([]schema.BlobRef, len(cells))
	for i, cell := range cells {
		refs[i] = *cell
	}
	var mu sync.Mutex
	values := make(map[schema.Key]schema.BlobRef, len(refs))
	err := t.pool.each(ctx, refs, 0, func(ctx context.Context, ref schema.BlobRef) error {
		b, err := t.read(ctx, t.scope.Source, ref, t.hashed(ref.Key))
		if err != nil {
			return err
		}
		defer b.Release()
		value, err := t.putNew(ctx, b.Bytes())
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		values[ref.Key] = value
		return nil
	}, nil)
	if err == nil {
		for _, cell := range cells {
			*cell = values[cell.Key]
		}
	}
	return err
}

// metadata is the metadata of a page's rows. The caller releases it, before the manifest is closed.
func metadata(s *arrow.Schema, m *schema.Manifest) (arrow.Record, error) {
	fields := schema.MetaFields(s)
	columns := make([]arrow.Array, len(fields))
	for i, f := range fields {
		parts, err := m.Column(f.Name)
		if err != nil {
			return nil, err
		}
		if len(parts) != 1 {
			return nil, fmt.Errorf("%w: column %q of a page in %d parts", schema.ErrDataLoss, f.Name, len(parts))
		}
		columns[i] = parts[0]
	}
	return array.NewRecord(arrow.NewSchema(fields, nil), columns, m.Rows()), nil
}

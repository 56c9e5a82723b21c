package tend

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// detacher copies what is attached by value: the bytes of each cell go to where they are to go, under
// their hash, and the pages of the manifest name them by it. Ids, metadata and the order of rows stay.
// A page at a time is in memory, and the cells that are under way.
type detacher struct {
	scope *Scope
	crew  *crew
	cell  func(ctx context.Context, ref schema.BlobRef) (schema.BlobRef, error)
	put   func(ctx context.Context, data []byte) (schema.BlobRef, error)
	made  map[schema.Key]schema.Chunk // by the key of the chunk that it is made of; snapshots share them
}

// snapshots returns the scope's with their attached chunks made anew. It changes none.
func (d *detacher) snapshots(ctx context.Context, a attachment) ([]*schema.Snapshot, error) {
	for _, c := range d.scope.chunks() {
		if !a.chunks[c.chunk().Key] {
			continue
		}
		chunk, err := d.chunk(ctx, c)
		if err != nil {
			return nil, err
		}
		d.made[c.chunk().Key] = chunk
	}
	var list []*schema.Snapshot
	for _, snap := range d.scope.Snapshots {
		next := *snap
		next.Chunks = make([]schema.Chunk, len(snap.Chunks))
		for i, c := range snap.Chunks {
			if made, ok := d.made[c.Key]; ok {
				c = made
			}
			next.Chunks[i] = c
		}
		list = append(list, &next)
	}
	return list, nil
}

func (d *detacher) chunk(ctx context.Context, c chunkOf) (schema.Chunk, error) {
	builder := schema.NewChunkBuilder(memory.DefaultAllocator, c.snap.Schema)
	defer builder.Release()
	var pages schema.PageList
	err := d.scope.eachPage(ctx, c, nil, func(p pageOf, m *schema.Manifest) error {
		page, err := d.page(ctx, builder, p, m)
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
		if chunk.BlobRef, err = d.put(ctx, data); err != nil {
			return schema.Chunk{}, err
		}
	}
	if was := c.chunk(); chunk.Rows != was.Rows || chunk.Pages != was.Pages {
		return schema.Chunk{}, fmt.Errorf("%w: manifest chunk %d of %s@%d became %d rows in %d pages of %d in %d",
			schema.ErrDataLoss, c.index, c.snap.Dataset, c.snap.Number, chunk.Rows, chunk.Pages, was.Rows, was.Pages)
	}
	return chunk, nil
}

func (d *detacher) page(
	ctx context.Context, builder *schema.ChunkBuilder, p pageOf, m *schema.Manifest,
) (schema.Chunk, error) {
	s, rows := p.snap.Schema, m.Rows()
	ids := make([]schema.ID, rows)
	for row := range rows {
		ids[row] = m.ID(row)
	}
	columns := len(schema.BlobFields(s))
	var cells []schema.BlobRef
	for col := range columns {
		for row := range rows {
			if ref, ok := m.Blob(col, row); ok {
				cells = append(cells, ref)
			}
		}
	}
	values, err := d.cells(ctx, cells)
	if err != nil {
		return schema.Chunk{}, err
	}
	blobs := make([][]*schema.BlobRef, columns)
	for col := range columns {
		blobs[col] = make([]*schema.BlobRef, rows)
		for row := range rows {
			if ref, ok := m.Blob(col, row); ok {
				value := values[ref.Key]
				blobs[col][row] = &value
			}
		}
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
		page.BlobRef, err = d.put(ctx, data)
	}
	return page, err
}

// cells brings the bytes of cells to where they are to go, and returns what they are there by their keys.
func (d *detacher) cells(ctx context.Context, refs []schema.BlobRef) (map[schema.Key]schema.BlobRef, error) {
	var mu sync.Mutex
	values := make(map[schema.Key]schema.BlobRef, len(refs))
	err := d.crew.each(ctx, refs, 0, func(ctx context.Context, ref schema.BlobRef) error {
		value, err := d.cell(ctx, ref)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		values[ref.Key] = value
		return nil
	}, nil)
	return values, err
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

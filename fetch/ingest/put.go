package ingest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// putter stores blobs by an ingest, several at a time. It is not safe for concurrent use.
type putter struct {
	in      store.Ingest
	workers int
	cells   []cell // reused between calls
}

// cell is a blob on its way into the store.
type cell struct {
	data []byte
	ref  schema.BlobRef
}

// newPutter returns a putter, which owns the ingest from then on.
func newPutter(in store.Ingest, workers int) putter {
	if workers <= 0 {
		workers = 2 * runtime.GOMAXPROCS(0)
	}
	return putter{in: in, workers: workers}
}

// end ends the ingest. It may be called again.
func (p *putter) end() error {
	if p.in == nil {
		return nil
	}
	in := p.in
	p.in = nil
	if err := in.Close(); err != nil {
		return fmt.Errorf("close the ingest: %w", err)
	}
	return nil
}

// put stores blobs, given by column and row, with at most workers puts at a time.
func (p *putter) put(ctx context.Context, blobs [][][]byte) ([][]*schema.BlobRef, error) {
	p.cells = p.cells[:0]
	for _, column := range blobs {
		for _, data := range column {
			p.cells = append(p.cells, cell{data: data})
		}
	}
	defer clear(p.cells) // the caller's bytes are not kept

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(p.workers, len(p.cells)) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(p.cells) || ctx.Err() != nil {
					return
				}
				c := &p.cells[i]
				if c.data == nil {
					continue
				}
				ref, err := p.in.Put(ctx, c.data)
				if err != nil {
					cancel(fmt.Errorf("store a blob of %d bytes: %w", len(c.data), err))
					return
				}
				c.ref = ref
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	refs := make([][]*schema.BlobRef, len(blobs))
	i := 0
	slab := make([]schema.BlobRef, len(p.cells))
	for c := range blobs {
		refs[c] = make([]*schema.BlobRef, len(blobs[c]))
		for row := range blobs[c] {
			if p.cells[i].data != nil {
				slab[i] = p.cells[i].ref
				refs[c][row] = &slab[i]
			}
			i++
		}
	}
	return refs, nil
}

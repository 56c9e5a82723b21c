package source

import (
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"golang.org/x/sync/semaphore"

	"bowstring/schema"
)

// batcher collects slots for a batch.
type batcher struct {
	r       *Reader
	split   string
	keys    []string
	ids     []schema.ID
	columns []column
	blobs   [][][]byte
	bytes   int64
	bad     []BadItem
	slots   []*slot // whose memory is used, or only counted
	weight  int64   // of slots
}

func newBatcher(r *Reader) *batcher {
	b := &batcher{r: r, blobs: make([][][]byte, len(r.blobs))}
	for _, f := range r.meta {
		b.columns = append(b.columns, column{builder: array.NewBuilder(r.opts.Mem, f.Type)})
	}
	return b
}

func (b *batcher) rows() int { return len(b.ids) }

func (b *batcher) full() bool {
	return b.weight >= batchBytes || len(b.slots) >= batchRows
}

// add takes over s.
func (b *batcher) add(s *slot) error {
	b.slots = append(b.slots, s)
	b.weight += s.weight
	if s.Bad != "" {
		b.bad = append(b.bad, BadItem{Key: s.Key, Reason: s.Bad})
		return nil
	}
	b.split = b.r.splitOf(s)
	b.keys = append(b.keys, s.Key)
	if s.ID != nil {
		b.ids = append(b.ids, *s.ID)
	} else {
		b.ids = append(b.ids, schema.SampleID(b.r.opts.Dataset, s.Key))
	}
	values := slices.Clip(s.Meta)
	for _, value := range b.r.added {
		values = append(values, value(s))
	}
	for i, v := range values {
		if err := b.columns[i].add(v); err != nil {
			return fmt.Errorf("%s, column %q: %w", s.Key, b.r.meta[i].Name, err)
		}
	}
	for c := range b.blobs {
		b.blobs[c] = append(b.blobs[c], s.Blobs[c])
		b.bytes += int64(len(s.Blobs[c]))
	}
	return nil
}

// flush hands out the batch and frees it again.
func (b *batcher) flush(mem *semaphore.Weighted, yield func(*Batch, error) bool) bool {
	defer b.reset(mem)
	columns := make([]arrow.Array, 0, len(b.columns))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range b.columns {
		c, err := b.columns[i].finish(b.r.opts.Mem)
		if err != nil {
			yield(nil, fmt.Errorf("column %q: %w", b.r.meta[i].Name, err))
			return false
		}
		columns = append(columns, c)
	}
	meta := array.NewRecord(arrow.NewSchema(b.r.meta, nil), columns, int64(b.rows()))
	defer meta.Release()
	return yield(&Batch{Split: b.split, Keys: b.keys, IDs: b.ids, Meta: meta, Blobs: b.blobs, Bytes: b.bytes,
		Bad: b.bad}, nil)
}

// reset releases the slots and empties the batch.
func (b *batcher) reset(mem *semaphore.Weighted) {
	for _, s := range b.slots {
		s.release()
	}
	mem.Release(b.weight)
	clear(b.slots)
	b.slots, b.weight, b.bytes = b.slots[:0], 0, 0
	b.keys, b.ids, b.bad = nil, b.ids[:0], nil
	for c := range b.blobs {
		clear(b.blobs[c])
		b.blobs[c] = b.blobs[c][:0]
	}
}

func (b *batcher) close() {
	for i := range b.columns {
		b.columns[i].release()
	}
}

package schema

import "github.com/apache/arrow/go/v17/arrow"

// PageBytes is how many bytes the values of a manifest page have before no more rows are added to it, however few
// they are. So a page has a row more than that at most.
const PageBytes = 1 << 20

// Full reports whether the rows since the last Finish are a page, of that many rows at most.
func (b *ChunkBuilder) Full(rows int) bool { return b.id.n >= rows || b.weight >= PageBytes }

// Room is how many of the rows [start, end) of meta may be added until the builder is full. It depends on the
// rows since the last Finish alone, not on how they were divided into calls. The columns of meta are those of
// the schema.
func (b *ChunkBuilder) Room(meta arrow.Record, start, end, rows int) int {
	n := min(end-start, max(rows-b.id.n, 0))
	w := b.weigher(meta, start, n)
	weight := b.weight
	for i := range n {
		if weight >= PageBytes {
			return i
		}
		weight += w.row(i)
	}
	return n
}

// weigher tells how many bytes the values of rows have.
type weigher struct {
	fixed   int64  // of the columns whose values all have the same size, nulls included, and of references
	columns []view // the others
}

// weigher is that of rows [start, start+n) of meta.
func (b *ChunkBuilder) weigher(meta arrow.Record, start, n int) weigher {
	w := weigher{fixed: int64(len(ID{})) + int64(len(b.blobs))*int64(len(Key{})+16)}
	for i, c := range b.meta {
		switch c.shape {
		case shapeBits:
			w.fixed++
		case shapeFixed:
			w.fixed += int64(c.width)
		default:
			w.columns = append(w.columns, viewOf(meta.Column(i).Data(), start, n))
		}
	}
	return w
}

func (w *weigher) row(i int) int64 {
	n := w.fixed
	for c := range w.columns {
		n += w.columns[c].cellBytes(i)
	}
	return n
}

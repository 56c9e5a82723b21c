package schema

import (
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// Batch is a record batch in physical form, ready to be sent: its buffers point
// at blobs, at the mapped manifest and at memory of its own. All of it stays
// valid until Release; the manifest must stay open as long. A Batch is
// immutable but for Release, and may be handed from goroutine to goroutine.
type Batch struct {
	Schema  *arrow.Schema
	Rows    int
	Columns []Vector
	// Blobs are the pins that Release gives back: [i in BlobColumns][row].
	Blobs [][]Blob

	arena *arena
}

// Release gives back the pins of the blobs and the batch's own memory. Further
// calls do nothing. Nothing obtained from the batch may be used afterwards.
func (b *Batch) Release() {
	releaseBlobs(b.Blobs)
	b.Blobs, b.Columns = nil, nil
	b.arena.release()
	b.arena = nil
}

func releaseBlobs(blobs [][]Blob) {
	for _, col := range blobs {
		for i := range col {
			col[i].Release()
		}
	}
}

// Bytes is the length of the body that the batch makes as an IPC message, each
// buffer padded to a multiple of 8 bytes.
func (b *Batch) Bytes() int64 {
	var n int64
	for i := range b.Columns {
		n += b.Columns[i].Bytes()
	}
	return n
}

// Record copies the batch into an Arrow record, with memory from mem. It does
// not depend on the batch afterwards. The caller releases it.
func (b *Batch) Record(mem memory.Allocator) (arrow.Record, error) {
	cols := make([]arrow.Array, 0, len(b.Columns))
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for i := range b.Columns {
		f, v := b.Schema.Field(i), &b.Columns[i]
		if !arrow.TypeEqual(f.Type, v.Type) {
			return nil, fmt.Errorf("%w: column %q is of type %s, its field of type %s", ErrInvalid, f.Name,
				ShownType(v.Type), ShownType(f.Type))
		}
		data := v.data(mem)
		cols = append(cols, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecord(b.Schema, cols, int64(b.Rows)), nil
}

// data copies the vector into array data with memory from mem.
func (v *Vector) data(mem memory.Allocator) arrow.ArrayData {
	bufs := make([]*memory.Buffer, len(v.Buffers))
	for i, b := range v.Buffers {
		if i == 0 && b.Len == 0 {
			continue // no validity bitmap
		}
		buf := memory.NewResizableBuffer(mem)
		buf.Resize(int(b.Len))
		at := 0
		for _, p := range b.Pieces {
			at += copy(buf.Bytes()[at:], p)
		}
		bufs[i] = buf
	}
	children := make([]arrow.ArrayData, len(v.Children))
	for i := range v.Children {
		children[i] = v.Children[i].data(mem)
	}
	defer func() {
		for _, b := range bufs {
			if b != nil {
				b.Release()
			}
		}
		for _, c := range children {
			c.Release()
		}
	}()
	return array.NewData(v.Type, v.Len, bufs, children, v.Nulls, 0)
}

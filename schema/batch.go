package schema

import (
	"fmt"
	"sync"
	"unsafe"

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

// Buffer is the content of one Arrow buffer, in pieces that are sent one after
// the other. The pieces may point into mapped files; they are read-only, and
// live as long as the Batch that they belong to.
type Buffer struct {
	Pieces [][]byte
	Len    int64 // the sum of the pieces' lengths, in bytes
	// Unchecked says of each piece what it has to be, where blobs are among them that nobody has compared with their
	// references yet; nil if there are none. Whoever sends the buffer compares what is sent.
	Unchecked []Unchecked
}

// Unchecked is a piece of a buffer that is a blob which has to be compared with its reference.
type Unchecked struct {
	Row int // of the batch
	Ref BlobRef
}

// Vector is one column of a batch in Arrow's physical layout, with offset 0.
type Vector struct {
	Type  arrow.DataType
	Len   int // rows
	Nulls int // null rows; 0 goes with an empty validity buffer
	// Buffers are those of the columnar format for Type, in its order. The first
	// is always the validity bitmap, empty where there are no nulls.
	Buffers  []Buffer
	Children []Vector
	// Blobs are those of the rows of a column that has them one after another in its last buffer; else nil. They are
	// the batch's, of which each may be taken over in its place.
	Blobs []Blob
}

// Bytes is the space of the vector's buffers in the body of a message, each
// padded to a multiple of 8 bytes.
func (v *Vector) Bytes() int64 {
	var n int64
	for i := range v.Buffers {
		n += (v.Buffers[i].Len + 7) &^ 7
	}
	for i := range v.Children {
		n += v.Children[i].Bytes()
	}
	return n
}

// pieces makes a buffer of b, empty for no bytes.
func pieces(b ...[]byte) Buffer {
	var n int64
	for _, p := range b {
		n += int64(len(p))
	}
	if n == 0 {
		return Buffer{}
	}
	return Buffer{Pieces: b, Len: n}
}

// arena hands out the memory of one batch, 64-byte aligned, and is kept for
// another batch once released. It is not safe for concurrent use.
type arena struct {
	blocks [][]byte // every block allocated; blocks[:cur] are full
	cur    int
	used   int // bytes handed out of blocks[cur]
	kind   *arenaKind
}

// arenaKind is how large the blocks of an arena are at least, and which arenas of
// the kind are kept.
type arenaKind struct {
	block, keep int
	free        sync.Pool
}

// Consumers that stand still, or little memory for many, make many batches of a
// row or a few: those do not take a large block each.
var (
	fewRows  = arenaKind{block: 2 << 10, keep: 16 << 10}
	manyRows = arenaKind{block: 64 << 10, keep: 8 << 20}
)

// few is how many rows fit into a small block, mostly.
const few = 16

// newArena returns an arena for a batch of so many rows.
func newArena(rows int) *arena {
	kind := &manyRows
	if rows <= few {
		kind = &fewRows
	}
	if a, ok := kind.free.Get().(*arena); ok {
		return a
	}
	return &arena{kind: kind}
}

// release takes back all memory that was handed out.
func (a *arena) release() {
	if a == nil {
		return
	}
	total := 0
	for _, b := range a.blocks {
		total += len(b)
	}
	a.cur, a.used = 0, 0
	if total <= a.kind.keep {
		a.kind.free.Put(a)
	}
}

// bytes returns n bytes of any content.
func (a *arena) bytes(n int) []byte {
	size := (n + 63) &^ 63
	for a.cur < len(a.blocks) {
		if b := a.blocks[a.cur]; a.used+size <= len(b) {
			out := b[a.used : a.used+n : a.used+size]
			a.used += size
			return out
		}
		a.cur, a.used = a.cur+1, 0
	}
	b := alignedBytes(max(size, a.kind.block))
	a.blocks = append(a.blocks, b)
	a.cur, a.used = len(a.blocks)-1, size
	return b[:n:size]
}

// zeroed returns n bytes of zero.
func (a *arena) zeroed(n int) []byte {
	b := a.bytes(n)
	clear(b)
	return b
}

// arenaRuns returns n runs of any content.
func arenaRuns(a *arena, n int) []run {
	return cast[run](a.bytes(n * int(unsafe.Sizeof(run{}))))
}

// fixed is a value without pointers: one that Arrow stores as its bytes in
// memory order, little-endian, or a run.
type fixed interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~[2]uint64 | ~[16]byte | ~[32]byte | run
}

// cast views b as values of T, without copying. b must be aligned for T;
// a rest shorter than a T is left out.
func cast[T fixed](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// asBytes views s as bytes, without copying.
func asBytes[T fixed](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// aligned reports whether b may be cast to any fixed type.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0
}

// alignedBytes allocates n bytes at a multiple of 64.
func alignedBytes(n int) []byte {
	b := make([]byte, n+64)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[at : at+n : at+n]
}

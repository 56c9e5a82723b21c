package schema

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// Batch is a record batch in physical form, ready to be sent: its buffers point at blobs,
// at the mapped manifest and at memory of its own. All of it stays valid until Release;
// the manifest must stay open as long. A Batch is immutable except for Release, and may
// be handed from goroutine to goroutine.
type Batch struct {
	Schema  *arrow.Schema
	Rows    int
	Columns []Vector
	// Blobs are the pins that Release returns: [i in BlobColumns][row].
	Blobs [][]Blob

	arena *arena
}

// Release returns the pins of the blobs and the batch's own memory. Further calls do
// nothing. Nothing obtained from the batch may be used afterwards.
func (b *Batch) Release() {
	releaseBlobs(b.Blobs)
	b.Blobs, b.Columns = nil, nil
	b.arena.release()
	b.arena = nil
}

// releaseBlobs releases all blobs of several columns.
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

// Record copies the batch into an Arrow record, with memory from mem. The record does not
// depend on the batch. The caller releases it.
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

// Buffer is the content of one Arrow buffer, in pieces that are sent one after the other.
// Pieces may point into mapped files; they are read-only, and live as long as the Batch
// that they belong to. Joining them would copy every blob once more.
type Buffer struct {
	Pieces [][]byte
	Len    int64 // the sum of the pieces' lengths, in bytes
	// Unchecked has the reference of each piece, if there are blobs among them that were
	// not compared with their references yet; else nil. The sender of the buffer then
	// compares what it sends.
	Unchecked []Unchecked
}

// Unchecked is a piece of a buffer: a blob that has to be compared with its reference.
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
	// Blobs are the blobs of the rows, if the column has them one after another in its
	// last buffer; else nil. They belong to the batch; a sender may take each over in its
	// place.
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

// arena allocates the memory of one batch, aligned to 64 bytes, and is reused for another
// batch after its release. A garbage-collected allocation for each column would dominate
// the cost of small batches. It is not safe for concurrent use.
type arena struct {
	blocks [][]byte // every block allocated; blocks[:cur] are full
	cur    int
	used   int // bytes handed out of blocks[cur]
	kind   *arenaKind
}

// arenaKind is a size class of arenas: the least size of a block, the most memory that a
// reused arena may hold, and the arenas for reuse.
type arenaKind struct {
	block, keep int
	free        sync.Pool
}

// Idle consumers, or many consumers with little memory, make many batches of a few rows.
// Those do not take a large block each.
var (
	fewRows  = arenaKind{block: 2 << 10, keep: 16 << 10}
	manyRows = arenaKind{block: 64 << 10, keep: 8 << 20}
)

// few is the number of rows that mostly fit into a small block.
const few = 16

// newArena returns an arena for a batch of that number of rows.
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

// release frees all memory of the arena, and offers it for reuse.
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

// bytes returns n bytes of undefined content.
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

// arenaRuns returns n runs of undefined content.
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

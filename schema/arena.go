package schema

import (
	"sync"
	"unsafe"
)

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

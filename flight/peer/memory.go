package peer

import (
	"math/bits"
	"sync"
)

// Blobs that came are kept in memory that is used again. Sizes grow by a quarter of
// a power of two, so that at most a fifth is wasted.
const (
	leastBits = 10
	mostBits  = 26 // peers.MaxBlob
	classes   = (mostBits-leastBits)*4 + 1
)

var free [classes]sync.Pool // of *buffer

// buffer is the memory of one blob. It belongs to who has the blob until Unpin.
type buffer struct {
	class  int
	memory []byte
}

// newBuffer returns memory for n bytes, of any content.
func newBuffer(n int) *buffer {
	class, size := 0, 1<<leastBits
	if n > size {
		exp := bits.Len64(uint64(n-1)) - 1 // 2^exp < n <= 2^(exp+1)
		quarter := 1 << (exp - 2)
		steps := (n - 1<<exp + quarter - 1) / quarter // 1 to 4
		class, size = (exp-leastBits)*4+steps, 1<<exp+steps*quarter
	}
	if b, ok := free[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{class, make([]byte, size)}
}

// Unpin implements schema.Owner.
func (b *buffer) Unpin() { free[b.class].Put(b) }

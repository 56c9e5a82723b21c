package source

import (
	"math/bits"
	"sync"
)

// buffers holds the memory that samples are read into.
var buffers pool

// pool hands out buffers in sizes of powers of two, and takes them back. It is
// safe for concurrent use.
type pool struct {
	classes [40]sync.Pool // of *[]byte with capacity 1<<i
}

// get returns a buffer of n bytes with any content.
func (p *pool) get(n int64) []byte {
	class := bits.Len64(uint64(max(n, 4096) - 1))
	if class >= len(p.classes) {
		return make([]byte, n)
	}
	if b, ok := p.classes[class].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	return make([]byte, n, 1<<class)
}

// putAll takes back the buffers of a sample; nil ones are passed over.
func (p *pool) putAll(blobs [][]byte) {
	for _, b := range blobs {
		p.put(b)
	}
}

// put takes back what get returned, or a part of it that begins where it did.
func (p *pool) put(b []byte) {
	class := bits.Len64(uint64(cap(b))) - 1
	if class < 12 || class >= len(p.classes) || cap(b) != 1<<class {
		return
	}
	b = b[:0]
	p.classes[class].Put(&b)
}

package parquet

import (
	"fmt"

	"github.com/apache/arrow/go/v17/arrow/memory"
)

const (
	// leastPage is how many bytes the decoder may ask for at once, whatever the size of a file.
	leastPage = 256 << 20
	// mostPage is how many it may ask for of any file: one value of 2 GiB, and what stands around it.
	mostPage = 2<<30 + 64<<20
	// pageRatio is how much smaller than its content a page is taken to be at most.
	pageRatio = 1024
)

// bounded gives memory to the decoder, which asks for as much as a file claims that it needs.
type bounded struct {
	memory.Allocator
	most int
}

func boundedBy(fileSize int64) memory.Allocator {
	most := min(max(leastPage, min(fileSize, mostPage)*pageRatio), mostPage)
	return bounded{memory.DefaultAllocator, int(most)}
}

// Allocate panics where a file claims too much, as the decoder does about what is malformed.
func (b bounded) Allocate(n int) []byte {
	b.check(n)
	return b.Allocator.Allocate(n)
}

// Reallocate panics as Allocate does.
func (b bounded) Reallocate(n int, old []byte) []byte {
	b.check(n)
	return b.Allocator.Reallocate(n, old)
}

func (b bounded) check(n int) {
	if n < 0 || n > b.most {
		panic(fmt.Errorf("a part of %d bytes, more than the %d that a file of its size may have", n, b.most))
	}
}

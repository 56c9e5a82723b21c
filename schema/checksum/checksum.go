package checksum

import "github.com/zeebo/xxh3"

// fastBytes is from how many bytes on the code for many bytes is used. Fewer are brought from memory as quickly by any.
const fastBytes = 16 << 10

// Of returns the XXH3 of b. next is what it will be called with next, as far as is known: its beginning is brought from
// memory meanwhile. Of panics as any load does where a page of b cannot be read.
func Of(b, next []byte) uint64 {
	if fast && len(b) >= fastBytes {
		return ofFast(b, next)
	}
	// Processors read ahead within a page only, and look up one page after another. Loads from all pages at once, which
	// wait for nothing, have the checksum take a fifth less time where the bytes are not in the cache.
	touch(b)
	return xxh3.Hash(b)
}

// Copy copies from to the beginning of to, which is at least as long, and returns the XXH3 of what it has written: of
// these very bytes, whatever becomes of from meanwhile. They overlap nowhere. next is what will be copied next, as for
// [Of]. Copy panics as any load does where a page of from cannot be read; then part of to may be written.
//
// Many bytes are written past the processor's cache: whoever reads them next is another process, and a cache that had
// to fetch each line before all of it is overwritten would cost a third of the memory's rate.
func Copy(to, from, next []byte) uint64 {
	to = to[:len(from)]
	if fast && len(from) >= fastBytes {
		return copyFast(to, from, next)
	}
	copy(to, from)
	touch(to)
	return xxh3.Hash(to)
}

// touch reads a byte of each page of b. Were it inlined where nobody uses the sum, no byte would be read: the compiler
// leaves loads out that lead to nothing.
//
//go:noinline
func touch(b []byte) (sum byte) {
	for at := 0; at < len(b); at += 4096 {
		sum += b[at]
	}
	return sum
}

package checksum

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// fast reports whether the CPU has the instructions of fast_amd64.s.
var fast = cpu.X86.HasAVX2

// atOnce is how many blocks one assembly call processes. The call cannot be preempted,
// and the garbage collector waits for it: 256 blocks take some tens of microseconds.
const atOnce = 256

// prefetchBlocks is how many blocks before its use memory is prefetched: about as many as
// arrive within the latency of one.
const prefetchBlocks = 4

// mix mixes the n blocks at from, at least one, into s, and prefetches the n blocks at
// soon.
//
//go:noescape
func mix(s *sums, from, soon *byte, n int, secret *byte)

// mixCopy mixes the n blocks at from, at least one, into s, prefetches those at soon, and
// copies by way of the scratch. In the scratch a block follows the last 64 bytes of the
// block before. Some of these bytes are not written yet. It writes whole cache lines of 64
// bytes: the first one goes to line, and begins with the scratch's byte at skip. At the
// end as many bytes remain unwritten as at the beginning.
//
//go:noescape
func mixCopy(s *sums, line, from, soon *byte, n int, scratch *[stripe + block]byte, skip int, secret *byte)

// pieces calls work for the blocks of b from first to end, several at once, with the
// memory to prefetch meanwhile: further on in b, and at the end the beginning of next.
func pieces(b, next []byte, first, end int, work func(at, n int, soon *byte)) {
	for at := first; at < end; {
		n := min(atOnce, end-at)
		soon := &b[at*block] // nothing to prefetch: this is in the cache already
		if within := end - prefetchBlocks - at; within > 0 {
			n = min(n, within)
			soon = &b[(at+prefetchBlocks)*block]
		} else if at := (at - end + prefetchBlocks) * block; at+n*block <= len(next) {
			soon = &next[at]
		}
		work(at, n, soon)
		at += n
	}
}

// ofFast is Sum of a long input.
func ofFast(b, next []byte) uint64 {
	s, n := newSums(), (len(b)-1)/block
	pieces(b, next, 0, n, func(at, n int, soon *byte) { mix(&s, &b[at*block], soon, n, &secret[0]) })
	return s.finish(b[n*block:], b[len(b)-stripe:], len(b))
}

// copyFast is Copy of a long input.
func copyFast(to, from, next []byte) uint64 {
	var scratch [stripe + block]byte
	s, n := newSums(), (len(from)-1)/block
	// The first block is written up to the beginning of a cache line. Its rest, fewer
	// bytes than a line, is written with the next block.
	copy(scratch[stripe:], from[:block])
	mix(&s, &scratch[stripe], &from[block], 1, &secret[0])
	left := int(uintptr(unsafe.Pointer(&to[0])) % stripe)
	copy(to[:block-left], scratch[stripe:])
	pieces(from, next, 1, n, func(at, n int, soon *byte) {
		mixCopy(&s, &to[at*block-left], &from[at*block], soon, n, &scratch, stripe-left, &secret[0])
	})
	copy(scratch[:stripe], scratch[block:])
	rest := scratch[stripe:][:copy(scratch[stripe:], from[n*block:])]
	copy(to[n*block-left:], scratch[stripe-left:stripe+len(rest)])
	return s.finish(rest, scratch[len(rest):], len(from))
}

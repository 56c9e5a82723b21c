package checksum

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// fast says whether the processor has the instructions of fast_amd64.s.
var fast = cpu.X86.HasAVX2

// atOnce is how many blocks are worked through at once. Nothing interrupts that, and the collector waits for it.
const atOnce = 256

// aheadBlocks is how many blocks before it is wanted memory is asked for: about as many as come in the time that one
// takes to come.
const aheadBlocks = 4

// mix mixes n blocks in that lie at from, one or more, and asks for those at ahead.
//
//go:noescape
func mix(s *sums, from, ahead *byte, n int, secret *byte)

// mixCopy mixes n blocks in that lie at from, one or more, asks for those at ahead, and copies by way of the scratch: a
// block lies there behind the last 64 bytes of the one before. Of these some are still to be written. What it writes is
// whole lines of the cache, of 64 bytes: the first one lies at line, and begins with the scratch's byte at skip. As
// many bytes are left to be written in the end as were in the beginning.
//
//go:noescape
func mixCopy(s *sums, line, from, ahead *byte, n int, scratch *[stripe + block]byte, skip int, secret *byte)

// pieces calls work for the blocks of b from first to end, some at once, with where the memory lies that is to be asked
// for meanwhile: further on in b, and in the end at the beginning of next.
func pieces(b, next []byte, first, end int, work func(at, n int, ahead *byte)) {
	for at := first; at < end; {
		n := min(atOnce, end-at)
		ahead := &b[at*block] // where there is nothing to ask for, it is here already
		if within := end - aheadBlocks - at; within > 0 {
			n = min(n, within)
			ahead = &b[(at+aheadBlocks)*block]
		} else if at := (at - end + aheadBlocks) * block; at+n*block <= len(next) {
			ahead = &next[at]
		}
		work(at, n, ahead)
		at += n
	}
}

func ofFast(b, next []byte) uint64 {
	s, n := newSums(), (len(b)-1)/block
	pieces(b, next, 0, n, func(at, n int, ahead *byte) { mix(&s, &b[at*block], ahead, n, &secret[0]) })
	return s.finish(b[n*block:], b[len(b)-stripe:], len(b))
}

func copyFast(to, from, next []byte) uint64 {
	var scratch [stripe + block]byte
	s, n := newSums(), (len(from)-1)/block
	// The first block is written up to where a line begins. What is left, fewer bytes than a line has, goes with the
	// next.
	copy(scratch[stripe:], from[:block])
	mix(&s, &scratch[stripe], &from[block], 1, &secret[0])
	left := int(uintptr(unsafe.Pointer(&to[0])) % stripe)
	copy(to[:block-left], scratch[stripe:])
	pieces(from, next, 1, n, func(at, n int, ahead *byte) {
		mixCopy(&s, &to[at*block-left], &from[at*block], ahead, n, &scratch, stripe-left, &secret[0])
	})
	copy(scratch[:stripe], scratch[block:])
	rest := scratch[stripe:][:copy(scratch[stripe:], from[n*block:])]
	copy(to[n*block-left:], scratch[stripe-left:stripe+len(rest)])
	return s.finish(rest, scratch[len(rest):], len(from))
}

// Package checksum computes the checksum of blobs, XXH3 with 64 bits and seed 0, over
// memory that is not in the CPU's cache, with or without copying it.
//
// Short inputs, and CPUs without AVX2, use the library github.com/zeebo/xxh3. The code
// here is for long inputs that are read once: it prefetches them from memory, and writes
// copies past the cache. It knows neither blobs nor errors; package schema does.
package checksum

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// fastBytes is the length from which on the code for long inputs is used. Shorter ones
// are read from memory equally fast by any code.
const fastBytes = 16 << 10

// Sum returns the XXH3 of b. next is a hint: the bytes of the next call, whose beginning
// is prefetched meanwhile. Sum panics as any load does if a page of b cannot be read.
func Sum(b, next []byte) uint64 {
	if fast && len(b) >= fastBytes {
		return ofFast(b, next)
	}
	// CPUs prefetch only within a page, and look up one page after another. Independent
	// loads from all pages at once reduce the time of the checksum by a fifth if the
	// bytes are not in the cache.
	touch(b)
	return xxh3.Hash(b)
}

// Copy copies from to the beginning of to, which is at least as long, and returns the
// XXH3 of the bytes that it has written, even if from changes meanwhile. The two must not
// overlap. next is a hint as for [Sum]. Copy panics as any load does if a page of from
// cannot be read; part of to may be written then.
//
// Long inputs are written past the CPU's cache, because another process or device reads
// them next. Through the cache, each line would be fetched before it is overwritten,
// which costs a third of the memory bandwidth.
func Copy(to, from, next []byte) uint64 {
	to = to[:len(from)]
	if fast && len(from) >= fastBytes {
		return copyFast(to, from, next)
	}
	copy(to, from)
	touch(to)
	return xxh3.Hash(to)
}

// touch reads a byte of each page of b. It must not be inlined: where a caller ignores
// the sum, the compiler would remove the loads.
//
//go:noinline
func touch(b []byte) (sum byte) {
	for at := 0; at < len(b); at += 4096 {
		sum += b[at]
	}
	return sum
}

// XXH3 of more than 240 bytes, as its author specifies it (Collet, "XXH3 specification",
// github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md). Eight sums of 64 bits run over
// stripes of 64 bytes. Each stripe of a block is mixed with another part of a secret, and
// the sums are scrambled after each block. The last stripe is mixed once more, whether or
// not it overlaps a block, and the sums are folded into one.
const (
	stripe     = 64
	block      = 16 * stripe
	keyStep    = 8   // bytes of the secret from stripe to stripe
	scrambleAt = 128 // offset in the secret of the part for scrambling,
	lastAt     = 121 // for the last stripe,
	mergeAt    = 11  // and for folding the sums

	prime32x1, prime32x2, prime32x3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
	prime64x1, prime64x2, prime64x3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
	prime64x4, prime64x5            = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
	avalanche                       = 0x165667919E3779F9
)

// sums are the running sums.
type sums [8]uint64

// newSums are the initial sums of the specification.
func newSums() sums {
	return sums{prime32x3, prime64x1, prime64x2, prime64x3, prime64x4, prime32x2, prime64x5, prime32x1}
}

// add mixes a stripe in with a part of the secret.
func (s *sums) add(b, key []byte) {
	b, key = b[:stripe], key[:stripe]
	for i := range s {
		v := binary.LittleEndian.Uint64(b[8*i:])
		mixed := v ^ binary.LittleEndian.Uint64(key[8*i:])
		s[i^1] += v
		s[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32)
	}
}

// finish returns the checksum of size bytes. rest are the bytes after the last mixed
// block, 1 to 1,024 bytes, and last is the last stripe of the input.
func (s *sums) finish(rest, last []byte, size int) uint64 {
	for i := range (len(rest) - 1) / stripe {
		s.add(rest[i*stripe:], secret[i*keyStep:])
	}
	s.add(last, secret[lastAt:])
	sum := uint64(size) * prime64x1
	for i := 0; i < len(s); i += 2 {
		key := secret[mergeAt+8*i:]
		hi, lo := bits.Mul64(s[i]^binary.LittleEndian.Uint64(key), s[i+1]^binary.LittleEndian.Uint64(key[8:]))
		sum += hi ^ lo
	}
	sum ^= sum >> 37
	sum *= avalanche
	return sum ^ sum>>32
}

// secret is the secret for seed 0.
var secret = [192]byte{
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
	0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
	0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
	0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
	0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
	0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
	0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
	0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
	0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
	0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
	0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
	0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
}

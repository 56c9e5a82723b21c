// Package forge makes different bytes with the same XXH3, for tests of what does not rely on that checksum.
package forge

import (
	"encoding/binary"
	"fmt"
)

// leastBytes is the least size of twins: what XXH3 computes in stripes of 64 bytes.
const leastBytes = 241

// Twins returns two blobs with b's size and the same XXH3 (64 bits, seed 0). They differ from b in the first 8 bytes of
// the first two stripes of 64 bytes, and from each other in 8 bits or more.
//
// XXH3 adds to a sum the product of both halves of a word that it has combined with its secret by exclusive or, and to
// the sum beside it the word. Where the word's lower half is that of the secret the product is 0, whatever the upper
// half is. So what one word gains in its upper half another one loses.
func Twins(b []byte) (one, other []byte) {
	if len(b) < leastBytes {
		panic(fmt.Sprintf("forge: twins of %d bytes; want %d or more", len(b), leastBytes))
	}
	// The words of the secret that the first words of the first two stripes are combined with.
	secret := [2]uint64{0xbe4ba423396cfeb8, 0x1cad21f72c81017c}
	twin := func(more uint64) []byte {
		t := append([]byte(nil), b...)
		for i, at := range [2]int{0, 64} {
			upper := binary.LittleEndian.Uint64(b[at:]) >> 32
			if i == 0 {
				upper += more
			} else {
				upper -= more
			}
			binary.LittleEndian.PutUint64(t[at:], upper<<32|secret[i]&(1<<32-1))
		}
		return t
	}
	return twin(0), twin(0x5a5a5a5a)
}

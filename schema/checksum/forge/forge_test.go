package forge_test

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"

	"bowstring/schema/checksum"
	"bowstring/schema/checksum/forge"
)

// Twins differ, and their checksum does not: by the library, and by what the checksum of blobs is computed with.
func TestTwins(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []int{241, 300, 1024, 1025, 20_000, 1 << 20} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		one, other := forge.Twins(b)
		if len(one) != n || len(other) != n || bytes.Equal(one, other) || sha256.Sum256(one) == sha256.Sum256(other) {
			t.Errorf("%d bytes: the twins are the same", n)
		}
		if xxh3.Hash(one) != xxh3.Hash(other) || checksum.Sum(one, nil) != checksum.Sum(other, nil) {
			t.Errorf("%d bytes: the twins' checksums are %016x and %016x", n, xxh3.Hash(one), xxh3.Hash(other))
		}
	}
}

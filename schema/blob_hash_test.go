package schema_test

import (
	"bytes"
	"errors"
	"testing"

	"bowstring/schema"
	"bowstring/schema/checksum/forge"
)

// A content hash distinguishes contents with equal size and checksum, short and long
// ones. An address is distinguished from a hash.
func TestCheckHash(t *testing.T) {
	for _, n := range []int{241, 64 << 10, 64<<10 + 1, 300_000} {
		one, other := forge.Twins(bytes.Repeat([]byte("bytes"), n/5+1)[:n])
		ref := schema.RefOf(one)
		if err := errors.Join(ref.Check(one), ref.Check(other), ref.CheckHash(one)); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		flipped := bytes.Clone(one)
		flipped[n-1] ^= 1
		for what, b := range map[string][]byte{"forged": other, "flipped": flipped, "cut": one[:n-1]} {
			if err := ref.CheckHash(b); !errors.Is(err, schema.ErrDataLoss) {
				t.Errorf("%d bytes, %s: %v, want data loss", n, what, err)
			}
		}
		cell := ref
		cell.Key = schema.AddressKey([12]byte{1, 2, 3}, ref.Sum, schema.SampleID("d", "1"))
		if !ref.Hashed() || cell.Hashed() {
			t.Errorf("%d bytes: a hash is one: %v, an address is: %v", n, ref.Hashed(), cell.Hashed())
		}
	}
}

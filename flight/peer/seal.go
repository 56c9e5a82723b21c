package peer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"bowstring/schema"
)

// SealBytes is the length of a seal: an HMAC-SHA-256.
const SealBytes = sha256.Size

// Sealer makes seals. It is used between nodes that have a common key and no TLS. A blob
// whose key is not a hash of its content is then followed by a seal: a MAC over its
// reference and its content, with the key that the requesting node has proven to know. No
// other program can forge a blob. Replaying an old answer is harmless, because a reference
// has the same content for ever.
type Sealer struct{ secret []byte }

// newSealer returns the sealer of a key of the cluster. Its secret is derived from the key,
// so that a seal cannot serve as a proof in a handshake.
func newSealer(key []byte) *Sealer {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("bowstring peers: blobs")) // never fails
	return &Sealer{mac.Sum(nil)}
}

// Append appends the seal of a blob to b. The content may be in a mapped file: see
// [schema.Guard].
func (s *Sealer) Append(b []byte, ref schema.BlobRef, content []byte) []byte {
	return s.of(ref, content).Sum(b)
}

// Holds reports whether a seal belongs to a blob. The comparison takes constant time.
func (s *Sealer) Holds(seal []byte, ref schema.BlobRef, content []byte) bool {
	return hmac.Equal(s.of(ref, content).Sum(nil), seal)
}

// of returns the MAC over the key, the size, the checksum and the content.
func (s *Sealer) of(ref schema.BlobRef, content []byte) hash.Hash {
	mac := hmac.New(sha256.New, s.secret)
	var head [len(ref.Key) + 16]byte
	copy(head[:], ref.Key[:])
	binary.LittleEndian.PutUint64(head[len(ref.Key):], uint64(ref.Size))
	binary.LittleEndian.PutUint64(head[len(ref.Key)+8:], uint64(ref.Sum))
	_, _ = mac.Write(head[:]) // neither fails
	_, _ = mac.Write(content)
	return mac
}

package peer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"bowstring/schema"
)

// SealBytes is how long a seal is.
const SealBytes = sha256.Size

// Sealer makes seals. Between nodes that have a key in common and no TLS, a blob that has no hash of its content for a
// key is followed by a seal: a MAC over its reference and its content, by the key that the asking node has proven to
// know. So no other program can make up a blob. That an old answer is sent again does no harm: a reference has one
// content for good.
type Sealer struct{ secret []byte }

// newSealer returns the sealer of a key of the cluster. Its secret is one of its own, so that no seal is a proof.
func newSealer(key []byte) *Sealer {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("bowstring peers: blobs")) // never fails
	return &Sealer{mac.Sum(nil)}
}

// Append appends the seal of a blob. The content may be mapped from a file: see [schema.Guard].
func (s *Sealer) Append(b []byte, ref schema.BlobRef, content []byte) []byte {
	return s.of(ref, content).Sum(b)
}

// Holds reports whether a seal is that of a blob.
func (s *Sealer) Holds(seal []byte, ref schema.BlobRef, content []byte) bool {
	return hmac.Equal(s.of(ref, content).Sum(nil), seal)
}

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

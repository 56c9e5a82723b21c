package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

const (
	// addressPrefix is how many bytes of an address say in which table it is.
	addressPrefix = 12
	// pieceBytes is how much is hashed at a time: both hashes read it, the second from the processor's cache.
	pieceBytes = 64 << 10
)

// AddressKey is the key of a blob that is a cell of another program's table: the beginning of a hash of the table's
// name, the low half of the content's checksum, big-endian, and the id of the row. So a reference alone says where to
// read, and a cell that has changed since gets another key.
func AddressKey(table [addressPrefix]byte, sum Sum, id ID) (k Key) {
	copy(k[:], table[:])
	binary.BigEndian.PutUint32(k[addressPrefix:], uint32(sum))
	copy(k[16:], id[:])
	return k
}

// Hashed reports whether r's key is the SHA-256 of the content: whether it is no [AddressKey]. One content hash in 2^32
// has the form of an address.
func (r BlobRef) Hashed() bool {
	return binary.BigEndian.Uint32(r.Key[addressPrefix:]) != uint32(r.Sum)
}

// CheckHash is [BlobRef.Check] that compares the content's SHA-256 with the key too, which has to be one. It passes no
// bytes that were made up: two contents with the same checksum are easily made.
func (r BlobRef) CheckHash(b []byte) error {
	if int64(len(b)) != r.Size || len(b) <= pieceBytes {
		if err := r.Check(b); err != nil {
			return err
		}
		return r.checkKey(sha256.Sum256(b))
	}
	var sum xxh3.Hasher
	key := sha256.New()
	for rest := b; len(rest) > 0; {
		piece := rest[:min(pieceBytes, len(rest))]
		rest = rest[len(piece):]
		_, _ = sum.Write(piece) // neither fails
		_, _ = key.Write(piece)
	}
	if got := Sum(sum.Sum64()); got != r.Sum {
		return fmt.Errorf("%w: blob %s has checksum %s, the manifest says %s", ErrDataLoss, r.Key, got, r.Sum)
	}
	return r.checkKey(Key(key.Sum(nil)))
}

func (r BlobRef) checkKey(got Key) error {
	if got != r.Key {
		return fmt.Errorf("%w: blob %s has the content of %s, though its checksum is right", ErrDataLoss, r.Key, got)
	}
	return nil
}

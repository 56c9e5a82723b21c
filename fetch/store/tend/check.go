package tend

import (
	"crypto/sha256"
	"fmt"

	"github.com/zeebo/xxh3"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// pieceBytes is how much is hashed at a time: both hashes read it, the second from
// the processor's cache.
const pieceBytes = 64 << 10

// check compares a blob with all that its reference says: size, checksum, and
// content hash, if the key is one. The error is a schema.ErrDataLoss.
func check(ref schema.BlobRef, data []byte, hashed bool) error {
	if int64(len(data)) != ref.Size || !hashed || len(data) <= pieceBytes {
		if err := ref.Check(data); err != nil || !hashed {
			return err
		}
		return checkKey(ref, sha256.Sum256(data))
	}
	var sum xxh3.Hasher
	key := sha256.New()
	for rest := data; len(rest) > 0; {
		piece := rest[:min(pieceBytes, len(rest))]
		rest = rest[len(piece):]
		_, _ = sum.Write(piece) // neither fails
		_, _ = key.Write(piece)
	}
	if got := schema.Sum(sum.Sum64()); got != ref.Sum {
		return fmt.Errorf("%w: blob %s has checksum %s, the manifest says %s", schema.ErrDataLoss, ref.Key, got,
			ref.Sum)
	}
	return checkKey(ref, schema.Key(key.Sum(nil)))
}

func checkKey(ref schema.BlobRef, got schema.Key) error {
	if got != ref.Key {
		return fmt.Errorf("%w: blob %s has the content of %s, though its checksum is right", schema.ErrDataLoss,
			ref.Key, got)
	}
	return nil
}

// hashedIn tells which keys of a source are hashes of what they name.
func hashedIn(src Source) func(schema.Key) bool {
	if a, ok := src.(store.Addresser); ok {
		return func(key schema.Key) bool {
			_, address := a.Addressed(key)
			return !address
		}
	}
	return func(schema.Key) bool { return true }
}

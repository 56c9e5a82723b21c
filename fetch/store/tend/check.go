package tend

import (
	"bowstring/fetch/store"
	"bowstring/schema"
)

// check compares a blob with all that its reference says: size, checksum, and
// content hash, if the key is one. The error is a schema.ErrDataLoss.
func check(ref schema.BlobRef, data []byte, hashed bool) error {
	if hashed {
		return ref.CheckHash(data)
	}
	return ref.Check(data)
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

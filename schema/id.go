package schema

import "github.com/google/uuid"

// ID names a sample: a UUID, 16 bytes in network order.
type ID = [16]byte

// idSpace is the namespace of sample ids. It must never change: ids are kept
// by whoever refers to a sample from outside.
var idSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("bowstring:sample"))

// SampleID derives the id of a sample from its dataset and its key at the
// source (a relative path, a primary key), as a UUID version 5. The same
// sample imported again gets the same id.
func SampleID(dataset, sourceKey string) ID {
	name := make([]byte, 0, len(dataset)+1+len(sourceKey))
	name = append(name, dataset...)
	name = append(name, 0) // cannot occur in a dataset's name, so no two pairs meet
	name = append(name, sourceKey...)
	return ID(uuid.NewSHA1(idSpace, name))
}

// FormatID returns id in the canonical form of 36 characters.
func FormatID(id ID) string { return uuid.UUID(id).String() }

// ParseID reads an id in the canonical form of 36 characters, or as 32
// hexadecimal digits.
func ParseID(s string) (ID, error) {
	if len(s) == 36 || len(s) == 32 {
		if id, err := uuid.Parse(s); err == nil {
			return ID(id), nil
		}
	}
	return ID{}, &FieldError{Field: "id", Got: Quote(s), Want: "a UUID such as 6ba7b811-9dad-51d1-80b4-00c04fd430c8"}
}

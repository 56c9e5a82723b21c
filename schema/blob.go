package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"bowstring/schema/checksum"
)

// Key is the SHA-256 of a blob's content, or an address: its name in every store. See [AddressKey].
type Key [sha256.Size]byte

// String returns the key as lower-case hexadecimal, as sha256sum prints it.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// MarshalJSON writes the key as a hexadecimal string.
func (k Key) MarshalJSON() ([]byte, error) { return json.Marshal(k.String()) }

// UnmarshalJSON reads a key of 64 hexadecimal digits.
func (k *Key) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	got, err := ParseKey(s)
	if err != nil {
		return err
	}
	*k = got
	return nil
}

// ParseKey reads a key of 64 hexadecimal digits.
func ParseKey(s string) (Key, error) {
	var k Key
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(k) {
		return k, fmt.Errorf("%w: blob key %q is not %d hexadecimal digits", ErrInvalid, s, 2*len(k))
	}
	copy(k[:], b)
	return k, nil
}

// BlobRef names a blob and says enough to check it: what a manifest holds of
// each blob cell.
type BlobRef struct {
	Key  Key   `json:"key"`
	Size int64 `json:"size"` // bytes
	Sum  Sum   `json:"sum"`
}

// Sum is the checksum of a blob's content: its XXH3, 64 bits, seed 0.
type Sum uint64

// Checksum returns the checksum of b. It is computed at memory speed, so that
// each blob can be checked on its way out: from memory that is not in the
// processor's cache at about twice the speed of a hardware CRC-32C.
func Checksum(b []byte) Sum {
	return Sum(checksum.Of(b, nil))
}

// String returns the checksum as 16 hexadecimal digits, as xxhsum -H3 prints it.
func (s Sum) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// MarshalJSON writes the checksum as a hexadecimal string: as a number, many a
// reader of JSON would round it.
func (s Sum) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads a checksum of 16 hexadecimal digits.
func (s *Sum) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil || len(text) != 16 {
		return fmt.Errorf("%w: checksum %q is not 16 hexadecimal digits", ErrInvalid, text)
	}
	*s = Sum(n)
	return nil
}

// RefOf computes the reference of a blob's content.
func RefOf(b []byte) BlobRef {
	return BlobRef{Key: sha256.Sum256(b), Size: int64(len(b)), Sum: Checksum(b)}
}

// Check reports an ErrDataLoss if b is not the content r names. It compares
// size and checksum, which find any accident. Bytes that somebody may have made up
// are compared by [BlobRef.CheckHash].
func (r BlobRef) Check(b []byte) error { return r.CheckBefore(b, nil) }

// CheckBefore is Check where next will be checked next, as far as is known: its beginning is brought from memory
// meanwhile.
func (r BlobRef) CheckBefore(b, next []byte) error {
	return r.check(len(b), func() Sum { return Sum(checksum.Of(b, next)) })
}

// CheckedCopy copies b to the beginning of to, which is at least as long, and reports an ErrDataLoss if what it has
// written is not the content r names. The bytes are brought from memory once for both, and leave the processor's cache
// to others: they are for who reads them elsewhere. next is what will be copied next, as for [BlobRef.CheckBefore]. In
// case of an error, part of to may be written.
func (r BlobRef) CheckedCopy(to, b, next []byte) error {
	return r.check(len(b), func() Sum { return Sum(checksum.Copy(to, b, next)) })
}

// check compares r with a size, and if that is right with a checksum, for which mapped memory may be read.
func (r BlobRef) check(size int, sum func() Sum) error {
	if int64(size) != r.Size {
		return fmt.Errorf("%w: blob %s has %d bytes, the manifest says %d", ErrDataLoss, r.Key, size, r.Size)
	}
	var got Sum
	if err := Guard(func() error { got = sum(); return nil }); err != nil {
		return fmt.Errorf("blob %s: %w", r.Key, err)
	}
	if got != r.Sum {
		return fmt.Errorf("%w: blob %s has checksum %s, the manifest says %s", ErrDataLoss, r.Key, got, r.Sum)
	}
	return nil
}

// Owner is told when the holder of a Blob is done with it.
type Owner interface {
	// Unpin is called exactly once for each Blob handed out. It may be called
	// from any goroutine and must not block.
	Unpin()
}

// Blob is a read-only view of a blob's bytes that its owner keeps in place
// (mapped, or out of a buffer pool) until Release. The zero Blob is empty and
// needs no release. A Blob has one holder at a time; copies share that hold.
type Blob struct {
	data  []byte
	owner Owner
}

// NewBlob wraps data. owner may be nil where the garbage collector owns data.
func NewBlob(data []byte, owner Owner) Blob { return Blob{data: data, owner: owner} }

// Bytes returns the content. It must not be written to, nor used after Release.
func (b *Blob) Bytes() []byte { return b.data }

// Release gives the bytes back. Further calls do nothing.
func (b *Blob) Release() {
	if o := b.owner; o != nil {
		b.owner, b.data = nil, nil
		o.Unpin()
	}
}

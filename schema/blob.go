package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/zeebo/xxh3"

	"bowstring/schema/checksum"
)

// Key is the name of a blob in every store: the SHA-256 of its content, or an address.
// See [AddressKey].
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

// BlobRef names a blob and contains what is needed to check it. A manifest has one for
// each blob cell.
type BlobRef struct {
	Key  Key   `json:"key"`
	Size int64 `json:"size"` // bytes
	Sum  Sum   `json:"sum"`
}

// Sum is the checksum of a blob's content: its XXH3, 64 bits, seed 0.
type Sum uint64

// Checksum returns the checksum of b. It is computed at the speed of memory, so that each
// blob can be checked when it is sent: from memory outside the CPU's cache at about twice
// the speed of a hardware CRC-32C.
func Checksum(b []byte) Sum {
	return Sum(checksum.Sum(b, nil))
}

// String returns the checksum as 16 hexadecimal digits, as xxhsum -H3 prints it.
func (s Sum) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// MarshalJSON writes the checksum as a hexadecimal string. Many JSON parsers would round
// a number of 64 bits.
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

// Check reports an ErrDataLoss if b is not the content that r names. It compares size and
// checksum, which find any accident. Bytes that may be forged are compared by
// [BlobRef.CheckHash].
func (r BlobRef) Check(b []byte) error { return r.CheckBefore(b, nil) }

// CheckBefore is Check with a hint: next is what will probably be checked next. Its
// beginning is prefetched from memory meanwhile.
func (r BlobRef) CheckBefore(b, next []byte) error {
	return r.check(len(b), func() Sum { return Sum(checksum.Sum(b, next)) })
}

// CheckedCopy copies b to the beginning of to, which is at least as long, and reports an
// ErrDataLoss if the copy is not the content that r names. The bytes are read from memory
// once for both. They are written past the CPU's cache, because another process or device
// reads them next. next is a hint as for [BlobRef.CheckBefore]. After an error, part of
// to may be written.
func (r BlobRef) CheckedCopy(to, b, next []byte) error {
	return r.check(len(b), func() Sum { return Sum(checksum.Copy(to, b, next)) })
}

// check compares r with a size and then with a checksum, whose computation may read
// mapped memory.
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

// Owner is notified when the holder of a Blob has released it.
type Owner interface {
	// Unpin is called exactly once for each Blob. It may be called from any goroutine and
	// must not block.
	Unpin()
}

// Blob is a read-only view of a blob's bytes. Their owner keeps them in place (mapped, or
// in a pooled buffer) until Release. The zero Blob is empty and needs no release. A Blob
// has one holder at a time; copies of the struct share that hold.
type Blob struct {
	data  []byte
	owner Owner
}

// NewBlob wraps data. owner may be nil if the garbage collector owns data.
func NewBlob(data []byte, owner Owner) Blob { return Blob{data: data, owner: owner} }

// Bytes returns the content. It must not be written to, or used after Release.
func (b *Blob) Bytes() []byte { return b.data }

// First is the blob cut to its first n bytes. It takes over the hold of b.
func (b *Blob) First(n int64) Blob { return Blob{data: b.data[:n:n], owner: b.owner} }

// Release returns the bytes to their owner. Further calls do nothing.
func (b *Blob) Release() {
	if o := b.owner; o != nil {
		b.owner, b.data = nil, nil
		o.Unpin()
	}
}

const (
	// addressPrefix is the number of bytes of an address that name its table or object
	// set.
	addressPrefix = 12
	// pieceBytes is how much CheckHash hashes at a time: the second hash then reads it
	// from the CPU's cache.
	pieceBytes = 64 << 10
)

// AddressKey is the key of a blob that is a cell of another program's table: the
// beginning of a hash of the table's name, the low half of the content's checksum,
// big-endian, and the id of the row. So a reference alone says where to read, and a cell
// that has changed gets another key.
func AddressKey(table [addressPrefix]byte, sum Sum, id ID) (k Key) {
	copy(k[:], table[:])
	binary.BigEndian.PutUint32(k[addressPrefix:], uint32(sum))
	copy(k[16:], id[:])
	return k
}

// Hashed reports whether r's key is the SHA-256 of the content, and so neither an
// [AddressKey] nor the key of an [ObjectAddress]. Two of 2^32 content hashes look like an
// address.
func (r BlobRef) Hashed() bool {
	low := binary.BigEndian.Uint32(r.Key[addressPrefix:])
	return low != uint32(r.Sum) && low != uint32(r.stand())
}

// UnprovenRef is the reference of a blob that was not read yet, so that its checksum is
// unknown. In place of the checksum it has a number computed from address and size, by
// which [BlobRef.Unproven] recognizes it. The key does not change when the checksum
// becomes known.
func UnprovenRef(a ObjectAddress, size int64) BlobRef {
	if size == 0 {
		sum := Checksum(nil)
		return BlobRef{Key: a.Key(sum), Sum: sum}
	}
	r := BlobRef{Key: a.Key(0), Size: size}
	r.Sum = r.stand()
	binary.BigEndian.PutUint32(r.Key[addressPrefix:], uint32(r.Sum))
	return r
}

// Unproven reports whether r has no checksum yet: see [UnprovenRef]. One content in 2^64
// has that number by accident.
func (r BlobRef) Unproven() bool {
	return binary.BigEndian.Uint32(r.Key[addressPrefix:]) == uint32(r.Sum) && r.Size > 0 && r.Sum == r.stand()
}

// Prove returns the reference with the checksum of its content, which was unknown. The
// key does not change.
func (r BlobRef) Prove(sum Sum) BlobRef {
	r.Sum = sum
	return r
}

// Settled is the reference as if its checksum had always been known: with the low half of
// the checksum in the key. A name derived from it changes with the content. Any other
// reference is returned as it is.
func (r BlobRef) Settled() BlobRef {
	low := binary.BigEndian.Uint32(r.Key[addressPrefix:])
	if low != uint32(r.Sum) && low == uint32(r.stand()) {
		binary.BigEndian.PutUint32(r.Key[addressPrefix:], uint32(r.Sum))
	}
	return r
}

// stand is the number in place of an unknown checksum: a hash of the size and of the key
// without the four bytes that depend on it.
func (r *BlobRef) stand() Sum {
	var text [len(r.Key) - 4 + 8]byte
	copy(text[:], r.Key[:addressPrefix])
	copy(text[addressPrefix:], r.Key[addressPrefix+4:])
	binary.LittleEndian.PutUint64(text[len(r.Key)-4:], uint64(r.Size))
	return Sum(xxh3.HashSeed(text[:], standSeed))
}

// standSeed makes these numbers differ from checksums.
const standSeed = 0x756e70726f76656e

// CheckHash is [BlobRef.Check] that also compares the content's SHA-256 with the key,
// which must be one. It detects forged bytes, which Check does not: two contents with the
// same XXH3 are easily made.
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

// checkKey compares a SHA-256 with the key.
func (r BlobRef) checkKey(got Key) error {
	if got != r.Key {
		return fmt.Errorf("%w: blob %s has the content of %s, though its checksum is right", ErrDataLoss, r.Key, got)
	}
	return nil
}

// Extent is the range of a file that holds a blob's bytes. It is valid while the blob is
// held: afterwards the file may be closed, and the range may hold other bytes. Meanwhile
// the bytes do not change, even if the file is unlinked.
type Extent struct {
	// File is open at least for reading. It belongs to the blob's owner: it must not be
	// closed, written to or truncated.
	File *os.File
	// Offset and Length are in bytes. Length is that of the blob.
	Offset, Length int64
	// Limit is how long the file may become. It is never truncated below the end of a
	// blob that is held. 0 means that the file must not be passed to another process.
	Limit int64
}

// Sharer is an Owner of blobs that may have several holders.
type Sharer interface {
	Owner
	// Share adds a holder to a blob that has one; false if there can be no more.
	Share() bool
}

// Share returns the blob for another holder; false if its owner allows only one. It must
// not be called after Release.
func (b *Blob) Share() (Blob, bool) {
	if s, ok := b.owner.(Sharer); ok && s.Share() {
		return *b, true
	}
	return Blob{}, false
}

// Locator is an Owner whose blobs may be in files.
type Locator interface {
	Owner
	// Extent returns the file range of a held blob of this owner; false if the blob is in
	// no file.
	Extent(data []byte) (Extent, bool)
}

// Unchecker is an Owner whose blobs may not have been compared with their reference yet.
type Unchecker interface {
	Owner
	// Unchecked reports whether the user of the bytes has to compare them first.
	Unchecked() bool
}

// Unchecked reports whether the bytes have not been compared with the reference. It must
// not be called after Release.
func (b *Blob) Unchecked() bool {
	u, ok := b.owner.(Unchecker)
	return ok && u.Unchecked()
}

// Extent returns the file range of the blob's bytes; false if they are in no file or in
// no known one, as those of an empty blob. It is valid until the blob is released, and
// must not be called afterwards.
func (b *Blob) Extent() (Extent, bool) {
	if l, ok := b.owner.(Locator); ok {
		return l.Extent(b.data)
	}
	return Extent{}, false
}

// A frame is memory that can be written to a disk without a copy (O_DIRECT): whole
// blocks, starting at a multiple of FrameBlock, with a blob after FrameMargin bytes. The
// writer fills in the bytes before and after the blob.
const (
	FrameBlock  = 4 << 10
	FrameMargin = 64
)

// FrameSize is the size of the frame of a blob of n bytes.
func FrameSize(n int64) int64 { return (FrameMargin + n + FrameBlock - 1) / FrameBlock * FrameBlock }

// Framer is an Owner whose blob is in a frame.
type Framer interface {
	Owner
	// Frame returns the frame; nil if there is none. It stays in place while the blob is
	// held. The bytes around the blob are undefined. Only the goroutine that stores the
	// blob reads or writes them.
	Frame() []byte
}

// Frame returns the frame that contains the blob; nil if there is none.
func (b *Blob) Frame() []byte {
	if f, ok := b.owner.(Framer); ok {
		return f.Frame()
	}
	return nil
}

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

// First is the blob cut down to its first n bytes. It takes over the hold of b.
func (b *Blob) First(n int64) Blob { return Blob{data: b.data[:n:n], owner: b.owner} }

// Release gives the bytes back. Further calls do nothing.
func (b *Blob) Release() {
	if o := b.owner; o != nil {
		b.owner, b.data = nil, nil
		o.Unpin()
	}
}

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

// Hashed reports whether r's key is the SHA-256 of the content: whether it is no [AddressKey], and no key of a
// [ObjectAddress]. Two content hashes in 2^32 have the form of an address.
func (r BlobRef) Hashed() bool {
	low := binary.BigEndian.Uint32(r.Key[addressPrefix:])
	return low != uint32(r.Sum) && low != uint32(r.stand())
}

// UnprovenRef is the reference of a blob that nothing has read yet: its checksum is not known. In its place stands a
// number that is made of the address and the size, by which [BlobRef.Unproven] knows it. The key stays what it is when the
// checksum is learned.
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

// Unproven reports whether r has no checksum yet: see [UnprovenRef]. Content that has the number by accident is one in
// 2^64.
func (r BlobRef) Unproven() bool {
	return binary.BigEndian.Uint32(r.Key[addressPrefix:]) == uint32(r.Sum) && r.Size > 0 && r.Sum == r.stand()
}

// Prove returns the reference with the checksum of its content, which was not known. The key stays as it is.
func (r BlobRef) Prove(sum Sum) BlobRef {
	r.Sum = sum
	return r
}

// Settled is the reference of a blob whose checksum was learned as it would be if the checksum had always been known: the
// low half of it is in the key. What was made of other bytes has another name. Any other reference stays as it is.
func (r BlobRef) Settled() BlobRef {
	low := binary.BigEndian.Uint32(r.Key[addressPrefix:])
	if low != uint32(r.Sum) && low == uint32(r.stand()) {
		binary.BigEndian.PutUint32(r.Key[addressPrefix:], uint32(r.Sum))
	}
	return r
}

// stand is what stands in the place of a checksum: a hash of the size and of the key without the bytes that it goes
// into.
func (r *BlobRef) stand() Sum {
	var text [len(r.Key) - 4 + 8]byte
	copy(text[:], r.Key[:addressPrefix])
	copy(text[addressPrefix:], r.Key[addressPrefix+4:])
	binary.LittleEndian.PutUint64(text[len(r.Key)-4:], uint64(r.Size))
	return Sum(xxh3.HashSeed(text[:], standSeed))
}

// standSeed keeps what stands for checksums apart from checksums.
const standSeed = 0x756e70726f76656e

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

// Extent is where a blob's bytes lie in a file. It holds as long as the blob is held: afterwards the file may be
// closed, and other bytes may lie there. Meanwhile the bytes stay as they are, even if the file has lost its name.
type Extent struct {
	// File is open for reading at least. It belongs to the blob's owner: it must not be closed, written to or
	// truncated.
	File *os.File
	// Offset and Length are in bytes. Length is that of the blob.
	Offset, Length int64
	// Limit is how long the file may become. It is never shortened below the end of a blob that is held. It is 0 where
	// nobody else may be given the file.
	Limit int64
}

// Sharer is an Owner of blobs that may have more holders.
type Sharer interface {
	Owner
	// Share counts one more holder in, which a blob is for that has one; false if there can be none.
	Share() bool
}

// Share returns the blob for another holder; false if its owner has but one. It must not be asked for after Release.
func (b *Blob) Share() (Blob, bool) {
	if s, ok := b.owner.(Sharer); ok && s.Share() {
		return *b, true
	}
	return Blob{}, false
}

// Locator is an Owner whose blobs may lie in files.
type Locator interface {
	Owner
	// Extent returns where the bytes of a blob that is held lie, of which this is the owner; false if they lie in no
	// file.
	Extent(data []byte) (Extent, bool)
}

// Unchecker is an Owner whose blobs may not have been compared with their reference yet.
type Unchecker interface {
	Owner
	// Unchecked reports whether whoever uses the bytes has to compare them first.
	Unchecked() bool
}

// Unchecked reports whether the bytes have not been compared with the reference. It must not be asked for after
// Release.
func (b *Blob) Unchecked() bool {
	u, ok := b.owner.(Unchecker)
	return ok && u.Unchecked()
}

// Extent returns where the blob's bytes lie; false if they lie in no file, or in none that is known, as those of an
// empty blob. It holds until the blob is released, and must not be asked for afterwards.
func (b *Blob) Extent() (Extent, bool) {
	if l, ok := b.owner.(Locator); ok {
		return l.Extent(b.data)
	}
	return Extent{}, false
}

// A frame is memory that a disk takes as it lies: whole blocks, from a multiple of FrameBlock on, in which a blob
// begins behind FrameMargin bytes. Who stores the blob fills in what is before and behind it, and needs no copy.
const (
	FrameBlock  = 4 << 10
	FrameMargin = 64
)

// FrameSize is the size of the frame of a blob of n bytes.
func FrameSize(n int64) int64 { return (FrameMargin + n + FrameBlock - 1) / FrameBlock * FrameBlock }

// Framer is an Owner whose blob lies in a frame.
type Framer interface {
	Owner
	// Frame returns the frame; nil if there is none. It stays in place as long as the blob does. What is around the
	// blob is undefined, and is written to by the one who stores the blob, and read by nobody else.
	Frame() []byte
}

// Frame returns the frame that the blob lies in; nil if there is none.
func (b *Blob) Frame() []byte {
	if f, ok := b.owner.(Framer); ok {
		return f.Frame()
	}
	return nil
}

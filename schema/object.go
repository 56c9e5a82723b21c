package schema

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// ObjectVersion names one state of an object of a bucket. The zero value means any
// version.
type ObjectVersion struct {
	// ETag is the server's name of the content, without quotes. In general it is no hash
	// of the content.
	ETag string `json:"etag,omitempty"`
	// ID is the version's id in a bucket with versioning (S3), or its generation (Google
	// Cloud Storage).
	ID string `json:"id,omitempty"`
}

// IsZero reports whether v means any version.
func (v ObjectVersion) IsZero() bool { return v == ObjectVersion{} }

// String describes the version for people.
func (v ObjectVersion) String() string {
	var s []string
	if v.ETag != "" {
		s = append(s, "ETag "+v.ETag)
	}
	if v.ID != "" {
		s = append(s, "version "+v.ID)
	}
	if s == nil {
		return "any version"
	}
	return strings.Join(s, ", ")
}

// ObjectPrefix begins the keys of all blobs in one object set: see [ObjectKey].
type ObjectPrefix [addressPrefix]byte

// String returns the prefix as lower-case hexadecimal.
func (p ObjectPrefix) String() string { return hex.EncodeToString(p[:]) }

// MarshalText writes the prefix as String does.
func (p ObjectPrefix) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a prefix of 24 hexadecimal digits.
func (p *ObjectPrefix) UnmarshalText(b []byte) error {
	got, err := hex.DecodeString(string(b))
	if err != nil || len(got) != len(p) {
		return fmt.Errorf("%w: object prefix %q is not %d hexadecimal digits", ErrInvalid, b, 2*len(p))
	}
	copy(p[:], got)
	return nil
}

// ObjectSet is an immutable list of objects of one bucket that contain blobs. A store
// keeps it as a blob; snapshots with rows in it name that blob.
type ObjectSet struct {
	Bucket string // its URL, without secrets
	// Reading says how the objects were read when the set was made: in which format and
	// for which columns. Another reading finds other units, and so has to be another set,
	// with another prefix.
	Reading string
	Objects []Object
	// Unproven marks a set whose objects were not read when it was attached: the
	// references of its blobs are those of UnprovenRef, except where the content was
	// known anyway.
	Unproven bool
}

// MaxObjects is how many objects a set may have.
const MaxObjects = 65_536

// Object is an object of a set.
type Object struct {
	Key     string
	Size    int64 // bytes
	Version ObjectVersion
	Units   []Unit // compressed ranges, which are read whole, in ascending order of their offsets; nil if there are none
}

// Unit is a compressed range of an object. It is read and decoded as a whole, whichever
// of its blobs is needed.
type Unit struct {
	Offset, Length int64 // in the object, in bytes
	Size           int64 // decoded, in bytes
	Codec          Codec
}

// Unit finds the unit that begins at an offset. Keys name units by offset and not by
// number, because an attachment issues keys before it knows all units.
func (o *Object) Unit(offset int64) (Unit, bool) {
	i, found := slices.BinarySearchFunc(o.Units, offset, func(u Unit, at int64) int { return cmp.Compare(u.Offset, at) })
	if !found {
		return Unit{}, false
	}
	return o.Units[i], true
}

// Codec is the compression of a unit.
type Codec string

// Codecs of units.
const (
	CodecZstd    Codec = "zstd"
	CodecGzip    Codec = "gzip"
	CodecDeflate Codec = "deflate" // raw, as in zip
	CodecSnappy  Codec = "snappy"  // the block format, as in Parquet
	CodecLZ4     Codec = "lz4"     // the frame format
	CodecLZ4Raw  Codec = "lz4_raw" // the block format, as in Parquet
	CodecBrotli  Codec = "brotli"
	CodecBzip2   Codec = "bzip2"
)

// ObjectAddress is the place of a blob in an object set. Its length is the size in the
// blob's reference.
type ObjectAddress struct {
	Prefix ObjectPrefix
	Object uint32 // number in the set
	Packed bool   // the blob is in a unit
	Offset int64  // in the object, below 2^48; of a packed blob in its decoded unit, below 2^40
	Unit   int64  // of a packed blob: offset of its unit in the object, below 2^48
}

// Key is the address as a key, of six parts:
//
//   - 12 bytes: the prefix
//   - 4 bytes: the low half of the content's checksum (see UnprovenRef if that is unknown)
//   - 4 bytes: the number of the object
//   - 6 bytes: the offset of the blob or of its unit
//   - 1 byte: 1 if the blob is packed
//   - 5 bytes: the offset in the unit
//
// Numbers are big-endian. Key panics if a number is out of its bounds.
func (a ObjectAddress) Key(sum Sum) (k Key) {
	const most48, most40 = 1 << 48, 1 << 40
	first, second := a.Offset, int64(0)
	if a.Packed {
		first, second = a.Unit, a.Offset
	}
	if first < 0 || first >= most48 || second < 0 || second >= most40 {
		panic(fmt.Sprintf("schema: address out of bounds: %+v", a))
	}
	copy(k[:], a.Prefix[:])
	binary.BigEndian.PutUint32(k[12:], uint32(sum))
	binary.BigEndian.PutUint32(k[16:], a.Object)
	var eight [8]byte
	binary.BigEndian.PutUint64(eight[:], uint64(first))
	copy(k[20:26], eight[2:])
	if a.Packed {
		k[26] = 1
		binary.BigEndian.PutUint64(eight[:], uint64(second))
		copy(k[27:], eight[3:])
	}
	return k
}

// ParseObjectAddress parses a key that [ObjectAddress.Key] made; false if it cannot be
// one.
func ParseObjectAddress(k Key) (ObjectAddress, bool) {
	a := ObjectAddress{Prefix: ObjectPrefix(k[:addressPrefix]), Object: binary.BigEndian.Uint32(k[16:])}
	var eight [8]byte
	copy(eight[2:], k[20:26])
	first := int64(binary.BigEndian.Uint64(eight[:]))
	eight = [8]byte{}
	copy(eight[3:], k[27:])
	second := int64(binary.BigEndian.Uint64(eight[:]))
	switch k[26] {
	case 0:
		a.Offset = first
		return a, second == 0
	case 1:
		a.Packed, a.Unit, a.Offset = true, first, second
		return a, true
	}
	return ObjectAddress{}, false
}

// ObjectChunk is how many bytes the chunks have into which objects are cut, from their beginning on; the last one of an
// object may have fewer. A node of a cluster owns a chunk as a whole: it is large enough to be worth a request, and small
// enough that the parts of many nodes differ little.
const ObjectChunk = 8 << 20

// Chunk is the number of the chunk of the object that the blob, or its unit, begins in.
func (a *ObjectAddress) Chunk() int64 {
	if a.Packed {
		return a.Unit / ObjectChunk
	}
	return a.Offset / ObjectChunk
}

// objectSetVersion is part of every prefix: it changes when units are found by other rules.
const objectSetVersion = 1

// Prefix is the beginning of the keys of the set's blobs. It depends on the bucket, on how it was read, and on keys,
// sizes and versions of the objects; units follow from these and the bytes.
func (s *ObjectSet) Prefix() ObjectPrefix {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "bowstring object set %d\x00%q\x00%q\x00%t\x00", objectSetVersion, s.Bucket, s.Reading,
		s.Unproven)
	for _, o := range s.Objects {
		_, _ = fmt.Fprintf(h, "%q %d %q %q\x00", o.Key, o.Size, o.Version.ETag, o.Version.ID)
	}
	return ObjectPrefix(h.Sum(nil))
}

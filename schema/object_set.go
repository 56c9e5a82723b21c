package schema

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

const (
	objectSetMagic  = "BOWOBJS1"
	objectSetHeader = len(objectSetMagic) + addressPrefix + 16
	// objectsTogether is how many objects share an entry in the table of a set: an object
	// is found by reading those before it in the group. Keys in a group share prefixes,
	// which makes sets several times smaller.
	objectsTogether = 16
	// MaxObjectSetBytes bounds an encoded set.
	MaxObjectSetBytes = 1 << 30
	// MaxObjectKey bounds the key of an object in bytes.
	MaxObjectKey = 8 << 10

	flagUnproven = 1 << 0 // of a set

	flagHexETag = 1 << 0 // of an object: its ETag is 32 hexadecimal digits, stored as 16 bytes
	flagETag    = 1 << 1
	flagID      = 1 << 2
	flagUnits   = 1 << 3
)

// codecs by their numbers in encoded sets, from 1 on. Numbers are never reused.
var codecs = [...]Codec{
	1: CodecZstd, 2: CodecGzip, 3: CodecDeflate, 4: CodecSnappy, 5: CodecLZ4, 6: CodecLZ4Raw, 7: CodecBrotli, 8: CodecBzip2,
}

// EncodeObjectSet encodes a set in the format of docs/formats.md. Equal sets give equal
// bytes. It fails with ErrInvalid for keys that do not ascend, numbers out of their
// bounds and unknown codecs, and with ErrLimit for too many objects or bytes.
func EncodeObjectSet(s *ObjectSet) ([]byte, error) {
	if len(s.Objects) > MaxObjects {
		return nil, fmt.Errorf("%w: an object set of %d objects: at most %d are allowed", ErrLimit, len(s.Objects), MaxObjects)
	}
	prefix, flags := s.Prefix(), uint32(0)
	if s.Unproven {
		flags |= flagUnproven
	}
	groups := (len(s.Objects) + objectsTogether - 1) / objectsTogether
	data := append([]byte(objectSetMagic), prefix[:]...)
	data = binary.LittleEndian.AppendUint32(data, flags)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(s.Objects)))
	data = binary.LittleEndian.AppendUint32(data, uint32(len(s.Bucket)))
	data = binary.LittleEndian.AppendUint32(data, uint32(len(s.Reading)))
	data = append(data, s.Bucket...)
	data = append(data, s.Reading...)
	table := len(data)
	data = append(data, make([]byte, 4*groups)...)
	body := len(data)
	before := ""
	for i := range s.Objects {
		o := &s.Objects[i]
		if i > 0 && o.Key <= before {
			return nil, fmt.Errorf("%w: object %s comes after %s in an object set: keys ascend", ErrInvalid, Quote(o.Key),
				Quote(before))
		}
		shared := 0
		if i%objectsTogether == 0 {
			binary.LittleEndian.PutUint32(data[table+4*(i/objectsTogether):], uint32(len(data)-body))
		} else {
			for shared < min(len(before), len(o.Key)) && before[shared] == o.Key[shared] {
				shared++
			}
		}
		var err error
		if data, err = appendObject(data, o, shared); err != nil {
			return nil, fmt.Errorf("object %s: %w", Quote(o.Key), err)
		}
		if len(data) > MaxObjectSetBytes {
			return nil, fmt.Errorf("%w: an object set of more than %d bytes: make sets of fewer objects", ErrLimit,
				MaxObjectSetBytes)
		}
		before = o.Key
	}
	return data, nil
}

// appendObject appends an object whose key shares its first bytes with the key before.
func appendObject(data []byte, o *Object, shared int) ([]byte, error) {
	if len(o.Key) > MaxObjectKey || o.Size < 0 {
		return nil, fmt.Errorf("%w: a key of %d bytes and a size of %d: want at most %d, and no negative size", ErrInvalid,
			len(o.Key), o.Size, MaxObjectKey)
	}
	data = binary.AppendUvarint(data, uint64(shared))
	data = appendText(data, o.Key[shared:])
	data = binary.AppendUvarint(data, uint64(o.Size))
	var flags byte
	digest, err := hex.DecodeString(o.Version.ETag)
	packed := err == nil && len(digest) == 16 && strings.ToLower(o.Version.ETag) == o.Version.ETag
	switch {
	case packed:
		flags |= flagHexETag
	case o.Version.ETag != "":
		flags |= flagETag
	}
	if o.Version.ID != "" {
		flags |= flagID
	}
	if len(o.Units) > 0 {
		flags |= flagUnits
	}
	data = append(data, flags)
	switch {
	case packed:
		data = append(data, digest...)
	case o.Version.ETag != "":
		data = appendText(data, o.Version.ETag)
	}
	if o.Version.ID != "" {
		data = appendText(data, o.Version.ID)
	}
	if len(o.Units) == 0 {
		return data, nil
	}
	var units []byte
	end := int64(0)
	for i, u := range o.Units {
		codec := slices.Index(codecs[:], u.Codec)
		if u.Offset < end || u.Length < 1 || u.Length > o.Size-u.Offset || u.Size < 0 || codec < 1 {
			return nil, fmt.Errorf("%w: unit %d of %d bytes at %d, decoded %d by %q: want units that ascend within the "+
				"object's %d bytes, and a codec that is known", ErrInvalid, i, u.Length, u.Offset, u.Size, u.Codec, o.Size)
		}
		units = binary.AppendUvarint(units, uint64(u.Offset-end))
		units = binary.AppendUvarint(units, uint64(u.Length))
		units = binary.AppendUvarint(units, uint64(u.Size))
		units = append(units, byte(codec))
		end = u.Offset + u.Length
	}
	data = binary.AppendUvarint(data, uint64(len(o.Units)))
	data = binary.AppendUvarint(data, uint64(len(units)))
	return append(data, units...), nil
}

func appendText(data []byte, text string) []byte {
	return append(binary.AppendUvarint(data, uint64(len(text))), text...)
}

// DecodeObjectSet decodes the output of [EncodeObjectSet]. Bytes that are no set are an
// ErrDataLoss. It keeps nothing of data.
func DecodeObjectSet(data []byte) (*ObjectSet, error) {
	x, err := OpenObjectSet(data)
	if err != nil {
		return nil, err
	}
	s := &ObjectSet{Bucket: x.Bucket(), Reading: x.reading, Unproven: x.Unproven(), Objects: make([]Object, 0, x.Len())}
	err = x.each(0, x.Len(), func(o *objectEntry) error {
		object := o.object()
		err := o.eachUnit(func(u Unit) bool {
			object.Units = append(object.Units, u)
			return true
		})
		s.Objects = append(s.Objects, object)
		return err
	})
	if err == nil && s.Prefix() != x.Prefix() {
		err = objectSetDamage("it has the prefix %s, and its objects make %s", x.Prefix(), s.Prefix())
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ObjectIndex is an object set in its encoded form. Objects are found by number, and
// decoded only then: a set of 65,536 objects would take tens of MiB when decoded. It is
// immutable and safe for concurrent use.
type ObjectIndex struct {
	bucket      string
	reading     string
	prefix      ObjectPrefix
	flags       uint32
	n           int
	table, body []byte
}

// OpenObjectSet opens the output of [EncodeObjectSet], and checks everything except
// whether the prefix belongs to the objects. Bytes that are no set are an ErrDataLoss.
// The index refers to data, which must not change.
func OpenObjectSet(data []byte) (*ObjectIndex, error) {
	var x *ObjectIndex
	err := Guard(func() (err error) {
		if x, err = ReopenObjectSet(data); err != nil {
			return err
		}
		return x.check()
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// ReopenObjectSet is OpenObjectSet for bytes that OpenObjectSet has checked before: it
// checks only the header. For other bytes the index may give wrong results, but never
// reads beyond data.
func ReopenObjectSet(data []byte) (*ObjectIndex, error) {
	if len(data) < objectSetHeader || len(data) > MaxObjectSetBytes ||
		string(data[:len(objectSetMagic)]) != objectSetMagic {
		return nil, objectSetDamage("%d bytes do not begin with %q", len(data), objectSetMagic)
	}
	x := &ObjectIndex{prefix: ObjectPrefix(data[len(objectSetMagic):])}
	numbers := data[len(objectSetMagic)+addressPrefix:]
	x.flags = binary.LittleEndian.Uint32(numbers)
	n, name := binary.LittleEndian.Uint32(numbers[4:]), int64(binary.LittleEndian.Uint32(numbers[8:]))
	head := name + int64(binary.LittleEndian.Uint32(numbers[12:])) // of name and reading
	rest := data[objectSetHeader:]
	groups := (int64(n) + objectsTogether - 1) / objectsTogether
	if x.flags&^flagUnproven != 0 || n > MaxObjects || head+4*groups > int64(len(rest)) {
		return nil, objectSetDamage("flags %#x, %d objects, texts of %d bytes in %d bytes", x.flags, n, head, len(data))
	}
	x.n, x.bucket, x.reading = int(n), string(rest[:name]), string(rest[name:head])
	x.table, x.body = rest[head:head+4*groups], rest[head+4*groups:]
	return x, nil
}

// check reads the whole set.
func (x *ObjectIndex) check() error {
	at, first := 0, true
	var before []byte
	for group := range len(x.table) / 4 {
		if begins := int(x.begins(group)); begins != at {
			return objectSetDamage("objects from %d on are at %d, the table says %d", group*objectsTogether, at, begins)
		}
		from := group * objectsTogether
		var last *objectEntry
		err := x.each(from, min(from+objectsTogether, x.n), func(o *objectEntry) error {
			last = o
			if !first && bytes.Compare(o.key, before) <= 0 {
				return objectSetDamage("object %s comes after %s", Quote(string(o.key)), Quote(string(before)))
			}
			before, first = append(before[:0], o.key...), false
			return o.eachUnit(func(Unit) bool { return true })
		})
		if err != nil {
			return err
		}
		at = len(x.body) - len(last.rest)
	}
	if at != len(x.body) {
		return objectSetDamage("%d bytes follow its objects", len(x.body)-at)
	}
	return nil
}

// begins is the offset of a group in the body.
func (x *ObjectIndex) begins(group int) uint32 { return binary.LittleEndian.Uint32(x.table[4*group:]) }

// Bucket is the URL of the bucket, without secrets.
func (x *ObjectIndex) Bucket() string { return x.bucket }

// Prefix begins the keys of the set's blobs.
func (x *ObjectIndex) Prefix() ObjectPrefix { return x.prefix }

// Len is the number of objects.
func (x *ObjectIndex) Len() int { return x.n }

// Unproven is ObjectSet.Unproven.
func (x *ObjectIndex) Unproven() bool { return x.flags&flagUnproven != 0 }

// Object returns an object by its number, without its units. A number beyond the set is
// an ErrDataLoss, because an address named it.
func (x *ObjectIndex) Object(number uint32) (o Object, err error) {
	err = x.find(number, func(e *objectEntry) error {
		o = e.object()
		return nil
	})
	return o, err
}

// Unit returns an object by its number, without its units, and its unit that begins at an
// offset.
func (x *ObjectIndex) Unit(number uint32, offset int64) (o Object, u Unit, err error) {
	err = x.find(number, func(e *objectEntry) error {
		o = e.object()
		found := false
		err := e.eachUnit(func(next Unit) bool {
			u, found = next, next.Offset == offset
			return next.Offset < offset
		})
		if err == nil && !found {
			err = fmt.Errorf("%w: no unit begins at %d in object %s of %s", ErrDataLoss, offset, Quote(o.Key), x.bucket)
		}
		return err
	})
	return o, u, err
}

// find visits the entry of an object, with protection against page faults.
func (x *ObjectIndex) find(number uint32, visit func(*objectEntry) error) error {
	if int64(number) >= int64(x.n) {
		return fmt.Errorf("%w: object set %s of %s has %d objects, and no object %d", ErrDataLoss, x.prefix, x.bucket, x.n,
			number)
	}
	first, last := int(number)/objectsTogether*objectsTogether, int(number)
	return Guard(func() error {
		return x.each(first, last+1, func(e *objectEntry) error {
			if e.number != last {
				return nil
			}
			return visit(e)
		})
	})
}

// objectEntry is an object in an encoded set. Its slices point into the set, and key is
// reused for the next entry.
type objectEntry struct {
	number int
	key    []byte // complete key, in memory of this entry
	size   int64
	etag   []byte
	hexed  bool
	id     []byte
	units  uint64
	packed []byte // the encoded units
	rest   []byte // bytes after this entry
}

// each reads the entries [from, to). from must be the first of its group.
func (x *ObjectIndex) each(from, to int, visit func(*objectEntry) error) error {
	e := &objectEntry{}
	for i := from; i < to; i++ {
		if i%objectsTogether == 0 {
			begins := int64(x.begins(i / objectsTogether))
			if begins > int64(len(x.body)) {
				return objectSetDamage("objects from %d on are at %d of %d bytes", i, begins, len(x.body))
			}
			e.key, e.rest = e.key[:0], x.body[begins:]
		}
		e.number = i
		if !e.next() {
			return objectSetDamage("object %d cannot be read", i)
		}
		if err := visit(e); err != nil {
			return err
		}
	}
	return nil
}

// next reads the next entry; false if there is none or it is damaged.
func (e *objectEntry) next() bool {
	in := &cursor{data: e.rest}
	shared := in.number()
	text := in.bytes(in.number())
	e.size = int64(in.number())
	flags := in.bytes(1)
	if in.broken || shared > uint64(len(e.key)) || shared+uint64(len(text)) > MaxObjectKey || e.size < 0 {
		return false
	}
	e.key = append(e.key[:shared], text...)
	e.etag, e.id, e.hexed, e.units, e.packed = nil, nil, false, 0, nil
	f := flags[0]
	if f&^(flagHexETag|flagETag|flagID|flagUnits) != 0 || f&flagHexETag != 0 && f&flagETag != 0 {
		return false
	}
	switch {
	case f&flagHexETag != 0:
		e.etag, e.hexed = in.bytes(16), true
	case f&flagETag != 0:
		e.etag = in.bytes(in.number())
	}
	if f&flagID != 0 {
		e.id = in.bytes(in.number())
	}
	if f&flagUnits != 0 {
		e.units = in.number()
		e.packed = in.bytes(in.number())
	}
	e.rest = in.data
	return !in.broken
}

// object returns the entry's object without its units.
func (e *objectEntry) object() Object {
	o := Object{Key: string(e.key), Size: e.size, Version: ObjectVersion{ETag: string(e.etag), ID: string(e.id)}}
	if e.hexed {
		o.Version.ETag = hex.EncodeToString(e.etag)
	}
	return o
}

// eachUnit visits the units until visit returns false.
func (e *objectEntry) eachUnit(visit func(Unit) bool) error {
	in := &cursor{data: e.packed}
	end := int64(0)
	for i := range e.units {
		gap, length, size := in.number(), in.number(), in.number()
		codec := in.bytes(1)
		left := uint64(max(e.size-end, 0))
		if in.broken || gap > left || length < 1 || length > left-gap || int64(size) < 0 {
			return objectSetDamage("unit %d of object %s cannot be read", i, Quote(string(e.key)))
		}
		if codec[0] < 1 || int(codec[0]) >= len(codecs) {
			return fmt.Errorf("%w: unit %d of object %s is compressed by codec number %d, which this bowstring does not know",
				ErrNotSupported, i, Quote(string(e.key)), codec[0])
		}
		u := Unit{Offset: end + int64(gap), Length: int64(length), Size: int64(size), Codec: codecs[codec[0]]}
		if !visit(u) {
			return nil
		}
		end = u.Offset + u.Length
	}
	if len(in.data) > 0 {
		return objectSetDamage("%d bytes follow the units of object %s", len(in.data), Quote(string(e.key)))
	}
	return nil
}

// cursor reads numbers and bytes. If there are too few bytes it is broken from then on,
// and returns zero values. So callers check once.
type cursor struct {
	data   []byte
	broken bool
}

func (c *cursor) number() uint64 {
	v, n := binary.Uvarint(c.data)
	if n <= 0 || c.broken {
		c.broken = true
		return 0
	}
	c.data = c.data[n:]
	return v
}

func (c *cursor) bytes(n uint64) []byte {
	if c.broken || n > uint64(len(c.data)) {
		c.broken = true
		return nil
	}
	b := c.data[:n:n]
	c.data = c.data[n:]
	return b
}

func objectSetDamage(format string, args ...any) error {
	return fmt.Errorf("%w: object set: "+format, slices.Concat([]any{ErrDataLoss}, args)...)
}

package bucket

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"

	"bowstring/schema"
)

// A segment is a header, blobs at multiples of align with zeros between them, an index
// and a trailer. All integers are little-endian. docs/formats.md describes it byte by
// byte. The index is at the end, because a segment is written by one request once all of
// its blobs are known.
const (
	align       = 64
	headerSize  = 64
	entrySize   = 32
	trailerSize = 64

	segmentVersion = 1
)

// segmentMagic begins a segment, and trailerMagic its trailer, so that a torn segment is
// recognized by its end.
var (
	segmentMagic = [8]byte{'B', 'O', 'W', 'O', 'B', 'J', '\r', '\n'}
	trailerMagic = [8]byte{'B', 'O', 'W', 'O', 'E', 'N', 'D', '\n'}
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
)

// kind is the kind of a blob in a segment's index.
type kind uint8

const (
	kindBlob   kind = 0 // blobs of rows, manifest pages and their indexes, bitmaps
	kindRecord kind = 1 // a snapshot's record, by which Rebuild finds the snapshot
)

// entry is a blob in a segment's index.
type entry struct {
	offset int64
	size   int64
	sum    schema.Sum
	kind   kind
}

// segment is a segment that is being composed in memory. A pack or a repair owns it.
type segment struct {
	prefix  schema.ObjectPrefix
	number  uint32
	body    []byte  // everything so far, from the header on
	entries []entry // in order of their offsets
	created time.Time
}

// newSegment returns a segment with its header, and room for that many bytes.
func newSegment(prefix schema.ObjectPrefix, number uint32, room int, created time.Time) *segment {
	g := &segment{prefix: prefix, number: number, body: make([]byte, headerSize, max(room, 4<<10)), created: created}
	copy(g.body, segmentMagic[:])
	binary.LittleEndian.PutUint32(g.body[8:], segmentVersion)
	copy(g.body[12:], prefix[:])
	binary.LittleEndian.PutUint32(g.body[24:], number)
	binary.LittleEndian.PutUint64(g.body[28:], uint64(created.UnixMicro()))
	binary.LittleEndian.PutUint32(g.body[60:], crc32.Checksum(g.body[:60], castagnoli))
	return g
}

// finished is the size of the segment once it is finished with one more blob of n bytes.
func (g *segment) finished(n int) int64 {
	return aligned(aligned(int64(len(g.body)))+int64(n)) + int64(len(g.entries)+1)*entrySize + trailerSize
}

// aligned rounds up to a multiple of align.
func aligned(n int64) int64 { return (n + align - 1) / align * align }

// pad fills the body with zeros up to the next multiple of align.
func (g *segment) pad() {
	var zeros [align]byte
	g.body = append(g.body, zeros[:aligned(int64(len(g.body)))-int64(len(g.body))]...)
}

// add appends a blob and returns its reference.
func (g *segment) add(data []byte, sum schema.Sum, k kind) schema.BlobRef {
	g.pad()
	e := entry{offset: int64(len(g.body)), size: int64(len(data)), sum: sum, kind: k}
	g.body = append(g.body, data...)
	g.entries = append(g.entries, e)
	return e.ref(g.prefix, g.number)
}

// ref is the reference of an entry's blob.
func (e entry) ref(prefix schema.ObjectPrefix, number uint32) schema.BlobRef {
	a := schema.ObjectAddress{Prefix: prefix, Object: number, Offset: e.offset}
	return schema.BlobRef{Key: a.Key(e.sum), Size: e.size, Sum: e.sum}
}

// finish appends the index and the trailer. No blob may be added afterwards.
func (g *segment) finish() {
	g.pad()
	at := len(g.body)
	for _, e := range g.entries {
		g.body = binary.LittleEndian.AppendUint64(g.body, uint64(e.offset))
		g.body = binary.LittleEndian.AppendUint64(g.body, uint64(e.size))
		g.body = binary.LittleEndian.AppendUint64(g.body, uint64(e.sum))
		g.body = append(g.body, byte(e.kind), 0, 0, 0, 0, 0, 0, 0)
	}
	var t [trailerSize]byte
	copy(t[:], trailerMagic[:])
	binary.LittleEndian.PutUint32(t[8:], segmentVersion)
	copy(t[12:], g.prefix[:])
	binary.LittleEndian.PutUint32(t[24:], g.number)
	binary.LittleEndian.PutUint64(t[28:], uint64(g.created.UnixMicro()))
	binary.LittleEndian.PutUint64(t[36:], uint64(len(g.entries)))
	binary.LittleEndian.PutUint32(t[44:], crc32.Checksum(g.body[at:], castagnoli))
	binary.LittleEndian.PutUint32(t[60:], crc32.Checksum(t[:60], castagnoli))
	g.body = append(g.body, t[:]...)
}

// trailer is the decoded trailer of a segment.
type trailer struct {
	prefix   schema.ObjectPrefix
	number   uint32
	created  time.Time
	entries  int64
	indexSum uint32
}

// index returns the offset and length of the index in a segment of size bytes.
func (t trailer) index(size int64) (at, length int64) {
	length = t.entries * entrySize
	return size - trailerSize - length, length
}

// decodeTrailer decodes the trailer of a segment of size bytes. A trailer that is
// damaged, or names another segment, is a schema.ErrDataLoss.
func decodeTrailer(b []byte, size int64, prefix schema.ObjectPrefix, number uint32) (t trailer, err error) {
	bad := func(format string, args ...any) (trailer, error) {
		return trailer{}, fmt.Errorf("%w: segment %s: %s", schema.ErrDataLoss, segmentName(prefix, number), fmt.Sprintf(format, args...))
	}
	switch {
	case len(b) != trailerSize || [8]byte(b) != trailerMagic:
		return bad("it does not end as a segment does")
	case binary.LittleEndian.Uint32(b[60:]) != crc32.Checksum(b[:60], castagnoli):
		return bad("the checksum of its trailer is wrong")
	case binary.LittleEndian.Uint32(b[8:]) != segmentVersion:
		return bad("it has format %d, and this program reads %d", binary.LittleEndian.Uint32(b[8:]), segmentVersion)
	}
	t = trailer{
		prefix: schema.ObjectPrefix(b[12:24]), number: binary.LittleEndian.Uint32(b[24:]),
		created:  time.UnixMicro(int64(binary.LittleEndian.Uint64(b[28:]))).UTC(),
		indexSum: binary.LittleEndian.Uint32(b[44:]),
	}
	// The number of entries is checked before memory is allocated for the index.
	n := binary.LittleEndian.Uint64(b[36:])
	switch {
	case t.prefix != prefix || t.number != number:
		return bad("it is segment %s", segmentName(t.prefix, t.number))
	case n > uint64(size-headerSize-trailerSize)/entrySize:
		return bad("%d entries do not fit into its %d bytes", n, size)
	}
	t.entries = int64(n)
	return t, nil
}

// decodeIndex decodes the index of a segment of size bytes. An index whose checksum is
// wrong, or that names bytes outside the blobs, is a schema.ErrDataLoss.
func decodeIndex(b []byte, t trailer, size int64) ([]entry, error) {
	bad := func(what string) ([]entry, error) {
		return nil, fmt.Errorf("%w: segment %s: %s", schema.ErrDataLoss, segmentName(t.prefix, t.number), what)
	}
	at, length := t.index(size)
	if int64(len(b)) != length || crc32.Checksum(b, castagnoli) != t.indexSum {
		return bad("the checksum of its index is wrong")
	}
	list := make([]entry, t.entries)
	for i := range list {
		row := b[i*entrySize:]
		offset, n := binary.LittleEndian.Uint64(row), binary.LittleEndian.Uint64(row[8:])
		if offset < headerSize || offset > uint64(at) || n > uint64(at)-offset || offset%align != 0 {
			return bad(fmt.Sprintf("entry %d of its index is of %d bytes at %d", i, n, offset))
		}
		list[i] = entry{int64(offset), int64(n), schema.Sum(binary.LittleEndian.Uint64(row[16:])), kind(row[24])}
	}
	return list, nil
}

// segmentName is the name of a segment's object after "seg/".
func segmentName(prefix schema.ObjectPrefix, number uint32) string {
	return fmt.Sprintf("%s/%08x", prefix, number)
}

// parseSegmentName is the inverse of segmentName; false for other names.
func parseSegmentName(name string) (prefix schema.ObjectPrefix, number uint32, ok bool) {
	p, n, _ := strings.Cut(name, "/")
	if len(p) != 2*len(prefix) || len(n) != 8 || prefix.UnmarshalText([]byte(p)) != nil {
		return prefix, 0, false
	}
	got, err := strconv.ParseUint(n, 16, 32)
	return prefix, uint32(got), err == nil && segmentName(prefix, uint32(got)) == name
}

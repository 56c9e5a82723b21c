package local

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// The key space of the database. Names end in a zero byte, which none contains.
const (
	prefixBlob    = 'b' // + key[32]                   -> entry
	prefixRow     = 'p' // + partition 0 + row         -> a row of the protocol's
	prefixSegment = 'g' // + number u32 BE             -> segmentRecord
	prefixFreed   = 'f' // + number u32 BE             -> nothing; its file is to be unlinked
)

var (
	keyState   = []byte("m/state")   // how the store was left, JSON
	keyCount   = []byte("m/count")   // blobs and bytes, merged
	keySegment = []byte("m/segment") // number of the next segment, u32
	keyVersion = []byte("m/version") // of the catalog: its last change and the digest of its rows
)

func blobKey(buf *[33]byte, k *schema.Key) []byte {
	buf[0] = prefixBlob
	copy(buf[1:], k[:])
	return buf[:]
}

func namePrefix(prefix byte, dataset string) []byte {
	return append(append([]byte{prefix}, dataset...), 0)
}

func segmentKey(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{prefixSegment}, id) }

func freedKey(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{prefixFreed}, id) }

// within bounds an iterator to the keys that begin with prefix.
func within(prefix ...byte) *pebble.IterOptions {
	upper := append([]byte(nil), prefix...)
	upper[len(upper)-1]++
	return &pebble.IterOptions{LowerBound: prefix, UpperBound: upper}
}

// entry is where a blob lies, and the epoch in which it was last put, or touched.
type entry struct {
	segment.Location
	sum   schema.Sum
	touch uint32
}

const entrySize = 32

func (e entry) encode(buf *[entrySize]byte) []byte {
	binary.LittleEndian.PutUint32(buf[0:], e.Segment)
	binary.LittleEndian.PutUint32(buf[4:], e.touch)
	binary.LittleEndian.PutUint64(buf[8:], uint64(e.Offset))
	binary.LittleEndian.PutUint64(buf[16:], uint64(e.Length))
	binary.LittleEndian.PutUint64(buf[24:], uint64(e.sum))
	return buf[:]
}

func decodeEntry(v []byte) (entry, error) {
	if len(v) != entrySize {
		return entry{}, fmt.Errorf("%w: an index entry of %d bytes, not %d", schema.ErrDataLoss, len(v), entrySize)
	}
	e := entry{
		Location: segment.Location{
			Segment: binary.LittleEndian.Uint32(v[0:]),
			Offset:  int64(binary.LittleEndian.Uint64(v[8:])),
			Length:  int64(binary.LittleEndian.Uint64(v[16:])),
		},
		touch: binary.LittleEndian.Uint32(v[4:]),
		sum:   schema.Sum(binary.LittleEndian.Uint64(v[24:])),
	}
	return e, nil
}

// segmentRecord is what the catalog knows of a segment file.
type segmentRecord struct {
	durable int64 // bytes known to be on stable storage
	end     int64 // where trusted data ends for good; 0: at the end of the file
}

func (r segmentRecord) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(r.durable))
	return binary.LittleEndian.AppendUint64(b, uint64(r.end))
}

func decodeSegmentRecord(v []byte) (segmentRecord, error) {
	if len(v) != 16 {
		return segmentRecord{}, fmt.Errorf("%w: a segment record of %d bytes, not 16", schema.ErrDataLoss, len(v))
	}
	r := segmentRecord{int64(binary.LittleEndian.Uint64(v)), int64(binary.LittleEndian.Uint64(v[8:]))}
	if r.durable < 0 || r.end < 0 {
		return r, fmt.Errorf("%w: a segment record with a length beyond %d", schema.ErrDataLoss, int64(math.MaxInt64))
	}
	return r, nil
}

// count is a number of blobs and their bytes. Changes are merged into the
// database in the batch that changes the index, so that the two agree whatever
// crashes.
type count struct{ blobs, bytes int64 }

func (c count) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(c.blobs))
	return binary.LittleEndian.AppendUint64(b, uint64(c.bytes))
}

func (c *count) add(v []byte) error {
	if len(v) != 16 {
		return fmt.Errorf("%w: a count of %d bytes, not 16", schema.ErrDataLoss, len(v))
	}
	c.blobs += int64(binary.LittleEndian.Uint64(v))
	c.bytes += int64(binary.LittleEndian.Uint64(v[8:]))
	return nil
}

// MergeNewer implements pebble.ValueMerger.
func (c *count) MergeNewer(v []byte) error { return c.add(v) }

// MergeOlder implements pebble.ValueMerger.
func (c *count) MergeOlder(v []byte) error { return c.add(v) }

// Finish implements pebble.ValueMerger.
func (c *count) Finish(bool) ([]byte, io.Closer, error) { return c.encode(), nil, nil }

var countMerger = &pebble.Merger{
	Name: "bowstring.count.1",
	Merge: func(_, v []byte) (pebble.ValueMerger, error) {
		c := new(count)
		return c, c.add(v)
	},
}

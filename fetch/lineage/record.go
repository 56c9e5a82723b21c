package lineage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"bowstring/schema"
)

// Head is what begins a piece of a stream's record.
type Head struct {
	// Job names what the stream is of whatever its epoch, world, order and layout; Group what is the same
	// in all epochs, as statistics name it; Plan the plan, as batches do.
	Job   string `json:"job"`
	Group string `json:"group"`
	Plan  string `json:"plan"`
	// Stream is the same in all pieces of a stream, and greater than those of all streams begun before.
	Stream int64 `json:"stream"`
	// Ticket is what the piece begins with, as JSON.
	Ticket schema.Ticket `json:"ticket"`
	// Within is what the stream's caller could see when it was opened; nil if all.
	Within *Within `json:"within,omitempty"`
	// Principal is who has called, on the account of Tenant.
	Principal string `json:"principal,omitempty"`
	Tenant    string `json:"tenant,omitempty"`
}

// Within is a schema.Restriction. What is hidden from its caller is in no plan of his.
type Within struct {
	Where   string   `json:"where,omitempty"`
	Columns []string `json:"columns"` // null hides none
}

// Opened is when the stream began.
func (h *Head) Opened() time.Time { return time.Unix(0, h.Stream).UTC() }

// Restriction is what the stream's caller could see.
func (h *Head) Restriction() *schema.Restriction {
	if h.Within == nil {
		return nil
	}
	return &schema.Restriction{Where: h.Within.Where, Columns: h.Within.Columns}
}

func withinOf(r *schema.Restriction) *Within {
	if r == nil {
		return nil
	}
	return &Within{r.Where, r.Columns}
}

// Fault is a sample that could not be read.
type Fault struct {
	Row        int64  `json:"row"` // that the stream had handed out before, in the piece
	Position   int64  `json:"position"`
	Column     string `json:"column"`
	Cause      string `json:"cause"`
	Substitute *int64 `json:"substitute,omitempty"` // position of the sample in its place, if there is one
}

// maxCause is how many bytes of a fault's cause are kept.
const maxCause = 200

// The files: docs/formats.md describes them.
const (
	magic      = "bowline1"
	headerSize = 24 // of a record
	kindHead   = 1
	kindMoves  = 2
	kindFaults = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record of a piece to a buffer.
func appendRecord(b []byte, kind byte, piece uint32, body []byte) []byte {
	var h [headerSize]byte
	binary.LittleEndian.PutUint32(h[0:], uint32(len(body)))
	h[8] = kind
	binary.LittleEndian.PutUint32(h[12:], piece)
	binary.LittleEndian.PutUint32(h[4:], crc32.Update(crc32.Checksum(h[8:16], castagnoli), castagnoli, body))
	putCount(h[16:], 0)
	b = append(append(b, h[:]...), body...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// putCount writes how many rows were handed out in order since a record: 48 bits, and 16 that check them.
func putCount(to []byte, n int64) {
	v := uint64(n) & (1<<48 - 1)
	binary.LittleEndian.PutUint64(to, v|checkOf(v)<<48)
}

func checkOf(v uint64) uint64 { return (v ^ v>>16 ^ v>>32 ^ 0xb0f5) & 0xffff }

func countOf(b []byte) (int64, error) {
	w := binary.LittleEndian.Uint64(b)
	v := w & (1<<48 - 1)
	if w>>48 != checkOf(v) {
		return 0, fmt.Errorf("%w: a count in the record of what was served is wrong", schema.ErrDataLoss)
	}
	return int64(v), nil
}

// record is one that was read.
type record struct {
	kind  byte
	piece uint32
	count int64 // rows in order since
	body  []byte
}

// begun is the records of a file's content.
func begun(b []byte) []byte {
	if len(b) < 2*8 || string(b[:8]) != magic {
		return nil // it was begun when the machine went down
	}
	return b[16:]
}

// nextRecord returns the first of records, and the others; nil where it is not whole: the rest is not believed.
func nextRecord(b []byte) (rec *record, rest []byte) {
	if len(b) < headerSize {
		return nil, nil
	}
	n := int64(binary.LittleEndian.Uint32(b))
	size := headerSize + (n+7)/8*8
	if size > int64(len(b)) {
		return nil, nil
	}
	body := b[headerSize : headerSize+n]
	if crc32.Update(crc32.Checksum(b[8:16], castagnoli), castagnoli, body) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, nil
	}
	count, err := countOf(b[16:])
	if err != nil {
		return nil, nil
	}
	return &record{b[8], binary.LittleEndian.Uint32(b[12:]), count, body}, b[size:]
}

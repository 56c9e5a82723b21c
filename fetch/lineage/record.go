package lineage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
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
	// Sources is that of a mixture, by source; nil if all of all.
	Sources []*Within `json:"sources,omitempty"`
	// Principal is who has called, on the account of Tenant.
	Principal string `json:"principal,omitempty"`
	Tenant    string `json:"tenant,omitempty"`
}

// Within is a schema.Restriction. Rows that are hidden from the caller are in none of
// that caller's plans.
type Within struct {
	Where   string   `json:"where,omitempty"`
	Columns []string `json:"columns"` // null hides none
}

// Opened is when the stream began.
func (h *Head) Opened() time.Time { return time.Unix(0, h.Stream).UTC() }

// Request is what the stream served, with what its caller could see.
func (h *Head) Request() schema.Request {
	req := h.Ticket.Request
	req.Within = h.Within.restriction()
	if req.Mixture == nil {
		return req
	}
	leaves := req.Mixture.Leaves()
	for i := range min(len(leaves), len(h.Sources)) {
		leaves[i].Within = h.Sources[i].restriction()
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return req
}

func (w *Within) restriction() *schema.Restriction {
	if w == nil {
		return nil
	}
	return &schema.Restriction{Where: w.Where, Columns: w.Columns}
}

func withinOf(r *schema.Restriction) *Within {
	if r == nil {
		return nil
	}
	return &Within{r.Where, r.Columns}
}

// restrict notes what the caller of a request may see.
func (h *Head) restrict(req *schema.Request) {
	h.Within, h.Sources = nil, nil
	if !req.Restricted() {
		return
	}
	if req.Mixture == nil {
		h.Within = withinOf(req.Within)
		return
	}
	for _, s := range req.Mixture.Leaves() {
		h.Sources = append(h.Sources, withinOf(s.Within))
	}
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

// undone is the set of rows of a stream that were not delivered: all from first on,
// except those in a bitmap. first is one of them.
type undone struct {
	first int64
	base  int64 // of the bitmap: a multiple of 64
	done  []uint64
}

// newUndone returns what a ticket leaves.
func newUndone(served []byte) undone {
	var u undone
	padded := make([]byte, (len(served)+7)/8*8)
	copy(padded, served)
	for ; len(padded) > 0; padded = padded[8:] {
		u.done = append(u.done, binary.LittleEndian.Uint64(padded))
	}
	u.advance()
	return u
}

// next is the first row from row on that was not handed out, and where the run of such rows that
// begins there ends at the latest.
func (u *undone) next(row int64) (from, to int64) {
	for ; ; row = row&^63 + 64 {
		i := (row - u.base) >> 6
		if i >= int64(len(u.done)) {
			return row, math.MaxInt64
		}
		if w := ^u.done[i] >> (row & 63); w != 0 {
			row += int64(bits.TrailingZeros64(w))
			break
		}
	}
	w := u.done[(row-u.base)>>6] >> (row & 63)
	if w == 0 {
		return row, row&^63 + 64
	}
	return row, row + int64(bits.TrailingZeros64(w))
}

// count is how many rows in [from, to) were not handed out.
func (u *undone) count(from, to int64) (n int64) {
	n = to - from
	for row := from; row < to; row = row&^63 + 64 {
		i := (row - u.base) >> 6
		if i >= int64(len(u.done)) {
			break
		}
		w := u.done[i] >> (row & 63)
		if end := row&^63 + 64; end > to {
			w &= 1<<(to-row) - 1
		}
		n -= int64(bits.OnesCount64(w))
	}
	return n
}

// take counts a row as handed out. advance has to be called after the last of a batch.
func (u *undone) take(row int64) {
	i := (row - u.base) >> 6
	for i >= int64(len(u.done)) {
		u.done = append(u.done, 0)
	}
	u.done[i] |= 1 << (row & 63)
}

// advance forgets what is before the first row that was not handed out.
func (u *undone) advance() {
	u.first, _ = u.next(u.first)
	if n := min((u.first-u.base)>>6, int64(len(u.done))); n > 0 {
		u.done = append(u.done[:0], u.done[n:]...)
	}
	u.base = u.first &^ 63
}

// run leaves out skip undelivered rows, and takes the next take ones.
type run struct{ skip, take int64 }

// runs says which rows a batch takes, in ascending order, as runs, and counts them as handed out.
func (u *undone) runs(seqs []int64) []run {
	var list []run
	at := u.first
	for _, seq := range seqs {
		if skip := u.count(at, seq); skip == 0 && len(list) > 0 {
			list[len(list)-1].take++
		} else {
			list = append(list, run{skip, 1})
		}
		at = seq + 1
	}
	for _, seq := range seqs {
		u.take(seq)
	}
	u.advance()
	return list
}

// apply hands the rows of runs out, and calls emit with them, in ranges.
func (u *undone) apply(list []run, emit func(from, to int64)) {
	at := u.first
	var taken []int64 // ranges, by their ends
	for _, r := range list {
		for _, part := range []struct {
			n    int64
			take bool
		}{{r.skip, false}, {r.take, true}} {
			for left := part.n; left > 0; {
				from, to := u.next(at)
				to = min(to, from+left)
				if part.take {
					emit(from, to)
					taken = append(taken, from, to)
				}
				left -= to - from
				at = to
			}
		}
	}
	if len(list) == 1 && list[0].skip == 0 { // in order, which may be very many rows
		u.first = at
		u.advance()
		return
	}
	for i := 0; i < len(taken); i += 2 {
		for row := taken[i]; row < taken[i+1]; row++ {
			u.take(row)
		}
	}
	u.advance()
}

const (
	asRuns   = 0 // pairs of integers: what is left out, what is taken
	asBitmap = 1 // a bit for each row that was not handed out before, from the first on
)

// encodeRuns returns runs as bytes, the shorter way.
func encodeRuns(list []run) []byte {
	b := []byte{asRuns}
	var rows int64
	for _, r := range list {
		b = binary.AppendUvarint(b, uint64(r.skip))
		b = binary.AppendUvarint(b, uint64(r.take))
		rows += r.skip + r.take
	}
	if (rows+7)/8 >= int64(len(b)-1) {
		return b
	}
	m := make([]byte, 1+(rows+7)/8)
	m[0] = asBitmap
	at := int64(0)
	for _, r := range list {
		at += r.skip
		for range r.take {
			m[1+at/8] |= 1 << (at % 8)
			at++
		}
	}
	return m
}

// decodeRuns is the inverse of encodeRuns.
func decodeRuns(b []byte) (list []run, err error) {
	broken := fmt.Errorf("%w: runs of %d bytes in the record of what was served", schema.ErrDataLoss, len(b))
	if len(b) == 0 || b[0] > asBitmap {
		return nil, broken
	}
	kind, b := b[0], b[1:]
	if kind == asBitmap {
		var r run
		for i := range 8 * len(b) {
			switch set := b[i/8]>>(i%8)&1 == 1; {
			case set:
				r.take++
			case r.take > 0:
				list, r = append(list, r), run{skip: 1}
			default:
				r.skip++
			}
		}
		if r.take > 0 {
			list = append(list, r)
		}
		return list, nil
	}
	for len(b) > 0 {
		skip, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, broken
		}
		take, m := binary.Uvarint(b[n:])
		if m <= 0 || skip > math.MaxInt32 || take > math.MaxInt32 {
			return nil, broken
		}
		list = append(list, run{int64(skip), int64(take)})
		b = b[n+m:]
	}
	return list, nil
}

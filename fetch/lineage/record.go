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

// Head is the first record of a piece of a stream, as JSON. It repeats the ticket and the
// caller, so that each file can be read without the files before it.
type Head struct {
	// Job names the stream's job, whatever its epoch, world, order and layout. Group
	// names what is the same in all epochs, as statistics do. Plan names the plan, as
	// batches do.
	Job   string `json:"job"`
	Group string `json:"group"`
	Plan  string `json:"plan"`
	// Stream is the same in all pieces of a stream, and greater than those of all streams begun before.
	Stream int64 `json:"stream"`
	// Ticket is the ticket at which the piece begins: the rows of the piece count from
	// its step and row.
	Ticket schema.Ticket `json:"ticket"`
	// Within is the restriction of the stream's caller when the stream was opened; nil if
	// the caller could see everything.
	Within *Within `json:"within,omitempty"`
	// Sources are the restrictions for the sources of a mixture, in the order of its
	// leaves; nil for a source without one, and nil as a whole if no source has one.
	Sources []*Within `json:"sources,omitempty"`
	// Principal is the name of the caller, and Tenant the account that the stream was
	// charged to.
	Principal string `json:"principal,omitempty"`
	Tenant    string `json:"tenant,omitempty"`
}

// Within is the stored form of a schema.Restriction. Rows that are hidden from the caller
// are in none of that caller's plans, so the same restriction is needed to resolve the
// plan again.
type Within struct {
	Where   string   `json:"where,omitempty"`
	Columns []string `json:"columns"` // null hides none
}

// Opened is when the stream began.
func (h *Head) Opened() time.Time { return time.Unix(0, h.Stream).UTC() }

// Request returns the request that the stream served, with the restrictions of its
// caller. Resolving it gives the plan that the piece's row numbers refer to.
func (h *Head) Request() schema.Request {
	req := h.Ticket.Request
	req.Within = h.Within.restriction()
	if req.Mixture == nil {
		return req
	}
	// Sources has the order of the leaves: restrict made it from them.
	leaves := req.Mixture.Leaves()
	for i := range min(len(leaves), len(h.Sources)) {
		leaves[i].Within = h.Sources[i].restriction()
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return req
}

// restriction is the inverse of withinOf.
func (w *Within) restriction() *schema.Restriction {
	if w == nil {
		return nil
	}
	return &schema.Restriction{Where: w.Where, Columns: w.Columns}
}

// withinOf returns the stored form of a restriction; nil if there is none.
func withinOf(r *schema.Restriction) *Within {
	if r == nil {
		return nil
	}
	return &Within{r.Where, r.Columns}
}

// restrict sets Within or Sources to the restrictions of a request. The request's JSON
// does not have them, because a client must not be able to set them.
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
	Row        int64  `json:"row"` // rows that the piece had delivered before it
	Position   int64  `json:"position"`
	Column     string `json:"column"`
	Cause      string `json:"cause"`
	Substitute *int64 `json:"substitute,omitempty"` // position of the sample in its place, if there is one
}

// maxCause is how many bytes of a fault's cause are stored. The cause is an error's text,
// which may contain the text of other errors.
const maxCause = 200

// The format of the files, as docs/formats.md describes it. magic is the first eight
// bytes of each file.
const (
	magic      = "bowline1"
	headerSize = 24 // of a record
	kindHead   = 1
	kindMoves  = 2
	kindFaults = 3
)

// castagnoli is the table of CRC-32C, for which CPUs have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record of a piece to a buffer. Its count is 0. The checksum
// covers kind, piece and body but not the count, because the count is overwritten in
// place.
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

// putCount writes the count of a record: 48 bits, and a check of 16 bits above them. The
// eight bytes are written with one aligned write. If the process is killed between two
// counts, the file has one or the other.
func putCount(to []byte, n int64) {
	v := uint64(n) & (1<<48 - 1)
	binary.LittleEndian.PutUint64(to, v|checkOf(v)<<48)
}

// checkOf returns the check of a count. The constant keeps eight zero bytes, as in a hole
// of a file, from being valid.
func checkOf(v uint64) uint64 { return (v ^ v>>16 ^ v>>32 ^ 0xb0f5) & 0xffff }

// countOf returns the count that putCount wrote. A wrong check is a schema.ErrDataLoss.
func countOf(b []byte) (int64, error) {
	w := binary.LittleEndian.Uint64(b)
	v := w & (1<<48 - 1)
	if w>>48 != checkOf(v) {
		return 0, fmt.Errorf("%w: a count in the record of what was served is wrong", schema.ErrDataLoss)
	}
	return int64(v), nil
}

// record is a record that was read from a file. Its body is a slice of the file's
// content.
type record struct {
	kind  byte
	piece uint32
	count int64 // rows in order after it
	body  []byte
}

// begun returns the records of a file's content; nil if the header is incomplete, which
// happens if the machine went down while the file was begun.
func begun(b []byte) []byte {
	if len(b) < 2*8 || string(b[:8]) != magic {
		return nil // it was begun when the machine went down
	}
	return b[16:]
}

// nextRecord returns the first of some records, and the rest. If the first one is
// incomplete or damaged, it returns nil for both: without a valid length, the next record
// cannot be found.
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

// undone is the set of undelivered rows of a stream: all from first on, except those in a
// bitmap. Its size follows how far apart the delivered rows are, not the stream's length.
// It is not safe for concurrent use.
type undone struct {
	first int64    // the first undelivered row
	base  int64    // the row of the bitmap's first bit: a multiple of 64
	done  []uint64 // bit row-base is set if a row was delivered; rows after the last word were not
}

// newUndone returns the rows that a ticket leaves. served is [schema.Ticket.Served], a
// bitmap of the delivered rows from the ticket's row on. It is padded to whole words.
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

// next returns the first undelivered row from row on, and an upper bound of the run of
// undelivered rows that begins there: the run's end, or the end of its word. Rows after
// the bitmap are one run without an end.
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

// count returns how many rows in [from, to) are undelivered. It counts whole words,
// because streams deviate by thousands of rows.
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

// take marks a row as delivered. The caller calls advance after the last row of a batch.
func (u *undone) take(row int64) {
	i := (row - u.base) >> 6
	for i >= int64(len(u.done)) {
		u.done = append(u.done, 0)
	}
	u.done[i] |= 1 << (row & 63)
}

// advance moves first past the delivered rows, and drops the words before it.
func (u *undone) advance() {
	u.first, _ = u.next(u.first)
	if n := min((u.first-u.base)>>6, int64(len(u.done))); n > 0 {
		u.done = append(u.done[:0], u.done[n:]...)
	}
	u.base = u.first &^ 63
}

// run skips some undelivered rows, and then takes some. Both count undelivered rows only,
// so that a batch that follows its predecessor's gaps is short.
type run struct{ skip, take int64 }

// runs returns the rows of a batch as runs, and marks them as delivered. seqs ascend and
// are undelivered.
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

// apply marks the rows of runs as delivered, and calls emit with ranges [from, to) of
// them in ascending order. It is the inverse of runs.
func (u *undone) apply(list []run, emit func(from, to int64)) {
	at := u.first
	var taken []int64 // pairs: the beginning and end of each range
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
	// Rows in order may be millions, from one record's count. Marking each of them would
	// take a bit and a step for each.
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
	asRuns   = 0 // pairs of integers: rows skipped, rows taken
	asBitmap = 1 // a bit for each undelivered row, from the first on
)

// encodeRuns returns runs in the shorter of the two forms. A batch that takes every other
// row is shorter as a bitmap, one that takes a few blocks is shorter as runs.
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

// decodeRuns is the inverse of encodeRuns. Bytes that encodeRuns cannot have written are
// a schema.ErrDataLoss. Integers are bounded, so that a damaged record cannot make apply
// loop for years.
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

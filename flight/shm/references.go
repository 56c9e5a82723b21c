package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"bowstring/schema"
)

const (
	// referredBytes is from which length on a blob is referred to: a copy of less costs no more than its reference.
	referredBytes = 16 << 10
	viewBytes     = 16 // of a row, in Arrow's layout of views
	inlineView    = 12 // so long a value lies in its view
	entryBytes    = 24 // of a reference: file, offset and length
)

// references are the blobs of one column that a client finds where they lie in the server's files, and the rest of it.
// In the slot there are three things of the column, each with its offset in the ring and its length in bytes: the views
// of its rows, in Arrow's layout; a table of the blobs referred to, three signed 64-bit integers each; and the bytes of
// the others, one after another. The views' first buffer is the latter, and after it each entry of the table is one.
type references struct {
	Buffer int64    `json:"buffer"` // of the message's buffers the one that has no bytes for that
	Views  [2]int64 `json:"views"`
	Table  [2]int64 `json:"table"`
	Data   [2]int64 `json:"data"`

	column  *schema.Vector
	rows    []int           // referred to
	extents []schema.Extent // of those
	checked schema.Buffer   // those blobs, to be checked where they lie
	copied  schema.Buffer   // the other blobs
	pinned  int64           // bytes that are referred to
}

// bytes is what the column takes of the slot.
func (r *references) bytes() int64 {
	return padded(int64(r.column.Len)*viewBytes) + padded(int64(len(r.rows))*entryBytes) + padded(r.copied.Len)
}

// refersTo returns what of a column can be referred to, index being that of its first buffer; nil if nothing can.
func refersTo(v *schema.Vector, index int64) *references {
	last := len(v.Buffers) - 1
	if v.Blobs == nil || v.Buffers[last].Len < LargeBytes {
		return nil
	}
	values := &v.Buffers[last]
	r := &references{Buffer: index + int64(last), column: v}
	piece := 0
	for row := range v.Blobs {
		b := &v.Blobs[row]
		n := int64(len(b.Bytes()))
		if n == 0 {
			continue
		}
		to := &r.copied
		if n >= referredBytes && n <= math.MaxInt32 {
			if e, ok := b.Extent(); ok && e.Limit > 0 {
				r.rows, r.extents, r.pinned = append(r.rows, row), append(r.extents, e), r.pinned+n
				to = &r.checked
			}
		}
		to.Pieces, to.Len = append(to.Pieces, values.Pieces[piece]), to.Len+n
		if values.Unchecked != nil {
			to.Unchecked = append(to.Unchecked, values.Unchecked[piece])
		}
		piece++
	}
	if r.rows == nil || piece != len(values.Pieces) || r.copied.Len > math.MaxInt32 {
		return nil
	}
	return r
}

// refer is share for a batch of whose blobs some are referred to: the slot holds them, and all else that is large is
// copied. total is the length of what is large. It returns nil where nothing can be referred to, or no more may be.
func (s *Sideband) refer(ctx context.Context, b *schema.Batch, total int64, again Reread) (*Extents, error) {
	l := &Extents{Buffers: [][3]int64{}}
	index, pinned := int64(0), int64(0)
	for i := range b.Columns {
		v := &b.Columns[i]
		if r := refersTo(v, index); r != nil {
			l.References = append(l.References, r)
			total += r.bytes() - padded(v.Buffers[len(v.Buffers)-1].Len)
			pinned += r.pinned
		}
		index += buffersOf(v)
	}
	if l.References == nil {
		return nil, nil
	}
	start := time.Now()
	slot, ok, err := s.ring.ReserveReferring(ctx, s.call, total, pinned)
	if err != nil || !ok {
		return nil, err
	}
	l.Slot, l.slot, l.Waited = slot.Number, slot, time.Since(start)
	if err := s.fill(ctx, b, l, again); err != nil {
		l.Dropped()
		if errors.Is(err, errWrong) {
			return nil, nil // what is copied is put right
		}
		return nil, err
	}
	return l, nil
}

// fill fills the slot of a batch that is referred to, and hands the blobs over to it.
func (s *Sideband) fill(ctx context.Context, b *schema.Batch, l *Extents, again Reread) error {
	memory, at, index := l.slot.Bytes(), int64(0), int64(0)
	defer s.todo.reset()
	for i := range b.Columns {
		at, index = l.place(&b.Columns[i], memory, at, index, &s.todo)
	}
	for _, r := range l.References {
		rest, err := r.lay(l, memory, at)
		if err != nil {
			return err
		}
		at += r.bytes()
		s.todo.check(&r.checked)
		s.todo.add(rest, &r.copied)
	}
	if err := s.todo.run(ctx, again); err != nil {
		return err
	}
	for _, r := range l.References {
		views := memory[r.Views[0]-l.slot.Offset:][:r.Views[1]]
		data := memory[r.Data[0]-l.slot.Offset:][:r.Data[1]]
		if err := schema.Guard(func() error { r.view(views, data); return nil }); err != nil {
			return errWrong // a page that could be read a moment ago
		}
	}
	for _, r := range l.References { // nothing fails any more
		pins := make([]schema.Blob, len(r.rows))
		for i, row := range r.rows {
			pins[i], r.column.Blobs[row] = r.column.Blobs[row], schema.Blob{}
		}
		l.slot.Keep(pins)
	}
	return nil
}

// lay finds places for a column from memory[at:] on, writes its table, and returns where its other blobs are to be
// copied to.
func (r *references) lay(l *Extents, memory []byte, at int64) (rest []byte, err error) {
	base := l.slot.Offset
	r.Views = [2]int64{base + at, int64(r.column.Len) * viewBytes}
	at += padded(r.Views[1])
	r.Table = [2]int64{base + at, int64(len(r.rows)) * entryBytes}
	table := memory[at:][:0:r.Table[1]]
	at += padded(r.Table[1])
	r.Data = [2]int64{base + at, r.copied.Len}
	for _, e := range r.extents {
		file, ok := l.slot.Refer(e.File, e.Limit)
		if !ok {
			return nil, errWrong
		}
		for _, n := range []uint64{file, uint64(e.Offset), uint64(e.Length)} {
			table = binary.LittleEndian.AppendUint64(table, n)
		}
	}
	return memory[at:][:r.copied.Len], nil
}

// view writes the views of a column. data are the bytes of those of its blobs that were copied.
func (r *references) view(views, data []byte) {
	referred, at := 0, 0
	for row := range r.column.Len {
		view := views[row*viewBytes:][:viewBytes]
		clear(view)
		value := r.column.Blobs[row].Bytes()
		n := len(value)
		binary.LittleEndian.PutUint32(view, uint32(n))
		buffer, offset := 0, at
		if referred < len(r.rows) && r.rows[referred] == row {
			referred++
			buffer, offset = referred, 0
		} else {
			value = data[at : at+n] // the copy was checked
			at += n
		}
		if n <= inlineView {
			copy(view[4:], value)
			continue
		}
		copy(view[4:8], value)
		binary.LittleEndian.PutUint32(view[8:], uint32(buffer))
		binary.LittleEndian.PutUint32(view[12:], uint32(offset))
	}
}

// refers reports whether a buffer of the message is one whose blobs are referred to.
func (l *Extents) refers(index int64) bool {
	return slices.ContainsFunc(l.References, func(r *references) bool { return r.Buffer == index })
}

// buffersOf is how many buffers a column has in a message.
func buffersOf(v *schema.Vector) int64 {
	n := int64(len(v.Buffers))
	for i := range v.Children {
		n += buffersOf(&v.Children[i])
	}
	return n
}

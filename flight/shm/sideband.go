package shm

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"bowstring/schema"
)

const (
	// LargeBytes is from which length on a buffer goes by shared memory: below, a socket is as good.
	LargeBytes = 64 << 10
	// bufferAlignment is of every buffer within a ring.
	bufferAlignment = 64
)

// Sideband is the ring of a call, by which it sends the large buffers of its batches. It is
// used by one goroutine. nil shares nothing.
type Sideband struct {
	ring   *Ring
	call   uint64
	refers bool   // to blobs where they lie
	todo   copies // of the batch at hand
}

// Sideband returns the ring that a call has named in its header, to be left in the end; nil if the ring is gone: then all
// goes by the connection. caller is the one who makes the call. refers says whether batches may refer to blobs where they
// lie, if the ring's client can do with that.
func (s *Server) Sideband(header, caller string, refers bool) (*Sideband, error) {
	id, call, err := ParseCall(header)
	if err != nil {
		return nil, err
	}
	ring := s.Ring(id, caller)
	if ring == nil {
		return nil, nil
	}
	return &Sideband{ring: ring, call: call, refers: refers && ring.Refers()}, nil
}

// Leave says that the call sends nothing more.
func (s *Sideband) Leave() {
	if s != nil {
		s.ring.Leave()
	}
}

// Extents says where in a ring the buffers of a batch lie that its message leaves out.
type Extents struct {
	Slot uint64 `json:"slot"`
	// Buffers have three numbers each: which of the message's buffers it is, from 0 on,
	// and in bytes where it begins in the ring, and its length.
	Buffers [][3]int64 `json:"buffers"`
	// References are of columns whose blobs lie elsewhere.
	References []*references `json:"references,omitempty"`

	slot *Slot
	// Waited is how long it took the client to let go of another.
	Waited time.Duration `json:"-"`
}

// Share copies the large buffers of a batch into the ring, in the order in which a message
// has them, and checks what was not checked yet. It returns nil where none is large, or the ring has no room.
func (s *Sideband) Share(ctx context.Context, b *schema.Batch, again Reread) (*Extents, error) {
	if s == nil {
		return nil, nil
	}
	var total int64
	for i := range b.Columns {
		total += largeBytes(&b.Columns[i])
	}
	if total == 0 {
		return nil, nil
	}
	if s.refers {
		if l, err := s.refer(ctx, b, total, again); l != nil || err != nil {
			return l, err
		}
	}
	start := time.Now()
	slot, ok, err := s.ring.Reserve(ctx, s.call, total)
	if err != nil || !ok {
		return nil, err
	}
	l := &Extents{Slot: slot.Number, slot: slot, Waited: time.Since(start)}
	memory, at, index := slot.Bytes(), int64(0), int64(0)
	defer s.todo.reset()
	for i := range b.Columns {
		at, index = l.place(&b.Columns[i], memory, at, index, &s.todo)
	}
	if err := s.todo.run(ctx, again); err != nil {
		l.Dropped()
		return nil, err
	}
	return l, nil
}

// place has a column's large buffers copied to memory[at:]. index is that of the column's first buffer.
func (l *Extents) place(v *schema.Vector, memory []byte, at, index int64, todo *copies) (nextAt, nextIndex int64) {
	for i := range v.Buffers {
		if b := &v.Buffers[i]; b.Len >= LargeBytes && !l.refers(index) {
			l.Buffers = append(l.Buffers, [3]int64{index, l.slot.Offset + at, b.Len})
			todo.add(memory[at:], b)
			at += padded(b.Len)
		}
		index++
	}
	for i := range v.Children {
		at, index = l.place(&v.Children[i], memory, at, index, todo)
	}
	return at, index
}

// Aside is from which length on the message leaves buffers out.
func (l *Extents) Aside() int64 {
	if l == nil {
		return math.MaxInt64
	}
	return LargeBytes
}

// Bytes is what went by the ring, and what is referred to.
func (l *Extents) Bytes() (n int64) {
	if l == nil {
		return 0
	}
	for _, b := range l.Buffers {
		n += b[2]
	}
	for _, r := range l.References {
		n += r.pinned + r.Data[1]
	}
	return n
}

// Sent says that the client is about to be told.
func (l *Extents) Sent() {
	if l != nil {
		l.slot.Sent()
	}
}

// Dropped says that it never will be.
func (l *Extents) Dropped() {
	if l != nil {
		l.slot.Drop()
	}
}

// Told adds to a batch's metadata, a JSON object, where its buffers lie.
func (l *Extents) Told(meta []byte) ([]byte, error) {
	if l == nil {
		return meta, nil
	}
	said, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(meta[:len(meta)-1], `,"shared":%s}`, said), nil
}

func largeBytes(v *schema.Vector) (n int64) {
	for i := range v.Buffers {
		if b := &v.Buffers[i]; b.Len >= LargeBytes {
			n += padded(b.Len)
		}
	}
	for i := range v.Children {
		n += largeBytes(&v.Children[i])
	}
	return n
}

func padded(n int64) int64 { return (n + bufferAlignment - 1) &^ (bufferAlignment - 1) }

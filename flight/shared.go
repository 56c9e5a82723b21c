package flight

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/flight/shm"
	"bowstring/schema"
)

const (
	// ringHeader is what a call says that has a ring: its name, a slash, and the call's number.
	ringHeader = "bowstring-ring"
	// referencesHeader is what a call says besides that can do with references in place of bytes.
	referencesHeader = "bowstring-references"
	// sharedBytes is from which length on a buffer goes by shared memory: below, a socket is as good.
	sharedBytes = 64 << 10
)

// shared is the ring of a call, by which it sends the large buffers of its batches. It is
// used by one goroutine. nil shares nothing.
type shared struct {
	ring   *shm.Ring
	call   uint64
	refers bool   // to blobs where they lie
	todo   copies // of the batch at hand
}

// sharing returns the ring that a call has named, to be left in the end; nil if it has named none, or one
// that is gone: then all goes by the connection.
func (s *Server) sharing(ctx context.Context) (*shared, error) {
	named := metadata.ValueFromIncomingContext(ctx, ringHeader)
	if len(named) == 0 || s.opts.SameNode == nil {
		return nil, nil
	}
	id, call, err := shm.ParseCall(named[0])
	if err != nil {
		return nil, err
	}
	ring := s.opts.SameNode.Ring(id, fetch.CallerFrom(ctx).Principal)
	if ring == nil {
		return nil, nil
	}
	wants := metadata.ValueFromIncomingContext(ctx, referencesHeader)
	// Rights to rows and columns would not hold for who reads whole files.
	refers := len(wants) > 0 && ring.Refers() && s.opts.Rules == nil && s.opts.Tenants == nil
	return &shared{ring: ring, call: call, refers: refers}, nil
}

func (s *shared) leave() {
	if s != nil {
		s.ring.Leave()
	}
}

// lies says where in a ring the buffers of a batch lie that its message leaves out.
type lies struct {
	Slot uint64 `json:"slot"`
	// Buffers have three numbers each: which of the message's buffers it is, from 0 on,
	// and in bytes where it begins in the ring, and its length.
	Buffers [][3]int64 `json:"buffers"`
	// References are of columns whose blobs lie elsewhere.
	References []*references `json:"references,omitempty"`

	slot   *shm.Slot
	waited time.Duration // for the client to let go of another
}

// share copies the large buffers of a batch into the ring, in the order in which a message
// has them, and checks what was not checked yet. It returns nil where none is large, or the ring has no room.
func (s *shared) share(ctx context.Context, b *schema.Batch, again rereader) (*lies, error) {
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
	l := &lies{Slot: slot.Number, slot: slot, waited: time.Since(start)}
	memory, at, index := slot.Bytes(), int64(0), int64(0)
	defer s.todo.reset()
	for i := range b.Columns {
		at, index = l.place(&b.Columns[i], memory, at, index, &s.todo)
	}
	if err := s.todo.run(ctx, again); err != nil {
		l.dropped()
		return nil, err
	}
	return l, nil
}

// place has a column's large buffers copied to memory[at:]. index is that of the column's first buffer.
func (l *lies) place(v *schema.Vector, memory []byte, at, index int64, todo *copies) (nextAt, nextIndex int64) {
	for i := range v.Buffers {
		if b := &v.Buffers[i]; b.Len >= sharedBytes && !l.refers(index) {
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

// has reports whether a buffer went by the ring, or is referred to.
func (l *lies) has(b *schema.Buffer) bool { return l != nil && b.Len >= sharedBytes }

// bytes is what went by the ring, and what is referred to.
func (l *lies) bytes() (n int64) {
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

// sent says that the client is about to be told; dropped that it never will be.
func (l *lies) sent() {
	if l != nil {
		l.slot.Sent()
	}
}

func (l *lies) dropped() {
	if l != nil {
		l.slot.Drop()
	}
}

// told adds to a batch's metadata, a JSON object, where its buffers lie.
func (l *lies) told(meta []byte) ([]byte, error) {
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
		if b := &v.Buffers[i]; b.Len >= sharedBytes {
			n += padded(b.Len)
		}
	}
	for i := range v.Children {
		n += largeBytes(&v.Children[i])
	}
	return n
}

func padded(n int64) int64 { return (n + bufferAlignment - 1) &^ (bufferAlignment - 1) }

// sameNode is the action that says where rings are to be had.
func (s *Server) sameNode(ctx context.Context, b []byte, send func([]byte) error) error {
	if err := body(b, &struct{}{}); err != nil {
		return err
	}
	local := s.opts.SameNode
	if local == nil {
		return nil
	}
	caller := fetch.CallerFrom(ctx).Principal
	said, err := json.Marshal(struct {
		Version int    `json:"version"`
		Server  string `json:"server"`
		Socket  string `json:"socket"`
		UID     int    `json:"uid"` // that the socket's program has, as the kernel reports it
		Caller  string `json:"caller"`
		Key     string `json:"key"`
	}{shm.Version, local.Name(), local.Path(), os.Geteuid(), caller, hex.EncodeToString(local.Key(caller))})
	if err != nil {
		return err
	}
	return send(said)
}

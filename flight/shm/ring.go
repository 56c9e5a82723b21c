package shm

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// align is what slots are aligned to: a page. A client maps a ring copy-on-write, and drops its own copies of a slot's
// pages when the slot comes to it anew. So no two slots share a page.
var align = int64(os.Getpagesize())

// Ring is memory that the server shares with one client. It is safe for concurrent use.
//
// A slot is free, or being written, or sent, or taken: then the client has it, until it
// lets go. Its bytes are the server's to write only while it is being written.
type Ring struct {
	id     string
	caller string // who was given it
	memory *memory
	size   int64

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, when there may be room
	slots   []*Slot       // by offset; those that are not free
	next    uint64        // number of the next slot
	ended   uint64        // calls up to this one take nothing more
	users   int           // calls that have the ring
	closed  bool
	// abandoned says that the client has been silent for too long: nothing more is written, and what it has stays.
	abandoned bool
	waiting   int       // reservations that wait
	since     time.Time // when the first of them began
	sent      int64     // bytes that ever went by the ring
	waits     int64     // reservations that ever had to wait
	inline    int64     // reservations that were refused for want of room

	pins // of the blobs that slots refer to; guarded by mu
	lending
}

// Slot is a part of a ring, for the buffers of one batch.
type Slot struct {
	// Number names it to the client. No number comes twice in a ring.
	Number uint64
	// Offset is where it begins in the ring.
	Offset int64

	ring   *Ring
	length int64
	call   uint64
	state  slotState
	pinned int64         // bytes that are counted for it
	held   []schema.Blob // what it refers to; released when the slot is free
	files  []*lentFile   // in which that lies
}

type slotState uint8

const (
	writing slotState = iota
	sent
	taken
)

func newRing(id string, m *memory) *Ring {
	return &Ring{id: id, memory: m, size: int64(len(m.bytes)), changed: make(chan struct{})}
}

// enter counts a call in, which may reserve until leave; false if the ring is closed.
func (r *Ring) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.abandoned {
		return false
	}
	r.users++
	return true
}

// Leave says that a call is over. All that it has reserved is sent or dropped by now.
func (r *Ring) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	r.unmapLocked()
}

// Reserve finds n bytes for a batch of a call. While there is no room, it waits for the
// client to let go of a slot; but not where the client has taken all that there is, as it
// may keep it for ever. Then, and where n is more than the ring could hold beside another
// batch, ok is false: the batch has to go by the socket.
func (r *Ring) Reserve(ctx context.Context, call uint64, n int64) (slot *Slot, ok bool, err error) {
	return r.reserve(ctx, call, n, 0)
}

// reserve is Reserve and ReserveReferring, which counts pinned bytes.
func (r *Ring) reserve(ctx context.Context, call uint64, n, pinned int64) (slot *Slot, ok bool, err error) {
	refused := &r.inline
	if pinned > 0 {
		refused = &r.copied
	}
	for waited := false; ; waited = true {
		r.mu.Lock()
		if r.closed || r.abandoned || call <= r.ended {
			r.mu.Unlock()
			return nil, false, nil
		}
		if n > r.size/2 || pinned > r.most/2 {
			*refused++
			r.mu.Unlock()
			return nil, false, nil
		}
		room := r.pinned+pinned <= r.most
		if room && !r.node.reserve(pinned) { // other clients have them, for as long as they like
			*refused++
			r.mu.Unlock()
			return nil, false, nil
		}
		if room {
			if slot = r.placeLocked(call, n); slot != nil {
				slot.pinned = pinned
				r.pinned += pinned
				r.mu.Unlock()
				return slot, true, nil
			}
			r.node.free(pinned)
		}
		if !waited {
			r.waits++
		}
		if !slices.ContainsFunc(r.slots, func(s *Slot) bool { return s.state != taken }) {
			*refused++
			r.mu.Unlock()
			return nil, false, nil
		}
		changed := r.changed
		if r.waiting++; r.waiting == 1 {
			r.since = time.Now()
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		if ctx.Err() != nil {
			return nil, false, fmt.Errorf("waiting for room in shared memory: %w", context.Cause(ctx))
		}
	}
}

// placeLocked takes the first gap that is large enough: what was free the shortest time
// tends to lie low, and to be in the processor's cache.
func (r *Ring) placeLocked(call uint64, n int64) *Slot {
	n = (n + align - 1) &^ (align - 1)
	at, i := int64(0), 0
	for ; i < len(r.slots); i++ {
		if r.slots[i].Offset-at >= n {
			break
		}
		at = r.slots[i].Offset + r.slots[i].length
	}
	if r.size-at < n {
		return nil
	}
	r.next++
	s := &Slot{Number: r.next, Offset: at, ring: r, length: n, call: call}
	r.slots = slices.Insert(r.slots, i, s)
	return s
}

// lapse abandons the ring if a batch has waited in it for so long; true if it is abandoned by this. Who waits goes on
// without it. The slots that the client has, or may still read, stay as they are.
func (r *Ring) lapse(lease time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned || r.waiting == 0 || time.Since(r.since) < lease {
		return false
	}
	r.abandoned = true
	r.wakeLocked()
	return true
}

// Bytes is the slot's memory, to be written until Sent or Drop. The call has not left meanwhile.
func (s *Slot) Bytes() []byte {
	return s.ring.memory.bytes[s.Offset : s.Offset+s.length : s.Offset+s.length]
}

// Sent says that the slot is written, and that the client is about to be told.
func (s *Slot) Sent() {
	r := s.ring
	r.mu.Lock()
	defer r.unlock()
	s.state = sent
	r.sent += s.length
	r.referred += s.pinned
	if s.call <= r.ended || r.closed {
		r.freeLocked(s)
	}
}

// Drop frees a slot that the client was not and will not be told of.
func (s *Slot) Drop() {
	s.ring.mu.Lock()
	defer s.ring.unlock()
	s.ring.freeLocked(s)
}

// take notes that the client has a slot; release that it has let go; end that it takes
// nothing more of a call, or of those before. What makes no sense is the client's mistake,
// and of no consequence but for its own memory: a slot that is being written stays.
func (r *Ring) take(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.slotLocked(number); s != nil && s.state == sent {
		s.state = taken
		r.wakeLocked() // who waits may have nothing more to wait for
	}
}

func (r *Ring) release(number uint64) {
	r.mu.Lock()
	defer r.unlock()
	if s := r.slotLocked(number); s != nil && s.state != writing {
		r.freeLocked(s)
	}
}

func (r *Ring) end(call uint64) {
	r.mu.Lock()
	defer r.unlock()
	r.ended = max(r.ended, call)
	r.slots = slices.DeleteFunc(r.slots, func(s *Slot) bool {
		over := s.state == sent && s.call <= r.ended
		if over {
			r.unpinLocked(s)
		}
		return over
	})
	r.wakeLocked()
}

func (r *Ring) slotLocked(number uint64) *Slot {
	for _, s := range r.slots {
		if s.Number == number {
			return s
		}
	}
	return nil
}

func (r *Ring) freeLocked(s *Slot) {
	if i := slices.Index(r.slots, s); i >= 0 {
		r.slots = slices.Delete(r.slots, i, i+1)
		r.unpinLocked(s)
		r.wakeLocked()
	}
}

func (r *Ring) wakeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// close ends the ring. This process lets go of its memory when the last call has left; what the client has mapped of it
// stays the client's, and counts as long as the client has it. What slots refer to is pinned no more.
func (r *Ring) close() {
	r.mu.Lock()
	defer r.unlock()
	if !r.closed {
		r.closed = true
		for _, s := range r.slots {
			if s.state != writing {
				r.unpinLocked(s)
			}
		}
		r.wakeLocked()
		r.unmapLocked()
	}
}

func (r *Ring) unmapLocked() {
	if r.closed && r.users == 0 {
		r.memory.free()
	}
}

// ParseCall reads what a call says of its ring: "RING/NUMBER", the number being that of
// the call, which grows.
func ParseCall(header string) (ring string, call uint64, err error) {
	name, number, ok := strings.Cut(header, "/")
	if ok {
		call, err = strconv.ParseUint(number, 10, 64)
	}
	if !ok || err != nil || call == 0 {
		return "", 0, &schema.FieldError{Field: "header bowstring-ring", Got: schema.Quote(header),
			Want: "the ring's name, a slash, and the call's number, from 1 on"}
	}
	return name, call, nil
}

// Blobs that lie in files of the server's need not be copied: a slot can refer to them, and holds them until it is free.
// Then it has but a table of where they lie. What is held takes no room of the ring, and is bounded by itself: what
// is pinned cannot be evicted.

// pins counts the bytes that the slots of a ring refer to. It is guarded by the ring's mutex.
type pins struct {
	most     int64         // that one ring may have pinned; 0 where nothing is referred to
	node     *pinned       // of all rings
	pinned   int64         // now
	referred int64         // bytes ever
	copied   int64         // batches that could not be referred to, as too much was pinned, or for want of a file
	loose    []schema.Blob // to be released when mu is given up
}

// pinned counts the bytes that all rings of a server have pinned. nil has none to give.
type pinned struct {
	bytes atomic.Int64
	most  int64
}

func (p *pinned) reserve(n int64) bool {
	if n == 0 {
		return true
	}
	if p == nil {
		return false
	}
	for {
		now := p.bytes.Load()
		if now+n > p.most {
			return false
		}
		if p.bytes.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

func (p *pinned) free(n int64) {
	if n > 0 {
		p.bytes.Add(-n)
	}
}

// Refers reports whether slots of the ring may refer to blobs in files.
func (r *Ring) Refers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most > 0
}

// ReserveReferring is Reserve for a slot that is to refer to blobs of pinned bytes besides. While too much is pinned it
// waits as Reserve does, but not for other clients. Where ok is false, the batch may be copied: see Reserve.
func (r *Ring) ReserveReferring(ctx context.Context, call uint64, n, pinned int64) (slot *Slot, ok bool, err error) {
	return r.reserve(ctx, call, n, pinned)
}

// Keep hands blobs over to a slot that is being written: it releases them when it is free.
func (s *Slot) Keep(blobs []schema.Blob) {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.held = append(s.held, blobs...)
}

// unpinLocked ends what a slot refers to. Who has called it calls unlock.
func (r *Ring) unpinLocked(s *Slot) {
	for _, f := range s.files {
		f.slots--
	}
	r.pinned -= s.pinned
	r.node.free(s.pinned)
	r.loose = append(r.loose, s.held...)
	s.pinned, s.held, s.files = 0, nil, nil
}

// unlock gives mu up, and then the blobs that slots have let go of: nobody waits for their owners.
func (r *Ring) unlock() {
	loose := r.loose
	r.loose = nil
	r.mu.Unlock()
	for i := range loose {
		loose[i].Release()
	}
}

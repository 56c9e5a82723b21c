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

// align is the alignment of slots: a page. A client maps a ring copy-on-write, and drops
// its own copies of a slot's pages when it gets the slot again. Therefore no two slots
// may share a page.
var align = int64(os.Getpagesize())

// Ring is memory that the server shares with one client. It is safe for concurrent use.
//
// A slot is free, being written, sent, or taken. A taken slot belongs to the client until
// it releases it. The server writes a slot's bytes only while it is being written.
type Ring struct {
	id     string
	caller string // the principal that the ring was given to
	memory *memory
	size   int64

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever a waiting reservation should try again
	slots   []*Slot       // slots that are not free, by offset
	next    uint64        // number of the next slot
	ended   uint64        // the client takes no more batches of calls up to this number
	users   int           // calls that have entered and not left; the memory stays mapped until they leave
	closed  bool
	// abandoned: the client was silent for a whole lease while a batch waited. The server
	// writes nothing more, and slots stay as they are.
	abandoned bool
	waiting   int       // reservations that are waiting now
	since     time.Time // when the first of them began to wait
	sent      int64     // bytes ever sent by the ring
	waits     int64     // reservations that ever had to wait
	inline    int64     // reservations ever refused for lack of room

	pins // of the blobs that slots refer to; guarded by mu
	sharedFiles
}

// Slot is a range of a ring that holds the buffers of one batch. The call that has
// reserved it owns it until Sent or Drop.
type Slot struct {
	// Number names the slot to the client. A ring never uses a number twice, so that a
	// late release cannot free a newer slot.
	Number uint64
	// Offset is the first byte of the slot in the ring.
	Offset int64

	ring   *Ring
	length int64 // in bytes, a multiple of align
	call   uint64
	state  slotState
	pinned int64         // bytes that are charged for its references
	held   []schema.Blob // the blobs that it refers to; released when the slot is free
	files  []*sharedFile // the files that contain them
}

// slotState orders the life of a slot. A free slot is in no list and has no state.
type slotState uint8

const (
	writing slotState = iota
	sent
	taken
)

// newRing makes a ring without references. Server.newRing adds the limits and the
// connection.
func newRing(id string, m *memory) *Ring {
	return &Ring{id: id, memory: m, size: int64(len(m.bytes)), changed: make(chan struct{})}
}

// enter counts a call, which may reserve slots until Leave. It returns false if the ring
// is closed or abandoned.
func (r *Ring) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.abandoned {
		return false
	}
	r.users++
	return true
}

// Leave ends a call. All its slots are sent or dropped by now. The last call unmaps the
// memory of a closed ring.
func (r *Ring) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	r.unmapLocked()
}

// Reserve allocates a slot of n bytes for a batch of a call. If there is no room, it
// waits until the client releases a slot. It does not wait if the client has taken every
// slot, because a client may keep them for ever. In that case, and if n is more than half
// of the ring, ok is false and the batch has to go by the socket. err is set only if ctx
// ends.
func (r *Ring) Reserve(ctx context.Context, call uint64, n int64) (slot *Slot, ok bool, err error) {
	return r.reserve(ctx, call, n, 0)
}

// reserve implements Reserve and ReserveReferring. pinned are the bytes of blobs that the
// slot will refer to.
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
		// Half at most: with more, two batches could never be in the ring, and the client
		// would wait for each copy.
		if n > r.size/2 || pinned > r.most/2 {
			*refused++
			r.mu.Unlock()
			return nil, false, nil
		}
		room := r.pinned+pinned <= r.most
		if room && !r.node.reserve(pinned) { // other clients have pinned them, for an unbounded time: do not wait
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
		// Only a slot that is being written, or is sent and not taken, will certainly
		// change soon.
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

// placeLocked allocates the first gap that is large enough. Low offsets were freed most
// recently, as a rule, and may still be in the CPU's cache; a cyclic allocation would
// touch all of the ring's memory.
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

// lapse abandons the ring if a batch has waited for the whole lease. It returns true if
// this call has abandoned it. Waiting reservations are refused. The client's slots stay,
// because the client may still read them.
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

// Bytes returns the slot's memory. It may be written until Sent or Drop, and only before
// the call leaves the ring.
func (s *Slot) Bytes() []byte {
	return s.ring.memory.bytes[s.Offset : s.Offset+s.length : s.Offset+s.length]
}

// Sent marks the slot as written. The caller sends the message that names it next. If the
// client has ended the call meanwhile, the slot is free at once.
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

// Drop frees a slot that no message names.
func (s *Slot) Drop() {
	s.ring.mu.Lock()
	defer s.ring.unlock()
	s.ring.freeLocked(s)
}

// take, release and end handle the client's reports: it has got a slot; it has released
// one; it takes no more batches of a call and the calls before it. Reports that make no
// sense are ignored. They can harm the client's own ring only: a slot that is being
// written never changes.
func (r *Ring) take(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.slotLocked(number); s != nil && s.state == sent {
		s.state = taken
		r.wakeLocked() // a waiting reservation may have to be refused now
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

// slotLocked searches linearly: a ring has few slots, of 64 KiB or more each.
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

// close ends the ring. This process unmaps the memory when the last call has left. The
// client's mapping stays valid, and its memory counts until the kernel frees it. The
// blobs of all slots that are not being written are unpinned.
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

// ParseCall reads the header of a call, "RING/NUMBER". NUMBER is the number of the call
// on this ring; each call has a larger one than the call before.
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

// A slot can refer to blobs in files of the server, so that they are not copied. The slot
// then has a table of their extents, and holds the blobs until it is free. Referred bytes
// take no room in the ring. They have a bound of their own, because the cache cannot
// evict what is pinned.

// pins counts the bytes that the slots of a ring refer to. The ring's mutex guards it.
type pins struct {
	most     int64         // bound in bytes for this ring; 0 if slots may not refer to files
	node     *pinned       // the account of all rings
	pinned   int64         // bytes that slots refer to now
	referred int64         // bytes ever referred to
	copied   int64         // batches copied because too much was pinned or the client could not get a file
	loose    []schema.Blob // blobs to release after mu is unlocked
}

// pinned counts the bytes that all rings of a server have pinned. A nil pinned has no
// room.
type pinned struct {
	bytes atomic.Int64
	most  int64 // bound in bytes; immutable
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

// ReserveReferring is Reserve for a slot that will also refer to blobs of pinned bytes.
// While this ring has too much pinned, it waits as Reserve does; it does not wait for
// other clients. If ok is false, the batch may still be copied: see Reserve.
func (r *Ring) ReserveReferring(ctx context.Context, call uint64, n, pinned int64) (slot *Slot, ok bool, err error) {
	return r.reserve(ctx, call, n, pinned)
}

// Keep gives the slot ownership of blobs while it is being written. The slot releases
// them when it is free.
func (s *Slot) Keep(blobs []schema.Blob) {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.held = append(s.held, blobs...)
}

// unpinLocked ends the references of a slot. The caller then calls unlock, which releases
// the blobs.
func (r *Ring) unpinLocked(s *Slot) {
	for _, f := range s.files {
		f.slots--
	}
	r.pinned -= s.pinned
	r.node.free(s.pinned)
	r.loose = append(r.loose, s.held...)
	s.pinned, s.held, s.files = 0, nil, nil
}

// unlock unlocks mu and then releases the blobs of freed slots. A blob's owner may take
// locks of its own in Release, and must not do so under mu.
func (r *Ring) unlock() {
	loose := r.loose
	r.loose = nil
	r.mu.Unlock()
	for i := range loose {
		loose[i].Release()
	}
}

package shm

import (
	"context"
	"sync/atomic"

	"bowstring/schema"
)

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

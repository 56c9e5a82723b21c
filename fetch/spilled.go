package fetch

import (
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// maxSpillReads is how many blobs are read from the spill at once: enough to
// keep a disk busy, and few enough that what was read is still in the processor's
// cache when it is sent.
const maxSpillReads = 8

// spilled reports whether a blob is to be had from the spill. s.mu is held.
func (s *scheduler) spilled(ref schema.BlobRef) bool {
	return s.opts.Spill != nil && s.opts.Spill.Has(ref)
}

// admits reports whether a read may begin. s.mu is held.
func (s *scheduler) admits(ref schema.BlobRef, spilled bool) bool {
	if spilled {
		return s.spillReads < maxSpillReads
	}
	return s.flow.admits(ref.Size)
}

// from says where a read for a stream, which begins, is to look first. s.mu is held.
func (s *scheduler) from(r *read, spilled bool) {
	r.place = r.first.place()
	if spilled {
		r.spill = true
		s.spillReads++
		return
	}
	if s.opts.Spill != nil {
		s.opts.Spill.Missed(r.place, r.ref.Size)
	}
	s.fromStore(r)
}

// fromStore counts a read in that is an attempt at the store. s.mu is held.
func (s *scheduler) fromStore(r *read) {
	if !r.inFlow {
		r.inFlow = true
		s.flow.began(r.ref.Size)
	}
}

// place is where the cell is.
func (w *waiter) place() (at spill.Place) {
	if w.stream != nil {
		at.Dataset = w.stream.dataset
		at.Position = w.run.positions[w.cell/len(w.stream.columns)]
	}
	return at
}

// fetchSpilled makes the first attempt at a read, from the spill. Like ended it
// returns what its goroutine is to do next: to read the same from the store,
// where the spill had lost it.
func (s *scheduler) fetchSpilled(w *worker, r *read) (*read, int) {
	blob, ok := s.opts.Spill.Get(r.ref, r.place)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spillReads--
	r.spill = false
	if r.over {
		r.running--
		blob.Release()
		return s.nextFor(w), 0
	}
	now := time.Now()
	if !ok {
		r.latest = now
		s.fromStore(r)
		return r, 0
	}
	r.running--
	s.stats.spillReads++
	s.stats.spillBytes += r.ref.Size
	s.forget(r)
	if holders := r.waiters(); holders > 1 {
		r.share(blob, holders)
		blob = schema.NewBlob(blob.Bytes(), r)
	}
	r.deliver(now, blob, nil, true)
	return s.nextFor(w), 0
}

package bucket

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// repairs collects blobs to be repaired, by the key of their segment. While a segment is
// written, further blobs of it wait, and go into it together with the next write. A lost
// segment may have a thousand blobs, and each write rewrites all of it. It is safe for
// concurrent use.
type repairs struct {
	mu   sync.Mutex
	list map[string]*repairing
}

// repairing is a segment that is being repaired. repairs.mu guards callers and waiting.
type repairing struct {
	turn    chan struct{} // a semaphore of one, held by the call that writes
	callers int           // calls of Repair that have not returned
	waiting []*piece
}

// piece is a blob to be repaired.
type piece struct {
	entry
	data []byte // a copy: a cancelled caller may free its bytes while another call writes the piece
	done bool   // it was written, or could not be; guarded by repairs.mu
	err  error  // once done
}

// join adds a blob to those of its segment. The caller calls quit.
func (r *repairs) join(key string, p *piece) *repairing {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil {
		r.list = map[string]*repairing{}
	}
	g := r.list[key]
	if g == nil {
		g = &repairing{turn: make(chan struct{}, 1)}
		r.list[key] = g
	}
	g.callers++
	g.waiting = append(g.waiting, p)
	return g
}

// quit removes a blob. The last caller removes the segment.
func (r *repairs) quit(key string, g *repairing, p *piece) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(o *piece) bool { return o == p })
	if g.callers--; g.callers == 0 {
		delete(r.list, key)
	}
}

// take returns the waiting blobs; nil if p is done.
func (r *repairs) take(g *repairing, p *piece) []*piece {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.done {
		return nil
	}
	return slices.Clone(g.waiting)
}

// settle marks the written blobs as done. After a failed write it is not called: the
// other callers then try themselves.
func (r *repairs) settle(g *repairing, list []*piece) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range list {
		p.done = true
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(p *piece) bool { return p.done })
}

// Repair implements store.Store. It reads the blob's segment, replaces the blob's bytes,
// and writes the whole segment again, on the condition that it has not changed meanwhile.
// So a collection that deletes the segment takes precedence.
//
// In a torn segment the other bytes stay where they are. A missing segment is made from
// the repaired blobs, and its index names only those. A collection removes no segment
// that a snapshot names. If the snapshot is dropped meanwhile, the next collection
// removes the new segment.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if err := ref.Check(data); err != nil {
		return fmt.Errorf("%w: a repair of blob %s with other bytes", schema.ErrInvalid, ref.Key)
	}
	a, ok := s.address(ref)
	if !ok {
		return fmt.Errorf("%w: blob %s is in no segment of %s", schema.ErrInvalid, ref.Key, s)
	}
	if _, open := s.packs.Load(a.Prefix); open {
		return fmt.Errorf("%w: blob %s is in a segment that is being written", schema.ErrInvalid, ref.Key)
	}
	if a.Offset > maxSegment {
		return fmt.Errorf("%w: blob %s would be beyond the end of any segment", schema.ErrInvalid, ref.Key)
	}
	key := s.segmentKey(a.Prefix, a.Object)
	p := &piece{entry: entry{offset: a.Offset, size: ref.Size, sum: ref.Sum}, data: bytes.Clone(data)}
	g := s.repairs.join(key, p)
	defer s.repairs.quit(key, g, p)
	// One call at a time writes the segment. It takes the blobs of the waiting calls with
	// it.
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-g.turn }()
	list := s.repairs.take(g, p)
	if list == nil { // another call has written it
		return p.err
	}
	if err := s.rewrite(ctx, a.Prefix, a.Object, list); err != nil {
		return err
	}
	s.repairs.settle(g, list)
	return p.err
}

// rewrite repairs blobs of one segment, and tries again if the segment has changed.
func (s *Store) rewrite(ctx context.Context, prefix schema.ObjectPrefix, number uint32, list []*piece) error {
	for try := 0; ; try++ {
		done, err := s.rewriteOnce(ctx, prefix, number, list)
		if done || err != nil && (!errors.Is(err, schema.ErrUnavailable) || try == tries-1) {
			return err
		}
		if try == tries-1 {
			return fmt.Errorf("%w: segment %s changes each time that it is to be repaired", schema.ErrUnavailable,
				s.segmentKey(prefix, number))
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// rewriteOnce tries to repair blobs of one segment. done says that nothing more is to be
// done; each piece then has its error.
func (s *Store) rewriteOnce(ctx context.Context, prefix schema.ObjectPrefix, number uint32, list []*piece) (done bool, err error) {
	key := s.segmentKey(prefix, number)
	body, info, err := s.bucket.Get(ctx, key, schema.ObjectVersion{}, maxBlob+s.options.SegmentBytes)
	condition := object.Condition{Version: info.Version}
	switch {
	case errors.Is(err, schema.ErrNotFound):
		body, condition = nil, object.Condition{Absent: true}
	case err != nil:
		return false, fmt.Errorf("repair segment %s: %w", key, err)
	}
	// The bytes are put at their old offsets, because addresses contain them.
	g := salvage(body, prefix, number, s.now())
	for _, p := range list {
		// A blob whose place is taken by another one gets an error of its own. The others
		// are still repaired.
		p.err = g.place(p.entry, p.data)
	}
	// No blob can be put back, so nothing is written.
	if !slices.ContainsFunc(list, func(p *piece) bool { return p.err == nil }) {
		return true, nil
	}
	if g.finish(); bytes.Equal(g.body, body) {
		return true, nil // another process has repaired it, or the bytes were damaged in transit only
	}
	within, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	switch _, outcome, err := s.bucket.Put(within, key, g.body, condition); outcome {
	case object.Made:
		return true, nil
	case object.Moved: // changed, deleted or created meanwhile: read it again
		return false, nil
	case object.Uncertain: // what was written is read at the next try
		return false, fmt.Errorf("repair segment %s: %w", key, errors.Join(schema.ErrUnavailable, err))
	default:
		return false, fmt.Errorf("repair segment %s: %w", key, err)
	}
}

// salvage returns what remains of a segment, without index and trailer. If the end is
// damaged, all bytes after the header may be blobs, and it is unknown where these begin.
func salvage(body []byte, prefix schema.ObjectPrefix, number uint32, now time.Time) *segment {
	size := int64(len(body))
	created, end, entries := now, size, []entry(nil)
	if size >= headerSize && intactHeader(body) {
		created = time.UnixMicro(int64(binary.LittleEndian.Uint64(body[28:]))).UTC()
	}
	if size >= headerSize+trailerSize {
		if t, err := decodeTrailer(body[size-trailerSize:], size, prefix, number); err == nil {
			at, length := t.index(size)
			created, end = t.created, at
			entries, _ = decodeIndex(body[at:at+length], t, size)
		}
	}
	g := newSegment(prefix, number, len(body), created)
	g.entries = entries
	if end > headerSize {
		g.body = append(g.body, body[headerSize:end]...)
	}
	return g
}

// intactHeader reports whether a segment's header is undamaged.
func intactHeader(body []byte) bool {
	return [8]byte(body) == segmentMagic && binary.LittleEndian.Uint32(body[60:]) == crc32.Checksum(body[:60], castagnoli)
}

// place writes a blob's bytes at their offset. If the index has another blob there, it
// returns a schema.ErrInvalid.
func (g *segment) place(e entry, data []byte) error {
	end := e.offset + e.size
	if !slices.ContainsFunc(g.entries, func(o entry) bool { return o.offset == e.offset && o.size == e.size && o.sum == e.sum }) {
		for _, o := range g.entries {
			if o.offset < end && e.offset < o.offset+o.size {
				return fmt.Errorf("%w: segment %s has another blob at byte %d", schema.ErrInvalid, segmentName(g.prefix, g.number), e.offset)
			}
		}
		g.entries = append(g.entries, e)
		slices.SortStableFunc(g.entries, func(a, b entry) int { return cmp.Compare(a.offset, b.offset) })
	}
	if more := end - int64(len(g.body)); more > 0 {
		g.body = append(g.body, make([]byte, more)...)
	}
	copy(g.body[e.offset:], data)
	return nil
}

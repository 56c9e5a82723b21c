package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// pack is the segments of one ingest. Blobs are collected in memory. A full segment is
// written by a goroutine of the pack. The store writes at most Options.Uploads segments
// at a time, and Put waits for one of these places, which bounds the memory. A pack is
// safe for concurrent use, and belongs to its ingest until Close.
type pack struct {
	s      *Store
	prefix schema.ObjectPrefix
	ctx    context.Context //nolint:containedctx // of uploads, until Close
	end    context.CancelFunc
	loads  sync.WaitGroup // goroutines that write segments

	mu      sync.Mutex
	closed  bool
	open    *segment           // being filled; nil if there is none
	sealed  map[uint32]*upload // full, and not known to be durable; by number
	lengths []int64            // by number, of all segments but the open one: where their blobs end
}

var _ protocol.Pack = (*pack)(nil)

// upload is a full segment that is being written, or waits for that.
type upload struct {
	*segment
	done chan struct{} // closed when the last attempt to write it has ended; nil before the first
	err  error         // of that attempt; read once done is closed
}

// Pack implements protocol.Segments.
func (d database) Pack(prefix schema.ObjectPrefix) protocol.Pack {
	p := &pack{s: d.s, prefix: prefix, sealed: map[uint32]*upload{}}
	p.ctx, p.end = context.WithCancel(d.s.ending)
	d.s.packs.Store(prefix, p)
	return p
}

// Put implements protocol.Pack.
func (p *pack) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	return p.add(ctx, data, kindBlob)
}

// Record implements protocol.Pack.
func (p *pack) Record(ctx context.Context, record []byte) (schema.BlobRef, error) {
	return p.add(ctx, record, kindRecord)
}

// maxBlob is the size of the largest blob, because a segment is written by one request.
const maxBlob = 4 << 30

// add puts a blob into the open segment. If the segment is full, it first waits until the
// segment may be written.
func (p *pack) add(ctx context.Context, data []byte, k kind) (schema.BlobRef, error) {
	if int64(len(data)) > maxBlob {
		return schema.BlobRef{}, fmt.Errorf("%w: a blob of %d bytes; a store in a bucket keeps blobs of up to %d", schema.ErrLimit,
			len(data), int64(maxBlob))
	}
	if ctx.Err() != nil {
		return schema.BlobRef{}, context.Cause(ctx)
	}
	sum := schema.Checksum(data)
	for {
		ref, ok, err := p.append(data, sum, k)
		if ok || err != nil {
			return ref, err
		}
		// The segment is full: what comes next waits until it may be written.
		if err := p.s.uploads.take(ctx, p.ctx); err != nil {
			return schema.BlobRef{}, err
		}
		p.mu.Lock()
		if p.closed || p.open == nil || p.fits(len(data)) { // another put was first
			p.mu.Unlock()
			p.s.uploads.give()
			continue
		}
		u := p.seal()
		p.start(u)
		p.mu.Unlock()
	}
}

// append adds a blob to the open segment; ok is false if the segment is full. It copies
// data.
func (p *pack) append(data []byte, sum schema.Sum, k kind) (ref schema.BlobRef, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ref, false, fmt.Errorf("%w: the ingest is closed", schema.ErrInvalid)
	case p.open == nil:
		// The first segment of an ingest grows as needed, because most ingests are small.
		// If an ingest fills one, it probably fills another.
		room := 0
		if len(p.lengths) > 0 { // there will be more of it, probably
			room = int(p.s.options.SegmentBytes)
		}
		p.open = newSegment(p.prefix, uint32(len(p.lengths)), max(room, len(data)+1<<10), p.s.now())
	case !p.fits(len(data)):
		return ref, false, nil
	}
	return p.open.add(data, sum, k), true, nil
}

// fits reports whether a blob of n bytes fits into the open segment. An empty segment
// takes any blob. The caller holds mu.
func (p *pack) fits(n int) bool {
	return len(p.open.entries) == 0 || p.open.finished(n) <= p.s.options.SegmentBytes
}

// seal completes the open segment. The caller holds mu.
func (p *pack) seal() *upload {
	u := &upload{segment: p.open}
	p.open = nil
	p.lengths = append(p.lengths, int64(len(u.body)))
	u.finish()
	p.sealed[u.number] = u
	return u
}

// start begins to write a segment. The caller holds mu and a place among the uploads,
// which the goroutine frees.
func (p *pack) start(u *upload) {
	u.done = make(chan struct{})
	p.loads.Go(func() {
		defer p.s.uploads.give()
		err := p.s.writeSegment(p.ctx, u.segment)
		p.mu.Lock()
		defer p.mu.Unlock()
		if u.err = err; err == nil {
			delete(p.sealed, u.number)
			p.s.census.add(1, int64(len(u.body)))
		}
		close(u.done)
	})
}

// Has implements protocol.Pack. It knows where each segment ends, but not where each of
// its blobs begins: that would take memory for every blob. So it accepts any aligned
// range.
func (p *pack) Has(ref schema.BlobRef) bool {
	a, ok := schema.ParseObjectAddress(ref.Key)
	if !ok || ref.Hashed() || a.Packed || a.Prefix != p.prefix || ref.Size < 0 || a.Offset%align != 0 || a.Offset < headerSize {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := int(a.Object); {
	case n < len(p.lengths):
		return ref.Size <= p.lengths[n]-a.Offset
	// The open segment has no entry in lengths yet.
	case n == len(p.lengths) && p.open != nil:
		return ref.Size <= int64(len(p.open.body))-a.Offset
	}
	return false
}

// Sync implements protocol.Pack. It writes the open segment, waits for segments that are
// being written, and writes those again that have failed.
func (p *pack) Sync(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("%w: the ingest is closed", schema.ErrInvalid)
	}
	if p.open != nil && len(p.open.entries) > 0 {
		p.seal()
	}
	var list []*upload
	for _, u := range p.sealed {
		list = append(list, u)
	}
	p.mu.Unlock()
	// Segments are started in order, so that two calls of Sync wait for the same ones.
	slices.SortFunc(list, func(a, b *upload) int { return int(a.number) - int(b.number) })
	for _, u := range list {
		p.mu.Lock()
		idle := u.done == nil || isClosed(u.done) && u.err != nil
		p.mu.Unlock()
		if !idle {
			continue
		}
		if err := p.s.uploads.take(ctx, p.ctx); err != nil {
			return err
		}
		p.mu.Lock()
		if p.closed || u.done != nil && (!isClosed(u.done) || u.err == nil) { // another Sync was first
			p.mu.Unlock()
			p.s.uploads.give()
			continue
		}
		p.start(u)
		p.mu.Unlock()
	}
	var failed error
	for _, u := range list {
		p.mu.Lock()
		done := u.done
		p.mu.Unlock()
		if done == nil {
			return fmt.Errorf("%w: the ingest is closed", schema.ErrInvalid)
		}
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.mu.Lock()
		failed = errors.Join(failed, u.err)
		p.mu.Unlock()
	}
	return failed
}

// isClosed reports whether a channel is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Close implements protocol.Pack. Segments that were written stay; a collection removes
// them if no commit names them.
func (p *pack) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	// Uploads in progress end with the context, so the wait is short.
	p.end()
	p.loads.Wait()
	p.s.packs.Delete(p.prefix)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = nil
	clear(p.sealed)
}

// read copies a blob that is still in memory; false if it is not. A read before
// the segment is written finds the blob here.
func (p *pack) read(a schema.ObjectAddress, size int64) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.open
	if u := p.sealed[a.Object]; u != nil {
		g = u.segment
	}
	if g == nil || g.number != a.Object || a.Offset > int64(len(g.body)) || size > int64(len(g.body))-a.Offset {
		return nil, false
	}
	return bytes.Clone(g.body[a.Offset : a.Offset+size : a.Offset+size]), true
}

// writeWithin is how long one attempt to write a segment may take, also over a slow link.
const writeWithin = 10 * time.Minute

// writeSegment writes a segment. Its name belongs to one ingest, so attempts can be
// repeated. A repeated attempt may find the object that an earlier one has written.
func (s *Store) writeSegment(ctx context.Context, g *segment) error {
	key := s.segmentKey(g.prefix, g.number)
	for try := 0; ; try++ {
		within, cancel := context.WithTimeout(ctx, writeWithin)
		_, outcome, err := s.bucket.Put(within, key, g.body, object.Condition{Absent: true})
		cancel()
		switch outcome {
		case object.Made:
			return nil
		// An earlier attempt, whose answer was lost, has written the object.
		case object.Moved:
			return s.isWritten(ctx, g)
		case object.Failed:
			if !errors.Is(err, schema.ErrUnavailable) {
				return fmt.Errorf("write segment %s: %w", key, err)
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("write segment %s: %w", key, context.Cause(ctx))
		}
		if try == tries-1 {
			return fmt.Errorf("write segment %s: %w", key, err)
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// isWritten checks that the object under a segment's name is the segment, by its size and
// its trailer. The trailer has the checksum of the index, which has those of the blobs.
func (s *Store) isWritten(ctx context.Context, g *segment) error {
	key, end := s.segmentKey(g.prefix, g.number), make([]byte, trailerSize)
	err := s.again(ctx, func(ctx context.Context) error {
		info, err := s.bucket.Stat(ctx, key)
		if err != nil {
			return err
		}
		if info.Size != int64(len(g.body)) {
			return fmt.Errorf("%w: it has %d bytes, not %d", schema.ErrDataLoss, info.Size, len(g.body))
		}
		return s.bucket.Range(ctx, key, info.Version, info.Size-trailerSize, end)
	})
	if err == nil && !bytes.Equal(end, g.body[len(g.body)-trailerSize:]) {
		err = fmt.Errorf("%w: it ends with other bytes", schema.ErrDataLoss)
	}
	if err != nil {
		return fmt.Errorf("segment %s was there before it was written: %w", key, err)
	}
	return nil
}

// places is a semaphore of the segments that are being written.
type places chan struct{}

// take waits for a place until one of the contexts ends.
func (p places) take(ctx, until context.Context) error {
	select {
	case p <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-until.Done():
		return fmt.Errorf("%w: the ingest is closed", schema.ErrUnavailable)
	}
}

// give frees a place.
func (p places) give() { <-p }

package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"bowstring/schema"
)

// Append writes a blob and returns where it lies. It is readable at once, and
// on stable storage after the next Sync. sum is the payload's checksum, which
// is not computed again. payload is not kept.
//
// A full disk is a schema.ErrLimit that wraps syscall.ENOSPC.
func (s *Set) Append(key schema.Key, sum schema.Sum, payload []byte) (Location, error) {
	r, err := s.Reserve(int64(len(payload)))
	if err != nil {
		return Location{}, err
	}
	if err := r.Write(key, sum, payload); err != nil {
		return Location{}, err
	}
	return r.Location(), nil
}

// Reservation is space for a blob that is not written yet. Its segment stays in
// place until Write, which must be called exactly once.
type Reservation struct {
	segment *Segment
	at      int64 // of the record's header
	n       int64 // bytes of payload
}

// Reserve takes space for a blob of n bytes, as Append does, without filling it
// in: for a caller that has to know where the blob will lie before it does.
func (s *Set) Reserve(n int64) (Reservation, error) {
	g, at, err := s.reserve(n)
	return Reservation{g, at, n}, err
}

// Location is where the blob will lie.
func (r Reservation) Location() Location {
	return Location{Segment: r.segment.id, Offset: r.at + HeaderSize, Length: r.n}
}

// Write fills in the space. payload must have the length that was reserved.
func (r Reservation) Write(key schema.Key, sum schema.Sum, payload []byte) error {
	one := [1]Write{{Reservation: r, Key: key, Sum: sum, Payload: payload}}
	WriteAll(one[:])
	return one[0].Err
}

// Write is a blob for the space that was reserved for it.
type Write struct {
	Reservation
	Key     schema.Key
	Sum     schema.Sum
	Payload []byte // of the length that was reserved; not kept
	// that the payload lies in, as schema.Blob has it; nil if there is none. WriteAll fills in the rest of it
	Frame []byte
	Err   error // set by WriteAll
}

func (w *Write) record() Record {
	return Record{Key: w.Key, Offset: w.at + HeaderSize, Length: w.n, Sum: w.Sum}
}

// WriteAll fills in the space of several blobs, as Reservation.Write does of one, and sets the error of each. Those
// that are written directly go to the disk together as far as they follow one another.
func WriteAll(writes []Write) {
	for len(writes) > 0 {
		g, n := writes[0].segment, 1
		if _, end := g.span(writes[0].at, writes[0].n); g.isDirect(writes[0].n) {
			for first := writes[0].at; n < len(writes); n++ {
				w := &writes[n]
				_, next := g.span(w.at, w.n)
				if w.segment != g || w.at != end || !g.isDirect(w.n) || next-first > directSize {
					break
				}
				end = next
			}
		}
		g.write(writes[:n])
		for range n {
			g.Unpin()
		}
		writes = writes[n:]
	}
}

// reserve finds room in the active segment or a new one, and pins it.
func (s *Set) reserve(n int64) (*Segment, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return nil, 0, fmt.Errorf("%w: the segments are closed", schema.ErrUnavailable)
		}
		if s.opts.ReadOnly {
			return nil, 0, fmt.Errorf("%w: the segments are open for reading alone", schema.ErrInvalid)
		}
		if g := s.active; g != nil {
			at, ok, err := g.reserve(n, s.alloc)
			if err != nil {
				return nil, 0, err
			}
			if ok {
				// The set's own reference keeps the active segment alive.
				g.refs.Add(1)
				return g, at, nil
			}
			g.seal()
			s.active = nil
		}
		if err := s.create(n); err != nil {
			return nil, 0, err
		}
	}
}

// create makes a new segment with room for a blob of n bytes the active one.
// s.mu is held.
func (s *Set) create(n int64) error {
	id, err := s.opts.NewID()
	if err != nil {
		return fmt.Errorf("number a new segment: %w", err)
	}
	path := filepath.Join(s.dir, FileName(id))
	if s.opts.Grow != nil && !s.opts.Grow(Block) {
		return fmt.Errorf("%w: no %d bytes may be taken for the header of %s", schema.ErrLimit, Block, path)
	}
	g, err := func() (*Segment, error) {
		if s.opts.Fault != nil {
			if err := s.opts.Fault(OpCreate, path); err != nil {
				return nil, err
			}
		}
		if s.opts.Model != nil {
			return s.opts.Model.segment(path, id, max(s.opts.MaxBytes, s.span(n))), nil
		}
		g, err := createSegment(path, id, max(s.opts.MaxBytes, s.span(n)))
		if err != nil {
			return nil, err
		}
		if s.opts.NoSync {
			return g, nil
		}
		if err := SyncDir(s.dir); err != nil {
			g.Unpin()
			return nil, errors.Join(err, os.Remove(path))
		}
		return g, nil
	}()
	if err != nil {
		s.alloc.giveBack(Block)
		return fmt.Errorf("create segment: %w", err)
	}
	g.fault, g.noSync, g.present = s.opts.Fault, s.opts.NoSync, &s.present
	if s.opts.Direct && s.opts.Model == nil {
		g.direct, g.io = openDirect(path), &s.io
	}
	if s.opts.Grow != nil {
		g.reserved = Block // counted above
	}
	s.replace(func(t map[uint32]*Segment) { t[id] = g })
	s.active = g
	return nil
}

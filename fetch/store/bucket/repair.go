package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Repair implements store.Store. The segment of the blob is read, and written whole again with the blob's bytes in their
// place, on the condition that it has not changed meanwhile: a collection that deletes it goes before. What does not end as
// a segment does is not written.
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
		return fmt.Errorf("%w: blob %s lies in no segment of %s", schema.ErrInvalid, ref.Key, s)
	}
	if _, open := s.packs.Load(a.Prefix); open {
		return fmt.Errorf("%w: blob %s lies in a segment that is being written", schema.ErrInvalid, ref.Key)
	}
	for try := 0; ; try++ {
		done, err := s.repair(ctx, a, ref, data)
		if done || err != nil && (!errors.Is(err, schema.ErrUnavailable) || try == tries-1) {
			return err
		}
		if try == tries-1 {
			return fmt.Errorf("%w: segment %s changes each time that it is to be repaired", schema.ErrUnavailable,
				s.segmentKey(a.Prefix, a.Object))
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// repair tries once. done says that there is nothing more to do.
func (s *Store) repair(ctx context.Context, a schema.ObjectAddress, ref schema.BlobRef, data []byte) (done bool, err error) {
	key := s.segmentKey(a.Prefix, a.Object)
	body, info, err := s.bucket.Get(ctx, key, schema.ObjectVersion{}, maxBlob+s.options.SegmentBytes)
	switch {
	case errors.Is(err, schema.ErrNotFound):
		return true, fmt.Errorf("%w: the whole segment %s is gone: copy the snapshots from where they are whole", schema.ErrInvalid,
			key)
	case err != nil:
		return false, fmt.Errorf("repair segment %s: %w", key, err)
	}
	e := entry{offset: a.Offset, size: ref.Size, sum: ref.Sum}
	if err := e.within(body, a.Prefix, a.Object); err != nil {
		return true, fmt.Errorf("%w: blob %s cannot be put back: %s: copy the snapshots from where they are whole",
			schema.ErrInvalid, ref.Key, err.Error())
	}
	was := body[a.Offset : a.Offset+ref.Size]
	if bytes.Equal(was, data) {
		return true, nil // another process was first, or it was the way that did the damage
	}
	copy(was, data)
	within, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	switch _, outcome, err := s.bucket.Put(within, key, body, object.Condition{Version: info.Version}); outcome {
	case object.Made:
		return true, nil
	case object.Moved: // changed, or deleted: it is looked at again
		return false, nil
	case object.Uncertain: // what was written is read at the next try
		return false, fmt.Errorf("repair segment %s: %w", key, errors.Join(schema.ErrUnavailable, err))
	default:
		return false, fmt.Errorf("repair segment %s: %w", key, err)
	}
}

// within checks that a blob lies in the segment with the name, which is otherwise in order.
func (e entry) within(body []byte, prefix schema.ObjectPrefix, number uint32) error {
	size := int64(len(body))
	if size < headerSize+trailerSize {
		return fmt.Errorf("segment %s is torn: it has %d bytes", segmentName(prefix, number), size)
	}
	t, err := decodeTrailer(body[size-trailerSize:], size, prefix, number)
	if err != nil {
		return err
	}
	at, length := t.index(size)
	list, err := decodeIndex(body[at:at+length], t, size)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(o entry) bool { return o.offset == e.offset && o.size == e.size && o.sum == e.sum }) {
		return fmt.Errorf("segment %s has no such blob at byte %d", segmentName(prefix, number), e.offset)
	}
	return nil
}

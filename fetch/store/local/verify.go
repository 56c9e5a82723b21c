package local

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"bowstring/schema"
)

// Verification is what Verify has found so far.
type Verification struct {
	Blobs   int64 // of which so many were read
	Of      int64 // about as many there are
	Bytes   int64
	Damaged []schema.Key // gone, or not what their key says
}

// Verify reads every blob of the store and compares it with its checksum and
// its key. progress may be nil; it is called after each blob, by the calling
// goroutine. Damage is reported and is no error.
func (s *Store) Verify(ctx context.Context, progress func(Verification)) (Verification, error) {
	v := Verification{}
	if err := s.enter(ctx); err != nil {
		return v, err
	}
	defer s.life.RUnlock()
	v.Of = s.blobs.Load()
	for x, err := range s.index(ctx) {
		if err == nil {
			err = stopped(ctx, s)
		}
		if err != nil {
			return v, fmt.Errorf("verify: %w", err)
		}
		ok, err := s.intact(x)
		if err != nil {
			return v, fmt.Errorf("verify: %w", err)
		}
		if !ok {
			v.Damaged = append(v.Damaged, x.key)
		}
		v.Blobs++
		v.Bytes += x.Length
		if progress != nil {
			progress(v)
		}
	}
	return v, nil
}

func (s *Store) intact(x indexed) (bool, error) {
	b, _, err := s.get(x.key)
	switch {
	case errors.Is(err, schema.ErrNotFound): // collected since the index was read
		return true, nil
	case errors.Is(err, schema.ErrDataLoss):
		return false, nil
	case err != nil:
		return false, err
	}
	defer b.Release()
	ref := schema.BlobRef{Key: x.key, Size: x.Length, Sum: x.sum}
	return ref.Check(b.Bytes()) == nil && sha256.Sum256(b.Bytes()) == x.key, nil
}

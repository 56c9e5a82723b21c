package local

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"bowstring/schema"
)

// Verification is the progress and the result of Verify.
type Verification struct {
	Blobs   int64        // blobs read
	Of      int64        // about how many blobs there are
	Bytes   int64        // size of the blobs read
	Damaged []schema.Key // blobs that are missing, or whose content does not have this hash
}

// Verify reads every blob of the store and verifies its checksum and its key. progress may be nil; the caller's
// goroutine calls it after each blob. Damage is reported and is no error.
func (s *Store) Verify(ctx context.Context, progress func(Verification)) (Verification, error) {
	// The total is that of now; blobs that are added meanwhile may be read or not.
	v := Verification{Of: s.count.blobs.Load()}
	err := s.eachIndexed(ctx, func(x indexed) error {
		ok, err := s.intact(ctx, x)
		if err != nil {
			return err
		}
		if !ok {
			v.Damaged = append(v.Damaged, x.key)
		}
		v.Blobs++
		v.Bytes += x.Length
		if progress != nil {
			progress(v)
		}
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	return v, nil
}

// intact reads a blob and verifies its hash and checksum. A blob that was collected since
// the index was read counts as intact.
func (s *Store) intact(ctx context.Context, x indexed) (bool, error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.life.RUnlock()
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
	// The hash shows a wrong index entry, and the checksum shows damage of the bytes.
	ref := schema.BlobRef{Key: x.key, Size: x.Length, Sum: x.sum}
	err = schema.Guard(func() error {
		if sha256.Sum256(b.Bytes()) != x.key {
			return fmt.Errorf("%w: blob %s has other content than its key says", schema.ErrDataLoss, x.key)
		}
		return nil
	})
	return err == nil && ref.Check(b.Bytes()) == nil, nil
}

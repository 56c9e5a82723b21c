package read

import (
	"context"
	"fmt"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// maxSpillReads is how many blobs are read from the spill at once: enough to
// keep a disk busy, and few enough that what was read is still in the processor's
// cache when it is sent.
const maxSpillReads = 8

// Spill is the tier that the node's cache is.
func Spill(c *spill.Cache) Keeper { return spillTier{c} }

type spillTier struct{ cache *spill.Cache }

// Name implements Tier.
func (spillTier) Name() string { return "spill" }

// Has implements Tier.
func (t spillTier) Has(ref schema.BlobRef) bool { return t.cache.Has(ref) }

// Get implements Tier.
func (t spillTier) Get(_ context.Context, ref schema.BlobRef, at spill.Place) (schema.Blob, error) {
	b, ok := t.cache.Get(ref, at)
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: the spill has lost blob %s", schema.ErrNotFound, ref.Key)
	}
	return b, nil
}

// GetUnchecked implements Late.
func (t spillTier) GetUnchecked(_ context.Context, ref schema.BlobRef,
	at spill.Place) (b schema.Blob, unchecked bool, err error) {
	b, unchecked, ok := t.cache.GetUnchecked(ref, at)
	if !ok {
		err = fmt.Errorf("%w: the spill has lost blob %s", schema.ErrNotFound, ref.Key)
	}
	return b, unchecked, err
}

// Traits implements Tier.
func (spillTier) Traits() Traits { return Traits{Parallel: maxSpillReads, Checked: true} }

// Offer implements Keeper. What is at no known place is not kept.
func (t spillTier) Offer(ref schema.BlobRef, at spill.Place, took time.Duration, blob schema.Blob) {
	if at.Dataset == 0 {
		blob.Release()
		return
	}
	t.cache.Offer(ref, at, took, blob)
}

// Missed implements Keeper.
func (t spillTier) Missed(at spill.Place, size int64) { t.cache.Missed(at, size) }

package read

import (
	"context"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// Store is the tier that a store is: the last one, which has every blob.
func Store(s store.Store) Tier {
	if s.Traits().Mapped {
		return mappedTier{storeTier{s}}
	}
	return storeTier{s}
}

// Placed is a Tier, or a store, that says where it is, for errors.
type Placed interface {
	// Where names the place, such as a table at an address, or a directory.
	Where() string
}

type storeTier struct{ store store.Store }

// Name implements Tier.
func (storeTier) Name() string { return "store" }

// Where implements Placed.
func (t storeTier) Where() string {
	return t.store.Where()
}

// Has implements Tier.
func (storeTier) Has(schema.BlobRef) bool { return true }

// Get implements Tier.
func (t storeTier) Get(ctx context.Context, ref schema.BlobRef, _ spill.Place) (schema.Blob, error) {
	return t.store.Get(ctx, ref)
}

// Traits implements Tier.
func (storeTier) Traits() Traits { return Traits{} }

// mappedTier is a store whose blobs lie in files of this node.
type mappedTier struct{ storeTier }

// GetUnchecked implements Late.
func (t mappedTier) GetUnchecked(ctx context.Context, ref schema.BlobRef,
	at spill.Place) (b schema.Blob, unchecked bool, err error) {
	b, err = t.Get(ctx, ref, at)
	if err == nil && int64(len(b.Bytes())) != ref.Size {
		err = ref.Check(b.Bytes())
		b.Release()
		return schema.Blob{}, false, err
	}
	return b, ref.Size > 0, err
}

package tiers

import (
	"context"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// Store is the tier that a store is: the last one, which has every blob.
func Store(s store.Store) Tier { return storeTier{s} }

type storeTier struct{ store store.Store }

// Name implements Tier.
func (storeTier) Name() string { return "store" }

// Has implements Tier.
func (storeTier) Has(schema.BlobRef) bool { return true }

// Get implements Tier.
func (t storeTier) Get(ctx context.Context, ref schema.BlobRef, _ spill.Place) (schema.Blob, error) {
	return t.store.Get(ctx, ref)
}

// Traits implements Tier.
func (storeTier) Traits() Traits { return Traits{} }

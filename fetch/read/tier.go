package read

import (
	"context"
	"fmt"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// Tier is a place where blobs may be found. Implementations are safe for
// concurrent use. The suite in readtest defines the contract in full.
type Tier interface {
	// Name names the tier in statistics and errors.
	Name() string
	// Has reports whether the tier is likely to have the blob. It must not block:
	// it is asked for every blob, with a lock held. The last tier is not asked.
	Has(ref schema.BlobRef) bool
	// Get returns the blob, which the caller releases. It ends when ctx does. Any
	// error has the read go on in the tier below; of the last tier it is a sentinel
	// of package schema that says whether another attempt makes sense. at is where
	// the blob was found to be wanted.
	Get(ctx context.Context, ref schema.BlobRef, at spill.Place) (schema.Blob, error)
	// Traits say how the tier is to be used. They never change.
	Traits() Traits
}

// Traits say how a tier is to be used, and what a read of it costs.
type Traits struct {
	// Parallel is how many reads of it may be under way at once. 0 stands for as
	// many as the path to it carries, which is measured.
	Parallel int
	// Checked says that Get has compared the bytes with the reference's checksum.
	Checked bool
	// Remote says that the tier is other nodes, which may ask this one in their turn:
	// what is read for one of them is not asked of it.
	Remote bool
}

// Late is a Tier whose blobs may be checked late: by who copies them, in the copy. A byte is read from memory once
// then, and what was checked is what is delivered. A blob that proves wrong is read again, checked.
type Late interface {
	Tier
	// GetUnchecked is Get, but does not compare the bytes with the reference, of whose size they are; unchecked says
	// that the caller has to.
	GetUnchecked(ctx context.Context, ref schema.BlobRef, at spill.Place) (b schema.Blob, unchecked bool, err error)
}

// Keeper is a Tier that keeps blobs which came from tiers below it.
type Keeper interface {
	Tier
	// Offer gives it a blob that was read below, which took so long. It must not
	// block. The blob is the tier's to release, whether it keeps it or not.
	Offer(ref schema.BlobRef, at spill.Place, took time.Duration, blob schema.Blob)
	// Missed counts a blob that it did not have and a stream wanted.
	Missed(at spill.Place, size int64)
}

// Validate returns an error that says what is wrong with a list of tiers.
func Validate(list []Tier) error {
	switch n := len(list); {
	case n == 0:
		return fmt.Errorf("%w: a reader without a tier; the last one has to be a store", schema.ErrInvalid)
	case n > maxTiers:
		return fmt.Errorf("%w: a reader of %d tiers; it takes %d at most", schema.ErrInvalid, n, maxTiers)
	}
	for i, t := range list {
		if t == nil {
			return fmt.Errorf("%w: tier %d is nil", schema.ErrInvalid, i)
		}
		tr := t.Traits()
		if tr.Parallel < 0 {
			return fmt.Errorf("%w: tier %q allows %d reads at once; want 0 or more", schema.ErrInvalid, t.Name(),
				tr.Parallel)
		}
		if tr.Remote && i == len(list)-1 {
			return fmt.Errorf("%w: tier %q is other nodes; the last one has to be a store", schema.ErrInvalid, t.Name())
		}
	}
	return nil
}

// maxTiers is how many tiers a read can be counted in at once.
const maxTiers = 8

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Run is a blob with checksums that were learned of an object set, and the dataset that has it.
type Run struct {
	store.ProofRun
	Dataset string
	Prefix  schema.ObjectPrefix
}

// Proofs lists the runs of learned checksums of the object sets that the snapshots name. A set that
// several snapshots of a dataset name is listed once.
func Proofs(ctx context.Context, src store.Store, snaps []*schema.Snapshot) ([]Run, error) {
	type name struct {
		dataset string
		prefix  schema.ObjectPrefix
	}
	var all []Run
	seen := map[name]bool{}
	for _, snap := range snaps {
		for _, set := range snap.Sets {
			n := name{snap.Dataset, set.Prefix}
			if seen[n] || set.Unproven.IsZero() {
				continue
			}
			seen[n] = true
			runs, err := src.Proofs(ctx, n.dataset, n.prefix)
			if err != nil {
				return nil, err
			}
			for _, run := range runs {
				all = append(all, Run{run, n.dataset, n.prefix})
			}
		}
	}
	return all, nil
}

// ProofOf is how much has a checksum of what had none when the snapshots were attached: each object set counts once.
func ProofOf(ctx context.Context, src store.Store, snaps []*schema.Snapshot) (sum store.Proof, err error) {
	seen := map[schema.ObjectPrefix]bool{}
	for _, snap := range snaps {
		rest := *snap
		rest.Sets = slices.DeleteFunc(slices.Clone(snap.Sets), func(set schema.SetRef) bool { return seen[set.Prefix] })
		p, err := store.ProverOf(src).Proof(ctx, &rest)
		if err != nil {
			return sum, err
		}
		for _, set := range rest.Sets {
			seen[set.Prefix] = true
		}
		sum.Blobs, sum.Bytes = sum.Blobs+p.Blobs, sum.Bytes+p.Bytes
		sum.OfBlobs, sum.OfBytes = sum.OfBlobs+p.OfBlobs, sum.OfBytes+p.OfBytes
	}
	return sum, nil
}

// checkIn compares a blob of a store with its reference, as check does. If the reference has no
// checksum, it is compared with the learned one; the first read learns it. An error other than
// schema.ErrDataLoss says nothing of the blob.
func checkIn(ctx context.Context, src store.Store, ref schema.BlobRef, data []byte, hashed bool) error {
	if ref.Unproven() {
		_, err := store.ProverOf(src).Prove(ctx, ref, data)
		return err
	}
	return check(ref, data, hashed)
}

// proofs copies the learned checksums of the sets of a snapshot that was copied by reference. Readers
// of the copy learn checksums at the same time: after a conflict it reads theirs and tries again.
func (c *copier) proofs(ctx context.Context, snap *schema.Snapshot) error {
	sets := slices.DeleteFunc(c.sets(snap), func(set schema.SetRef) bool { return set.Unproven.IsZero() })
	if len(sets) == 0 {
		return nil
	}
	made, err := c.to.Snapshot(ctx, snap.Dataset, c.as[nameOf(snap)])
	if err != nil || !sameSets(made.Sets, snap.Sets) { // it was there, by value
		return err
	}
	for _, set := range sets {
		for {
			err := c.proofsOf(ctx, snap.Dataset, set.Prefix)
			if errors.Is(err, schema.ErrConflict) {
				continue // something is reading the copy
			}
			if err != nil {
				return fmt.Errorf("object set %s: %w", set.Prefix, err)
			}
			break
		}
	}
	return nil
}

// proofsOf adds to the target the checksums of one set that the source has and the target lacks. If
// the two have learned different checksums of one blob, the copy fails.
func (c *copier) proofsOf(ctx context.Context, dataset string, prefix schema.ObjectPrefix) (err error) {
	from, err := c.from.Proofs(ctx, dataset, prefix)
	if err != nil || len(from) == 0 {
		return err
	}
	there, err := c.to.Proofs(ctx, dataset, prefix)
	if err != nil {
		return err
	}
	have := map[schema.Sum]schema.Sum{}
	for _, run := range there {
		err := eachProof(ctx, c.to, prefix, run, func(l store.Learned) error {
			have[l.Stand] = l.Sum
			return nil
		})
		if err != nil {
			return err
		}
	}
	now := slices.Clone(there)
	var in store.Ingest // nil until something is to be put
	defer func() {
		if in != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	for _, run := range from {
		var news []store.Learned
		err := eachProof(ctx, c.from, prefix, run, func(l store.Learned) error {
			switch was, ok := have[l.Stand]; {
			case !ok:
				news = append(news, l)
			case was != l.Sum:
				return fmt.Errorf("%w: a blob has checksum %s in the source and %s in the target: one of the two was learned of "+
					"damaged bytes", schema.ErrDataLoss, l.Sum, was)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(news) == 0 {
			continue
		}
		if in == nil {
			if in, err = c.to.Begin(ctx, dataset); err != nil {
				return err
			}
		}
		ref, err := in.Put(ctx, store.EncodeProofRun(prefix, news))
		if err != nil {
			return err
		}
		n := int64(len(news))
		now = append(now, store.ProofRun{BlobRef: ref, Unproven: schema.Unproven{Blobs: n, Bytes: run.BytesOf(n)}})
	}
	if in == nil {
		return nil
	}
	return in.SaveProofs(ctx, prefix, there, now)
}

// eachProof visits what a run has.
func eachProof(ctx context.Context, src store.Store, prefix schema.ObjectPrefix, run store.ProofRun,
	visit func(store.Learned) error) error {
	b, err := get(ctx, src, run.BlobRef)
	if err != nil {
		return err
	}
	defer b.Release()
	return run.Each(prefix, b.Bytes(), visit)
}

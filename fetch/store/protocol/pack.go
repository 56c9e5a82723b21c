package protocol

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"bowstring/schema"
)

// newPrefix makes the prefix of an ingest's addresses: eight random bytes, then the epoch
// that the ingest is registered with. The epoch in the name saves a row for each segment.
func newPrefix(env Env, epoch Epoch) (p schema.ObjectPrefix) {
	binary.BigEndian.PutUint64(p[:], env.Rand())
	binary.BigEndian.PutUint32(p[8:], uint32(epoch))
	return p
}

// EpochOf is the epoch that the ingest with the prefix was registered with.
func EpochOf(prefix schema.ObjectPrefix) Epoch { return Epoch(binary.BigEndian.Uint32(prefix[8:])) }

// prefixOf returns the prefix of an address.
func prefixOf(key schema.Key) schema.ObjectPrefix {
	return schema.ObjectPrefix(key[:len(schema.ObjectPrefix{})])
}

// putPacked adds a blob to the ingest's segments.
func (in *Ingest) putPacked(ctx context.Context, data []byte) (schema.BlobRef, error) {
	ref, err := in.pack.Put(ctx, data)
	if err != nil {
		return ref, fmt.Errorf("store a blob of %d bytes: %w", len(data), err)
	}
	in.s.writes.Add(1)
	in.s.writtenBytes.Add(ref.Size)
	return ref, nil
}

// presentPacked returns a schema.ErrInvalid if a blob was not put through the ingest.
func (in *Ingest) presentPacked(ref schema.BlobRef) error {
	if in.pack.Has(ref) {
		return nil
	}
	return fmt.Errorf("%w: blob %s of %d bytes was not put", schema.ErrInvalid, ref.Key, ref.Size)
}

// sets makes a snapshot name the ingest's own set, and returns the sets of other ingests
// that it names. The chunks of the manifest, and each list of objects of other buckets,
// have to be in one of these sets.
func (in *Ingest) sets(snap *schema.Snapshot) (carried []schema.ObjectPrefix, err error) {
	own := in.prefix
	for _, set := range snap.Sets {
		if set.Blob == (schema.BlobRef{}) && set.Prefix != own {
			carried = append(carried, set.Prefix)
		}
	}
	lies := func(ref schema.BlobRef) error {
		if prefix := prefixOf(ref.Key); prefix != own && slices.Contains(carried, prefix) {
			return nil
		}
		return in.presentPacked(ref)
	}
	for i := range snap.Chunks {
		if err := lies(snap.Chunks[i].BlobRef); err != nil {
			return nil, fmt.Errorf("manifest chunk: %w", err)
		}
	}
	for _, set := range snap.Sets {
		if set.Blob != (schema.BlobRef{}) {
			if err := lies(set.Blob); err != nil {
				return nil, fmt.Errorf("object set %s: %w", set.Prefix, err)
			}
		}
	}
	snap.Sets = slices.DeleteFunc(slices.Clone(snap.Sets), func(set schema.SetRef) bool { return set.Prefix == own })
	snap.Sets = append(snap.Sets, schema.SetRef{Prefix: own})
	return carried, nil
}

// named returns a schema.ErrInvalid unless a live snapshot of the dataset names each of
// the carried sets. If one does, no collection has found the set's segments dead, and
// none will before the swap that is made for this version of the partition.
func (in *Ingest) named(ctx context.Context, d *datasetState, carried []schema.ObjectPrefix) error {
	if in.s.planted(bugCarriedUnnamed) {
		return nil
	}
	missing := slices.Clone(carried)
	live := d.live()
	slices.Reverse(live) // most sets are those of the newest snapshot
	for _, number := range live {
		if len(missing) == 0 {
			return nil
		}
		snap, err := in.s.record(ctx, d.name, number, d.snapshots[number])
		if errors.Is(err, schema.ErrDataLoss) {
			// The snapshot may have been dropped and collected since this state was read.
			if p, again := in.s.db.Load(ctx, d.name); again != nil {
				return again
			} else if p.Version != d.version {
				return ErrMoved
			}
		}
		if err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(p schema.ObjectPrefix) bool {
			return slices.Contains(snap.Sets, schema.SetRef{Prefix: p})
		})
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the snapshot names set %s, which no snapshot of %q does, and which was not put", schema.ErrInvalid,
		missing[0], d.name)
}

// setKeys returns addresses in each set of the store that a snapshot needs. A collection
// marks them. The record lists all sets; those of the manifest are among them.
func setKeys(snap *schema.Snapshot) []schema.Key {
	var keys []schema.Key
	for _, set := range snap.Sets {
		if set.Blob == (schema.BlobRef{}) {
			keys = append(keys, schema.ObjectAddress{Prefix: set.Prefix}.Key(0))
		} else {
			keys = append(keys, set.Blob.Key)
		}
	}
	for i := range snap.Chunks {
		keys = append(keys, snap.Chunks[i].Key)
	}
	return keys
}

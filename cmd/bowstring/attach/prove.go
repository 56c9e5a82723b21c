package attach

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/schema"
)

const (
	// provedTogether is how many blobs are collected and sorted by extent before they are
	// read. More would find more neighbours,
	// and take more memory.
	provedTogether = 1 << 16
	// proofBytes is the most that one request reads of an object. A larger blob is read
	// whole.
	proofBytes = 8 << 20
	// proofGap is the largest gap between two blobs that one request reads along. It
	// covers the headers of a tar, and costs about as much time as a second request.
	proofGap = 64 << 10
	// proofsAtOnce is how many such requests are in flight. With proofBytes it bounds the
	// memory for buffers to 64 MiB, except for larger blobs.
	proofsAtOnce = 8
)

// Prove reads the blobs of a snapshot that have no checksum yet, and no other ones. The
// store keeps their checksums. Prove calls row for each row that has such a blob, with
// the row's references; nil stands for a null. refs is reused: row must not keep it.
func Prove(ctx context.Context, st store.Store, snap *schema.Snapshot, row func(id schema.ID, refs []*schema.BlobRef)) error {
	prover := store.ProverOf(st)
	if err := prover.LearnProofs(ctx, snap); err != nil {
		return err
	}
	// due is bounded: the blobs of a full batch are read before the next page, so that a
	// snapshot of any size fits.
	var due []schema.BlobRef
	refs := make([]*schema.BlobRef, len(schema.BlobFields(snap.Schema)))
	err := store.EachPage(ctx, snap, snap.Chunks, st.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		page := m.Page(0)
		for i := range page.Rows() {
			had := len(due)
			for c := range refs {
				ref, ok, err := page.TryBlob(c, i)
				if err != nil {
					return err
				}
				refs[c] = nil
				if ok {
					refs[c] = &ref
				}
				if ok && prover.Proven(ref).Unproven() {
					due = append(due, ref)
				}
			}
			if len(due) > had {
				row(page.ID(i), refs)
			}
		}
		if len(due) < provedTogether {
			return nil
		}
		err := proveAll(ctx, st, due)
		due = due[:0]
		return err
	})
	if err == nil {
		err = proveAll(ctx, st, due)
	}
	if err != nil {
		return err
	}
	return prover.KeepProofs(ctx)
}

// located is a blob with the extent that the store resolved for it.
type located struct {
	ref schema.BlobRef
	at  store.Location
}

// end is the offset behind the blob, in its object or unit.
func (l *located) end() int64 { return l.at.Offset + l.at.Length }

// proveAll reads blobs, neighbours in one request. It returns the first error, which
// cancels the other reads.
func proveAll(ctx context.Context, st store.Store, refs []schema.BlobRef) error {
	all := make([]located, len(refs))
	for i, ref := range refs {
		at, ok, err := st.Locate(ctx, ref)
		if err == nil && !ok {
			err = fmt.Errorf("%w: blob %s has no checksum, and is in no object", schema.ErrDataLoss, ref.Key)
		}
		if err != nil {
			return err
		}
		all[i] = located{ref, at}
	}
	// Sorted by object version and offset, neighbours in an object are neighbours in the
	// list.
	slices.SortFunc(all, func(a, b located) int {
		return cmp.Or(cmp.Compare(a.at.Bucket.URL(), b.at.Bucket.URL()), cmp.Compare(a.at.Object.Key, b.at.Object.Key),
			cmp.Compare(a.at.Object.Version.String(), b.at.Object.Version.String()), cmp.Compare(a.at.Offset, b.at.Offset))
	})
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(proofsAtOnce)
	for len(all) > 0 && reading.Err() == nil {
		n, end := 1, all[0].end()
		for n < len(all) && together(&all[0], &all[n], end) {
			end = max(end, all[n].end())
			n++
		}
		part := all[:n]
		all = all[n:]
		group.Go(func() error { return provePart(reading, st, part, end) })
	}
	return cmp.Or(group.Wait(), context.Cause(ctx))
}

// together reports whether next can be read in the same request as first. end is the
// offset at which the blobs before next end. Blobs in compressed units are read one by
// one: their offsets count decoded bytes.
func together(first, next *located, end int64) bool {
	a, b := first.at, next.at
	return a.Unit == nil && b.Unit == nil && a.Bucket.URL() == b.Bucket.URL() && a.Object.Key == b.Object.Key &&
		a.Object.Version == b.Object.Version && b.Offset-end <= proofGap && next.end()-a.Offset <= proofBytes
}

// provePart reads blobs of one object by one request and records their checksums. The
// request names the version, so that an object that was replaced is an error and not a
// wrong checksum.
func provePart(ctx context.Context, st store.Store, part []located, end int64) error {
	first := part[0].at
	if first.Unit != nil {
		return proveUnit(ctx, st, part[0].ref)
	}
	buf := make([]byte, end-first.Offset)
	err := source.Attempt(ctx, func() error {
		return first.Bucket.Range(ctx, first.Object.Key, first.Object.Version, first.Offset, buf)
	})
	if err != nil {
		return extent.Attached(first.Bucket.URL(), first.Object, err)
	}
	for _, l := range part {
		data := buf[l.at.Offset-first.Offset:][:l.at.Length]
		if _, err := store.ProverOf(st).Prove(ctx, l.ref, data); err != nil {
			return err
		}
	}
	return nil
}

// proveUnit reads a blob of a compressed unit through the store, which decodes the unit.
func proveUnit(ctx context.Context, st store.Store, ref schema.BlobRef) error {
	var blob schema.Blob
	err := source.Attempt(ctx, func() (err error) {
		blob, err = st.Get(ctx, ref)
		return err
	})
	if err != nil {
		return err
	}
	defer blob.Release()
	_, err = store.ProverOf(st).Prove(ctx, ref, blob.Bytes())
	return err
}

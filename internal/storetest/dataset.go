package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"bowstring/fetch/store"
	"bowstring/schema"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// blobOf makes n bytes that depend on the name alone.
func blobOf(name string, n int) []byte {
	var seed [32]byte
	copy(seed[:], name)
	binary.LittleEndian.PutUint64(seed[24:], uint64(n))
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}

// blobsOf makes count blobs of size bytes. Equal arguments give equal blobs, so that a test can
// make the expected bytes again in place of keeping them.
func blobsOf(name string, count, size int) [][]byte {
	blobs := make([][]byte, count)
	for i := range blobs {
		blobs[i] = blobOf(fmt.Sprintf("%s/%d", name, i), size)
	}
	return blobs
}

// pagesOfAChunk is how many pages a chunk has.
const pagesOfAChunk = 2

// Put stores blobs and a manifest with a row for each, in pages of at most
// pageRows rows, two to a chunk, and returns the snapshot to commit.
func Put(ctx context.Context, in store.Ingest, blobs [][]byte, pageRows int) (_ schema.Snapshot, err error) {
	refs := make([]schema.BlobRef, len(blobs))
	for i, blob := range blobs {
		if refs[i], err = in.Put(ctx, blob); err != nil {
			return schema.Snapshot{}, err
		}
		if !isRef(refs[i], blob) {
			return schema.Snapshot{}, fmt.Errorf("put of %d bytes returned %+v, want %+v", len(blob), refs[i], schema.RefOf(blob))
		}
	}
	return refer(ctx, in, refs, pageRows)
}

// refer stores a manifest with a row for each reference, as Put does.
func refer(ctx context.Context, in store.Ingest, refs []schema.BlobRef, pageRows int) (_ schema.Snapshot, err error) {
	// The smallest schema: a blob column alone.
	sc, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("data", "", false)})
	if err != nil {
		return schema.Snapshot{}, err
	}
	snap := schema.Snapshot{Source: "storetest", Schema: sc}
	builder := schema.NewChunkBuilder(memory.DefaultAllocator, sc)
	defer builder.Release()
	// Pages are collected to chunks. finish ends a page, and a chunk of most pages.
	var pages schema.PageList
	finish := func(most int) error {
		if builder.Rows() > 0 {
			data, page, err := builder.Finish()
			if err != nil {
				return err
			}
			if page.BlobRef, err = in.Put(ctx, data); err != nil {
				return err
			}
			pages.Add(page)
		}
		if pages.Len() < max(most, 1) {
			return nil
		}
		data, c := pages.Finish()
		if data != nil {
			if c.BlobRef, err = in.Put(ctx, data); err != nil {
				return err
			}
		}
		snap.Chunks = append(snap.Chunks, c)
		return nil
	}
	for i, ref := range refs {
		if err := builder.Append(schema.SampleID("storetest", fmt.Sprint(i)), nil, 0,
			[]*schema.BlobRef{&ref}); err != nil {
			return snap, err
		}
		if builder.Rows() == pageRows {
			if err := finish(pagesOfAChunk); err != nil {
				return snap, err
			}
		}
	}
	if err := finish(0); err != nil {
		return snap, err
	}
	if len(refs) > 0 {
		snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: int64(len(refs))}}}}
	}
	return snap, nil
}

// Read opens a snapshot's manifest and reads all its blobs. Each blob must
// pass its check.
func Read(ctx context.Context, s store.Store, snap *schema.Snapshot) ([][]byte, error) {
	var blobs [][]byte
	get := func(ref schema.BlobRef) (schema.Blob, error) { return s.Get(ctx, ref) }
	for i, c := range snap.Chunks {
		err := schema.EachPage(snap, c, get, func(_ schema.Chunk, _ int64, m *schema.Manifest) error {
			for row := range m.Rows() {
				ref, ok := m.Blob(0, row)
				if !ok {
					return fmt.Errorf("position %d is null", len(blobs))
				}
				b, err := s.Get(ctx, ref)
				if err != nil {
					return fmt.Errorf("position %d: %w", len(blobs), err)
				}
				err = ref.Check(b.Bytes())
				// The bytes are valid only until the blob is released.
				blobs = append(blobs, bytes.Clone(b.Bytes()))
				b.Release()
				if err != nil {
					return fmt.Errorf("position %d: %w", len(blobs)-1, err)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("chunk %d of %s@%d: %w", i, snap.Dataset, snap.Number, err)
		}
	}
	return blobs, nil
}

// holds reports what differs between a snapshot's blobs and want.
func holds(ctx context.Context, s store.Store, snap *schema.Snapshot, want [][]byte) error {
	got, err := Read(ctx, s, snap)
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s@%d has %d rows, want %d", snap.Dataset, snap.Number, len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			return fmt.Errorf("position %d of %s@%d holds other bytes than were put", i, snap.Dataset, snap.Number)
		}
	}
	return nil
}

// ingest imports blobs as one snapshot after parent.
func ingest(ctx context.Context, s store.Store, dataset string, parent int64,
	blobs [][]byte) (_ *schema.Snapshot, err error) {
	in, err := s.Begin(ctx, dataset)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	snap, err := Put(ctx, in, blobs, 7)
	if err != nil {
		return nil, err
	}
	snap.Parent = parent
	return in.Commit(ctx, snap)
}

// begin, put, ingest, snapshot and holds do as the functions and methods of these names, and end
// the case at the first error.
func (b *bench) begin(dataset string) store.Ingest {
	in, err := b.store.Begin(b.ctx, dataset)
	b.ok(err, "begin an ingest into %s", dataset)
	return in
}

// put stores a blob and checks its reference.
func (b *bench) put(in store.Ingest, data []byte) schema.BlobRef {
	ref, err := in.Put(b.ctx, data)
	b.ok(err, "put %d bytes", len(data))
	b.that(isRef(ref, data), "put of %d bytes returned %+v, want %+v", len(data), ref, schema.RefOf(data))
	return ref
}

// ingest imports blobs as one snapshot after parent.
func (b *bench) ingest(dataset string, parent int64, blobs [][]byte) *schema.Snapshot {
	snap, err := ingest(b.ctx, b.store, dataset, parent, blobs)
	b.ok(err, "import into %s", dataset)
	return snap
}

// snapshot returns a snapshot that must exist. The number 0 means the newest.
func (b *bench) snapshot(dataset string, number int64) *schema.Snapshot {
	snap, err := b.store.Snapshot(b.ctx, dataset, number)
	b.ok(err, "snapshot %s@%d", dataset, number)
	return snap
}

// holds requires that a snapshot has exactly these blobs.
func (b *bench) holds(snap *schema.Snapshot, want [][]byte) {
	b.ok(holds(b.ctx, b.store, snap, want), "read back")
}

// has requires that the store has a blob, byte for byte.
func (b *bench) has(data []byte) {
	ref := b.ref(data)
	blob, err := b.store.Get(b.ctx, ref)
	b.ok(err, "get a blob of %d bytes", len(data))
	defer blob.Release()
	b.ok(ref.Check(blob.Bytes()), "get a blob of %d bytes", len(data))
	b.that(bytes.Equal(blob.Bytes(), data), "a blob of %d bytes came back changed", len(data))
}

// lacks requires that the store does not have a blob.
func (b *bench) lacks(data []byte) {
	for _, ref := range append(b.puts.of(data), schema.RefOf(data)) {
		blob, err := b.store.Get(b.ctx, ref)
		blob.Release()
		b.fails(err, schema.ErrNotFound, "get a blob that is not there")
	}
}

// gc collects, and checks what holds of every report: the snapshots in use are asked for once,
// and no more is freed than was dead.
func (b *bench) gc(opts store.GCOptions, inUse ...*schema.Snapshot) store.GCReport {
	calls := 0
	r, err := b.store.GC(b.ctx, opts, func() []*schema.Snapshot { calls++; return inUse })
	b.ok(err, "gc")
	b.that(calls == 1, "gc called inUse %d times, want once", calls)
	b.that(r.FreedBytes <= r.DeadBytes, "gc freed %d bytes of %d dead ones", r.FreedBytes, r.DeadBytes)
	return r
}

// catalog requires that the store lists exactly these.
func (b *bench) catalog(want ...store.Dataset) {
	got, err := b.store.Datasets(b.ctx)
	b.ok(err, "list the datasets")
	b.that(len(got) == 0 && len(want) == 0 || fmt.Sprint(got) == fmt.Sprint(want), "the datasets are %v, want %v", got,
		want)
}

package storetest

import (
	"context"
	"slices"
	"sync"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// puts are the references under which blobs were put, by content, if these are addresses: for stores that keep blobs
// in segments, which store a blob each time it is put.
type puts struct {
	mu   sync.Mutex
	refs map[schema.BlobRef][]schema.BlobRef // by the reference that a hashed blob would have
}

// add records the address of a put.
func (p *puts) add(data []byte, ref schema.BlobRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == nil {
		p.refs = map[schema.BlobRef][]schema.BlobRef{}
	}
	of := schema.RefOf(data)
	p.refs[of] = append(p.refs[of], ref)
}

// of returns all addresses of a content, the oldest first.
func (p *puts) of(data []byte) []schema.BlobRef {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.refs[schema.RefOf(data)])
}

// recorded is a store that keeps blobs in segments, and records the addresses of put blobs.
type recorded struct {
	store.Store
	puts *puts
}

func (s *recorded) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	in, err := s.Store.Begin(ctx, dataset)
	if err != nil {
		return nil, err
	}
	return &recordedIngest{in, s.puts}, nil
}

// recordedIngest is an ingest that records its puts.
type recordedIngest struct {
	store.Ingest
	puts *puts
}

func (in *recordedIngest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	// The store may not keep data, and the caller may reuse it.
	of := slices.Clone(data)
	ref, err := in.Ingest.Put(ctx, data)
	if err == nil {
		in.puts.add(of, ref)
	}
	return ref, err
}

// segments reports whether the store keeps blobs in segments.
func (b *bench) segments() bool { return b.store.Traits().Segments }

// ref is the reference of a blob from its last put.
func (b *bench) ref(data []byte) schema.BlobRef {
	if refs := b.puts.of(data); len(refs) > 0 {
		return refs[len(refs)-1]
	}
	return schema.RefOf(data)
}

// refs returns the references of blobs from their last puts.
func (b *bench) refs(blobs [][]byte) []schema.BlobRef {
	refs := make([]schema.BlobRef, len(blobs))
	for i, data := range blobs {
		refs[i] = b.ref(data)
	}
	return refs
}

// isRef reports whether a reference is of a blob: its hash, or one of its addresses.
func isRef(ref schema.BlobRef, data []byte) bool {
	want := schema.RefOf(data)
	return ref == want || !ref.Hashed() && ref.Size == want.Size && ref.Sum == want.Sum
}

// packed is how a store that keeps blobs in segments stores equal blobs, instead of each once.
func packed(b *bench) {
	blobs := blobsOf("packed", 10, 1000)
	for n := range int64(3) {
		b.ingest("d", n, blobs)
		for _, data := range blobs {
			b.has(data)
		}
	}
	got := b.store.Stats()
	b.that(got.BlobDedups == 0 && got.BlobWrites >= 30, "three imports of 10 blobs count %+v", got)
	b.that(got.Blobs == 3 && got.StoredBytes >= 30*1000, "three imports of 10 KB are counted as %+v, want 3 segments", got)
	snap := b.snapshot("d", 3)
	b.that(len(snap.Sets) == 1 && snap.Sets[0].Blob == (schema.BlobRef{}), "the snapshot names the sets %+v, want its own",
		snap.Sets)
	for _, chunk := range snap.Chunks {
		b.that(schema.ObjectPrefix(chunk.Key[:12]) == snap.Sets[0].Prefix, "chunk %s is not in set %s", chunk.Key,
			snap.Sets[0].Prefix)
	}

	// A snapshot may name only blobs that a live one names.
	in := b.begin("d")
	next, err := refer(b.ctx, in, b.refs(blobs), 4)
	b.ok(err, "put a manifest")
	next.Parent, next.Sets = 3, []schema.SetRef{{Prefix: schema.ObjectPrefix{1, 2, 3}}}
	_, err = in.Commit(b.ctx, next)
	b.fails(err, schema.ErrInvalid, "commit of a snapshot that names a set which there is not")
	other := b.ingest("other", 0, blobs)
	next.Sets = other.Sets
	_, err = in.Commit(b.ctx, next)
	b.fails(err, schema.ErrInvalid, "commit of a snapshot that names another dataset's set")
	next.Sets = snap.Sets
	made, err := in.Commit(b.ctx, next)
	b.ok(err, "commit of a snapshot that names its parent's set")
	b.ok(in.Close(), "close the ingest")
	b.that(len(made.Sets) == 2 && made.Sets[0] == snap.Sets[0], "the snapshot names the sets %+v, want %+v and its own",
		made.Sets, snap.Sets)
}

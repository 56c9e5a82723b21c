package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// blobSizes: blobs from empty ones to 20 MiB are read back whole, also after reopening. The sizes
// around 64 bytes meet the alignment of segments.
func blobSizes(b *bench) {
	var blobs [][]byte
	for _, n := range []int{0, 1, 63, 64, 65, 4096, 110_000, 20 << 20} {
		blobs = append(blobs, blobOf("size", n))
	}
	b.ingest("sizes", 0, blobs)
	for range 2 {
		for _, data := range blobs {
			b.has(data)
		}
		b.holds(b.snapshot("sizes", 0), blobs)
		b.reopen()
	}
}

// putCopies: Put copies its argument, so that a caller can reuse its buffer at once.
func putCopies(b *bench) {
	in := b.begin("copies")
	buf := blobOf("buffer", 5000)
	want := bytes.Clone(buf)
	b.put(in, buf)
	clear(buf)
	b.has(want)
	b.ok(in.Close(), "close the ingest")
}

// dedup: a store under hashes writes a blob once, however many datasets have it, and counts the
// puts that found it.
func dedup(b *bench) {
	if b.segments() {
		packed(b)
		return
	}
	blobs := blobsOf("dedup", 10, 1000)
	b.ingest("d", 0, blobs)
	// Chunks of the manifest are blobs too, so that there are more than ten.
	first := b.store.Stats()
	b.that(first.BlobWrites == first.Blobs && first.WrittenBytes == first.StoredBytes && first.Blobs >= 10,
		"after one import the store counts %+v", first)
	b.ingest("d", 1, blobs)
	b.ingest("e", 0, blobs)
	got := b.store.Stats()
	b.that(got.BlobWrites == first.BlobWrites && got.WrittenBytes == first.WrittenBytes && got.Blobs == first.Blobs,
		"importing the same again went from %+v to %+v", first, got)
	b.that(got.BlobDedups == 2*first.BlobWrites, "%d puts found their blob, want %d", got.BlobDedups,
		2*first.BlobWrites)
	reads := got.BlobReads
	b.has(blobs[0])
	got = b.store.Stats()
	b.that(got.BlobReads == reads+1, "one read was counted as %d", got.BlobReads-reads)
}

// dedupConcurrent: of concurrent puts of one blob exactly one writes it.
func dedupConcurrent(b *bench) {
	const putters = 16
	in := b.begin("d")
	data := blobOf("wanted by all", 200_000)
	var g errgroup.Group
	for range putters {
		g.Go(func() error {
			_, err := in.Put(b.ctx, data)
			return err
		})
	}
	b.ok(g.Wait(), "put concurrently")
	if b.segments() {
		for _, ref := range b.puts.of(data) {
			blob, err := b.store.Get(b.ctx, ref)
			b.ok(err, "get")
			b.that(bytes.Equal(blob.Bytes(), data), "a blob that was put concurrently came back changed")
			blob.Release()
		}
		b.ok(in.Close(), "close the ingest")
		return
	}
	b.ok(in.Close(), "close the ingest")
	got := b.store.Stats()
	b.that(got.BlobWrites == 1 && got.BlobDedups == putters-1 && got.Blobs == 1,
		"%d puts of one blob were counted as %+v", putters, got)
	b.has(data)
}

// stress runs writers and readers on overlapping blobs.
func stress(b *bench) {
	// Writers put blobs that others have put, and readers read what is put already.
	const workers, each, pool = 8, 200, 300
	const seed = 20
	blob := func(i int) []byte { return blobOf(fmt.Sprintf("stress/%d", i), 17*i+i%3) }
	in := b.begin("stress")
	var mu sync.Mutex
	var put []schema.BlobRef
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for range each {
				if r.IntN(2) == 0 {
					ref, err := in.Put(b.ctx, blob(r.IntN(pool)))
					if err != nil {
						return fmt.Errorf("seed %d, worker %d: %w", seed, w, err)
					}
					mu.Lock()
					put = append(put, ref)
					mu.Unlock()
					continue
				}
				mu.Lock()
				if len(put) == 0 {
					mu.Unlock()
					continue
				}
				ref := put[r.IntN(len(put))]
				mu.Unlock()
				got, err := b.store.Get(b.ctx, ref)
				if err != nil {
					return fmt.Errorf("seed %d, worker %d: %w", seed, w, err)
				}
				err = ref.Check(got.Bytes())
				got.Release()
				if err != nil {
					return fmt.Errorf("seed %d, worker %d: %w", seed, w, err)
				}
			}
			return nil
		})
	}
	b.ok(errors.Join(g.Wait(), in.Close()), "put and get concurrently")
	if b.segments() { // nothing was committed
		return
	}
	// Under hashes, the store has each content once.
	distinct := map[schema.Key]bool{}
	for _, ref := range put {
		distinct[ref.Key] = true
	}
	b.that(b.store.Stats().Blobs == int64(len(distinct)), "the store has %d blobs, want %d", b.store.Stats().Blobs,
		len(distinct))
}

package fetch_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/schema"
	"bowstring/spill"
)

// pail is a bucket in memory that counts what is read of it.
type pail struct {
	object.Bucket // nil: nothing but what follows is asked

	objects map[string][]byte

	mu    sync.Mutex
	reads int
	bytes int64
}

// URL implements object.Bucket.
func (*pail) URL() string { return "s3://pail" }

// Close implements object.Bucket.
func (*pail) Close() error { return nil }

// Range implements object.Bucket.
func (p *pail) Range(ctx context.Context, key string, _ schema.ObjectVersion, offset int64, buf []byte) error {
	p.mu.Lock()
	p.reads++
	p.bytes += int64(len(buf))
	p.mu.Unlock()
	if copy(buf, p.objects[key][offset:]) < len(buf) {
		return fmt.Errorf("%w: object %s ends before byte %d", schema.ErrDataLoss, key, offset+int64(len(buf)))
	}
	return context.Cause(ctx)
}

// asked returns what was read since it was asked last.
func (p *pail) asked() (reads int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reads, bytes = p.reads, p.bytes
	p.reads, p.bytes = 0, 0
	return reads, bytes
}

// attached is a store with a dataset "d" whose n images are in a bucket in memory, "each" images per object. An image of nil is
// null.
func attached(t *testing.T, n, each int, image func(i int) []byte) (store.Store, *pail) {
	t.Helper()
	return attachedHow(t, n, each, false, image)
}

// attachedHow is attached, lazily without that anything was read.
func attachedHow(t *testing.T, n, each int, lazily bool, image func(i int) []byte) (store.Store, *pail) {
	t.Helper()
	p := &pail{objects: map[string][]byte{}}
	open := func(context.Context, string) (object.Bucket, error) { return p, nil }
	return attachedTo(t, p.URL(), n, each, lazily, open, image, func(key string, data []byte) schema.ObjectVersion {
		p.objects[key] = data
		return schema.ObjectVersion{ETag: key}
	}), p
}

// attachedAt is attached of a bucket that is put to and opened so.
func attachedAt(t testing.TB, url string, n, each int, open func(context.Context, string) (object.Bucket, error),
	image func(i int) []byte, put func(key string, data []byte) schema.ObjectVersion) store.Store {
	t.Helper()
	return attachedTo(t, url, n, each, false, open, image, put)
}

func attachedTo(t testing.TB, url string, n, each int, lazily bool,
	open func(context.Context, string) (object.Bucket, error), image func(i int) []byte,
	put func(key string, data []byte) schema.ObjectVersion) store.Store {
	t.Helper()
	s := extent.New(must(local.Open(t.TempDir(), local.Options{})), extent.Options{Logger: quiet, Buckets: open})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	set := &schema.ObjectSet{Bucket: url, Unproven: lazily}
	offsets, sums, sizes := make([]int64, n), make([]schema.Sum, n), make([]int, n)
	var all []byte // of an object
	for i := range n {
		data := image(i)
		all = append(all, make([]byte, 64)...)
		offsets[i], sums[i], sizes[i] = int64(len(all)), schema.Checksum(data), len(data)
		all = append(all, data...)
		if (i+1)%each == 0 || i == n-1 {
			key := fmt.Sprintf("shard-%04d", i/each)
			set.Objects = append(set.Objects, schema.Object{Key: key, Size: int64(len(all)), Version: put(key, all)})
			all = nil
		}
	}
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", "image", true)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace,
		PageRows: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ids, refs := make([]schema.ID, n), make([]*schema.BlobRef, n)
	for i := range n {
		ids[i] = sampleID("d", i)
		if sizes[i] == 0 {
			continue
		}
		at := schema.ObjectAddress{Prefix: set.Prefix(), Object: uint32(i / each), Offset: offsets[i]}
		refs[i] = &schema.BlobRef{Key: at.Key(sums[i]), Size: int64(sizes[i]), Sum: sums[i]}
		if lazily {
			*refs[i] = schema.UnprovenRef(at, int64(sizes[i]))
		}
	}
	if err := w.WriteRefs(t.Context(), "train", ids, nil, [][]*schema.BlobRef{refs}); err != nil {
		t.Fatal(err)
	}
	if err := w.PutSet(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// The order that is served is that of the plan, whatever is read together, kept, killed and resumed.
func TestBucketsDoNotChangeTheOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	image := func(i int) []byte {
		if i%100 == 99 {
			return nil
		}
		return content(i)
	}
	s, p := attached(t, 700, 100, image)
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		if rng.IntN(4) == 0 {
			s, p = attachedHow(t, 700, 100, true, image)
		}
		req := schema.Request{
			Dataset: "d", Columns: []string{"id", "image"}, Batch: 1 + rng.Int64N(120),
			World:   &schema.World{Size: 1 + rng.Int64N(3)},
			Shuffle: &schema.Shuffle{Seed: rng.Uint64(), Epoch: rng.Uint64N(9)},
			Order:   []string{"", "", schema.OrderFree, "window:2"}[rng.IntN(4)],
		}
		switch rng.IntN(4) {
		case 0:
			req.Shuffle = nil
		case 1:
			req.Shuffle.Block, req.Shuffle.Blocks = []string{"4KiB", "32KiB"}[rng.IntN(2)], 1+rng.Int64N(9)
		}
		tk := ticket(req, int(rng.Int64N(req.WorldSize())))
		tk.Stride, tk.Epochs = 1, 1+rng.Int64N(3)
		opts := fetch.Options{WindowBytes: []int64{0, 30_000, 300_000, 3_000_000}[rng.IntN(4)], Logger: quiet}
		if rng.IntN(2) == 0 {
			opts.Resident = -1
		}
		room := []int64{0, 200_000, 600_000, 4 << 20}[rng.IntN(4)] // of 1 MB
		dir := filepath.Join(t.TempDir(), fmt.Sprint("spill-", round))
		name := fmt.Sprintf("%s, window %d, spill %d", tk.Marshal(), opts.WindowBytes, room)
		open := func() (*fetch.Engine, func()) {
			opts := opts
			if room > 0 {
				opts.Future = &spill.Future{}
				opts.Spill = must(spill.Open(spill.Options{Dir: dir, Bytes: spill.MinBytes + room, KeepFree: 1,
					Oracle: opts.Future, Logger: quiet}))
			}
			e := must(fetch.NewEngine(s, opts))
			return e, func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
				if opts.Spill != nil {
					if err := opts.Spill.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		}
		e, end := open()
		j := resolve(t, e, req)
		want := expected(t, j, tk)
		check(t, name, j, tk, want, follow(t, e, j, tk, -1))
		var parts []seen
		next := tk
		for range 4 { // begun again and again, with what the spill of the one before has
			part := follow(t, e, j, next, rng.IntN(4))
			if parts = append(parts, part...); len(part) > 0 {
				next = part[len(part)-1].resume
			}
			j.Close()
			end()
			e, end = open()
			j = resolve(t, e, next.Request)
		}
		check(t, name+", begun again", j, tk, want, append(parts, follow(t, e, j, next, -1)...))
		j.Close()
		end()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	if reads, _ := p.asked(); reads == 0 {
		t.Error("nothing was read from the bucket")
	}
}

// An epoch in order takes about a request for each 8 to 16 MiB; a shuffled one does with a spill for all, and the next
// takes none.
func TestRequestsOfAnEpoch(t *testing.T) {
	for _, lazily := range []bool{false, true} {
		t.Run(fmt.Sprint("lazily ", lazily), func(t *testing.T) { requestsOfAnEpoch(t, lazily) })
	}
}

func requestsOfAnEpoch(t *testing.T, lazily bool) {
	const n, each, size = 640, 320, 100 << 10
	image := content(1)
	for len(image) < size {
		image = append(image, image...)
	}
	s, p := attachedHow(t, n, each, lazily, func(i int) []byte {
		image := bytes.Clone(image[:size])
		binary.LittleEndian.PutUint64(image, uint64(i))
		return image
	})
	all := n * (size + 64)
	read := func(e *fetch.Engine, req schema.Request) (reads int, sum int64) {
		j := resolve(t, e, req)
		defer j.Close()
		stream := start(t, e, j, ticket(req, 0))
		defer stream.Close()
		rows := 0
		for b := range batches(t, stream) {
			rows += len(b.Positions)
		}
		if rows != n {
			t.Fatalf("%d rows were served, want %d", rows, n)
		}
		return p.asked()
	}
	// A second attempt of a read, by a hedge or after a second of silence on a busy machine, reads a span anew.
	opts := fetch.Options{WindowBytes: 256 << 20, NoHedge: true, Logger: quiet}
	e := must(fetch.NewEngine(s, opts))
	reads, sum := read(e, schema.Request{Dataset: "d", Batch: 64})
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	again := e.Stats().Retries
	t.Logf("in order: %d requests, %d bytes of %d, %d attempts again", reads, sum, all, again)
	if again == 0 && (reads > all/(8<<20)+8 || sum > int64(all)*5/4) {
		t.Errorf("in order: %d requests for %d bytes", reads, sum)
	}
	opts.Spill, opts.Future, _ = newSpill(t, spill.MinBytes+256<<20)
	e = must(fetch.NewEngine(s, opts))
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	for epoch := range uint64(2) {
		reads, sum := read(e, schema.Request{Dataset: "d", Batch: 64, Shuffle: &schema.Shuffle{Seed: 5, Epoch: epoch}})
		t.Logf("epoch %d: %d requests, %d bytes; %+v", epoch, reads, sum, e.Stats().Spans)
		most := all * 105 / 100 / (8 << 20)
		if epoch > 0 {
			most = 0
		}
		again := e.Stats().Retries
		if reads > most && again == 0 && !lazily { // the requests are as many, and it is enough to count them once
			t.Errorf("epoch %d: %d requests, want %d at most", epoch, reads, most)
		}
		until(t, "the spill holds all", func() bool { return opts.Spill.Stats().Entries >= n })
		p.asked() // a disk that falls behind takes less than it is offered, and the rest is read again between the epochs
	}
	if proof := must(store.ProverOf(s).Proof(t.Context(), must(s.Snapshot(t.Context(), "d", 0)))); lazily &&
		proof.Blobs != n || proof.Blobs != proof.OfBlobs {
		t.Errorf("an epoch has proven %+v", proof)
	}
}

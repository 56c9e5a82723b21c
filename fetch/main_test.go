package fetch_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// probe is a store that counts the blobs which are out, and fails on demand.
type probe struct {
	store.Store
	pinned atomic.Int64

	mu    sync.Mutex
	fault func(ctx context.Context, ref schema.BlobRef) (func([]byte) []byte, error) // guarded by mu
}

// Get reads from the store; the fault may stop it, or change what it returns.
func (p *probe) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	var change func([]byte) []byte
	if fault != nil {
		var err error
		if change, err = fault(ctx, ref); err != nil {
			return schema.Blob{}, err
		}
	}
	b, err := p.Store.Get(ctx, ref)
	if err != nil {
		return b, err
	}
	data := b.Bytes()
	if change != nil {
		data = change(append([]byte(nil), data...))
	}
	p.pinned.Add(1)
	return schema.NewBlob(data, &pin{probe: p, blob: b}), nil
}

func (p *probe) inject(f func(ctx context.Context, ref schema.BlobRef) (func([]byte) []byte, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

type pin struct {
	probe *probe
	blob  schema.Blob
}

func (p *pin) Unpin() {
	p.blob.Release()
	p.probe.pinned.Add(-1)
}

// newStore opens an empty store that the test closes, and checks that every
// blob came back.
func newStore(tb testing.TB) *probe {
	tb.Helper()
	s, err := local.Open(tb.TempDir(), local.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	p := &probe{Store: s}
	tb.Cleanup(func() {
		if n := p.pinned.Load(); n != 0 {
			tb.Errorf("%d blobs were not released", n)
		}
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

// must is for what cannot fail in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// quiet drops what engines log of the faults that tests make.
var quiet = slog.New(slog.DiscardHandler)

// newEngine returns an engine over the store that the test closes.
func newEngine(tb testing.TB, store store.Store, opts fetch.Options) *fetch.Engine {
	tb.Helper()
	opts.Logger = quiet
	e := must(fetch.NewEngine(store, opts))
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Error(err)
		}
	})
	return e
}

// content is the blob of sample i of a dataset: 1 to about 3,000 bytes that
// begin with i.
func content(i int) []byte {
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	b := make([]byte, 8+rng.IntN(3000))
	for k := range b {
		b[k] = byte(rng.Uint32())
	}
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

// sampleID is the id of sample i.
func sampleID(dataset string, i int) schema.ID {
	return schema.SampleID(dataset, fmt.Sprintf("%06d", i))
}

// put commits n samples as the dataset's next snapshot: the first nine tenths
// are split train, the rest val. Column label is i modulo 10, name "s<i>", and
// every hundredth image is null.
func put(tb testing.TB, store store.Store, dataset string, n int) *schema.Snapshot {
	tb.Helper()
	return putPages(tb, store, dataset, n, 0)
}

// putPages is put with pages of pageRows rows.
func putPages(tb testing.TB, store store.Store, dataset string, n, pageRows int) *schema.Snapshot {
	tb.Helper()
	return putImages(tb, store, dataset, n, pageRows, content)
}

// putImages is putPages with other images.
func putImages(tb testing.TB, store store.Store, dataset string, n, pageRows int,
	image func(i int) []byte) *schema.Snapshot {
	tb.Helper()
	ctx := tb.Context()
	sch, err := schema.NewSchema(
		[]arrow.Field{{Name: "label", Type: arrow.PrimitiveTypes.Int64}, {Name: "name", Type: arrow.BinaryTypes.String,
			Nullable: true}},
		[]arrow.Field{schema.BlobField("image", "image", true)},
	)
	if err != nil {
		tb.Fatal(err)
	}
	w, err := ingest.New(ctx, store, ingest.Options{Dataset: dataset, Source: "test", Schema: sch, Mode: ingest.Replace,
		PageRows: pageRows})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Close()
	for start := 0; start < n; {
		split, end := "train", n*9/10
		if start >= end {
			split, end = "val", n
		}
		end = min(end, start+500)
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
		var ids []schema.ID
		var images [][]byte
		for i := start; i < end; i++ {
			ids = append(ids, sampleID(dataset, i))
			b.Field(0).(*array.Int64Builder).Append(int64(i % 10))
			b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("s%d", i))
			if i%100 == 99 {
				images = append(images, nil)
			} else {
				images = append(images, image(i))
			}
		}
		rec := b.NewRecord()
		err := w.Write(ctx, split, ids, rec, [][][]byte{images})
		rec.Release()
		b.Release()
		if err != nil {
			tb.Fatal(err)
		}
		start = end
	}
	snap, _, err := w.Commit(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return snap
}

// refAt is the reference of the image at a position, false if it is null.
func refAt(tb testing.TB, j *fetch.Job, pos int64) (schema.BlobRef, bool) {
	tb.Helper()
	return must(j.Manifest().At(tb.Context(), []int64{pos}))[0].Blob(0)
}

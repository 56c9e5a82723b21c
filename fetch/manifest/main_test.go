package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// world is a generated snapshot with the blobs of its manifest. It counts the blobs that
// are open.
type world struct {
	snap  *schema.Snapshot
	blobs map[schema.Key][]byte
	pages []schema.Chunk // in order

	mu    sync.Mutex
	pins  int // blobs that are out; guarded by mu
	reads int // guarded by mu
	// before is called before a read; guarded by mu
	before func(context.Context, schema.BlobRef) error
}

func idOf(pos int64) schema.ID { return schema.SampleID("d", fmt.Sprint(pos)) }
func refOf(pos int64) schema.BlobRef {
	return schema.BlobRef{Key: schema.RefOf(fmt.Append(nil, pos)).Key, Size: pos, Sum: schema.Sum(pos)}
}
func nameOf(pos int64) (string, bool) { return fmt.Sprintf("s%d", pos), pos%5 != 0 }

// makeWorld makes n rows. Pages have up to pageRows rows; a chunk has some pages, or is one.
func makeWorld(t testing.TB, rng *rand.Rand, n int64, pageRows int) *world {
	t.Helper()
	s, err := schema.NewSchema([]arrow.Field{{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true}},
		[]arrow.Field{schema.BlobField("image", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{snap: &schema.Snapshot{Dataset: "d", Number: 1, Schema: s}, blobs: map[schema.Key][]byte{}}
	put := func(b []byte) schema.BlobRef {
		ref := schema.RefOf(b)
		w.blobs[ref.Key] = b
		return ref
	}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	names := array.NewStringBuilder(memory.DefaultAllocator)
	defer names.Release()
	var pages schema.PageList
	uneven := rng.IntN(2) == 0
	for pos := int64(0); pos < n; {
		rows := min(int64(pageRows), n-pos)
		if uneven {
			rows = 1 + rng.Int64N(rows)
		}
		for end := pos + rows; pos < end; pos++ {
			if name, ok := nameOf(pos); ok {
				names.Append(name)
			} else {
				names.AppendNull()
			}
			col := names.NewArray()
			rec := array.NewRecord(arrow.NewSchema(schema.MetaFields(s), nil), []arrow.Array{col}, 1)
			ref := refOf(pos)
			refs := []*schema.BlobRef{&ref}
			if pos%7 == 0 {
				refs[0] = nil
			}
			err := b.Append(idOf(pos), rec, 0, refs)
			rec.Release()
			col.Release()
			if err != nil {
				t.Fatal(err)
			}
		}
		data, page, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		page.BlobRef = put(data)
		w.pages = append(w.pages, page)
		pages.Add(page)
		if most := 4; pages.Len() == most || pos == n || uneven && rng.IntN(3) == 0 {
			data, c := pages.Finish()
			if data != nil {
				c.BlobRef = put(data)
			}
			w.snap.Chunks = append(w.snap.Chunks, c)
		}
	}
	w.snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: n}}}}
	return w
}

// Unpin implements schema.Owner.
func (w *world) Unpin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pins--
}

func (w *world) read(ctx context.Context, ref schema.BlobRef, _ Place) (schema.Blob, error) {
	w.mu.Lock()
	w.reads++
	before := w.before
	w.mu.Unlock()
	if before != nil {
		if err := before(ctx, ref); err != nil {
			return schema.Blob{}, err
		}
	}
	b, ok := w.blobs[ref.Key]
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: no blob %s", schema.ErrNotFound, ref.Key)
	}
	w.mu.Lock()
	w.pins++
	w.mu.Unlock()
	return schema.NewBlob(b, w), nil
}

// open opens the snapshot with most bytes for pages. The test closes it, and checks that
// all memory was released.
func (w *world) open(t testing.TB, most, resident int64) (*Manifest, *admission.Ledger) {
	t.Helper()
	m, ledger, err := w.tryOpen(t, most, resident)
	if err != nil {
		t.Fatal(err)
	}
	return m, ledger
}

func (w *world) tryOpen(t testing.TB, most, resident int64) (*Manifest, *admission.Ledger, error) {
	t.Helper()
	limits := admission.Limits{Manifests: most}
	limits.EnsureDefaults()
	ledger := admission.NewLedger(limits)
	c := NewCache(w.read, ledger, resident, slog.New(slog.DiscardHandler))
	m, err := c.Open(context.Background(), w.snap)
	t.Cleanup(func() {
		if m != nil {
			m.Close()
		}
		c.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.pins != 0 {
			t.Errorf("%d blobs were not released", w.pins)
		}
		for _, a := range ledger.Accounts() {
			if a.Used != 0 {
				t.Errorf("%d bytes for %s were not given back", a.Used, a.Use)
			}
			if a.Most > a.Limit {
				t.Errorf("%d bytes for %s, more than %d", a.Most, a.Use, a.Limit)
			}
		}
	})
	return m, ledger, err
}

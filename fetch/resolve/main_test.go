package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/manifest"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a Resolver over a store of its own.
type fixture struct {
	*resolve.Resolver
	store  *counting
	ledger *admission.Ledger
	work   *admission.Work

	mu   sync.Mutex
	pins int                                         // blobs that are out; guarded by mu
	gate func(context.Context, schema.BlobRef) error // called before each read; guarded by mu
}

// counting counts the writes to a store, and the look-ups of snapshots.
type counting struct {
	store.Store
	begun, renewed, asked atomic.Int64
	listed                func() // called when its names were listed, if not nil

	mu  sync.Mutex
	ask func(context.Context) error // called before it is asked for a snapshot, if not nil; guarded by mu
}

// askFirst sets a function that is called before each look-up of a snapshot.
func (c *counting) askFirst(ask func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ask = ask
}

func (c *counting) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	c.begun.Add(1)
	return c.Store.Begin(ctx, dataset)
}

func (c *counting) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	c.renewed.Add(1)
	return c.Store.RenewSelection(ctx, dataset, name, until)
}

func newFixture(t *testing.T, opts resolve.Options, limits admission.Limits) *fixture {
	t.Helper()
	s, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	limits.EnsureDefaults()
	f := &fixture{store: &counting{Store: s}, ledger: admission.NewLedger(limits), work: admission.NewWork(1)}
	opts.Logger = slog.New(slog.DiscardHandler)
	f.Resolver = resolve.New(f.store, f.read, f.ledger, f.work, opts)
	t.Cleanup(func() {
		f.Close()
		f.mu.Lock()
		if f.pins != 0 {
			t.Errorf("%d chunks of manifests were not released", f.pins)
		}
		f.mu.Unlock()
		for _, a := range f.ledger.Accounts() {
			if a.Used != 0 {
				t.Errorf("%d bytes for %s were not given back", a.Used, a.Use)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) read(ctx context.Context, ref schema.BlobRef, _ manifest.Place) (schema.Blob, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		if err := gate(ctx, ref); err != nil {
			return schema.Blob{}, err
		}
	}
	b, err := f.store.Get(ctx, ref)
	if err != nil {
		return b, err
	}
	f.mu.Lock()
	f.pins++
	f.mu.Unlock()
	return schema.NewBlob(b.Bytes(), &pin{f, b}), nil
}

type pin struct {
	fixture *fixture
	blob    schema.Blob
}

// Unpin implements schema.Owner.
func (p *pin) Unpin() {
	p.blob.Release()
	p.fixture.mu.Lock()
	p.fixture.pins--
	p.fixture.mu.Unlock()
}

func (f *fixture) pinned() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pins
}

// put commits n rows: label is the position modulo 10, name "s<position>"; the
// first nine tenths are split train, the rest val.
func (f *fixture) put(t *testing.T, dataset string, n int) {
	t.Helper()
	ctx := t.Context()
	sch, err := schema.NewSchema([]arrow.Field{
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
	}, []arrow.Field{schema.BlobField("image", "image", true)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(ctx, f.store, ingest.Options{Dataset: dataset, Source: "test", Schema: sch,
		Mode: ingest.Replace})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, part := range []struct {
		split      string
		start, end int
	}{{"train", 0, n * 9 / 10}, {"val", n * 9 / 10, n}} {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
		var ids []schema.ID
		var images [][]byte
		for i := part.start; i < part.end; i++ {
			ids = append(ids, schema.SampleID(dataset, fmt.Sprint(i)))
			b.Field(0).(*array.Int64Builder).Append(int64(i % 10))
			b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("s%d", i))
			images = append(images, []byte(fmt.Sprint(dataset, i)))
		}
		rec := b.NewRecord()
		err := w.Write(ctx, part.split, ids, rec, [][][]byte{images})
		rec.Release()
		b.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.Commit(ctx); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) open(t *testing.T, req schema.Request) *resolve.Job {
	t.Helper()
	j, err := f.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

// busy occupies the one turn there is, until the returned function is called.
func (f *fixture) busy(t *testing.T) (end func()) {
	t.Helper()
	begun, over, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.work.Do(context.Background(), "another", func() error { close(begun); <-over; return nil })
	}()
	<-begun
	return sync.OnceFunc(func() { close(over); <-ended })
}

var errGone = errors.New("the client went away")

// refAt is the reference of the one image at a position.
func refAt(t *testing.T, j *resolve.Job, pos int64) schema.BlobRef {
	t.Helper()
	rows, err := j.Manifest().At(t.Context(), []int64{pos})
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := rows[0].Blob(0)
	return ref
}

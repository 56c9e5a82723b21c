package prefetch

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/manifest"
	"bowstring/fetch/operators"
	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// blobBytes is how large the one blob of each row of a fixture is.
const blobBytes = 8 << 10

// fixture is a Set over a dataset of its own.
type fixture struct {
	*Set
	job   *resolve.Job
	asks  func()                      // called before a tier is asked whether it has a blob; set before streams are opened
	tries func()                      // called before a read of the store is begun, likewise
	gate  func(context.Context) error // called before each read, likewise
}

// watched is a tier without blobs. It calls asks when a blob is requested.
type watched struct{ f *fixture }

func (watched) Name() string        { return "watched" }
func (watched) Traits() read.Traits { return read.Traits{Parallel: 1} }

func (w watched) Has(schema.BlobRef) bool {
	if w.f.asks != nil {
		w.f.asks()
	}
	return false
}

func (watched) Fetch(cells []read.Cell, to read.Answers) {
	for i := range cells {
		to.Answer(i, read.Answer{Err: schema.ErrNotFound})
	}
}

// sharers is asked before a read of the store is begun.
func (f *fixture) sharers() int {
	if f.tries != nil {
		f.tries()
	}
	return 1
}

// gated is a store whose reads begin when they may.
type gated struct {
	store.Store
	f *fixture
}

func (g gated) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if g.f.gate != nil {
		if err := g.f.gate(ctx); err != nil {
			return schema.Blob{}, err
		}
	}
	return g.Store.Get(ctx, ref)
}

// newFixture makes a dataset of n rows, and a set of streams with that much memory.
func newFixture(t *testing.T, rows int, bytes int64) *fixture {
	t.Helper()
	s, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{}
	put(t, s, rows)
	limits := admission.Limits{Windows: bytes}
	limits.EnsureDefaults()
	ledger, quiet := admission.NewLedger(limits), slog.New(slog.DiscardHandler)
	reader, err := read.New([]read.Tier{watched{f}, read.Store(gated{s, f})}, read.Options{NoHedge: true,
		Logger: quiet, Sharers: f.sharers})
	if err != nil {
		t.Fatal(err)
	}
	stage, err := operators.NewStage(operators.Options{Ledger: ledger, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context, ref schema.BlobRef, _ manifest.Place) (schema.Blob, error) {
		return s.Get(ctx, ref)
	}
	all := resolve.New(s, get, ledger, admission.NewWork(1), resolve.Options{Logger: quiet})
	if f.Set, err = NewSet(Options{WindowBytes: bytes, Ledger: ledger, Reader: reader, Stage: stage}); err != nil {
		t.Fatal(err)
	}
	if f.job, err = all.Open(t.Context(), schema.Request{Dataset: "d", Batch: 8}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.job.Close()
		f.Close()
		reader.Close()
		f.Wait()
		stage.Close()
		all.Close()
		for _, a := range ledger.Accounts() {
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

// put commits rows with a blob each.
func put(t *testing.T, s store.Store, rows int) {
	t.Helper()
	sch, err := schema.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}},
		[]arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
	defer b.Release()
	ids, images := make([]schema.ID, rows), make([][]byte, rows)
	for i := range rows {
		ids[i], images[i] = schema.SampleID("d", fmt.Sprint(i)), make([]byte, blobBytes)
		copy(images[i], fmt.Sprint(i))
		b.Field(0).(*array.Int64Builder).Append(int64(i))
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(t.Context(), "", ids, rec, [][][]byte{images}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// open begins a stream of the whole dataset.
func (f *fixture) open(t *testing.T) *Stream {
	t.Helper()
	st, err := f.Open(t.Context(), f.job, schema.Ticket{Request: f.job.Request(), Epochs: 1}, Serving{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

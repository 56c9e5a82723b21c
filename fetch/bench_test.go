package fetch_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// instant is a store that answers from memory at once and allocates nothing:
// what is measured over it is the engine alone.
type instant struct {
	store.Store
	blobs map[schema.Key][]byte
}

func (s *instant) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if b, ok := s.blobs[ref.Key]; ok {
		return schema.NewBlob(b, nil), nil
	}
	b, err := s.Store.Get(ctx, ref)
	if err != nil {
		return b, err
	}
	defer b.Release()
	return schema.NewBlob(append([]byte(nil), b.Bytes()...), nil), nil
}

// newInstant returns a store with a dataset of blobs of one size.
func newInstant(tb testing.TB, rows, size int) *instant {
	tb.Helper()
	s := &instant{newStore(tb).Store, map[schema.Key][]byte{}}
	s.fill(tb, "d", rows, size)
	return s
}

// fill adds a dataset of blobs of one size.
func (s *instant) fill(tb testing.TB, dataset string, rows, size int) {
	tb.Helper()
	store := s.Store
	sch, err := schema.NewSchema([]arrow.Field{{Name: "label", Type: arrow.PrimitiveTypes.Int64}},
		[]arrow.Field{schema.BlobField("image", "image", false)})
	if err != nil {
		tb.Fatal(err)
	}
	w, err := ingest.New(tb.Context(), store, ingest.Options{Dataset: dataset, Source: "test", Schema: sch,
		Mode: ingest.Replace})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Close()
	for start := 0; start < rows; start += 100 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
		var ids []schema.ID
		var images [][]byte
		for i := start; i < min(start+100, rows); i++ {
			ids = append(ids, sampleID(dataset, i))
			b.Field(0).(*array.Int64Builder).Append(int64(i))
			image := fmt.Appendf(make([]byte, 0, size), "%s %d", dataset, i)[:size]
			s.blobs[schema.RefOf(image).Key] = image
			images = append(images, image)
		}
		rec := b.NewRecord()
		err := w.Write(tb.Context(), "train", ids, rec, [][][]byte{images})
		rec.Release()
		b.Release()
		if err != nil {
			tb.Fatal(err)
		}
	}
	if _, _, err := w.Commit(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// locks counts the locks that were taken, where the benchmark is built to: see bench/locks.sh.
var locks func() int64

// BenchmarkEngine is the cost of a sample of 110 KB in the engine: planning,
// scheduling, the checksum and the assembly of batches. Its store is a driver that
// costs nothing. us/sample is CPU time.
func BenchmarkEngine(b *testing.B) {
	rows := 4000
	if testing.Short() {
		rows = 256
	}
	benchmarkEngine(b, rows, 110_000, 0)
}

// BenchmarkEngine4k is the same with samples of 4 KB, whose bytes cost almost nothing.
func BenchmarkEngine4k(b *testing.B) { benchmarkEngine(b, 40_000, 4_000, 0) }

// BenchmarkEngineMixture is the same with samples of 64 datasets, mixed.
func BenchmarkEngineMixture(b *testing.B) { benchmarkEngine(b, 40_000, 4_000, 64) }

// benchmarkEngine reads a dataset, or a mixture of that many sources.
func benchmarkEngine(b *testing.B, rows, size, sources int) {
	// The window holds half of the dataset: had it room for all, each epoch would share the blobs of the one before,
	// and now and then nothing would be read. All orders read the same memory, or it would be the pages that differ.
	var mixture *schema.Mixture
	store := &instant{newStore(b).Store, map[schema.Key][]byte{}}
	if sources == 0 {
		store.fill(b, "d", rows, size)
	} else {
		mixture = &schema.Mixture{}
	}
	for i := range sources {
		name := fmt.Sprintf("d-%d", i)
		store.fill(b, name, rows/sources, size)
		mixture.Sources = append(mixture.Sources, schema.MixtureSource{Dataset: name, Repeat: 1})
	}
	rows = max(sources, 1) * (rows / max(sources, 1))
	for _, order := range []string{schema.OrderStrict, schema.OrderWindow, schema.OrderFree} {
		b.Run(order, func(b *testing.B) {
			e := newEngine(b, store, fetch.Options{WindowBytes: int64(rows * size / 2)})
			req := schema.Request{Dataset: "d", Columns: []string{"id", "label", "image"}, Batch: 64, Order: order,
				Shuffle: &schema.Shuffle{}, Mixture: mixture}
			if mixture != nil {
				req.Dataset = ""
			}
			j := open(b, e, req)
			tk := ticket(req, 0)
			tk.Epochs = 1 << 20
			s := start(b, e, j, tk)
			defer s.Close()
			read := func(n int) {
				for n > 0 {
					batch, err := s.Next()
					if err != nil {
						b.Fatal(err)
					}
					n -= batch.Rows
					batch.Release()
				}
			}
			read(2 * rows)
			n := max(b.N, 5*rows)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			cpu := cpuTime(b)
			var taken int64
			if locks != nil {
				taken = locks()
			}
			b.ResetTimer()
			read(n)
			b.StopTimer()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/1e3/float64(n), "us/sample")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/sample")
			if locks != nil {
				b.ReportMetric(float64(locks()-taken)/float64(n), "locks/sample")
			}
		})
	}
}

func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTraced is what a server that traces adds to a stream that is not
// sampled, in allocations per sample: the quietest of many rounds with and without.
func BenchmarkTraced(b *testing.B) {
	const rows = 1000
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	unsampled, span := provider.Tracer("bench").Start(b.Context(), "DoGet")
	defer span.End()
	store := newInstant(b, rows, 1_000)
	e := newEngine(b, store, fetch.Options{})
	req := schema.Request{Dataset: "d", Columns: []string{"id", "label", "image"}, Batch: 50,
		Shuffle: &schema.Shuffle{}}
	j := open(b, e, req)
	var streams [2]*fetch.Stream
	for i, ctx := range []context.Context{b.Context(), unsampled} {
		tk := ticket(req, 0)
		tk.Epochs = 1 << 20
		var err error
		if streams[i], err = e.Stream(ctx, j, tk); err != nil {
			b.Fatal(err)
		}
		defer streams[i].Close()
	}
	least := [2]float64{math.MaxFloat64, math.MaxFloat64}
	for round := range 2 * max(b.N/rows, 20) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for n := 0; n < rows; {
			batch, err := streams[round%2].Next()
			if err != nil {
				b.Fatal(err)
			}
			n += batch.Rows
			batch.Release()
		}
		runtime.ReadMemStats(&after)
		least[round%2] = min(least[round%2], float64(after.Mallocs-before.Mallocs)/rows)
	}
	b.ReportMetric(least[0], "allocs/sample")
	b.ReportMetric(least[1]-least[0], "allocs/more")
}

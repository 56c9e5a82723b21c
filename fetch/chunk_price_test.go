package fetch_test

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
	"bowstring/spill"
)

// BenchmarkChunkPrice reads shuffled epochs of samples of 110 KB from a server of S3, with a spill for all of them, for a
// half and for a tenth. It reports how many requests the first epoch took and how many a later one in the mean, beside
// what docs/spans.md derives, what they cost in the first and in the later ones (micro-dollars, S3's list prices), and
// how many samples were served at another place than the plan's.
func BenchmarkChunkPrice(b *testing.B) {
	for name, part := range map[string]float64{"all": 1.5, "half": 0.5, "tenth": 0.1} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				chunkPrice(b, part)
			}
		})
	}
}

func chunkPrice(b *testing.B, part float64) {
	const n, each, size, epochs = 2400, 600, 110 << 10, 4
	server, err := objecttest.Start(objecttest.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	}()
	url := server.URL("samples")
	open := func(ctx context.Context, _ string) (object.Bucket, error) {
		return object.Open(ctx, url, object.Options{Keys: &object.Keys{ID: "id", Secret: "secret"}})
	}
	image := make([]byte, size)
	s := attachedAt(b, url, n, each, open, func(i int) []byte {
		binary.LittleEndian.PutUint64(image, uint64(i))
		return image
	}, func(key string, data []byte) schema.ObjectVersion { return server.PutObject("samples", key, data) })
	opts := fetch.Options{WindowBytes: 256 << 20, Logger: quiet, Future: &spill.Future{}}
	cache, err := spill.Open(spill.Options{Dir: filepath.Join(b.TempDir(), "spill"), KeepFree: 1, Oracle: opts.Future,
		Bytes: spill.MinBytes + int64(part*n*size), Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := cache.Close(); err != nil {
			b.Error(err)
		}
	}()
	opts.Spill = cache
	e := must(fetch.NewEngine(s, opts))
	defer func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	}()
	gets := func() int64 { return server.Counts().Requests[object.KindGet] }
	differs, held := 0, int64(0)
	var first, later int64
	for epoch := range uint64(epochs) {
		before := gets()
		req := schema.Request{Dataset: "d", Batch: 64, Shuffle: &schema.Shuffle{Seed: 7, Epoch: epoch}}
		j := must(e.Open(b.Context(), req))
		stream := must(e.Stream(b.Context(), j, ticket(j.Request(), 0)))
		at := int64(0)
		for batch := range batches(b, stream) {
			for _, pos := range batch.Positions {
				if j.Plan().Position(at) != pos {
					differs++
				}
				at++
			}
			held = max(held, cache.Stats().Entries)
		}
		stream.Close()
		differs += int(n - at)
		j.Close()
		if epoch == 0 {
			first = gets() - before
		} else {
			later += gets() - before
		}
	}
	k := float64(spanBytes) / size
	bound := n / (1 + (k-1)*min(float64(held)/n, 1))
	price, _ := object.ListPrices().Of("s3://samples")
	cost := func(gets int64) float64 {
		return float64(object.Cost(object.Counts{Gets: gets}, price, object.InRegion).Requests) / 1e3
	}
	b.ReportMetric(float64(first)/(n*size/(8<<20)), "first/8MiB")
	b.ReportMetric(float64(later)/(epochs-1), "later")
	b.ReportMetric(float64(later)/(epochs-1)/bound, "later/bound")
	b.ReportMetric(float64(held)/n, "held")
	b.ReportMetric(float64(differs), "order_differs")
	b.ReportMetric(cost(first), "first_µ$")
	b.ReportMetric(cost(later)/(epochs-1), "later_µ$")
}

// spanBytes is the mean length of the chunks that spans are of.
const spanBytes = 600 * (110<<10 + 64) / 5

package fetch_test

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/fetch/spans"
	"bowstring/internal/objecttest"
	"bowstring/schema"
	"bowstring/spill"
)

// BenchmarkChunkPrice reads shuffled epochs of samples from a server of S3, with a spill for all of them, for a half and
// for a tenth. It reports how many requests the first epoch took and how many a later one in the mean, by what
// docs/spans.md derives for what the spill held, what they cost in the first and in the later ones (micro-dollars, S3's
// list prices), and how many samples were served at another place than the plan's, or, of a free order, not once.
//
// With a spill for all, samples have 110 KB, and chunks 13 MB. With a spill for a part, both have an eighth of that. So
// there are enough chunks for the part to matter, and a window holds little of what the spill holds.
func BenchmarkChunkPrice(b *testing.B) {
	for _, c := range []chunkPrice{
		{"all", 1.5, 2400, 110 << 10, 256 << 20, ""}, {"half", 0.5, 19200, 110 << 7, 32 << 20, ""},
		{"tenth", 0.1, 19200, 110 << 7, 32 << 20, ""}, {"free", 0.1, 19200, 110 << 7, 32 << 20, schema.OrderFree},
	} {
		if testing.Short() {
			c.n, c.window = c.n/8, c.window/8
		}
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				c.run(b)
			}
		})
	}
}

type chunkPrice struct {
	name   string
	part   float64
	n      int
	size   int
	window int64
	order  string
}

func (c *chunkPrice) run(b *testing.B) {
	const objects, epochs = 4, 4
	n, size := c.n, c.size
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
	s := attachedAt(b, url, n, n/objects, open, func(i int) []byte {
		binary.LittleEndian.PutUint64(image, uint64(i))
		return image
	}, func(key string, data []byte) schema.ObjectVersion { return server.PutObject("samples", key, data) })
	opts := fetch.Options{WindowBytes: c.window, MaxPrefetch: 512, Logger: quiet, Future: &spill.Future{}}
	cache, err := spill.Open(spill.Options{Dir: filepath.Join(b.TempDir(), "spill"), KeepFree: 1, Oracle: opts.Future,
		Bytes: spill.MinBytes/2 + int64(c.part*float64(n*size)), Logger: quiet})
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
	differs, held, lookups := 0, 0.0, 0.0
	var first, later int64
	for epoch := range uint64(epochs) {
		before := gets()
		req := schema.Request{Dataset: "d", Batch: 64, Order: c.order, Shuffle: &schema.Shuffle{Seed: 7, Epoch: epoch}}
		j := must(e.Open(b.Context(), req))
		stream := must(e.Stream(b.Context(), j, ticket(j.Request(), 0)))
		at, served := int64(0), make([]bool, n)
		for batch := range batches(b, stream) {
			for _, pos := range batch.Positions {
				if c.order == "" && j.Plan().Position(at) != pos || served[pos] {
					differs++
				}
				served[pos] = true
				at++
			}
			held, lookups = held+float64(cache.Capacity())/float64(n*size), lookups+1
		}
		stream.Close()
		differs += n - int(at)
		j.Close()
		if epoch == 0 {
			first = gets() - before
		} else {
			later += gets() - before
		}
	}
	each := float64(n / objects * (size + 64))
	k := each / math.Ceil(each/float64(min(c.window/16, spans.MaxSpan))) / float64(size) // of the samples in a chunk
	held = min(held/lookups, 1)
	bound := func(first bool) float64 { return spans.Requests(float64(n), k, held, first) }
	price, _ := object.ListPrices().Find("s3://samples")
	cost := func(gets int64) float64 {
		return float64(object.Cost(object.Counts{Gets: gets}, price, object.InRegion).Requests) / 1e3
	}
	if c.part > 1 {
		b.ReportMetric(float64(first)/(float64(n*size)/(8<<20)), "first/8MiB")
	} else {
		b.ReportMetric(float64(first)/bound(true), "first/bound")
		b.ReportMetric(float64(later)/(epochs-1)/bound(false), "later/bound")
	}
	b.ReportMetric(float64(later)/(epochs-1), "later")
	b.ReportMetric(held, "held")
	b.ReportMetric(float64(e.Stats().Spans.Spans), "spans")
	b.ReportMetric(float64(e.Stats().Spans.Singles), "singles")
	b.ReportMetric(float64(differs), "order_differs")
	b.ReportMetric(cost(first), "first_µ$")
	b.ReportMetric(cost(later)/(epochs-1), "later_µ$")
}

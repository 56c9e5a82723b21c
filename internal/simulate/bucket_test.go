package simulate

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/object"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/internal/objecttest"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	spanSample = 28 << 10        // bytes of a sample
	spanObject = 73 * spanSample // of an object, which is one chunk: a span has 2 MiB at most
	spanWindow = 32 << 20
)

// objectFile is a file of nodes that read a dataset in objects; the spills have room for a part of it together.
func objectFile(nodes int, samples int, part float64, jobs, bucket string) string {
	return fmt.Sprintf(`{"nodes": {"count": %d, "window_bytes": %d}, "bucket": {"latency_ms": 20, "bytes_per_s": 1e9%s}, "spill": {"bytes": %d},
	"network": {"latency_ms": 0.2}, "node": {"us_per_sample": 10, "cores": 2},
	"datasets": [{"name": "d", "samples": %d, "bytes": %d, "object_bytes": %d}], "jobs": [%s]}`, nodes, spanWindow, bucket,
		spill.MinBytes+int64(part*float64(samples)*spanSample)/int64(nodes), samples, spanSample, spanObject, jobs)
}

// With room for all, each chunk is read once, and costs what a request does.
func TestChunksAreReadOnce(t *testing.T) {
	r := simulated(t, objectFile(1, 2920, 1.5, `{"dataset": "d", "batch": 64, "epochs": 3, "step_ms": 20}`, ""))
	first := r.Jobs[0].Epochs[0]
	if got := first.Traffic.Requests; got < 40 || got > 44 || first.Derived != 40 {
		t.Errorf("%d requests, derived %v; there are 40 chunks, and up to two cells are read by themselves", got,
			first.Derived)
	}
	for _, e := range r.Jobs[0].Epochs {
		if e.Samples != 2920 || e.Held != 1 {
			t.Errorf("epoch %d served %d of 2,920 samples, and %.2f of all are held", e.Epoch, e.Samples, e.Held)
		}
		if e.Epoch > 0 && (e.Traffic.Requests > 0 || e.Derived != 0 || e.Cost.Total != 0) {
			t.Errorf("epoch %d took %d requests, for $%s", e.Epoch, e.Traffic.Requests, e.Cost.Total)
		}
	}
	price, _ := object.ListPrices().Find("s3://bucket?region=us-east-1")
	want := object.Cost(object.Counts{Gets: r.Traffic.Requests, BytesIn: r.Traffic.RequestBytes}, price, object.InRegion)
	if r.Cost != want || r.Cost.Total == 0 {
		t.Errorf("it costs $%s, want $%s", r.Cost.Total, want.Total)
	}
}

// Bytes that leave a region are paid.
func TestBytesOverTheInternet(t *testing.T) {
	r := simulated(t, objectFile(1, 800, 1.5, `{"dataset": "d", "batch": 64}`,
		`, "url": "gs://b", "transfer": "internet"`))
	price, _ := object.ListPrices().Find("gs://b")
	if want := int64(price.Internet) * r.Traffic.RequestBytes >> 30; r.Traffic.RequestBytes < 800*spanSample ||
		int64(r.Cost.Transfer) < want || int64(r.Cost.Transfer) > want+1 {
		t.Errorf("%d bytes cost $%s, want %d·10^-9", r.Traffic.RequestBytes, r.Cost.Transfer, want)
	}
}

// With room for a half, what is read together keeps requests near the rule of docs/spans.md, far below one a sample.
// Two jobs of different seeds take less than two by themselves.
func TestHalfOfTheObjects(t *testing.T) {
	const samples = 2920
	job := `{"dataset": "d", "batch": 64, "epochs": 3, "step_ms": 20, "seed": %d}`
	one := simulated(t, objectFile(1, samples, 0.5, fmt.Sprintf(job, 1), ""))
	later, derived := laterRequests(one)
	t.Logf("one job: %.0f requests an epoch, derived %.0f", later, derived)
	if later < 0.5*derived || later > samples/4 { // one by one it would be a half
		t.Errorf("%.0f requests in a later epoch, derived %.0f, of %d samples", later, derived, samples)
	}
	two := simulated(t, objectFile(1, samples, 0.5, fmt.Sprintf(job, 1)+","+fmt.Sprintf(job, 2), ""))
	t.Logf("two jobs: %d requests; one: %d", two.Traffic.Requests, one.Traffic.Requests)
	if two.Traffic.Requests > 2*one.Traffic.Requests {
		t.Errorf("two jobs took %d requests, one by itself %d", two.Traffic.Requests, one.Traffic.Requests)
	}
}

// laterRequests are those of an epoch after the first one, in the mean, and how many are derived.
func laterRequests(r *Report) (requests, derived float64) {
	epochs := r.Jobs[0].Epochs[1:]
	for _, e := range epochs {
		requests += float64(e.Traffic.Requests) / float64(len(epochs))
		derived += e.Derived / float64(len(epochs))
	}
	return requests, derived
}

// A bucket that answers a number of requests a second gets about as many.
func TestBucketRefuses(t *testing.T) {
	text := `{"nodes": {"count": 1}, "bucket": {"latency_ms": 20, "requests_per_s": 300},
		"datasets": [{"name": "d", "samples": 6000, "bytes": 600000, "object_bytes": 1048576}],
		"jobs": [{"dataset": "d", "batch": 64}]}`
	r := simulated(t, text)
	refused := float64(r.Traffic.Refused) / float64(r.Traffic.Requests)
	if refused == 0 || refused > 0.05 || r.Seconds > 1.2*6000/300 {
		t.Errorf("%.4f of %d requests were refused; it took %v s, at 300 a second 20", refused, r.Traffic.Requests,
			r.Seconds)
	}
}

// A file without sense about buckets is refused by the field's name.
func TestParseBucket(t *testing.T) {
	good := objectFile(1, 800, 1, `{"dataset": "d", "batch": 64}`, "")
	if _, err := Parse([]byte(good), nil); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string][2]string{
		"bucket.url":               {`"latency_ms": 20`, `"url": "s3://b/prefix"`},
		"bucket.transfer":          {`"latency_ms": 20`, `"transfer": "by-post"`},
		"bucket.requests_per_s":    {`"latency_ms": 20`, `"requests_per_s": -1`},
		"datasets[0].object_bytes": {`"object_bytes": 2093056`, `"object_bytes": 5`},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if _, err := Parse([]byte(text), nil); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A server with room for all that reads the same dataset from a server of S3 makes as many requests, to within a tenth.
func TestSimulatedAsServed(t *testing.T) {
	if testing.Short() {
		t.Skip("it reads in real time")
	}
	const samples, epochs, pause = 2920, 2, 20 * time.Millisecond
	made := simulated(t, objectFile(1, samples, 1.5, fmt.Sprintf(`{"dataset": "d", "batch": 64, "epochs": %d,
		"step_ms": 20}`, epochs), ""))
	// Where other processes take the processors, more is under way at a time, and read twice: the quietest run counts.
	var served []int64
	for range 5 {
		served = servedRequests(t, samples, epochs, 1.5, pause)
		t.Logf("%d requests served, %d simulated", served, made.Jobs[0].Epochs[0].Traffic.Requests)
		if near(served, made.Jobs[0].Epochs) {
			return
		}
	}
	t.Errorf("%d requests served, %d simulated", served, made.Jobs[0].Epochs[0].Traffic.Requests)
}

// near reports whether as many requests were served as simulated, to within a tenth.
func near(served []int64, epochs []EpochReport) bool {
	for i, got := range served {
		want := float64(epochs[i].Traffic.Requests)
		if math.Abs(float64(got)-want) > max(0.1*want, 4) {
			return false
		}
	}
	return true
}

// servedRequests are those of each epoch of an engine that reads the dataset of objectFile.
func servedRequests(t *testing.T, samples, epochs int, part float64, pause time.Duration) (list []int64) {
	t.Helper()
	server, err := objecttest.Start(objecttest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	closing := func(what interface{ Close() error }) {
		t.Cleanup(func() {
			if err := what.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing(server)
	url := server.URL("samples")
	below, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := extent.New(below, extent.Options{Buckets: func(ctx context.Context, _ string) (object.Bucket, error) {
		return object.Open(ctx, url, object.Options{Keys: &object.Keys{ID: "id", Secret: "secret"}})
	}})
	closing(s)
	const each = spanObject / spanSample
	set := &schema.ObjectSet{Bucket: url}
	image, data := make([]byte, spanSample), make([]byte, 0, spanObject)
	for i := range samples {
		copy(image, fmt.Sprintf("%08d", i))
		data = append(data, image...)
		if (i+1)%each == 0 {
			key := fmt.Sprintf("shard-%05d", i/each)
			set.Objects = append(set.Objects, schema.Object{Key: key, Size: int64(len(data)),
				Version: server.PutObject("samples", key, append([]byte(nil), data...))})
			data = data[:0]
		}
	}
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", "image", true)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ids, refs := make([]schema.ID, samples), make([]*schema.BlobRef, samples)
	for i := range samples {
		copy(image, fmt.Sprintf("%08d", i))
		copy(ids[i][:], fmt.Sprintf("%08d", i))
		sum := schema.Checksum(image)
		at := schema.ObjectAddress{Prefix: set.Prefix(), Object: uint32(i / each), Offset: int64(i%each) * spanSample}
		refs[i] = &schema.BlobRef{Key: at.Key(sum), Size: spanSample, Sum: sum}
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
	opts := fetch.Options{WindowBytes: spanWindow}
	if part > 0 {
		opts.Future = &spill.Future{}
		if opts.Spill, err = spill.Open(spill.Options{Dir: filepath.Join(t.TempDir(), "spill"), KeepFree: 1,
			Oracle: opts.Future, Bytes: spill.MinBytes + int64(part*float64(samples)*spanSample)}); err != nil {
			t.Fatal(err)
		}
		closing(opts.Spill)
	}
	engine, err := fetch.NewEngine(s, opts)
	if err != nil {
		t.Fatal(err)
	}
	closing(engine)
	for epoch := range epochs {
		before := server.Counts().Requests[object.KindGet]
		job, err := engine.Open(t.Context(), schema.Request{Dataset: "d", Batch: 64,
			Shuffle: &schema.Shuffle{Epoch: uint64(epoch)}})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := engine.Stream(t.Context(), job, schema.Ticket{Request: job.Request()})
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		for rows < samples {
			b, err := stream.Next()
			if err != nil {
				t.Fatal(err)
			}
			rows += b.Rows
			b.Release()
			time.Sleep(pause)
		}
		stream.Close()
		job.Close()
		list = append(list, server.Counts().Requests[object.KindGet]-before)
	}
	return list
}

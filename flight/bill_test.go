package flight

import (
	"context"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/fetch/predict"
	"bowstring/fetch/store"
	"bowstring/flight/usage"
	"bowstring/schema"
)

func plansOf(b *Bill) map[string]BilledPlan {
	by := map[string]BilledPlan{}
	for _, p := range b.Plans {
		by[p.Plan] = p
	}
	return by
}

// TestBillOfImageNet is the arithmetic of one dataset.
func TestBillOfImageNet(t *testing.T) {
	const rows, size = 1_281_167, 110_000
	found := fetch.Extents{Looked: 100}
	for range 100 {
		found.Extents = append(found.Extents, fetch.Extent{Bucket: "s3://b?region=us-east-1", ObjectSize: 64 << 20,
			Length: size})
	}
	c := &predict.Job{Rows: rows, RowReads: 1, RowBytes: size, Epochs: 90, Nodes: 8, CacheBytes: 1 << 30}
	p := &predict.Prediction{Later: predict.Epoch{HitShare: 0.5}}
	b := billOf(found, c, p, object.ListPrices(), object.InRegion, map[string]float64{"s3://b?region=us-east-1": 1000})
	plans := plansOf(b)
	if got := plans[PlanSingles]; got.Requests != 90*rows || got.Bytes != 90*rows*size ||
		got.Cost.Total.String() != "46.122012" || math.Abs(got.Hours-90*rows/3.6e6) > 0.01 {
		t.Errorf("each sample by itself: %+v", got)
	}
	if got := plans[PlanHeld]; math.Abs(float64(got.Requests)-rows*size/(8<<20)) > 2 || got.Bytes < rows*size {
		t.Errorf("held by the spill: %+v", got)
	}
	k := float64(8<<20) / size
	if got, want := plans[PlanRun].Requests, 91*rows/k; math.Abs(float64(got)-want) > 2 {
		t.Errorf("with half of it held %d requests, want %.0f", got, want)
	}
	if got := plans[PlanApart].Requests; got < 8*plans[PlanRun].Requests {
		t.Errorf("nodes that are no cluster make %d requests", got)
	}
	if one := b.Buckets[0]; !one.Learned || one.PerSecond != 1000 || one.Priced != "s3 us-east-1" || b.Share != 1 {
		t.Errorf("%+v, %+v", b, one)
	}
}

// TestBills: whatever a job and its data are, more cache costs no more requests, and figures add up.
func TestBills(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	urls := []string{"s3://a?region=us-east-1", "gs://b", "file:///c", "s3://d?endpoint=http://minio:9000"}
	for range 2000 {
		found := fetch.Extents{}
		for range 1 + rng.IntN(20) {
			size := rng.Int64N(1 << (1 + rng.IntN(28)))
			found.Extents = append(found.Extents, fetch.Extent{Bucket: urls[rng.IntN(len(urls))], Length: size,
				ObjectSize: size + rng.Int64N(1<<30)*rng.Int64N(2)})
		}
		found.Looked = len(found.Extents) + rng.IntN(10)
		c := &predict.Job{Rows: 1 + rng.Int64N(1e9), RowReads: float64(1 + rng.IntN(3)), Epochs: 1 + rng.Int64N(100),
			Nodes: 1 + rng.Int64N(10), CacheBytes: rng.Int64N(2)}
		p := &predict.Prediction{First: predict.Epoch{HitShare: rng.Float64()}, Later: predict.Epoch{HitShare: rng.Float64()}}
		b := billOf(found, c, p, object.ListPrices(), object.Internet, nil)
		plans := plansOf(b)
		slack := int64(len(urls) + 1)
		held, run, singles := plans[PlanHeld], plans[PlanRun], plans[PlanSingles]
		if held.Requests > run.Requests+slack || run.Requests > singles.Requests+slack {
			t.Fatalf("%+v of %+v: %d requests with all held, %d as it is, %d without", c, found, held.Requests,
				run.Requests, singles.Requests)
		}
		if packed := plans[PlanPacked]; packed.Requests > held.Requests+slack {
			t.Fatalf("%+v: %d requests packed, %d by extents", found, packed.Requests, held.Requests)
		}
		if more, ok := plans[PlanCluster]; ok && float64(more.Cost.Total) > 1.000001*float64(run.Cost.Total)+1000 {
			t.Fatalf("%+v: it costs %s with more nodes, %s as it is", found, more.Cost.Total, run.Cost.Total)
		}
		share := 0.0
		for _, one := range b.Buckets {
			share += one.Share
		}
		if math.Abs(share-1) > 1e-9 {
			t.Fatalf("the shares of the buckets come to %g", share)
		}
		for _, plan := range b.Plans {
			if plan.Cost.Total != plan.Cost.Requests+plan.Cost.Transfer || plan.Cost.Total < 0 || plan.Hours < 0 {
				t.Fatalf("%+v", plan)
			}
		}
		if b.Elsewhere[object.InRegion] != 0 || b.Elsewhere[object.CrossRegion] > run.Cost.Transfer {
			t.Fatalf("elsewhere %v, here %v", b.Elsewhere, run.Cost.Transfer)
		}
	}
}

// emptyBucket has empty objects.
type emptyBucket struct{ object.Bucket }

func (emptyBucket) URL() string { return "s3://b?region=us-east-1" }

func (emptyBucket) Stat(context.Context, string) (object.Info, error) { return object.Info{}, nil }

func (emptyBucket) Range(context.Context, string, schema.ObjectVersion, int64, []byte) error {
	return io.ErrUnexpectedEOF
}

// TestRequestsInTheBook: the requests of tenants to buckets are in the book once.
func TestRequestsInTheBook(t *testing.T) {
	book, err := usage.Open(usage.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = book.Close() }()
	requests := object.NewRequests(object.RequestsOptions{
		Tenant: func(ctx context.Context) string { return store.CallerFrom(ctx).Tenant }})
	s := &Server{opts: Options{Requests: requests, Usage: book}}
	b := requests.Wrap(emptyBucket{})
	for round := range 3 {
		for tenant, n := range map[string]int{"a": 10, "b": 25} {
			ctx := store.WithCaller(t.Context(), store.Caller{Tenant: tenant})
			for range n {
				_, _ = b.Stat(ctx, "x")
			}
			_ = b.Range(ctx, "x", schema.ObjectVersion{}, 0, make([]byte, 5))
		}
		s.countRequests()
		s.countRequests()
		got := map[string]usage.Amount{}
		err := book.Each(t.Context(), usage.Filter{Dataset: usage.Buckets}, func(do func() error) error { return do() },
			func(e *usage.Entry) error {
				got[e.Tenant] = e.Amount
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		for tenant, n := range map[string]int64{"a": 11, "b": 26} {
			n *= int64(round + 1)
			if want := (usage.Amount{Requests: n, Cost: object.Money(400 * n)}); got[tenant] != want {
				t.Errorf("round %d: tenant %s has used %+v, want %+v", round, tenant, got[tenant], want)
			}
		}
	}
}

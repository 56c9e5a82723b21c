package object_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// served is a server and a bucket of it that is counted and paced.
func served(t *testing.T, cfg objecttest.Config) (*objecttest.Server, *object.Requests, object.Bucket) {
	t.Helper()
	s, err := objecttest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.MakeBucket("bucket")
	requests := object.NewRequests(object.RequestsOptions{Tenant: tenantOf})
	b, err := object.Open(t.Context(), s.URL("bucket"), object.Options{Requests: requests,
		Keys: &object.Keys{ID: "id", Secret: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, requests, b
}

// TestRequestsPassTheSuite: a bucket that is counted and paced is a bucket.
func TestRequestsPassTheSuite(t *testing.T) {
	objecttest.Run(t, func(t *testing.T) object.Bucket {
		s, err := objecttest.Start(objecttest.Config{PageSize: 50})
		if err != nil {
			t.Fatal(err)
		}
		s.MakeBucket("bucket")
		t.Cleanup(func() { _ = s.Close() })
		b, err := object.Open(t.Context(), s.URL("bucket"), object.Options{
			Requests: object.NewRequests(object.RequestsOptions{}), Keys: &object.Keys{ID: "id", Secret: "secret"}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}, objecttest.Traits{})
}

// TestRequestsAreThoseOfTheServer: what is counted is what a server has seen.
func TestRequestsAreThoseOfTheServer(t *testing.T) {
	s, requests, b := served(t, objecttest.Config{PageSize: 7})
	ctx := context.WithValue(t.Context(), tenantKey{}, "a")
	body := make([]byte, 1000)
	for i := range 30 {
		if _, _, err := b.Put(ctx, fmt.Sprintf("k/%02d", i), body, object.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range b.List(ctx, object.ListOptions{Prefix: "k/"}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	for i := range 20 {
		if err := b.Range(ctx, "k/03", schema.ObjectVersion{}, int64(i), body[:100]); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := b.Get(ctx, "k/04", schema.ObjectVersion{}, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Stat(ctx, "k/none"); !errors.Is(err, schema.ErrNotFound) {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, "k/04"); err != nil {
		t.Fatal(err)
	}
	u, seen := requests.Usage()[0], s.Counts()
	for kind, want := range map[object.Kind]objecttest.Kind{object.KindGet: objecttest.Get, object.KindHead: objecttest.Head,
		object.KindList: objecttest.List, object.KindPut: objecttest.Put, object.KindDelete: objecttest.Delete} {
		if u.Number(kind) != seen.Requests[want] {
			t.Errorf("%s: %d counted, the server has seen %d", kind, u.Number(kind), seen.Requests[want])
		}
	}
	if n != 30 || u.Lists != 5 || u.BytesIn != 20*100+1000 || u.BytesOut != 30*1000 || u.Errors != 0 {
		t.Errorf("%d objects listed, %+v", n, u.Counts)
	}
	if u.FirstByte.Count != uint64(u.Requests()) || u.FirstP99 <= 0 {
		t.Errorf("%d requests, %d times until the first byte, 99 %% within %d µs", u.Requests(), u.FirstByte.Count, u.FirstP99)
	}
	if len(u.Tenants) != 1 || u.Tenants[0].Tenant != "a" || u.Tenants[0].Counts != u.Counts {
		t.Errorf("by tenant: %+v", u.Tenants)
	}
}

// TestBudgetOfAServer: of a server that allows a rate, and only of its reads below a prefix, little is refused.
func TestBudgetOfAServer(t *testing.T) {
	s, requests, b := served(t, objecttest.Config{})
	s.PutObject("bucket", "slow/a", make([]byte, 100))
	slow := objecttest.SlowDown()
	slow.Prefix, slow.Rate = "slow/", 200
	s.Fail(slow)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	began := time.Now()
	for range 16 {
		wg.Go(func() {
			buf := make([]byte, 100)
			// A busy machine may take some time until it exceeds the rate at all.
			for ctx.Err() == nil && (time.Since(began) < 5*time.Second || requests.Usage()[0].Throttled == 0) {
				err := b.Range(ctx, "slow/a", schema.ObjectVersion{}, 0, buf)
				if err != nil && ctx.Err() == nil && !errors.Is(err, schema.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	u := requests.Usage()[0]
	refused := s.Counts().Failed
	t.Logf("%+v, %+v", u.Counts, u.Limits)
	if u.Throttled == 0 || u.Throttled > refused {
		t.Errorf("%d refusals counted, the server has made %d", u.Throttled, refused)
	}
	if u.Throttled*5 > u.Gets {
		t.Errorf("%d of %d requests were refused", u.Throttled, u.Gets)
	}
	for _, l := range u.Limits {
		if l.Class == "reads" && (l.PerSecond == 0 || l.Waits == 0) {
			t.Errorf("nothing was learned: %+v", l)
		}
	}
}

// TestBudgetOfAServerThatRefusesAShare: a server refuses 1 % of the requests at any rate, and the others are answered in
// time. A limit that fell at each refusal would be about 20 requests a second after 3,000, and the context would end.
func TestBudgetOfAServerThatRefusesAShare(t *testing.T) {
	s, requests, b := served(t, objecttest.Config{})
	s.PutObject("bucket", "a", make([]byte, 100))
	slow := objecttest.SlowDown()
	slow.Share = 0.01
	s.Fail(slow)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(10_000)
	for range 16 {
		wg.Go(func() {
			buf := make([]byte, 100)
			for left.Add(-1) >= 0 {
				err := b.Range(ctx, "a", schema.ObjectVersion{}, 0, buf)
				if _, throttled := errors.AsType[*object.ThrottledError](err); err != nil && !throttled {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	u := requests.Usage()[0]
	t.Logf("%+v, %+v", u.Counts, u.Limits)
	if u.Throttled == 0 || u.Throttled != s.Counts().Failed {
		t.Errorf("%d refusals counted, the server has made %d", u.Throttled, s.Counts().Failed)
	}
}

package object_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// failing is a bucket whose reads fail as the key says.
type failing struct{ refusing }

func (*failing) Range(ctx context.Context, key string, _ schema.ObjectVersion, _ int64, _ []byte) error {
	switch key {
	case "missing":
		return fmt.Errorf("%w: no object %s", schema.ErrNotFound, key)
	case "busy":
		return &object.ThrottledError{Bucket: "s3://test", Key: key, Status: 503}
	case "broken":
		return fmt.Errorf("%w: broken", schema.ErrUnavailable)
	case "ended":
		return context.Cause(ctx)
	}
	return nil
}

func (*failing) Put(context.Context, string, []byte, object.Condition) (object.Info, object.Outcome, error) {
	return object.Info{}, object.Moved, errors.New("moved")
}

// TestMeter counts by bucket, tenant and kind; what answered as it should is no error.
func TestMeter(t *testing.T) {
	m := object.NewMeter(tenantOf)
	b := object.Metered(&failing{}, m)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx := context.WithValue(t.Context(), tenantKey{}, fmt.Sprint("tenant", i%2))
			buf := make([]byte, 100)
			for range 1000 {
				for _, key := range []string{"there", "missing", "busy", "broken"} {
					_ = b.Range(ctx, key, schema.ObjectVersion{}, 0, buf)
				}
				_ = b.Range(context.WithValue(ended, tenantKey{}, tenantOf(ctx)), "ended", schema.ObjectVersion{}, 0, buf)
				_, _, _ = b.Put(ctx, "x", buf[:7], object.Condition{Absent: true})
			}
		})
	}
	wg.Wait()
	want := object.Counts{Gets: 20_000, Puts: 4000, BytesIn: 400_000, BytesOut: 28_000, Errors: 8000, Throttled: 4000}
	got := m.Counts()
	if len(got) != 2 {
		t.Fatalf("%d accounts, want 2: %+v", len(got), got)
	}
	for i, c := range got {
		if c.Tenant != fmt.Sprint("tenant", i) || c.Bucket != "s3://test" || c.Counts != want {
			t.Errorf("%+v, want %+v", c, want)
		}
	}
}

// TestMeterOfManyTenants: a bounded number has counts by name, and the counts of all others are in one.
func TestMeterOfManyTenants(t *testing.T) {
	m := object.NewMeter(tenantOf)
	b := object.Metered(&failing{}, m)
	const n = 3 * object.MaxTenants
	for i := range n {
		_ = b.Range(context.WithValue(t.Context(), tenantKey{}, fmt.Sprint(i)), "there", schema.ObjectVersion{}, 0, nil)
	}
	var all int64
	got := m.Counts()
	for _, c := range got {
		all += c.Gets
		if c.Tenant == object.OtherTenants && c.Gets != n-object.MaxTenants {
			t.Errorf("%d requests of others, want %d", c.Gets, n-object.MaxTenants)
		}
	}
	if all != n || len(got) != object.MaxTenants+1 {
		t.Errorf("%d requests of %d accounts, want %d of %d", all, len(got), n, object.MaxTenants+1)
	}
}

// TestFirstBytes: quantiles are within a bucket of what they are.
func TestFirstBytes(t *testing.T) {
	var f object.FirstBytes
	for i := range f.Counts {
		f.Counts[i] = 0
	}
	if f.Quantile(0.5) != 0 {
		t.Error("there is a quantile of nothing")
	}
	f.Counts[(-5-(object.FirstBytesLeast>>2))<<2] = 90 // up to 2^-5 s
	f.Counts[object.FirstBytesLength-1] = 10
	f.Count = 100
	if got := f.Quantile(0.5); got != time.Second/32 {
		t.Errorf("half took up to %v, want %v", got, time.Second/32)
	}
	if got := f.Quantile(0.99); got != 64*time.Second {
		t.Errorf("99 of 100 took up to %v, want %v", got, 64*time.Second)
	}
}

package admission

import (
	"context"
	"sync"
	"time"
)

// Paces bounds how many bytes per second tenants are served, with one token bucket per tenant that has such a
// ceiling. A bucket holds one second's worth. It is safe for concurrent use, and has no goroutine.
//
// The size of a batch is only known when it is sent, and may exceed the bucket: a batch is sent whole and leaves the
// bucket in debt, and the next batch waits until the debt is paid. golang.org/x/time/rate cannot be used, because it
// refuses what is larger than its bucket, and waiting callers do not see a new rate.
type Paces struct {
	now func() time.Time

	mu      sync.Mutex
	terms   func(tenant string) Terms // nil: no ceilings
	buckets map[string]*bucket
	changed chan struct{} // closed and replaced when terms change
}

// bucket is guarded by Paces.mu.
type bucket struct {
	tokens float64 // bytes that may be served; negative: debt
	at     time.Time
}

// mostBuckets is how many buckets there may be before the full ones, which carry no information, are dropped.
const mostBuckets = 64

// NewPaces returns Paces without ceilings.
func NewPaces() *Paces {
	return &Paces{now: time.Now, buckets: map[string]*bucket{}, changed: make(chan struct{})}
}

// SetTerms sets the ceilings of tenants, including those that wait.
func (p *Paces) SetTerms(terms func(tenant string) Terms) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.terms = terms
	close(p.changed)
	p.changed = make(chan struct{})
}

// Wait waits until a tenant may be served, and returns how long that took, or ctx's cause if ctx ends first.
func (p *Paces) Wait(ctx context.Context, tenant string) (waited time.Duration, err error) {
	for {
		wait, changed := p.debt(tenant)
		if wait <= 0 {
			return waited, nil
		}
		start := p.now()
		timer := time.NewTimer(min(wait, time.Minute))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		timer.Stop()
		if waited += p.now().Sub(start); err != nil {
			return waited, err
		}
	}
}

// Unlimited reports whether a tenant has no ceiling now.
func (p *Paces) Unlimited(tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, _ := p.bucketLocked(tenant)
	return b == nil
}

// Served takes n bytes from a tenant's bucket.
func (p *Paces) Served(tenant string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, _ := p.bucketLocked(tenant); b != nil {
		b.tokens -= float64(n)
	}
}

// debt is how long it takes until the bucket's debt is paid.
func (p *Paces) debt(tenant string) (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, rate := p.bucketLocked(tenant)
	if b == nil || b.tokens >= 0 {
		return 0, nil
	}
	seconds := min(-b.tokens/rate, 1e9) // so that it fits a Duration
	return max(time.Duration(seconds*1e9), time.Millisecond), p.changed
}

// bucketLocked returns a tenant's bucket, refilled, and its rate; nil if the tenant has no ceiling.
func (p *Paces) bucketLocked(tenant string) (*bucket, float64) {
	if p.terms == nil {
		return nil, 0
	}
	rate := float64(p.terms(tenant).BytesPerSecond)
	if rate <= 0 {
		delete(p.buckets, tenant)
		return nil, 0
	}
	now, b := p.now(), p.buckets[tenant]
	if b == nil {
		if len(p.buckets) >= mostBuckets {
			p.forgetLocked(now)
		}
		b = &bucket{tokens: rate, at: now}
		p.buckets[tenant] = b
	}
	// now has the monotonic clock, so steps of the wall clock do not matter.
	b.tokens = min(b.tokens+max(now.Sub(b.at).Seconds(), 0)*rate, rate)
	b.at = now
	return b, rate
}

// forgetLocked drops the buckets that would be full by now.
func (p *Paces) forgetLocked(now time.Time) {
	for tenant, b := range p.buckets {
		rate := float64(p.terms(tenant).BytesPerSecond)
		if b.tokens+now.Sub(b.at).Seconds()*rate >= rate {
			delete(p.buckets, tenant)
		}
	}
}

package admission

import (
	"context"
	"sync"
	"time"
)

// Paces bounds how many bytes a second tenants are served: a token bucket for each
// that has such a ceiling, which holds what a second brings. It is safe for
// concurrent use, and has no goroutine.
//
// What is served is known when it is sent, and may be more than the bucket holds:
// a batch is sent whole and leaves the bucket in debt, which the next one waits out.
// golang.org/x/time/rate refuses what is larger than its bucket, and those that
// wait there do not see a new rate, so it does not do here.
type Paces struct {
	now func() time.Time

	mu      sync.Mutex
	terms   func(tenant string) Terms // nil: no ceilings
	buckets map[string]*bucket
	changed chan struct{} // closed and replaced when terms are
}

// bucket is guarded by Paces.mu.
type bucket struct {
	tokens float64 // bytes that may be served; negative: debt
	at     time.Time
}

// mostBuckets is how many buckets there are before those that are full, and so tell
// nothing, are forgotten.
const mostBuckets = 64

// NewPaces returns Paces without ceilings.
func NewPaces() *Paces {
	return &Paces{now: time.Now, buckets: map[string]*bucket{}, changed: make(chan struct{})}
}

// SetTerms has tenants be served as fast as terms says, those that wait included.
func (p *Paces) SetTerms(terms func(tenant string) Terms) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.terms = terms
	close(p.changed)
	p.changed = make(chan struct{})
}

// Wait returns when a tenant may be served, and how long that took; with ctx's
// cause if that ends first.
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

// Served takes n bytes out of a tenant's bucket.
func (p *Paces) Served(tenant string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, _ := p.bucketLocked(tenant); b != nil {
		b.tokens -= float64(n)
	}
}

// debt is how long it takes until the bucket is in debt no more.
func (p *Paces) debt(tenant string) (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, rate := p.bucketLocked(tenant)
	if b == nil || b.tokens >= 0 {
		return 0, nil
	}
	seconds := min(-b.tokens/rate, 1e9) // what is longer does not fit a Duration
	return max(time.Duration(seconds*1e9), time.Millisecond), p.changed
}

// bucketLocked returns a tenant's bucket as it is now, nil if it needs none, and
// how fast it fills.
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
	// The clock is the monotonic one, which no step of the wall's moves.
	b.tokens = min(b.tokens+max(now.Sub(b.at).Seconds(), 0)*rate, rate)
	b.at = now
	return b, rate
}

// forgetLocked forgets the buckets that would be full by now.
func (p *Paces) forgetLocked(now time.Time) {
	for tenant, b := range p.buckets {
		rate := float64(p.terms(tenant).BytesPerSecond)
		if b.tokens+now.Sub(b.at).Seconds()*rate >= rate {
			delete(p.buckets, tenant)
		}
	}
}

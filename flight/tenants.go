package flight

import (
	"context"
	"fmt"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// tenants are those of now, nil if there is no file of them.
func (s *Server) tenants() *policy.Tenants {
	if s.opts.Tenants == nil {
		return nil
	}
	return s.opts.Tenants.Load()
}

// termsOf is what a tenant gets now.
func (s *Server) termsOf(tenant string) fetch.Terms { return s.tenants().Terms(tenant) }

// EnforceTenants has all that runs get what its tenant gets now. It is called when the
// tenants have changed. Streams stay on the account under which they began: where that
// is gone, each such account gets what the default one does until its streams end.
func (s *Server) EnforceTenants() {
	terms := s.termsOf
	if s.tenants() == nil {
		terms = nil
	}
	s.paces.SetTerms(terms)
	s.source.SetTerms(terms)
}

const (
	// streamDelay is about when a stream that was refused may try again, lastStreamDelay
	// where many were refused lately.
	streamDelay     = time.Second
	lastStreamDelay = 30 * time.Second
)

// tenantStreams counts the streams of a tenant, and those refused since one could begin.
// It is guarded by registry.mu, and there as long as one runs.
type tenantStreams struct{ running, refused int }

// admitLocked counts a stream in, unless its tenant has as many as it may. The more were
// refused, the later they are to come back: as many as there is room for in a second
// come again in a second.
func (r *registry) admitLocked(tenant string, terms fetch.Terms) error {
	t := r.tenantStreams[tenant]
	if t == nil {
		t = &tenantStreams{}
		r.tenantStreams[tenant] = t
	}
	if terms.Streams > 0 && t.running >= terms.Streams {
		t.refused++
		r.tenants.of(tenant, time.Now()).Refused++
		after := min(streamDelay*time.Duration(1+min(t.refused/terms.Streams, 1000)), lastStreamDelay)
		return &schema.LimitError{
			Limit: admission.LimitStreams, After: schema.Jittered(after),
			Message: fmt.Sprintf("tenant %s may have %d streams at once, and as many run", schema.Quote(tenant),
				terms.Streams),
		}
	}
	t.running++
	t.refused = 0
	return nil
}

// dismissLocked counts a stream out.
func (r *registry) dismissLocked(tenant string) {
	t := r.tenantStreams[tenant]
	if t.running--; t.running == 0 {
		delete(r.tenantStreams, tenant)
	}
}

// pace waits until the caller's tenant may be sent more, and says how long that took. It
// is waited before a batch is put together, so that nothing is held meanwhile but what
// was read ahead.
func (s *Server) pace(ctx context.Context) (time.Duration, error) {
	return s.paces.Wait(ctx, fetch.CallerFrom(ctx).Tenant)
}

package flight

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bowstring/fetch"
	"bowstring/flight/policy"
	"bowstring/flight/usage"
	"bowstring/schema"
)

// CountUsage adds to the book what the running streams have used so far. Streams that end
// are added at their end. It is called before the book is written or read.
func (s *Server) CountUsage() {
	s.countRequests()
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	now := time.Now()
	for c := range s.calls.calls {
		if c.streamed {
			s.calls.billLocked(c, now)
		}
	}
}

// countRequests adds to the book the requests to buckets since the last call. Requests have
// no dataset, so they are booked under usage.Buckets.
func (s *Server) countRequests() {
	if s.opts.Requests == nil || s.opts.Usage == nil {
		return
	}
	s.requested.mu.Lock()
	defer s.requested.mu.Unlock()
	now := map[string]usage.Amount{}
	for _, u := range s.opts.Requests.Usage() {
		for _, t := range u.Tenants {
			sum := now[t.Tenant]
			sum.Add(usage.Amount{Requests: t.Requests(), Cost: t.Cost.Total})
			now[t.Tenant] = sum
		}
	}
	for tenant, sum := range now {
		was := s.requested.counted[tenant]
		s.opts.Usage.Add(tenant, usage.Buckets, usage.Amount{Requests: sum.Requests - was.Requests, Cost: sum.Cost - was.Cost})
	}
	s.requested.counted = now
}

// requested is the state of countRequests: the totals that the book already has.
type requested struct {
	mu      sync.Mutex
	counted map[string]usage.Amount // by tenant; guarded by mu
}

// usageRequest is the body of the action usage.
type usageRequest struct {
	Tenant  string `json:"tenant"`
	Dataset string `json:"dataset"`
	Since   string `json:"since"`
	Until   string `json:"until"`
}

// usage implements the action. A caller gets the usage of its own tenant, for the datasets
// that exist for it. A caller with the right admin on the server gets all of it.
func (s actionHandler) usage(ctx context.Context, b []byte, send func([]byte) error) error {
	var req usageRequest
	if err := body(b, &req); err != nil {
		return err
	}
	cat := s.catalog(ctx)
	if req.Dataset != "" && req.Dataset != usage.Other && req.Dataset != usage.Buckets {
		if err := cat.May(ctx, req.Dataset, policy.List); err != nil {
			return err
		}
	}
	if s.opts.Usage == nil {
		return fmt.Errorf("%w: this server keeps no record of what is used; it does with serve --usage DIR",
			schema.ErrNotFound)
	}
	tenant, all := fetch.CallerFrom(ctx).Tenant, cat.SeesAll()
	f := usage.Filter{Tenant: req.Tenant, Dataset: req.Dataset, Since: req.Since, Until: req.Until}
	if !all {
		if req.Tenant != "" && req.Tenant != tenant {
			return cat.MayAdmin("what other tenants have used")
		}
		f.Tenant = tenant
	}
	// The book can be large, and filtering needs it in memory.
	release, err := s.reserveAnswer(ctx, min(s.opts.Usage.Bytes(), s.answers.Most()))
	if err != nil {
		return fmt.Errorf("reading what was used: %w", err)
	}
	defer release()
	exists := func(string) (bool, error) { return true, nil }
	if !all {
		if exists, err = cat.Existing(ctx); err != nil {
			return err
		}
	}
	s.CountUsage()
	return s.opts.Usage.Each(ctx, f, func(do func() error) error { return s.turn(ctx, do) },
		func(e *usage.Entry) error {
			if e.Dataset != usage.Other && e.Dataset != usage.Buckets {
				if shown, err := exists(e.Dataset); err != nil || !shown {
					return err
				}
			}
			return sendJSON(send, e)
		})
}

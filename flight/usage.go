package flight

import (
	"context"
	"fmt"
	"time"

	"bowstring/fetch"
	"bowstring/flight/policy"
	"bowstring/flight/usage"
	"bowstring/schema"
)

// CountUsage counts what the streams that run have used so far; those that end are
// counted as they do. It is called before what was counted is written.
func (s *Server) CountUsage() {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	now := time.Now()
	for c := range s.calls.calls {
		if c.streamed {
			s.calls.billLocked(c, now)
		}
	}
}

// usageRequest is the body of the action usage.
type usageRequest struct {
	Tenant  string `json:"tenant"`
	Dataset string `json:"dataset"`
	Since   string `json:"since"`
	Until   string `json:"until"`
}

// usage is the action. A caller learns what its own tenant has used, of the datasets that
// exist for it; who has the right admin to the server, of all.
func (s actionHandler) usage(ctx context.Context, b []byte, send func([]byte) error) error {
	var req usageRequest
	if err := body(b, &req); err != nil {
		return err
	}
	cat := s.catalog(ctx)
	if req.Dataset != "" && req.Dataset != usage.Other {
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
			if e.Dataset != usage.Other {
				if shown, err := exists(e.Dataset); err != nil || !shown {
					return err
				}
			}
			return sendJSON(send, e)
		})
}

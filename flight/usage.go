package flight

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"bowstring/fetch"
	"bowstring/flight/rules"
	"bowstring/flight/usage"
	"bowstring/schema"
)

// billed is what of a call's work is in the book already. It is guarded by registry.mu.
type billed struct {
	amount usage.Amount
	until  time.Time
}

// amountLocked is what a call has used so far.
func (c *call) amountLocked(now time.Time) usage.Amount {
	a := usage.Amount{Seconds: c.billed.amount.Seconds, StoreBytes: c.stored.Load(),
		ProcessorSeconds: time.Duration(c.processor.Load()).Seconds()}
	if c.kind == "DoPut" {
		a.RowsIn, a.BytesIn = c.rows.Load(), c.bytes.Load()
	} else {
		a.Rows, a.Bytes = c.rows.Load(), c.bytes.Load()
	}
	if c.streamed {
		a.Streams = 1
		if c.streaming {
			// The monotonic clock, which no step of the wall's moves.
			a.Seconds += max(now.Sub(cmp.Or(c.billed.until, c.started)).Seconds(), 0)
		}
	}
	return a
}

// billLocked counts what a call has used since it was counted last. Only streams of a
// dataset that the caller was let do something with count.
func (r *registry) billLocked(c *call, now time.Time) {
	if r.book == nil || !c.streamed || c.access.dataset == "" || c.access.refused {
		return
	}
	is, was := c.amountLocked(now), c.billed.amount
	c.billed = billed{is, now}
	is.Add(usage.Amount{
		Streams: -was.Streams, Rows: -was.Rows, Bytes: -was.Bytes, StoreBytes: -was.StoreBytes,
		RowsIn: -was.RowsIn, BytesIn: -was.BytesIn, Seconds: -was.Seconds,
		ProcessorSeconds: -was.ProcessorSeconds,
	})
	r.book.Add(c.caller.Tenant, c.access.dataset, is)
}

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

// countStored adds to what was read from the store for a call. ctx is the call's.
func countStored(ctx context.Context, bytes int64) {
	if c := callFrom(ctx); c != nil {
		c.stored.Add(bytes)
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
func (s *Server) usage(ctx context.Context, b []byte, send func([]byte) error) error {
	var req usageRequest
	if err := body(b, &req); err != nil {
		return err
	}
	if req.Dataset != "" && req.Dataset != usage.Other {
		if _, err := s.may(ctx, req.Dataset, rules.List); err != nil {
			return err
		}
	}
	if s.opts.Usage == nil {
		return fmt.Errorf("%w: this server keeps no record of what is used; it does with serve --usage DIR",
			schema.ErrNotFound)
	}
	caller := fetch.CallerFrom(ctx)
	all := s.rules().Server(whoOf(caller)).May(rules.Admin)
	f := usage.Filter{Tenant: req.Tenant, Dataset: req.Dataset, Since: req.Since, Until: req.Until}
	if !all {
		if req.Tenant != "" && req.Tenant != caller.Tenant {
			return s.mayServer(ctx, rules.Admin, "what other tenants have used")
		}
		f.Tenant = caller.Tenant
	}
	s.CountUsage()
	list, err := s.opts.Usage.List(f)
	if err != nil {
		return err
	}
	exists := map[string]bool{usage.Other: true} // for the caller
	for _, e := range list {
		if !all {
			if _, known := exists[e.Dataset]; !known {
				_, err := s.exists(ctx, snapshotRef{Dataset: e.Dataset}, rules.List)
				exists[e.Dataset] = err == nil
			}
			if e.Tenant != caller.Tenant || !exists[e.Dataset] {
				continue
			}
		}
		if err := sendJSON(send, e); err != nil {
			return err
		}
	}
	return nil
}

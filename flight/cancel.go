package flight

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
	"bowstring/flight/audit"
	"bowstring/flight/catalog"
	"bowstring/schema"
)

// cancelGrace is how long a cancellation waits for the streams to be gone.
const cancelGrace = time.Second

// knows tells the calls that the caller whom a catalog is for may know of and end.
func knows(cat *catalog.Catalog) func(*call) bool {
	knows := cat.Knows()
	return func(c *call) bool { return knows(c.caller.Principal, c.access.Dataset) }
}

// cancelPlans ends the running streams of plans, and reports how many there
// were and whether all are gone. What is ended is recorded plan by plan, before and
// after; where nothing runs that the caller may end, nothing is.
func (s *Server) cancelPlans(ctx context.Context, plans map[string]bool) (count int, gone bool, err error) {
	cat := s.catalog(ctx)
	killed, mine := map[*call]bool{}, knows(cat)
	for plan := range plans {
		match := func(c *call) bool { return c.streaming && c.plan == plan && mine(c) }
		what, ok := s.calls.accessOfAny(match)
		if !ok {
			continue
		}
		err := cat.Change(ctx, catalog.Change{Event: audit.Cancel, Dataset: what.Dataset, Snapshot: what.Snapshot, Plan: plan},
			func(c *catalog.Change) error {
				for _, ended := range s.calls.kill(errCancelled, match) {
					killed[ended] = true
					c.Count++
				}
				return nil
			})
		if err != nil {
			return len(killed), false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	_, left := s.calls.wait(ctx, func(c *call) bool { return killed[c] })
	return len(killed), left == nil, nil
}

func (s *Server) cancel(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Plan string `json:"plan"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if req.Plan == "" {
		return &schema.FieldError{Field: "plan", Got: "nothing", Want: "the plan that app_metadata names"}
	}
	n, _, err := s.cancelPlans(ctx, map[string]bool{req.Plan: true})
	if err != nil {
		return err
	}
	return sendJSON(send, struct {
		Plan      string `json:"plan"`
		Cancelled int    `json:"cancelled"`
	}{req.Plan, n})
}

const (
	// maxCancelled is how many plans a CancelFlightInfo names at most: each costs a look at all calls. An answer of
	// GetFlightInfo has one.
	maxCancelled = 16
	// ticketsAtOnce is how many tickets are read before others have a turn.
	ticketsAtOnce = 256
)

// cancelFlightInfo is Flight's own: the plans are those of the info's tickets.
func (s *Server) cancelFlightInfo(ctx context.Context, b []byte, send func([]byte) error) error {
	var req flight.CancelFlightInfoRequest
	if err := s.unmarshal(ctx, b, &req); err != nil {
		return err
	}
	requests, err := s.requestsOf(ctx, req.GetInfo().GetEndpoint())
	if err != nil {
		return err
	}
	// A plan's id depends on no row: nothing is opened or evaluated, and the snapshot
	// may be gone.
	plans, cat := map[string]bool{}, s.catalog(ctx)
	for _, r := range requests {
		id, err := cat.PlanID(ctx, r.Request)
		if err != nil {
			return fmt.Errorf("endpoint %d: %w", r.endpoint, err)
		}
		plans[id] = true
	}
	result := flight.CancelFlightInfoResult{Status: flight.CancelStatusCancelled}
	_, gone, err := s.cancelPlans(ctx, plans)
	if err != nil {
		return err
	}
	if !gone {
		result.Status = flight.CancelStatusCancelling
	}
	return sendProto(send, &result)
}

// endpointRequest is a request, and the first endpoint whose ticket has it.
type endpointRequest struct {
	schema.Request
	endpoint int
}

// requestsOf returns the different requests of the tickets of endpoints: as a rule they all have the same.
func (s *Server) requestsOf(ctx context.Context, endpoints []*flight.FlightEndpoint) ([]endpointRequest, error) {
	switch n := len(endpoints); {
	case n == 0:
		return nil, &schema.FieldError{Field: "info.endpoint", Got: "none", Want: "the endpoints that GetFlightInfo gave"}
	case n > s.opts.MaxEndpoints:
		return nil, fmt.Errorf("%w: the info has %d endpoints, MaxEndpoints is %d; one endpoint of each plan is enough",
			schema.ErrLimit, n, s.opts.MaxEndpoints)
	}
	var list []endpointRequest
	known := map[string]bool{}
	for from := 0; from < len(endpoints); from += ticketsAtOnce {
		err := s.turn(ctx, func() error {
			for i, e := range endpoints[from:min(from+ticketsAtOnce, len(endpoints))] {
				t, err := schema.ParseTicket(e.GetTicket().GetTicket())
				if err != nil {
					return fmt.Errorf("endpoint %d: %w", from+i, err)
				}
				if key := string(t.Request.Marshal()); !known[key] {
					known[key] = true
					list = append(list, endpointRequest{t.Request, from + i})
				}
				if len(list) > maxCancelled {
					return fmt.Errorf("%w: the tickets of the info are of more than %d requests; an answer of "+
						"GetFlightInfo has one, send one info for each", schema.ErrLimit, maxCancelled)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// turn runs f when it is the turn of the caller's tenant: what it does takes processors and waits for nothing.
func (s *Server) turn(ctx context.Context, f func() error) error {
	return s.work.Do(ctx, fetch.CallerFrom(ctx).Tenant, f)
}

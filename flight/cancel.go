package flight

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/schema"
)

// cancelGrace is how long a cancellation waits for the streams to be gone.
const cancelGrace = time.Second

// cancelPlans ends the running streams of plans, and reports how many there
// were and whether all are gone. What is ended is recorded plan by plan, before and
// after; where nothing runs that the caller may end, nothing is.
func (s *Server) cancelPlans(ctx context.Context, plans map[string]bool) (count int, gone bool, err error) {
	killed, mine := map[*call]bool{}, s.mine(ctx)
	for plan := range plans {
		match := func(c *call) bool { return c.streaming && c.plan == plan && mine(c) }
		what, ok := s.calls.accessOfAny(match)
		if !ok {
			continue
		}
		err := s.audited(ctx, change{event: auditCancel, dataset: what.dataset, snapshot: what.snapshot, plan: plan},
			func(c *change) error {
				for _, ended := range s.calls.kill(errCancelled, match) {
					killed[ended] = true
					c.count++
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

// cancelFlightInfo is Flight's own: the plans are those of the info's tickets.
func (s *Server) cancelFlightInfo(ctx context.Context, b []byte, send func([]byte) error) error {
	var req flight.CancelFlightInfoRequest
	if err := unmarshal(b, &req); err != nil {
		return err
	}
	endpoints := req.GetInfo().GetEndpoint()
	if len(endpoints) == 0 {
		return &schema.FieldError{Field: "info.endpoint", Got: "none", Want: "the endpoints that GetFlightInfo gave"}
	}
	// A plan's id depends on no row: nothing is opened or evaluated, and the snapshot
	// may be gone.
	plans, seen := map[string]bool{}, map[string]bool{}
	for i, e := range endpoints {
		t, err := schema.ParseTicket(e.GetTicket().GetTicket())
		if err != nil {
			return fmt.Errorf("endpoint %d: %w", i, err)
		}
		if req := string(t.Request.Marshal()); !seen[req] { // as a rule they are all the same
			seen[req] = true
			id, err := s.planID(ctx, t.Request)
			if err != nil {
				return fmt.Errorf("endpoint %d: %w", i, err)
			}
			plans[id] = true
		}
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

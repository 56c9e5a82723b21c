// Package memshared is a members.Shared in memory: for tests and simulations, with faults.
package memshared

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bowstring/schema"
)

// Shared is what nodes share, in memory. Time is that of package time, also in a synctest bubble. It is safe for
// concurrent use.
type Shared struct {
	mu      sync.Mutex
	leases  map[[2]string]row
	layouts map[string]row
	claims  map[claim]row
	fault   func(op, cluster string) (before, after error)
}

type row struct {
	value []byte
	until time.Time
}

type claim struct {
	cluster, plan string
	epoch         uint64
}

// New returns one without rows.
func New() *Shared {
	return &Shared{leases: map[[2]string]row{}, layouts: map[string]row{}, claims: map[claim]row{}}
}

// Inject has operations fail, by their method's name: with before they do nothing, with after they do what they do, and
// the answer is lost. nil mends all.
func (s *Shared) Inject(fault func(op, cluster string) (before, after error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// do runs an operation, with the faults that were injected.
func (s *Shared) do(ctx context.Context, op, cluster string, f func(now time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var before, after error
	if s.fault != nil {
		before, after = s.fault(op, cluster)
	}
	if before != nil {
		return before
	}
	if err := f(time.Now()); err != nil {
		return err
	}
	return after
}

// PutLease implements members.Shared.
func (s *Shared) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	return s.do(ctx, "PutLease", cluster, func(now time.Time) error {
		s.leases[[2]string{cluster, id}] = row{slices.Clone(lease), now.Add(ttl)}
		return nil
	})
}

// Leases implements members.Shared.
func (s *Shared) Leases(ctx context.Context, cluster string) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := s.do(ctx, "Leases", cluster, func(now time.Time) error {
		maps.DeleteFunc(s.leases, func(_ [2]string, r row) bool { return !now.Before(r.until) })
		for k, r := range s.leases {
			if k[0] == cluster {
				found[k[1]] = slices.Clone(r.value)
			}
		}
		return nil
	})
	return found, err
}

// RemoveLease implements members.Shared.
func (s *Shared) RemoveLease(ctx context.Context, cluster, id string) error {
	return s.do(ctx, "RemoveLease", cluster, func(time.Time) error {
		delete(s.leases, [2]string{cluster, id})
		return nil
	})
}

// PutLayout implements members.Shared.
func (s *Shared) PutLayout(ctx context.Context, name string, record []byte, ttl time.Duration) error {
	return s.do(ctx, "PutLayout", "", func(now time.Time) error {
		s.layouts[name] = row{slices.Clone(record), now.Add(ttl)}
		return nil
	})
}

// Layout implements members.Shared.
func (s *Shared) Layout(ctx context.Context, name string) (record []byte, err error) {
	err = s.do(ctx, "Layout", "", func(now time.Time) error {
		r, ok := s.layouts[name]
		if !ok || !now.Before(r.until) {
			return fmt.Errorf("%w: no layout has this name", schema.ErrNotFound)
		}
		record = slices.Clone(r.value)
		return nil
	})
	return record, err
}

// ReserveLayout implements members.Shared.
func (s *Shared) ReserveLayout(ctx context.Context, cluster, plan string, epoch uint64, name string,
	ttl time.Duration) (winner string, err error) {
	err = s.do(ctx, "ReserveLayout", cluster, func(now time.Time) error {
		k := claim{cluster, plan, epoch}
		if r, ok := s.claims[k]; ok && now.Before(r.until) {
			winner = string(r.value)
		} else if name != "" {
			s.claims[k] = row{[]byte(name), now.Add(ttl)}
			winner = name
		}
		return nil
	})
	if err != nil {
		winner = ""
	}
	return winner, err
}

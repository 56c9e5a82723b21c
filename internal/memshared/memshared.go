// Package memshared implements members.Shared in memory, for tests and simulations, with
// faults.
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

// Shared is the state that nodes share. The clock is that of package time, also in a
// synctest bubble. It is safe for concurrent use: an operation is atomic, as one of the
// real stores is.
type Shared struct {
	// mu guards the fields below. Leases are by cluster and node, layouts by name.
	mu      sync.Mutex
	leases  map[[2]string]row
	layouts map[string]row
	claims  map[claim]row
	fault   func(op, cluster string) (before, after error)
}

// row is a value that expires.
type row struct {
	value []byte
	until time.Time
}

// claim is the key of a reserved layout.
type claim struct {
	cluster, plan string
	epoch         uint64
}

// New returns a Shared without rows.
func New() *Shared {
	return &Shared{leases: map[[2]string]row{}, layouts: map[string]row{}, claims: map[claim]row{}}
}

// Inject makes operations fail, by the name of their method. With the error before, an
// operation does nothing. With the error after, it takes effect and its answer is lost,
// as a timeout of a real store may mean. A nil function removes all faults.
func (s *Shared) Inject(fault func(op, cluster string) (before, after error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// do runs an operation under the lock, with the faults that were injected.
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
		// Expired rows are removed here, because nothing else would.
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

// ReserveLayout implements members.Shared. The first name wins, as with a conditional
// write.
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

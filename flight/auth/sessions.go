package auth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bowstring/schema"
)

// sessions are calls that run, with who made them. It is safe for concurrent
// use.
type sessions struct {
	mu   sync.Mutex
	live map[*session]struct{} // guarded by mu
}

type session struct {
	id  *Identity
	end func(error)
}

// watch lists a call: end is called, once at most, when its caller's identity
// has ended. stop takes it off the list; end may be running then.
func (s *sessions) watch(id *Identity, end func(error)) (stop func()) {
	if id == nil || !id.mayEnd() {
		return func() {}
	}
	one := &session{id, end}
	s.mu.Lock()
	s.live[one] = struct{}{}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		delete(s.live, one)
		s.mu.Unlock()
	}
}

// run looks at all calls again and again until ctx ends.
func (s *sessions) run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.endAll(now)
		}
	}
}

// endAll ends the calls whose callers may not go on.
func (s *sessions) endAll(now time.Time) {
	ended := map[*session]error{}
	s.mu.Lock()
	for one := range s.live {
		if why := one.id.still(now); why != nil {
			ended[one] = why
			delete(s.live, one)
		}
	}
	s.mu.Unlock()
	for one, why := range ended {
		one.end(fmt.Errorf("%w: what let the call in has ended meanwhile: %w", schema.ErrUnauthenticated, why))
	}
}

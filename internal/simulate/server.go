package simulate

import (
	"context"
	"math"
	"sync"
	"time"
)

// server is something that does one thing after the other at each of its places: cores, a disk, the turns of a store.
// It is safe for concurrent use.
type server struct {
	mu    sync.Mutex
	speed float64     // of a place, 1 being the usual; 0: there is no limit, and nothing takes time
	free  []time.Time // when each place has nothing more to do
}

// newServer returns a server of so many places; parts of one make all slower. 0 is one without limit.
func newServer(places float64) *server {
	if places <= 0 {
		return &server{}
	}
	n := int(math.Ceil(places))
	return &server{speed: places / float64(n), free: make([]time.Time, n)}
}

// take takes a place for some work, and returns when that will be done.
func (s *server) take(work time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.speed == 0 || work <= 0 {
		return now
	}
	first := 0
	for i := range s.free {
		if s.free[i].Before(s.free[first]) {
			first = i
		}
	}
	at := s.free[first]
	if at.Before(now) {
		at = now
	}
	s.free[first] = at.Add(time.Duration(float64(work) / s.speed))
	return s.free[first]
}

// slow changes how fast it is, 1 being the usual.
func (s *server) slow(factor float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.speed > 0 {
		s.speed *= factor
	}
}

// halt has it do nothing until then.
func (s *server) halt(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.free {
		if s.free[i].Before(until) {
			s.free[i] = until
		}
	}
}

// do does some work, and waits until it is done. Of a context that ends, the work is done all the same.
func (s *server) do(ctx context.Context, work time.Duration) error {
	return sleepUntil(ctx, s.take(work))
}

// sleepUntil waits for a moment, or for ctx's end.
func sleepUntil(ctx context.Context, at time.Time) error {
	d := time.Until(at)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// per is how long n of something take, of which so many are done a second; no time where there is no limit.
func per(n, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(n / rate * 1e9)
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

func millis(ms float64) time.Duration { return time.Duration(ms * 1e6) }

package flight

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc/health/grpc_health_v1"

	"bowstring/schema"
)

// leaving is whether a server's streams move elsewhere. It is safe for concurrent use.
type leaving struct {
	mu        sync.Mutex
	locations func() []string // nil while the server stays
	turn      int             // of who is sent elsewhere
}

// maxSent is how many places one is told to go on at.
const maxSent = 4

// Leave has clients go on elsewhere: streams that read end at the end of the batch that is being sent, with UNAVAILABLE
// and where to go on, and no new DoGet, DoExchange or warm begins. All else is answered as before: other nodes may read
// what this one has, and stats says how far it is. locations returns the addresses to go on at, the best first; it must
// not block. Return undoes it.
func (s *Server) Leave(locations func() []string) {
	s.leaving.mu.Lock()
	s.leaving.locations = locations
	s.leaving.mu.Unlock()
	s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}

// Return has streams begin here again, after Leave.
func (s *Server) Return() {
	s.leaving.mu.Lock()
	s.leaving.locations = nil
	s.leaving.mu.Unlock()
	if s.draining.Err() == nil {
		s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_SERVING)
	}
}

// Leaving reports whether clients are sent elsewhere.
func (s *Server) Leaving() bool {
	s.leaving.mu.Lock()
	defer s.leaving.mu.Unlock()
	return s.leaving.locations != nil
}

// moved is the error of a stream that is to go on elsewhere; nil if the server stays. Successive
// streams are sent to different places first. The message ends in what clients look for that see the text alone:
// "(go on at grpc://HOST:PORT, grpc://HOST:PORT)".
func (s *Server) moved() error {
	s.leaving.mu.Lock()
	defer s.leaving.mu.Unlock()
	if s.leaving.locations == nil {
		return nil
	}
	list := s.leaving.locations()
	if len(list) == 0 {
		return fmt.Errorf("%w: this node leaves its cluster, and no other one is there; continue from where the "+
			"stream ended when one is", schema.ErrUnavailable)
	}
	at := s.leaving.turn % len(list)
	s.leaving.turn++
	list = append(append([]string{}, list[at:]...), list[:at]...)
	return fmt.Errorf("%w: this node leaves its cluster; continue from where the stream ended (go on at %s)",
		schema.ErrUnavailable, strings.Join(list[:min(len(list), maxSent)], ", "))
}

// WaitStreams waits until no DoGet runs, or ctx ends; it returns how many do.
func (s *Server) WaitStreams(ctx context.Context) (left int) {
	left, _ = s.calls.wait(ctx, func(c *call) bool { return c.streaming && c.kind == "DoGet" })
	return left
}

package flight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"bowstring/fetch"
	"bowstring/schema"
)

// Options tunes a Server. The zero value of each field stands for its default.
// A client that exceeds a limit gets RESOURCE_EXHAUSTED with the limit's name
// and value. The memory that streams hold ahead of their consumers is the
// engine's WindowBytes.
type Options struct {
	// MaxStreams is how many DoGet, DoPut and DoExchange calls may run at once.
	// Default 1,024.
	MaxStreams int
	// MaxRequestBytes bounds what asks for something: a descriptor's command or
	// path, a ticket, an action's body, ListFlights criteria. Default 2 MiB.
	MaxRequestBytes int
	// MaxMessageBytes bounds one message that comes in, so also a record batch
	// of DoPut. Default 256 MiB.
	MaxMessageBytes int
	// MaxEndpoints is how many ranks one GetFlightInfo may name. Default 65,536.
	MaxEndpoints int
	// ExchangeDepth is how many requests of one DoExchange are worked on at
	// once. Each holds up to a record batch. Default 4.
	ExchangeDepth int
	// EndpointTTL sets how far in the future an endpoint's expiration time
	// lies. Default 24 h.
	EndpointTTL time.Duration
	// DrainTimeout is how long Shutdown lets calls run on. Default 30 s.
	DrainTimeout time.Duration
	// Keepalive is after how much silence a client is asked whether it is still
	// there; one that does not answer within 20 s is gone. Default 30 s.
	Keepalive time.Duration
	// SpillScale returns what the size of the spill was decided to be last, and
	// why, for the action stats, which encodes it as JSON; nil if nobody decides.
	// It is called by several goroutines at once.
	SpillScale func() any
	// Logger receives a line for each call. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.MaxStreams == 0 {
		o.MaxStreams = 1024
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 2 << 20
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = 256 << 20
	}
	if o.MaxEndpoints == 0 {
		o.MaxEndpoints = 65_536
	}
	if o.ExchangeDepth == 0 {
		o.ExchangeDepth = 4
	}
	if o.EndpointTTL == 0 {
		o.EndpointTTL = 24 * time.Hour
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 30 * time.Second
	}
	if o.Keepalive == 0 {
		o.Keepalive = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

const (
	// receiveMargin and twice MaxMessageBytes is what grpc takes in before it
	// refuses a message unread.
	receiveMargin = 64 << 20
	// keepaliveAnswer is how long a client may take to answer a keepalive ping.
	keepaliveAnswer = 20 * time.Second
	// minPing is how often clients may ping the server.
	minPing = 5 * time.Second
	// lastWords is how long Shutdown waits, after it has ended calls at the
	// deadline, for their statuses to reach the clients.
	lastWords = time.Second
)

// Server is a Flight service over an engine, with health checks and reflection.
type Server struct {
	gen.UnimplementedFlightServiceServer

	engine  *fetch.Engine
	opts    Options
	log     *slog.Logger
	mem     memory.Allocator // what decoding an upload takes beyond its messages
	grpc    *grpc.Server
	health  *health.Server
	calls   *registry
	started time.Time

	draining context.Context // ends when Shutdown begins; its cause is what callers are told
	drain    context.CancelCauseFunc

	sending sync.WaitGroup // every goroutine that the server started
}

// New returns a server over engine, which stays the caller's to close, after
// Shutdown.
func New(engine *fetch.Engine, opts Options) *Server {
	opts.EnsureDefaults()
	s := &Server{
		engine:  engine,
		opts:    opts,
		log:     opts.Logger,
		mem:     memory.DefaultAllocator,
		health:  health.NewServer(),
		calls:   newRegistry(opts.MaxStreams),
		started: time.Now(),
	}
	s.draining, s.drain = context.WithCancelCause(context.Background())
	s.grpc = grpc.NewServer(append(s.chain(),
		codecOption(),
		// The limit is checkRequest's to enforce, which names it. grpc's own words
		// for what is much larger cannot be changed.
		grpc.MaxRecvMsgSize(min(2*opts.MaxMessageBytes+receiveMargin, math.MaxInt32)),
		grpc.WriteBufferSize(0), // connections gather what is written; see gatherConn
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: opts.Keepalive, Timeout: keepaliveAnswer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)...)
	flight.RegisterFlightServiceServer(s.grpc, s)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_SERVING)
	return s
}

// Serve answers calls that come in by l, and closes it in the end. It returns
// nil after Shutdown. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(&gatherListener{Listener: l, spawn: s.sending.Go})
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Shutdown drains the server and stops it. Health checks say NOT_SERVING, new
// calls are refused as UNAVAILABLE, and calls under way may finish until ctx
// ends or DrainTimeout has passed; then they end with UNAVAILABLE. An error
// says how many were cut off. In any case nothing of the server runs any more
// when Shutdown returns, and its listeners are closed.
func (s *Server) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.DrainTimeout)
	defer cancel()
	s.log.LogAttrs(ctx, slog.LevelInfo, "draining", slog.Duration("timeout", s.opts.DrainTimeout))
	why := fmt.Errorf("%w: the server is draining before it stops; another one, or this one later, can serve the call", schema.ErrUnavailable)
	s.calls.drain(why)
	s.drain(why)
	s.health.Shutdown()

	left, err := s.calls.wait(ctx, func(c *call) bool { return isFlight(c.method) })
	if err != nil {
		err = fmt.Errorf("draining: %d calls were cut off: %w", left, err)
	}
	// What is left by now is cut off, and watchers of health and reflection
	// clients, who would never go by themselves.
	s.calls.kill(fmt.Errorf("%w: the server stopped: the time to drain is over; continue elsewhere, or here later, from where the stream ended", schema.ErrUnavailable),
		func(*call) bool { return true })

	// Handlers have returned or are about to, but what they sent may not have
	// left yet: GracefulStop waits for that, and for clients that never read.
	stopped := make(chan struct{})
	s.sending.Go(func() {
		s.grpc.GracefulStop()
		close(stopped)
	})
	if err != nil {
		var last context.CancelFunc
		ctx, last = context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer last()
	}
	select {
	case <-stopped:
	case <-ctx.Done():
		if err == nil {
			err = fmt.Errorf("draining: clients did not read what was sent: %w", context.Cause(ctx))
		}
	}
	s.grpc.Stop()
	s.sending.Wait()
	s.log.LogAttrs(ctx, slog.LevelInfo, "stopped")
	return err
}

package flight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/flight/catalog"
	"bowstring/flight/wire"
	"bowstring/schema"
)

const (
	// keepaliveAnswer is how long a client may take to answer a keepalive ping.
	keepaliveAnswer = 20 * time.Second
	// minPing is how often clients may ping the server.
	minPing = 5 * time.Second
	// streamWindow is what a client may send on a stream that is not being read,
	// connWindow on all of a connection, of what is. A message that is being read
	// may be sent whatever its length.
	streamWindow = 128 << 10
	connWindow   = 16 << 20
	// maxHeaderBytes bounds the headers of a call, decompressed.
	maxHeaderBytes = 64 << 10
	// connectionIdle is how long a connection may be without a call.
	connectionIdle = 15 * time.Minute
	// lastWords is how long Shutdown waits, after it has ended calls at the
	// deadline, for their statuses to reach the clients.
	lastWords = time.Second
)

// Server is a Flight service over an engine, with health checks and reflection.
type Server struct {
	gen.UnimplementedFlightServiceServer

	source  *catalog.Source
	opts    Options
	log     *slog.Logger
	mem     memory.Allocator // what decoding an upload takes beyond its messages
	memory  *wire.Shares     // counts what comes in, and what is made of it
	answers *wire.Shares     // counts what is put together whole to be sent
	work    *admission.Work  // bounds what works on uploads at once
	grpc    *grpc.Server
	health  *health.Server
	calls   *registry
	paces   *admission.Paces // how fast tenants are served
	egress  *admission.Egress
	leaving leaving
	started time.Time
	lent    lent // to other nodes

	handshaking  context.Context // ends when connections that are not there yet are given up
	stopGreeting context.CancelFunc
	identify     func(context.Context, fetch.Caller) fetch.Caller // tests say by it who calls; nil elsewhere

	draining context.Context // ends when Shutdown begins; its cause is what callers are told
	drain    context.CancelCauseFunc

	sending sync.WaitGroup // every goroutine that the server started
}

// New returns a server over engine, which stays the caller's to close, after
// Shutdown.
func New(engine *fetch.Engine, opts Options) *Server {
	opts.EnsureDefaults()
	if wire.Plain() {
		opts.PlainTransport = true
		opts.Logger.LogAttrs(context.Background(), slog.LevelWarn,
			"answers are copied before they are sent: this program has another release of gRPC than it was proven with",
			slog.String("release", grpc.Version), slog.String("proven", wire.ProvenGRPC))
	}
	s := &Server{
		source:  catalog.New(engine, opts.Rules, opts.Logger),
		opts:    opts,
		log:     opts.Logger,
		mem:     memory.DefaultAllocator,
		health:  health.NewServer(),
		memory:  wire.NewShares(opts.Ledger, admission.Uploads),
		answers: wire.NewShares(opts.Ledger, admission.Results),
		work:    engine.Work(),
		calls:   newRegistry(&opts),
		paces:   admission.NewPaces(),
		started: time.Now(),
	}
	if opts.Tenants != nil {
		s.EnforceTenants()
	}
	s.egress = admission.NewEgress(admission.EgressLimits{})
	if opts.Cluster != nil && opts.Cluster.Egress != nil {
		s.egress = opts.Cluster.Egress
	}
	s.draining, s.drain = context.WithCancelCause(context.Background())
	opts.Sources.WhenClosed(func(why error) {
		s.calls.kill(why, func(c *call) bool { return isFlight(c.method) || isNodes(c.method) })
	})
	s.handshaking, s.stopGreeting = context.WithCancel(context.Background())
	transport := append(s.chain(), wire.ServerOptions(opts.PlainTransport, s.limits())...)
	if opts.Door.Encrypts() {
		transport = append(transport, grpc.Creds(wire.Credentials(s.handshaking, opts.Door)))
	}
	s.grpc = grpc.NewServer(append(transport,
		grpc.MaxConcurrentStreams(uint32(opts.MaxCallsPerConnection)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(opts.RequestTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: opts.Keepalive, Timeout: keepaliveAnswer,
			MaxConnectionIdle: connectionIdle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)...)
	s.grpc.RegisterService(streamed(gen.FlightService_ServiceDesc), s)
	if opts.Cluster != nil {
		s.grpc.RegisterService(&lendService, s)
	}
	s.grpc.RegisterService(streamed(grpc_health_v1.Health_ServiceDesc), s.health)
	if !opts.NoReflection {
		reflection.Register(s.grpc)
	}
	s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_SERVING)
	return s
}

// EnforceRules ends the streams for which the rules that hold now say something else
// than those did under which they began. It is called when the rules have changed.
func (s *Server) EnforceRules() {
	s.calls.kill(catalog.ErrRules, func(c *call) bool { return !s.source.Stands(c.caller, &c.access) })
}

// Serve answers calls that come in by l, and closes it in the end. It returns
// nil after Shutdown. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(wire.Listen(l, s.sending.Go, s.listening()))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// listening says which connections the server accepts.
func (s *Server) listening() wire.Listening {
	return wire.Listening{
		Logger: s.log, Encrypts: s.opts.Door.Encrypts(), Plain: s.opts.PlainTransport,
		Most: s.opts.MaxConnections, MostOf: s.opts.MaxConnectionsPerPeer,
	}
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
	why := fmt.Errorf("%w: the server is draining before it stops; another one, or this one later, can serve the call",
		schema.ErrUnavailable)
	s.calls.drain(why)
	s.drain(why)
	s.health.Shutdown()

	left, err := s.calls.wait(ctx, func(c *call) bool { return isFlight(c.method) })
	if err != nil {
		err = fmt.Errorf("draining: %d calls were cut off: %w", left, err)
	}
	// What is left by now is cut off, and watchers of health and reflection
	// clients, who would never go by themselves.
	s.calls.kill(fmt.Errorf("%w: the server stopped: the time to drain is over; continue elsewhere, or here later, "+
		"from where the stream ended", schema.ErrUnavailable),
		func(*call) bool { return true })

	s.stopGreeting()

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

package flight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
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
	source      *catalog.Source
	opts        Options
	log         *slog.Logger
	mem         memory.Allocator // what decoding an upload takes beyond its messages
	memory      *wire.Shares     // counts what comes in, and what is made of it
	answers     *wire.Shares     // counts what is put together whole to be sent
	work        *admission.Work  // bounds what works on uploads at once
	grpc        *grpc.Server
	health      *health.Server
	calls       *registry
	paces       *admission.Paces // how fast tenants are served
	egress      *admission.Egress
	leaving     leaving
	started     time.Time
	sentToPeers sentToPeers // to other nodes

	requested requested // to buckets

	handshaking  context.Context // ends when connections still in their handshake are dropped
	stopGreeting context.CancelFunc
	identify     func(context.Context, fetch.Caller) fetch.Caller // sets the caller in tests; nil elsewhere

	draining context.Context // ends when Shutdown begins; its cause is the callers' error
	drain    context.CancelCauseFunc

	connections wire.Count // from outside of this process

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
	source := catalog.New(engine, opts.Rules, opts.Logger)
	source.LimitBuckets(opts.MayRead)
	s := &Server{
		source:  source,
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
	s.grpc = grpc.NewServer(append(transport,
		grpc.Creds(wire.Credentials(s.handshaking, opts.Auth, func(conn *wire.PeerConn) {
			s.sending.Go(func() { s.servePeer(conn) })
		})),
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
	s.grpc.RegisterService(streamed(gen.FlightService_ServiceDesc), s.service())
	s.grpc.RegisterService(streamed(grpc_health_v1.Health_ServiceDesc), s.health)
	if !opts.NoReflection {
		reflection.Register(s.grpc)
	}
	s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_SERVING)
	return s
}

// service is the Flight service: handlers by purpose over one server.
type service struct {
	unimplemented
	getHandler
	putHandler
	exchangeHandler
	infoHandler
	actionHandler
	*Server
}

// unimplemented has methods of RPCs that there may be one day, for those that no handler has.
type unimplemented struct {
	gen.UnimplementedFlightServiceServer
}

func (s *Server) service() *service {
	return &service{getHandler: getHandler{s}, putHandler: putHandler{s}, exchangeHandler: exchangeHandler{s}, infoHandler: infoHandler{s}, actionHandler: actionHandler{s}, Server: s}
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
		Logger: s.log, Encrypts: s.opts.Auth.Encrypts(), Plain: s.opts.PlainTransport,
		Most: s.opts.MaxConnections, MostOf: s.opts.MaxConnectionsPerPeer, Count: &s.connections,
	}
}

// Activity is by what a server that clients use differs from one that they do not.
type Activity struct{ Open, Ended int64 }

// Activity says how many connections from outside of this process are open, and how many there were.
func (s *Server) Activity() Activity {
	return Activity{Open: s.connections.Open(), Ended: s.connections.Ended()}
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
	// The remaining calls are cut off, and so are watchers of health and reflection
	// clients, which would never end by themselves.
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

// leaving is whether a server's streams move elsewhere. It is safe for concurrent use.
type leaving struct {
	mu        sync.Mutex
	locations func() []string // nil while the server stays
	turn      int             // of who is sent elsewhere
}

const (
	// maxSent bounds the locations in one answer.
	maxSent = 4
	// maxNamed is how many nodes are named ahead of a stream: headers are at most 8 KiB.
	maxNamed = 48
	// nodesHeader is what comes ahead of a stream, with the addresses of other nodes.
	nodesHeader = "bowstring-nodes"
)

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

// movedError is the end of a stream that is to go on at another node. Clients read the addresses in the details of the
// status, and never in its message.
type movedError struct {
	to []string // addresses, the best first
}

// Error implements error. The addresses are for people.
func (e *movedError) Error() string {
	return fmt.Sprintf("%v: this node leaves its cluster; continue from where the stream ended, at %s",
		schema.ErrUnavailable, strings.Join(e.to, ", "))
}

// Unwrap makes every movedError an ErrUnavailable.
func (e *movedError) Unwrap() error { return schema.ErrUnavailable }

// moved is the error of a stream that is to go on elsewhere; nil if the server stays. Successive
// streams are sent to different places first.
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
	return &movedError{to: list[:min(len(list), maxSent)]}
}

// nameNodes sends the addresses of the other nodes ahead of a stream. A client goes on at those and at no others.
func (s *Server) nameNodes(stream grpc.ServerStream) error {
	list := s.opts.Node.Others()
	if len(list) == 0 {
		return nil
	}
	named := strings.Join(list[:min(len(list), maxNamed)], " ")
	if err := stream.SetHeader(metadata.Pairs(nodesHeader, named)); err != nil {
		return fmt.Errorf("sending headers: %w", err)
	}
	return nil
}

// otherNodes is the action nodes, for clients that hear of an address after their stream began.
func (s actionHandler) otherNodes(_ context.Context, b []byte, send func([]byte) error) error {
	if err := body(b, &struct{}{}); err != nil {
		return err
	}
	return sendJSON(send, struct {
		Locations []string `json:"locations"`
	}{append([]string{}, s.opts.Node.Others()...)})
}

// WaitStreams waits until no DoGet runs, or ctx ends; it returns how many do.
func (s *Server) WaitStreams(ctx context.Context) (left int) {
	left, _ = s.calls.wait(ctx, func(c *call) bool { return c.streaming && c.kind == "DoGet" })
	return left
}

// ServeWithin serves calls by l from within this process. It is Serve without TLS: such a
// connection never leaves the process. Callers have to authenticate all the same, and the
// remote addresses of l's connections are those that limits use. It returns nil after
// Shutdown, and closes l in the end.
func (s *Server) ServeWithin(l net.Listener) error {
	which := s.listening()
	which.Encrypts, which.Within, which.Count = false, true, nil
	err := s.grpc.Serve(wire.Listen(l, s.sending.Go, which))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Authenticates reports whether callers have to say who they are.
func (s *Server) Authenticates() bool { return s.opts.Auth.Authenticates() }

// Viewer is a caller that watches the server by other means than calls, such as a
// console. It sees what the action stats would show it.
type Viewer struct {
	server *Server
	caller fetch.Caller
	leave  func()
}

// NewViewer authenticates a token as a call from an address would that carries it. If the
// server does not authenticate, the token is ignored. The caller of NewViewer calls
// Leave.
func (s *Server) NewViewer(ctx context.Context, token string, from net.Addr, gone func(error)) (*Viewer, error) {
	v := &Viewer{server: s, leave: func() {}}
	d := s.opts.Auth
	if d.Authenticates() {
		md := metadata.MD{}
		if token != "" {
			md.Set("authorization", "Bearer "+token)
		}
		ctx = metadata.NewIncomingContext(peer.NewContext(ctx, &peer.Peer{Addr: from}), md)
		id, err := d.Authenticate(ctx)
		if err != nil {
			return nil, err
		}
		v.caller = fetch.Caller{Principal: id.Principal, Groups: id.Groups, Tenant: id.Tenant}
		v.leave = d.Watch(id, gone)
	}
	if s.identify != nil {
		v.caller = s.identify(ctx, v.caller)
	}
	return v, nil
}

// Name is the viewer's principal, "" if it is anonymous.
func (v *Viewer) Name() string { return v.caller.Principal }

// Leave ends the watch over the viewer's token.
func (v *Viewer) Leave() { v.leave() }

// tenants are those of now, nil if there is no file of them.
func (s *Server) tenants() *policy.Tenants {
	if s.opts.Tenants == nil {
		return nil
	}
	return s.opts.Tenants.Load()
}

// termsOf is what a tenant gets now.
func (s *Server) termsOf(tenant string) fetch.Terms { return s.tenants().Terms(tenant) }

// EnforceTenants has all that runs get what its tenant gets now. It is called when the
// tenants have changed. Streams stay on the account under which they began: where that
// is gone, each such account gets what the default one does until its streams end.
func (s *Server) EnforceTenants() {
	terms := s.termsOf
	if s.tenants() == nil {
		terms = nil
	}
	s.paces.SetTerms(terms)
	s.source.SetTerms(terms)
}

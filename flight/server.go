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
	// streamWindow bounds the unread bytes of one stream, and connWindow the unread bytes
	// of all streams of a connection. A message that is being read may exceed streamWindow:
	// wire opens the window for it.
	streamWindow = 128 << 10
	connWindow   = 16 << 20
	// maxHeaderBytes bounds the headers of a call, decompressed.
	maxHeaderBytes = 64 << 10
	// connectionIdle is how long a connection may have no call.
	connectionIdle = 15 * time.Minute
	// lastWords is how long Shutdown waits after it has killed the remaining calls. In this
	// time their statuses reach the clients.
	lastWords = time.Second
)

// Server is a Flight service over an engine, with health checks and reflection. It is safe
// for concurrent use. It starts goroutines only through sending, and Shutdown waits for
// them.
type Server struct {
	source  *catalog.Source
	opts    Options
	log     *slog.Logger
	mem     memory.Allocator // memory that decoding an upload needs besides its messages
	memory  *wire.Shares     // memory of incoming messages and of the rows made of them
	answers *wire.Shares     // memory of answers that are built whole
	work    *admission.Work  // CPU turns of tenants, shared with the engine
	grpc    *grpc.Server
	health  *health.Server
	calls   *registry
	paces   *admission.Paces // rate limits of tenants
	// egress bounds the bytes to other nodes.
	egress      *admission.Egress
	leaving     leaving
	started     time.Time
	sentToPeers sentToPeers // to other nodes

	// requested is the state of CountUsage for requests to buckets.
	requested requested

	handshaking  context.Context // ends when Shutdown drops unfinished handshakes
	stopGreeting context.CancelFunc
	identify     func(context.Context, fetch.Caller) fetch.Caller // sets the caller in tests; nil elsewhere

	draining context.Context // ends when Shutdown begins; its cause is the error for callers
	drain    context.CancelCauseFunc

	connections wire.Count // connections from outside of this process

	sending sync.WaitGroup // all goroutines of the server
}

// New returns a server over engine. The caller closes engine after Shutdown. opts must be
// valid: see [Options.Validate].
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
	// If the sources of tokens or rules become unreadable, running calls end as well: their
	// rights cannot be checked any more.
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

// unimplemented answers the methods of the service that no handler has. It is embedded one
// level deeper than the handlers, so their methods take precedence.
type unimplemented struct {
	gen.UnimplementedFlightServiceServer
}

// service returns the handlers of s as one gRPC service.
func (s *Server) service() *service {
	return &service{getHandler: getHandler{s}, putHandler: putHandler{s}, exchangeHandler: exchangeHandler{s}, infoHandler: infoHandler{s}, actionHandler: actionHandler{s}, Server: s}
}

// EnforceRules ends the running calls whose rights differ under the new rules. It is called
// when the rules have changed. A client that continues gets its new rights.
func (s *Server) EnforceRules() {
	s.calls.kill(catalog.ErrRules, func(c *call) bool { return !s.source.Stands(c.caller, &c.access) })
}

// Serve answers calls on the connections of l, and closes l at the end. It returns nil
// after Shutdown. It may be called for several listeners at once.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(wire.Listen(l, s.sending.Go, s.listening()))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// listening returns the conditions under which the server accepts a connection.
func (s *Server) listening() wire.Listening {
	return wire.Listening{
		Logger: s.log, Encrypts: s.opts.Auth.Encrypts(), Plain: s.opts.PlainTransport,
		Most: s.opts.MaxConnections, MostOf: s.opts.MaxConnectionsPerPeer, Count: &s.connections,
	}
}

// Activity counts connections from outside of this process. It shows whether clients use a
// server.
type Activity struct{ Open, Ended int64 }

// Activity returns how many connections are open, and how many have ended.
func (s *Server) Activity() Activity {
	return Activity{Open: s.connections.Open(), Ended: s.connections.Ended()}
}

// Shutdown drains the server and stops it. Health checks answer NOT_SERVING, and new calls
// are refused with UNAVAILABLE. Running calls may finish until ctx ends or DrainTimeout has
// passed; then they end with UNAVAILABLE. The error says how many calls were cut off. When
// Shutdown returns, no goroutine of the server runs and its listeners are closed.
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

	// Handlers have returned or soon will, but their last bytes may not have
	// left yet. GracefulStop waits for that, also for clients that never read.
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

// leaving is the state of Leave. It is safe for concurrent use.
type leaving struct {
	mu        sync.Mutex
	locations func() []string // nil while the server stays
	turn      int             // index of the location that the next stream gets first
}

const (
	// maxSent bounds the locations in one answer.
	maxSent = 4
	// maxNamed bounds the nodes in the header before a stream: clients accept headers of 8
	// KiB.
	maxNamed = 48
	// nodesHeader precedes a stream. It has the addresses of the other nodes.
	nodesHeader = "bowstring-nodes"
)

// Leave makes clients continue on other nodes. A stream that reads ends after the batch
// that is being sent, with UNAVAILABLE and the addresses to continue at. No new DoGet,
// DoExchange or warm begins. All other calls are answered as before: other nodes may read
// this node's blobs, and the action stats shows the progress.
//
// locations returns the addresses, the best first. It must not block. Return undoes Leave.
func (s *Server) Leave(locations func() []string) {
	s.leaving.mu.Lock()
	s.leaving.locations = locations
	s.leaving.mu.Unlock()
	s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}

// Return lets streams begin here again after Leave.
func (s *Server) Return() {
	s.leaving.mu.Lock()
	s.leaving.locations = nil
	s.leaving.mu.Unlock()
	if s.draining.Err() == nil {
		s.health.SetServingStatus(flightService, grpc_health_v1.HealthCheckResponse_SERVING)
	}
}

// Leaving reports whether the server moves its streams to other nodes.
func (s *Server) Leaving() bool {
	s.leaving.mu.Lock()
	defer s.leaving.mu.Unlock()
	return s.leaving.locations != nil
}

// movedError ends a stream that must continue on another node. Clients read the addresses
// from the details of the status, and never from its message.
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

// moved returns the error of a stream that must continue on another node, nil if the server
// stays. The order of the addresses rotates, so that streams spread over the nodes.
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

// nameNodes sends the addresses of the other nodes before a stream. A client continues only
// at addresses that it got in this way or by the action nodes.
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

// otherNodes implements the action nodes. Clients call it to learn of nodes that joined
// after their stream began.
func (s actionHandler) otherNodes(_ context.Context, b []byte, send func([]byte) error) error {
	if err := body(b, &struct{}{}); err != nil {
		return err
	}
	return sendJSON(send, struct {
		Locations []string `json:"locations"`
	}{append([]string{}, s.opts.Node.Others()...)})
}

// WaitStreams waits until no DoGet runs or ctx ends. It returns how many run.
func (s *Server) WaitStreams(ctx context.Context) (left int) {
	left, _ = s.calls.wait(ctx, func(c *call) bool { return c.streaming && c.kind == "DoGet" })
	return left
}

// ServeWithin serves calls from within this process. It is Serve without TLS, because such
// a connection never leaves the process. Callers must authenticate all the same. Limits use
// the remote addresses of l's connections. It returns nil after Shutdown, and closes l at
// the end.
func (s *Server) ServeWithin(l net.Listener) error {
	which := s.listening()
	which.Encrypts, which.Within, which.Count = false, true, nil
	err := s.grpc.Serve(wire.Listen(l, s.sending.Go, which))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Authenticates reports whether callers need credentials.
func (s *Server) Authenticates() bool { return s.opts.Auth.Authenticates() }

// Viewer is a caller that watches the server without calls, such as a user of the console.
// It sees what the action stats would show it.
type Viewer struct {
	server *Server
	caller fetch.Caller
	leave  func()
}

// NewViewer authenticates a token as if a call from the address had carried it. If the
// server does not authenticate, the token is ignored. gone is called when the token expires
// or is revoked. The caller of NewViewer calls Leave.
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

// Leave ends the watch on the viewer's token.
func (v *Viewer) Leave() { v.leave() }

// tenants returns the current tenants, nil if the server has no file of them.
func (s *Server) tenants() *policy.Tenants {
	if s.opts.Tenants == nil {
		return nil
	}
	return s.opts.Tenants.Load()
}

// termsOf returns the current limits and weight of a tenant.
func (s *Server) termsOf(tenant string) fetch.Terms { return s.tenants().Terms(tenant) }

// EnforceTenants applies the current limits and weights of tenants to all running streams.
// It is called when the tenants have changed. A stream keeps the tenant under which it
// began. If that tenant is removed, it gets what the default tenant gets until its streams
// end.
func (s *Server) EnforceTenants() {
	terms := s.termsOf
	if s.tenants() == nil {
		terms = nil
	}
	s.paces.SetTerms(terms)
	s.source.SetTerms(terms)
}

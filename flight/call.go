package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"bowstring/fetch"
	"bowstring/flight/auth"
	"bowstring/flight/catalog"
	nodes "bowstring/flight/peer"
	"bowstring/flight/policy"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// flightService is the name of the Flight service in gRPC and for health checks.
const flightService = "arrow.flight.protocol.FlightService"

// isAuxiliary reports whether a call belongs to a service that every client may use without
// credentials: health or reflection. These calls have a limit of their own. Calls of other
// nodes do not count towards it.
func isAuxiliary(method string) bool { return !isFlight(method) && !isNodes(method) }

// isNodes reports whether only other nodes of the cluster make such a call.
func isNodes(method string) bool { return method == nodes.ReadMethod || method == nodes.WarmMethod }

// isFlight reports whether a call belongs to the Flight service.
func isFlight(method string) bool { return strings.HasPrefix(method, "/"+flightService+"/") }

// chain returns the interceptors of every call, outermost first. There is no unary
// interceptor, because streamed makes every method a stream.
func (s *Server) chain() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainStreamInterceptor(s.streamCall),
	}
}

// streamCall registers, authenticates, guards and logs a call. Unary calls arrive here as
// streams, too: see streamed.
//
// The handler runs in a goroutine of its own. It may be blocked in grpc because the client
// does not read or send, and grpc unblocks it only when the call ends. Therefore a killed
// call ends here, and its handler ends right after.
func (s *Server) streamCall(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	ctx, c, err := s.calls.begin(ss.Context(), info.FullMethod, peerOf(ss.Context()))
	if err != nil {
		s.observeRefused(ss.Context(), info.FullMethod, err)
		return ended(ss, err)
	}
	// Messages of unauthenticated clients are read here: a panic must not end more than
	// their call.
	known := ctx
	err = s.guard(ctx, info.FullMethod, func() (err error) {
		known, err = s.recognise(ctx, c) //nolint:fatcontext // once
		return err
	})
	ctx = known
	if err != nil {
		c.caller = fetch.Caller{} // the call's claims are not verified
		s.observeRefused(ctx, info.FullMethod, err)
		s.calls.end(c)
		return ended(ss, err)
	}
	// The lane and the receiver replace the ways by which grpc sends and receives messages:
	// see package wire.
	var in *wire.Receiver
	if err = wire.Uncompressed(ctx); err == nil {
		c.lane, err = wire.NewLane(ctx)
	}
	if err == nil {
		c.incoming = s.memory.Lease(ctx, c.host)
		in, err = wire.NewReceiver(ss, s.limits(), c.incoming, info.IsClientStream, func(why error) {
			s.calls.killCall(c, why)
		})
	}
	if err != nil {
		s.observeRefused(ctx, info.FullMethod, err)
		s.calls.end(c)
		return ended(ss, err)
	}
	c.observer, c.conn = s.opts.Observer, wire.ConnOf(ctx)
	ctx, c.span = s.beginSpan(ctx, info.FullMethod)
	// The channel has room for one result. The handler's goroutine can thus end although a
	// killed call has already returned.
	over := make(chan error, 1)
	s.sending.Go(func() {
		err := c.outcome(s.guard(ctx, info.FullMethod, func() error {
			return handler(srv, &callStream{ServerStream: ss, server: s, ctx: ctx, call: c, in: in,
				patient: isStream(info.FullMethod)})
		}))
		s.finish(ctx, c, err)
		in.Close()
		over <- ended(ss, err)
	})
	select {
	case err := <-over:
		return err
	case <-c.killed:
		return ended(ss, c.cause)
	}
}

// limits returns the bounds on what a call sends.
func (s *Server) limits() wire.Limits {
	return wire.Limits{
		MaxMessageBytes: s.opts.MaxMessageBytes, MaxRequestBytes: s.opts.MaxRequestBytes,
		RequestTimeout: s.opts.RequestTimeout, MessageTimeout: s.opts.MessageTimeout,
	}
}

// recognise authenticates the caller of a call and determines its tenant. The returned
// context carries both.
func (s *Server) recognise(ctx context.Context, c *call) (context.Context, error) {
	ctx, err := s.letIn(ctx, c)
	if err != nil {
		return ctx, err
	}
	ctx, c.caller, err = withCaller(ctx, s.opts.Auth.Authenticates(), s.tenants())
	if err != nil || s.identify == nil {
		return ctx, err
	}
	c.caller = s.identify(ctx, c.caller)
	if ts := s.tenants(); ts != nil {
		c.caller.Tenant = ts.For(catalog.PolicyCaller(c.caller), "")
	}
	return fetch.WithCaller(ctx, c.caller), nil
}

// streamed turns the unary methods of a service into streams of one message in each
// direction. All rules for streams then apply to them. The important one: nothing of a
// message is read before its length is known to be allowed.
func streamed(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	desc.Streams = slices.Clone(desc.Streams)
	for _, m := range desc.Methods {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: m.MethodName, ServerStreams: true, // grpc intercepts no stream that is neither
			Handler: func(srv any, ss grpc.ServerStream) error {
				answer, err := m.Handler(srv, ss.Context(), ss.RecvMsg, nil)
				if err != nil {
					return err
				}
				return ss.SendMsg(answer)
			},
		})
	}
	desc.Methods = nil
	return &desc
}

// guard runs f and turns a panic into an error. The error has an id, under which the log
// has the panic's stack. One bad request therefore ends one call and not the server.
func (s *Server) guard(ctx context.Context, method string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = schema.Recovered(p).Log(ctx, s.log, "panic in a call", slog.String("method", method))
		}
	}()
	return f()
}

// finish logs a call, writes its audit record, reports it to the observers, and removes it
// from the registry. It runs in the goroutine of the handler, after the handler.
func (s *Server) finish(ctx context.Context, c *call, err error) {
	defer s.calls.end(c)
	kind, plan := s.calls.describe(c)
	st := status.New(codes.OK, "")
	if err != nil {
		st = statusOf(err)
	}
	if defect, ok := errors.AsType[*schema.DefectError](err); ok { // its package has no log
		_ = defect.Log(ctx, s.log, "panic in a call", slog.String("method", c.method))
	}
	s.observeEnd(ctx, c, st)
	// Internal errors and lost data need an operator. Health checks come every few seconds
	// and would bury the other lines.
	level := slog.LevelInfo
	switch {
	case st.Code() == codes.Internal || st.Code() == codes.DataLoss || st.Code() == codes.Unknown:
		level = slog.LevelError
	case !isFlight(c.method):
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("method", methodName(c.method)),
		slog.String("peer", c.peer),
		slog.Float64("seconds", time.Since(c.started).Round(time.Microsecond).Seconds()),
		slog.String("code", st.Code().String()),
	}
	if kind != "" {
		attrs = append(attrs, slog.Int64("rows", c.rows.Load()), slog.Int64("bytes", c.bytes.Load()))
	}
	if kind == "DoGet" || kind == "DoExchange" {
		attrs = append(attrs, c.waits.attr())
	}
	if n := c.waits.faults.Load(); n > 0 {
		attrs = append(attrs, slog.Int64("faults", n))
	}
	s.auditCall(ctx, c, st.Code())
	if plan != "" {
		attrs = append(attrs, slog.String("plan", plan))
	}
	if id := c.identity; id != nil {
		attrs = append(attrs, slog.String("principal", id.Principal), slog.String("by", id.By+":"+id.ID))
	}
	for name, v := range map[string]string{"tenant": c.caller.Tenant, "trace": c.caller.Trace} {
		if v != "" {
			attrs = append(attrs, slog.String(name, v))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", st.Message()))
	}
	s.log.LogAttrs(ctx, level, "call", attrs...)
}

// attr returns the waiting times in milliseconds. They show an operator which part made a
// stream slow.
func (w *waits) attr() slog.Attr {
	ms := func(name string, nanos *atomic.Int64) any {
		return slog.Int64(name, time.Duration(nanos.Load()).Milliseconds())
	}
	return slog.Group("wait_ms", ms("store", &w.store), ms("spill", &w.spill), ms("peer", &w.peer),
		ms("window", &w.window), ms("encode", &w.encode), ms("consumer", &w.consumer))
}

// peerOf returns the remote address of a call as HOST:PORT, "" if it is unknown.
func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// isStream reports whether a call may last as long as its client wants.
func isStream(method string) bool {
	switch method {
	case "/" + flightService + "/DoGet", "/" + flightService + "/DoPut",
		"/" + flightService + "/DoExchange":
		return true
	}
	return false
}

// callStream is a stream with the call's context. It receives messages by wire.Receiver and
// not by grpc. The handler's goroutine uses it.
type callStream struct {
	grpc.ServerStream
	server *Server
	ctx    context.Context
	call   *call
	in     *wire.Receiver
	// patient is set if the client may delay reading. Otherwise MessageTimeout ends the
	// call.
	patient bool
}

// Context implements grpc.ServerStream.
func (c *callStream) Context() context.Context { return c.ctx }

// RecvMsg implements grpc.ServerStream.
func (c *callStream) RecvMsg(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("receiving a %T, which is no protobuf", m)
	}
	return c.in.Receive(msg)
}

// SendMsg implements grpc.ServerStream. An answer of a call that is not a stream has
// MessageTimeout to be read. Closing the connection is the only way to free the answer's
// memory after that.
func (c *callStream) SendMsg(m any) error {
	if c.patient {
		return c.ServerStream.SendMsg(m)
	}
	s := c.server
	c.in.Answered()
	late := time.AfterFunc(s.opts.MessageTimeout, func() {
		s.calls.killCall(c.call, fmt.Errorf("%w: the client did not read its answer, and MessageTimeout is %s",
			schema.ErrLimit, s.opts.MessageTimeout))
		if c.call.conn != nil {
			_ = c.call.conn.Close() // grpc holds the answer while the connection is open
		}
	})
	defer late.Stop()
	return c.answer(m)
}

const (
	// tenantHeader is the metadata that names the tenant of a call. If callers
	// authenticate, it chooses among the tenants that the caller may use. Without
	// authentication the server does not check it: it only separates cooperating callers.
	tenantHeader = "bowstring-tenant"
	// traceHeader is W3C's: version, trace, parent, flags.
	traceHeader = "traceparent"
)

// traceForm accepts later versions of the header as well: W3C lets them append fields.
var traceForm = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)

// withCaller returns a context with the caller of a call, for all layers down to the store.
// known is set if the server authenticates: a call without credentials then has no tenant.
// tenants, if not nil, choose the tenant of callers that name none.
func withCaller(ctx context.Context, known bool, tenants *policy.Tenants) (context.Context, fetch.Caller, error) {
	var c fetch.Caller
	id := auth.IdentityFrom(ctx)
	if id != nil {
		c.Principal, c.Groups, c.Tenant = id.Principal, id.Groups, id.Tenant
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(tenantHeader); len(v) > 0 && (id != nil || !known) {
		if len(v) > 1 || !auth.TenantForm(v[0]) {
			return ctx, c, &schema.FieldError{
				Field: "header " + tenantHeader, Got: schema.Quote(v[0]),
				Want: "one name of up to 128 letters, digits and . _ @ : / -",
			}
		}
		if id != nil && !id.MayUse(v[0]) && !tenants.Has(v[0], catalog.PolicyCaller(c)) {
			return ctx, c, fmt.Errorf("%w: header %s: %s is no tenant on whose account this caller may call",
				schema.ErrDenied, tenantHeader, schema.Quote(v[0]))
		}
		c.Tenant = v[0]
	}
	if id != nil || !known {
		c.Tenant = tenants.For(catalog.PolicyCaller(c), c.Tenant)
	}
	if v := md.Get(traceHeader); len(v) > 0 {
		if m := traceForm.FindStringSubmatch(v[0]); m != nil {
			c.Trace = m[1] // W3C: other forms are ignored
		}
	}
	return fetch.WithCaller(ctx, c), c, nil
}

// handshakeMethod is the one Flight method that runs before authentication.
const handshakeMethod = "/" + flightService + "/Handshake"

// letIn authenticates a call and returns a context with the identity. The call is killed
// when its credentials expire or are revoked.
func (s *Server) letIn(ctx context.Context, c *call) (context.Context, error) {
	d := s.opts.Auth
	// If the files with tokens or rules stay unreadable beyond their grace time, only open
	// methods are served. The old contents may permit what an operator has since revoked.
	if !d.Open(c.method) {
		if err := s.opts.Sources.Closed(); err != nil {
			return ctx, err
		}
	}
	if isNodes(c.method) && s.opts.Cluster != nil {
		return ctx, s.letInNode(ctx)
	}
	// A handshake carries its credentials in its own way.
	if !d.Authenticates() || c.method == handshakeMethod || d.Open(c.method) {
		return ctx, nil
	}
	id, err := d.Authenticate(ctx)
	if err != nil {
		return ctx, err
	}
	c.identity = id
	c.leave = d.Watch(id, func(why error) { s.calls.killCall(c, why) })
	return auth.WithIdentity(ctx, id), nil
}

// Handshake answers a client that sends a name, and a token as its password. The client
// sends them in the Authorization header or in the message. The answer has the token in
// every place where some client looks for it.
func (s *Server) Handshake(stream gen.FlightService_HandshakeServer) error {
	if !s.opts.Auth.Authenticates() {
		return status.Error(codes.Unimplemented, "method Handshake not implemented")
	}
	inMessage := false
	token, id, err := s.opts.Auth.Handshake(stream.Context(), func() ([]byte, error) {
		inMessage = true
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return m.GetPayload(), err
	})
	if err != nil {
		return err
	}
	callFrom(stream.Context()).identity = id // for the log
	bearer := metadata.Pairs("authorization", "Bearer "+token)
	if err := stream.SetHeader(bearer); err != nil {
		return fmt.Errorf("sending headers: %w", err)
	}
	stream.SetTrailer(bearer)
	if !inMessage {
		return nil // clients that send headers read headers
	}
	return stream.Send(&gen.HandshakeResponse{Payload: []byte(token)})
}

// Observer gets durations. It is called a few times a call, and never for a batch or a
// sample. Several goroutines call its methods at once, so they must not block. ctx carries
// the call's span if the call is traced.
type Observer interface {
	// FirstBatch gets the time from the start of a call to its first record batch.
	FirstBatch(ctx context.Context, took time.Duration)
	// Ended gets each call that has ended or was refused. took is 0 for a refused one.
	Ended(ctx context.Context, method string, code codes.Code, took time.Duration)
}

// headers adapts a call's metadata to the interface by which OpenTelemetry reads a trace.
type headers metadata.MD

// Get implements propagation.TextMapCarrier.
func (h headers) Get(key string) string {
	if v := metadata.MD(h).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier. It does nothing: the trace is only read.
func (headers) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (headers) Keys() []string { return nil }

// beginSpan begins the span of a call, within the trace that its headers name.
// The span is nil if nothing is traced.
func (s *Server) beginSpan(ctx context.Context, method string) (context.Context, trace.Span) {
	if s.opts.Tracer == nil || !isFlight(method) {
		return ctx, nil
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = propagation.TraceContext{}.Extract(ctx, headers(md))
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return s.opts.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service),
		attribute.String("rpc.method", name)))
}

// observeEnd reports the end of a call to the observer, and ends the call's span.
func (s *Server) observeEnd(ctx context.Context, c *call, st *status.Status) {
	if s.opts.Observer != nil {
		s.opts.Observer.Ended(ctx, methodName(c.method), st.Code(), time.Since(c.started))
	}
	if c.span == nil {
		return
	}
	if c.span.IsRecording() {
		kind, plan := s.calls.describe(c)
		c.span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(st.Code())))
		if kind != "" {
			c.span.SetAttributes(attribute.Int64("bowstring.rows", c.rows.Load()),
				attribute.Int64("bowstring.bytes", c.bytes.Load()),
				attribute.Int64("bowstring.wait.store_ms", time.Duration(c.waits.store.Load()).Milliseconds()),
				attribute.Int64("bowstring.wait.spill_ms", time.Duration(c.waits.spill.Load()).Milliseconds()),
				attribute.Int64("bowstring.wait.consumer_ms", time.Duration(c.waits.consumer.Load()).Milliseconds()))
		}
		if plan != "" {
			c.span.SetAttributes(attribute.String("bowstring.plan", plan))
		}
		if c.caller.Tenant != "" {
			c.span.SetAttributes(attribute.String("bowstring.tenant", c.caller.Tenant))
		}
		switch st.Code() {
		case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable,
			codes.DataLoss:
			c.span.SetStatus(otelcodes.Error, st.Message()) // OpenTelemetry: a fault of the server
		}
	}
	c.span.End()
}

// observeRefused reports a call that was refused before its handler began.
func (s *Server) observeRefused(ctx context.Context, method string, err error) {
	if s.opts.Observer != nil {
		s.opts.Observer.Ended(ctx, methodName(method), statusOf(err).Code(), 0)
	}
}

// observeFirst reports a stream's first batch to the observers.
func observeFirst(ctx context.Context) {
	if c := callFrom(ctx); c != nil && c.observer != nil {
		c.observer.FirstBatch(ctx, time.Since(c.started))
	}
}

// methodName returns the last part of a gRPC method path.
func methodName(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

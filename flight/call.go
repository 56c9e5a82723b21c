package flight

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

// flightService is the name of the Flight service in gRPC and for health checks.
const flightService = "arrow.flight.protocol.FlightService"

func isFlight(method string) bool { return strings.HasPrefix(method, "/"+flightService+"/") }

// chain lists what every call passes through, outermost first. Authentication
// belongs behind the call's own interceptor, which logs and counts refusals
// too.
func (s *Server) chain() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.unaryCall),
		grpc.ChainStreamInterceptor(s.streamCall),
	}
}

// unaryCall lists, checks, guards and logs a unary call.
func (s *Server) unaryCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	ctx, c, err := s.calls.begin(ctx, info.FullMethod, peerOf(ctx))
	if err != nil {
		return nil, toStatus(err)
	}
	err = s.guard(ctx, info.FullMethod, func() error {
		if err := s.checkRequest(req); err != nil {
			return err
		}
		resp, err = handler(ctx, req)
		return err
	})
	err = c.outcome(err)
	s.finish(ctx, c, err)
	return resp, toStatus(err)
}

// streamCall does the same for streaming calls. The handler runs in a
// goroutine of its own: it may be blocked in grpc, on a client that does not
// read or has nothing to say, and grpc unblocks it only when the call ends. So
// a call that is killed ends here, and its handler right after.
func (s *Server) streamCall(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, c, err := s.calls.begin(ss.Context(), info.FullMethod, peerOf(ss.Context()))
	if err != nil {
		return toStatus(err)
	}
	ended := make(chan error, 1)
	s.sending.Go(func() {
		err := c.outcome(s.guard(ctx, info.FullMethod, func() error {
			return handler(srv, &callStream{ServerStream: ss, ctx: ctx, server: s})
		}))
		s.finish(ctx, c, err)
		ended <- toStatus(err)
	})
	select {
	case err := <-ended:
		return err
	case <-c.killed:
		return toStatus(c.cause)
	}
}

// guard runs f, and makes an error of a panic, with the stack in the log.
func (s *Server) guard(ctx context.Context, method string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.LogAttrs(ctx, slog.LevelError, "panic in a call",
				slog.String("method", method), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = status.Errorf(codes.Internal, "a defect of the server ended the call; its log says where")
		}
	}()
	return f()
}

// finish logs and unlists a call.
func (s *Server) finish(ctx context.Context, c *call, err error) {
	defer s.calls.end(c)
	kind, plan := s.calls.describe(c)
	st := status.New(codes.OK, "")
	if err != nil {
		st = statusOf(err)
	}
	level := slog.LevelInfo
	switch {
	case st.Code() == codes.Internal || st.Code() == codes.DataLoss || st.Code() == codes.Unknown:
		level = slog.LevelError
	case !isFlight(c.method):
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("method", c.method[strings.LastIndexByte(c.method, '/')+1:]),
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
	if plan != "" {
		attrs = append(attrs, slog.String("plan", plan))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", st.Message()))
	}
	s.log.LogAttrs(ctx, level, "call", attrs...)
}

// attr shows the times in milliseconds, so that an operator sees whose fault a
// slow stream was.
func (w *waits) attr() slog.Attr {
	ms := func(name string, nanos *atomic.Int64) any {
		return slog.Int64(name, time.Duration(nanos.Load()).Milliseconds())
	}
	return slog.Group("wait_ms", ms("store", &w.store), ms("spill", &w.spill), ms("window", &w.window), ms("encode", &w.encode), ms("consumer", &w.consumer))
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// callStream is a stream under the call's context, which checks the size of
// what comes in.
type callStream struct {
	grpc.ServerStream
	ctx    context.Context
	server *Server
}

// Context implements grpc.ServerStream.
func (c *callStream) Context() context.Context { return c.ctx }

// RecvMsg implements grpc.ServerStream.
func (c *callStream) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return c.server.checkRequest(m)
}

// checkRequest enforces MaxRequestBytes and MaxMessageBytes.
func (s *Server) checkRequest(m any) error {
	what, size := "", 0
	switch m := m.(type) {
	case *flight.Ticket:
		what, size = "ticket", len(m.Ticket)
	case *flight.Criteria:
		what, size = "criteria", len(m.Expression)
	case *flight.Action:
		what, size = "body of an action", len(m.Body)
	case *flight.FlightDescriptor:
		what, size = "descriptor", descriptorSize(m)
	case *flight.FlightData:
		if n := len(m.DataHeader) + len(m.DataBody) + len(m.AppMetadata); n > s.opts.MaxMessageBytes {
			return fmt.Errorf("%w: a message has %d bytes, MaxMessageBytes is %d; send smaller record batches", schema.ErrLimit, n, s.opts.MaxMessageBytes)
		}
		what, size = "descriptor", descriptorSize(m.FlightDescriptor)
	}
	if size > s.opts.MaxRequestBytes {
		return fmt.Errorf("%w: the %s has %d bytes, MaxRequestBytes is %d", schema.ErrLimit, what, size, s.opts.MaxRequestBytes)
	}
	return nil
}

func descriptorSize(d *flight.FlightDescriptor) int {
	size := len(d.GetCmd())
	for _, p := range d.GetPath() {
		size += len(p)
	}
	return size
}

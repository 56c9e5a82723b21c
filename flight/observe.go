package flight

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Observer is told how long things took, a few times a call and never for a
// batch or a sample. Its methods are called by several goroutines at once, and
// must not block. ctx carries the call's span where it is traced.
type Observer interface {
	// FirstBatch is told of a stream's first record batch, since the call began.
	FirstBatch(ctx context.Context, took time.Duration)
	// Ended is told of each call that ended, or was refused. method is the last
	// part of its name, of which there are as many as the services have.
	Ended(ctx context.Context, method string, code codes.Code, took time.Duration)
}

// headers are those of a call, for what carries a trace from one process to the next.
type headers metadata.MD

// Get implements propagation.TextMapCarrier.
func (h headers) Get(key string) string {
	if v := metadata.MD(h).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier: nothing is sent on.
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

// observeEnd tells whoever observes that a call ended.
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
			c.span.SetStatus(otelcodes.Error, st.Message()) // what the conventions have for a fault of the server
		}
	}
	c.span.End()
}

// observeRefused tells of a call that did not begin.
func (s *Server) observeRefused(ctx context.Context, method string, err error) {
	if s.opts.Observer != nil {
		s.opts.Observer.Ended(ctx, methodName(method), statusOf(err).Code(), 0)
	}
}

// observeFirst tells whoever observes that a stream's first batch was sent.
func observeFirst(ctx context.Context) {
	if c := callFrom(ctx); c != nil && c.observer != nil {
		c.observer.FirstBatch(ctx, time.Since(c.started))
	}
}

func methodName(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

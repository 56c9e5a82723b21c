package read

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const (
	// tracedFirst is how many reads of a stream have a span whatever they took:
	// those that its first batch waits for.
	tracedFirst = 8
	// tracedOdd is how many more have one as they were slow or failed.
	tracedOdd = 32
)

// Trace draws spans of some of the reads that a stream asks for: its first ones,
// and those that were slow or failed. A nil Trace is that of a stream nobody
// traces: it costs a comparison a read. It holds nothing of the call, as reads
// lead to it and are held for longer.
type Trace struct {
	tracer trace.Tracer
	parent trace.SpanContext
	first  atomic.Int32 // that may have a span
	odd    atomic.Int32
}

// NewTrace returns the trace of whatever the span of ctx stands for; nil if that
// is not recorded.
func NewTrace(ctx context.Context) *Trace {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil
	}
	t := &Trace{tracer: span.TracerProvider().Tracer("bowstring/fetch"), parent: span.SpanContext()}
	t.first.Store(tracedFirst)
	t.odd.Store(tracedOdd)
	return t
}

// exampleLocked keeps a read of the stream as an example; Reader.mu is held.
func (t *Trace) exampleLocked(times *Times, took time.Duration, at time.Time) {
	times.Examples[bucketOfTimes(took)/exampleWidth] = Example{t.parent.TraceID(), t.parent.SpanID(), took, at}
}

// attempt draws the span of an attempt, if it is one to be drawn.
func (t *Trace) attempt(a Attempt, began time.Time, slow bool, err error) {
	switch {
	case take(&t.first):
	case (slow || err != nil) && take(&t.odd):
	default:
		return
	}
	_, span := t.tracer.Start(trace.ContextWithSpanContext(context.Background(), t.parent), "read "+a.lane.tier.Name(),
		trace.WithTimestamp(began), trace.WithAttributes(
			attribute.Int64("bowstring.bytes", a.read.ref.Size), attribute.Int("bowstring.attempt", a.nth),
			attribute.Bool("bowstring.slow", slow)))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// take takes one of what is left.
func take(left *atomic.Int32) bool { return left.Load() > 0 && left.Add(-1) >= 0 }

package operators

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const (
	// tracedFirst is how many cells of a stream have a span in any case: those that its
	// first batch waits for.
	tracedFirst = 8
	// tracedOdd is how many more have one because they were slow or failed.
	tracedOdd = 32
	// oddTime is the time, including the wait for a turn, from which on a cell is slow.
	oddTime = time.Second
)

// Trace records spans of some cells of a stream: its first ones, and those that were slow
// or failed. A nil Trace belongs to a stream that is not sampled, and costs one
// comparison a cell. It is safe for concurrent use.
type Trace struct {
	tracer     trace.Tracer
	parent     trace.SpanContext
	first, odd atomic.Int32 // how many more may have a span
}

// NewTrace returns the trace of the span in ctx; nil if that span is not recorded.
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

// made records the span of a task that has ended, if it should have one: from its Put
// until now.
func (t *Trace) made(task *Task, o *Outcome) {
	switch {
	case t == nil:
		return
	case take(&t.first):
	case (o.Err != nil || o.Queued+o.Took >= oddTime) && take(&t.odd):
	default:
		return
	}
	_, span := t.tracer.Start(trace.ContextWithSpanContext(context.Background(), t.parent), "make "+task.Column.Name,
		trace.WithTimestamp(task.put), trace.WithAttributes(
			attribute.Int64("bowstring.position", int64(task.Draws.Key.Position)),
			attribute.Int("bowstring.bytes", len(task.Cell.Bytes())),
			attribute.Int("bowstring.made_bytes", len(o.Blob.Bytes())),
			attribute.Int64("bowstring.queued_us", o.Queued.Microseconds()),
			attribute.Int64("bowstring.processor_us", o.Processor.Microseconds()),
			attribute.Bool("bowstring.kept", o.Kept)))
	if o.Err != nil {
		span.SetStatus(codes.Error, o.Err.Error())
	}
	span.End()
}

// take takes one of the remaining permits.
func take(left *atomic.Int32) bool { return left.Load() > 0 && left.Add(-1) >= 0 }

package tracing

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// forget has the environment say nothing.
func forget(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL",
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED",
	} {
		t.Setenv(name, "")
	}
}

// Without an endpoint nothing is drawn, and nothing has to be closed.
func TestNone(t *testing.T) {
	forget(t)
	traces, err := New(t.Context(), Options{})
	if err != nil || traces != nil || traces.Tracer() != nil || traces.Close() != nil {
		t.Errorf("got %v, %v", traces, err)
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if traces, err := New(t.Context(), Options{Endpoint: "http://localhost:4317"}); err != nil || traces != nil {
		t.Errorf("got %v, %v although it is disabled", traces, err)
	}
}

// Which calls are traced: by the caller, else by the ratio, else by the environment.
func TestSampling(t *testing.T) {
	sampled := func(opts Options) bool {
		t.Helper()
		opts.Endpoint, opts.Logger = "http://127.0.0.1:1", slog.New(slog.DiscardHandler) // no server listens
		traces, err := New(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		_, span := traces.Tracer().Start(context.Background(), "call")
		is := span.SpanContext().IsSampled()
		parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1},
			TraceFlags: trace.FlagsSampled, Remote: true})
		if _, span := traces.Tracer().Start(trace.ContextWithSpanContext(context.Background(), parent),
			"call"); !span.SpanContext().IsSampled() {
			t.Error("a caller who traces is not followed")
		}
		if err := traces.Close(); err != nil { // no span has ended: there is nothing to send
			t.Error(err)
		}
		return is
	}
	forget(t)
	if sampled(Options{Ratio: -1}) || !sampled(Options{Ratio: 1}) {
		t.Error("the ratio does not hold")
	}
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "")
	if !sampled(Options{}) || sampled(Options{Ratio: -1}) {
		t.Error("the environment holds where nothing else is said, and only there")
	}
}

// Options without sense are refused, and the error does not show secrets.
func TestWrongOptions(t *testing.T) {
	forget(t)
	for _, opts := range []Options{{Endpoint: "localhost:4317"}, {Endpoint: "ftp://user:hunter2@host"},
		{Endpoint: "http://h:1", Ratio: 2}} {
		if _, err := New(t.Context(), opts); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	if _, err := New(t.Context(), Options{Endpoint: "http://h:1"}); err == nil {
		t.Error("a protocol that is not spoken is accepted")
	}
}

// A collector that is away is reported now and then.
func TestReports(t *testing.T) {
	var log strings.Builder
	r := &reporter{log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		r.Handle(errors.New("it is away"))
	}
	if n := strings.Count(log.String(), "it is away"); n != 1 {
		t.Errorf("%d reports of 3 in a moment", n)
	}
}

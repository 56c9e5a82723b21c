// Package tracing sends spans by OTLP, as the standard OTEL_* variables or a
// flag have it: it makes the tracer that flight draws its spans with, and sends
// what was drawn until it is closed. What is drawn is decided by flight and fetch,
// which know OpenTelemetry's interface and nothing of exporters; which calls are
// traced is decided here, by the caller's traceparent or by chance.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// DefaultRatio is the share of calls that are traced whose callers do not trace.
	DefaultRatio = 0.01
	// flushTimeout is how long Close waits for what was not sent yet.
	flushTimeout = 5 * time.Second
	// reportEvery is how often trouble with the collector is logged, at most.
	reportEvery = time.Minute
)

// Options say where spans go. The zero value of each field stands for its default.
type Options struct {
	// Endpoint is the URL of a collector that speaks OTLP over gRPC, such as
	// http://localhost:4317. Default: what OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
	// OTEL_EXPORTER_OTLP_ENDPOINT says; where that is nothing, there is no tracing.
	Endpoint string
	// Ratio is the share of calls to trace whose callers do not trace. Default:
	// what OTEL_TRACES_SAMPLER says, or DefaultRatio. Negative for none.
	Ratio float64
	// Version is the service's.
	Version string
	// Logger receives trouble with the collector. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	o.Endpoint = cmp.Or(o.Endpoint, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
		os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("the OTLP endpoint: want a URL such as http://localhost:4317") // it may have a password in it
	}
	if p := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"grpc"); p != "grpc" {
		return fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: got %q, want grpc", p)
	}
	if o.Ratio > 1 {
		return fmt.Errorf("the share of calls to trace: got %g, want 0 to 1", o.Ratio)
	}
	return nil
}

// Tracing sends spans. A nil Tracing draws none. It is safe for concurrent use.
type Tracing struct{ provider *sdktrace.TracerProvider }

// New returns a Tracing, which sends until it is closed; nil where no endpoint is
// named. It connects when there is something to send.
func New(ctx context.Context, opts Options) (*Tracing, error) {
	opts.EnsureDefaults()
	if opts.Endpoint == "" || os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return nil, nil //nolint:nilnil // a nil Tracing is one that draws nothing
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(opts.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "bowstring"),
		attribute.String("service.version", opts.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv()) // the last one holds
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tracing: %w", err), exporter.Shutdown(ctx))
	}
	list := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)}
	if opts.Ratio != 0 || os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		ratio := cmp.Or(opts.Ratio, DefaultRatio)
		list = append(list, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(max(ratio, 0)))))
	}
	otel.SetErrorHandler(&reporter{log: opts.Logger})
	return &Tracing{sdktrace.NewTracerProvider(list...)}, nil
}

// Tracer draws the spans of a server; nil if none are drawn.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("bowstring/flight")
}

// Close sends what was not sent yet, within a few seconds, and ends. Further
// spans are dropped. An error says that some were lost.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("spans were lost: %w", err)
	}
	return nil
}

// reporter logs what goes wrong with sending, now and then: a collector that is
// away is so for every batch of spans.
type reporter struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int
}

// Handle implements otel.ErrorHandler.
func (r *reporter) Handle(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < reportEvery {
		r.skipped++
		return
	}
	r.log.Warn("spans were not sent", "error", err, "not_logged_before", r.skipped)
	r.last, r.skipped = time.Now(), 0
}

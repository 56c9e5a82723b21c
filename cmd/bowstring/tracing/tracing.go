// Package tracing exports spans by OTLP, configured by the standard OTEL_* variables or a
// flag. It makes the tracer with which flight records its spans, and exports them until
// it is closed. Packages flight and fetch decide which spans there are; they know
// OpenTelemetry's interface and no exporter. This package decides which calls are
// sampled, by the caller's traceparent or at random.
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
	// DefaultRatio is the share of calls that are sampled if the caller sends no
	// traceparent.
	DefaultRatio = 0.01
	// flushTimeout bounds how long Close waits for the export of the last spans: a server
	// that stops must not wait for a collector that is down.
	flushTimeout = 5 * time.Second
	// reportEvery is the least time between two log lines about failed exports.
	reportEvery = time.Minute
)

// Options say where spans go. The zero value of each field stands for its default.
type Options struct {
	// Endpoint is the URL of a collector that speaks OTLP over gRPC, such as
	// http://localhost:4317. Default: what OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
	// OTEL_EXPORTER_OTLP_ENDPOINT says; where that is nothing, there is no tracing.
	Endpoint string
	// Ratio is the share of calls to sample if the caller sends no traceparent. Default:
	// OTEL_TRACES_SAMPLER, or DefaultRatio. Negative for none.
	Ratio float64
	// Version is the version of the service, an attribute of all spans.
	Version string
	// Logger receives errors of exports. Default slog.Default().
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

// Tracing exports spans. A nil Tracing records none. It is safe for concurrent use.
type Tracing struct{ provider *sdktrace.TracerProvider }

// New returns a Tracing, which exports until it is closed; nil if no endpoint is set or
// OTEL_SDK_DISABLED is true. It connects with the first export, so that a server starts
// while its collector is down. It sets OpenTelemetry's global error handler.
func New(ctx context.Context, opts Options) (*Tracing, error) {
	opts.EnsureDefaults()
	if opts.Endpoint == "" || os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return nil, nil //nolint:nilnil // a nil Tracing records nothing
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

// Tracer records the spans of a server; nil if there is no tracing.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("bowstring/flight")
}

// Close exports the last spans, within flushTimeout, and ends. Later spans are dropped.
// An error says that some were lost.
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

// reporter logs errors of exports, at most one every reportEvery: while a collector is
// down, every batch of spans fails. Guarded by mu.
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

package flight

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// witness is an Observer that keeps its arguments.
type witness struct {
	mu    sync.Mutex
	first []trace.TraceID
	ended map[string][]codes.Code
}

func (w *witness) FirstBatch(ctx context.Context, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = append(w.first, trace.SpanContextFromContext(ctx).TraceID())
}

func (w *witness) Ended(_ context.Context, method string, code codes.Code, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil {
		w.ended = map[string][]codes.Code{}
	}
	w.ended[method] = append(w.ended[method], code)
}

const callersTrace = "0af7651916cd43dd8448eb211c80319c"

// A caller that traces finds its calls in its trace, with their parts. Other calls are
// sampled, here never, and no span of them is recorded.
func TestTraces(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	seen := &witness{}
	f := serve(t, Options{Tracer: provider.Tracer("test"), Observer: seen})
	f.fillLarge("big")
	request := `{"dataset": "big", "batch": 4}`
	read := func(ctx context.Context) {
		t.Helper()
		info, err := f.client.GetFlightInfo(ctx, command("%s", request))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := f.client.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
		if err != nil {
			t.Fatal(err)
		}
		if err := drainStream(stream); err != nil {
			t.Fatal(err)
		}
		f.untilIdle()
	}
	read(t.Context())
	// who does not want it traced
	read(metadata.AppendToOutgoingContext(t.Context(), traceHeader, "00-"+callersTrace+"-b7ad6b7169203331-00"))
	if drawn := spans.GetSpans(); len(drawn) != 0 {
		t.Fatalf("%d spans of calls that are not sampled: %v", len(drawn), names(drawn))
	}
	read(metadata.AppendToOutgoingContext(t.Context(), traceHeader, "00-"+callersTrace+"-b7ad6b7169203331-01"))
	drawn := spans.GetSpans()
	byName := map[string]tracetest.SpanStub{}
	for _, s := range drawn {
		if s.SpanContext.TraceID().String() != callersTrace {
			t.Errorf("%s is in trace %s", s.Name, s.SpanContext.TraceID())
		}
		byName[s.Name] = s
	}
	for name, parent := range map[string]string{"plan": "", "count bytes": "GetFlightInfo", "first batch": "DoGet",
		"read store": "DoGet"} {
		s, ok := byName[name]
		if !ok {
			t.Errorf("there is no span %q of %v", name, names(drawn))
		} else if parent != "" && s.Parent.SpanID() != byName[parent].SpanContext.SpanID() {
			t.Errorf("%s is not within %s", name, parent)
		}
	}
	if s := byName["DoGet"]; s.SpanKind != trace.SpanKindServer || s.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("got %+v", s)
	}
	reads := 0
	for _, s := range drawn {
		if strings.HasPrefix(s.Name, "read ") {
			reads++
		}
	}
	if reads == 0 || reads >= largeRows {
		t.Errorf("%d reads of %d have spans, want the first ones", reads, largeRows)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.first) != 3 || !slices.ContainsFunc(seen.first, func(id trace.TraceID) bool {
		return id.String() == callersTrace
	}) {
		t.Errorf("first batches %v", seen.first)
	}
	if got := seen.ended["DoGet"]; !slices.Equal(got, []codes.Code{codes.OK, codes.OK, codes.OK}) {
		t.Errorf("DoGet ended with %v; all: %v", got, slices.Collect(maps.Keys(seen.ended)))
	}
}

func names(spans tracetest.SpanStubs) (list []string) {
	for _, s := range spans {
		list = append(list, s.Name)
	}
	return list
}

// Calls that fail, or are refused before they begin, are reported with their code.
func TestObserverGetsFailures(t *testing.T) {
	seen := &witness{}
	f := serve(t, Options{Observer: seen})
	if _, err := f.client.GetFlightInfo(t.Context(), path("none")); err == nil {
		t.Error("there is no such dataset")
	}
	bad := metadata.AppendToOutgoingContext(t.Context(), tenantHeader, "two words")
	if _, err := f.client.GetSchema(bad, &flight.FlightDescriptor{}); err == nil {
		t.Error("there can be no such tenant")
	}
	f.untilIdle()
	for _, one := range f.server.Stats().Tenants {
		if one.Tenant != "" {
			t.Errorf("a tenant that cannot be is counted: %q", one.Tenant)
		}
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if got := seen.ended["GetFlightInfo"]; !slices.Equal(got, []codes.Code{codes.NotFound}) {
		t.Errorf("GetFlightInfo: %v", got)
	}
	if got := seen.ended["GetSchema"]; !slices.Equal(got, []codes.Code{codes.InvalidArgument}) {
		t.Errorf("GetSchema: %v", got)
	}
}

// A bounded number of tenants is counted by name, the others in one sum, and no call gets
// lost.
func TestTenantsAreBounded(t *testing.T) {
	var list tenants
	const calls = 10 * maxTenants
	for i := range calls {
		c := &call{}
		c.caller.Tenant = strings.Repeat("t", i+1)
		c.bytes.Store(1)
		list.ended(c, time.Now())
	}
	found := list.list(nil)
	if len(found) != maxTenants+1 || !found[len(found)-1].Others {
		t.Fatalf("%d are listed", len(found))
	}
	var sum, bytes int64
	for _, one := range found {
		sum += one.Calls
		bytes += one.Bytes
	}
	if sum != calls || bytes != calls {
		t.Errorf("%d calls with %d bytes are counted of %d", sum, bytes, calls)
	}
}

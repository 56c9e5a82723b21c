package flight

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"bowstring/fetch"
)

// conn is a bare gRPC connection.
func (f *fixture) conn() *grpc.ClientConn {
	f.t.Helper()
	c, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

func TestHealthAndReflection(t *testing.T) {
	f := serve(t, Options{})
	c := f.conn()
	for _, service := range []string{"", flightService} {
		r, err := grpc_health_v1.NewHealthClient(c).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: got %v, %v", service, r, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(c).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	if !slices.Contains(names, flightService) || !slices.Contains(names, "grpc.health.v1.Health") {
		t.Errorf("got services %q", names)
	}
}

func TestHandshakeUnimplemented(t *testing.T) {
	f := serve(t, Options{})
	stream, err := f.client.Handshake(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantCode(t, err, codes.Unimplemented, "")
}

func TestMaxStreams(t *testing.T) {
	f := serve(t, Options{MaxStreams: 2})
	f.fillLarge("big")
	const ticket = `{"dataset": "big", "batch": 4}`
	one := f.stalled(t.Context(), ticket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := f.exchange(ctx, command(`{"take": {"dataset": "big"}}`), positionSchema)
	if err := x.ask(positions(1)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.answer(); err != nil {
		t.Fatal(err)
	}
	const want = "MaxStreams is 2"
	_, err := f.get(&flight.Ticket{Ticket: []byte(ticket)})
	wantCode(t, err, codes.ResourceExhausted, want)
	_, err = f.put(path("d"), samples(0, 1))
	wantCode(t, err, codes.ResourceExhausted, want)
	_, _, err = f.exchange(t.Context(), command(`{"take": {"dataset": "big"}}`), positionSchema).answer()
	wantCode(t, err, codes.ResourceExhausted, want)
	// Other calls than streams go on, and a free place is used.
	if _, err := f.infos(""); err != nil {
		t.Error(err)
	}
	if err := drainStream(one); err != nil {
		t.Fatal(err)
	}
	if _, err := f.server.calls.wait(t.Context(), func(c *call) bool {
		return strings.HasSuffix(c.method, "/DoGet")
	}); err != nil {
		t.Fatal(err)
	}
	recs, err := f.get(&flight.Ticket{Ticket: []byte(ticket)})
	if err != nil || rowsOf(recs) != largeRows {
		t.Errorf("got %d rows, %v", rowsOf(recs), err)
	}
}

func TestMaxRequestBytes(t *testing.T) {
	f := serve(t, Options{MaxRequestBytes: 100})
	long := strings.Repeat("x", 101)
	const want = "101 bytes, MaxRequestBytes is 100"
	_, err := f.get(&flight.Ticket{Ticket: []byte(long)})
	wantCode(t, err, codes.ResourceExhausted, "ticket has "+want)
	_, err = f.infos(long)
	wantCode(t, err, codes.ResourceExhausted, "criteria has "+want)
	_, err = f.act("list", long)
	wantCode(t, err, codes.ResourceExhausted, "body of an action has "+want)
	for _, d := range []*flight.FlightDescriptor{command("%s", long), path(long[:50], long[50:])} {
		_, err = f.client.GetFlightInfo(t.Context(), d)
		wantCode(t, err, codes.ResourceExhausted, "descriptor has "+want)
		_, err = f.client.GetSchema(t.Context(), d)
		wantCode(t, err, codes.ResourceExhausted, "descriptor has "+want)
		_, err = f.put(d, samples(0, 1))
		wantCode(t, err, codes.ResourceExhausted, "descriptor has "+want)
		_, _, err = f.exchange(t.Context(), d, positionSchema).answer()
		wantCode(t, err, codes.ResourceExhausted, "descriptor has "+want)
	}
	_, err = f.client.GetFlightInfo(t.Context(), path("d"))
	wantCode(t, err, codes.NotFound, "d")
}

func TestMaxMessageBytes(t *testing.T) {
	f := serve(t, Options{MaxMessageBytes: 100_000})
	if _, err := f.put(path("fits"), samples(0, 50)); err != nil {
		t.Error(err)
	}
	_, err := f.put(path("does-not"), samples(0, 150))
	wantCode(t, err, codes.ResourceExhausted, "MaxMessageBytes is 100000")
	_, err = f.put(path("by-far-not"), samples(0, 1000)) // or more than twice as much
	wantCode(t, err, codes.ResourceExhausted, "MaxMessageBytes is 100000")
	f.wantDatasets("fits")
}

// TestPanic: a panic ends its call and nothing else.
func TestPanic(t *testing.T) {
	f := serve(t, Options{})
	source := f.server.source
	f.server.source = nil // which no handler expects
	_, err := f.client.GetFlightInfo(t.Context(), path("d"))
	wantCode(t, err, codes.Internal, "a defect of the server")
	_, err = f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)})
	wantCode(t, err, codes.Internal, "a defect of the server")
	// The client has its answers before the handlers are quite done.
	if _, err := f.server.calls.wait(t.Context(), func(*call) bool { return true }); err != nil {
		t.Fatal(err)
	}
	f.server.source = source
	if log := f.log.String(); strings.Count(log, "panic in a call") != 2 || !strings.Contains(log, "info.go") ||
		!strings.Contains(log, "/get.go") {
		t.Error("the log does not show the stacks")
	}
	f.fill("d", 10)
}

// TestPanicInAuthentication: nor does a panic during authentication.
func TestPanicInAuthentication(t *testing.T) {
	f := serve(t, Options{})
	f.server.identify = func(ctx context.Context, c fetch.Caller) fetch.Caller {
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("test-panic")) > 0 {
			panic("what a stranger has sent")
		}
		return c
	}
	f.fill("d", 10)
	_, err := f.client.GetFlightInfo(metadata.AppendToOutgoingContext(t.Context(), "test-panic", "1"), path("d"))
	wantCode(t, err, codes.Internal, "a defect of the server")
	id := regexp.MustCompile("[0-9a-f]{16}").FindString(err.Error())
	if log := f.log.String(); id == "" || !strings.Contains(log, id) || !strings.Contains(log, "what a stranger has") {
		t.Errorf("the log has not the panic of id %q: %s", id, log)
	}
	if strings.Contains(err.Error(), "stranger") {
		t.Errorf("the client gets what only the log may have: %v", err)
	}
	if _, err := f.client.GetFlightInfo(t.Context(), path("d")); err != nil {
		t.Error(err)
	}
	if _, err := f.server.calls.wait(t.Context(), func(*call) bool { return true }); err != nil {
		t.Errorf("a call is still listed: %v", err)
	}
}

func TestLog(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 10)
	if _, err := f.client.GetFlightInfo(t.Context(), path("e")); err == nil {
		t.Error("no error")
	}
	if _, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)}); err != nil {
		t.Fatal(err)
	}
	log := f.log.String()
	for _, want := range []string{
		`method=DoPut peer=127\.0\.0\.1:\d+ seconds=[0-9.e-]+ code=OK rows=10 bytes=\d+\n`,
		`method=GetFlightInfo peer=127\.0\.0\.1:\d+ seconds=[0-9.e-]+ code=NotFound error=`,
		`method=DoGet peer=127\.0\.0\.1:\d+ seconds=[0-9.e-]+ code=OK rows=10 bytes=\d+ wait_ms\.store=\d+ wait_ms\.spill=\d+ wait_ms\.peer=\d+ wait_ms\.window=\d+ wait_ms\.encode=\d+ wait_ms\.consumer=\d+ plan=[0-9a-f]{16}\n`,
	} {
		if !regexp.MustCompile(want).MatchString(log) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// Test64Streams reads 64 epochs at once over few connections, each shuffled
// otherwise, and checks every row.
func Test64Streams(t *testing.T) {
	f := serve(t, Options{})
	const n = 1000
	f.fill("d", n)
	clients := []flight.Client{f.client, f.dial(), f.dial(), f.dial()}
	var readers sync.WaitGroup
	for i := range 64 {
		readers.Go(func() {
			stream, err := clients[i%len(clients)].DoGet(t.Context(),
				&flight.Ticket{Ticket: fmt.Appendf(nil,
					`{"dataset": "d", "columns": ["position", "image"], "shuffle": {"seed": %d}, "batch": 50}`, i)})
			if err != nil {
				t.Error(err)
				return
			}
			recs, err := records(stream)
			if err != nil {
				t.Error(err)
				return
			}
			seen := make([]bool, n)
			for _, rec := range recs {
				positions, images := rec.Column(0).(*array.Int64), rec.Column(1).(*array.LargeBinary)
				for k := range int(rec.NumRows()) {
					p := positions.Value(k)
					if seen[p] {
						t.Errorf("stream %d has position %d twice", i, p)
						return
					}
					seen[p] = true
					if string(images.Value(k)) != string(content(int(p))) {
						t.Errorf("stream %d has a wrong image at position %d", i, p)
						return
					}
				}
			}
			if slices.Contains(seen, false) {
				t.Errorf("stream %d lacks rows", i)
			}
		})
	}
	readers.Wait()
	f.untilIdle()
	if running, _, _, _ := f.server.calls.snapshot(func(*call) bool { return true }, true); len(running) != 0 {
		t.Errorf("still running: %+v", running)
	}
}

// TestStalledReader: one client that does not read blocks no other.
func TestStalledReader(t *testing.T) {
	f := serve(t, Options{})
	f.fillLarge("big")
	ctx, cancel := context.WithCancel(t.Context())
	f.stalled(ctx, `{"dataset": "big", "batch": 4}`)
	for range 3 {
		recs, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "big"}`)})
		if err != nil || rowsOf(recs) != largeRows {
			t.Fatalf("got %d rows, %v", rowsOf(recs), err)
		}
	}
	cancel()
	f.untilIdle()
}

package flight

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// draining begins a shutdown and waits until the server drains.
func (f *fixture) draining(ctx context.Context) chan error {
	f.t.Helper()
	ended := make(chan error, 1)
	health := grpc_health_v1.NewHealthClient(f.conn())
	watch, err := health.Watch(f.t.Context(), &grpc_health_v1.HealthCheckRequest{Service: flightService})
	if err != nil {
		f.t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		f.t.Fatalf("health is %v, %v", r, err)
	}
	go func() { ended <- f.server.Shutdown(ctx) }()
	if r, err := watch.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		f.t.Fatalf("health is %v, %v", r, err)
	}
	return ended
}

// TestDrain: streams that end in time end well, new calls are refused by name,
// and the health watcher does not hold the server up.
func TestDrain(t *testing.T) {
	f := serve(t, Options{DrainTimeout: time.Minute})
	f.fillLarge("big")
	get := f.stalled(t.Context(), `{"dataset": "big", "batch": 4}`)
	put, w := f.uploading(t.Context(), f.client, path("d"))
	x := f.exchange(t.Context(), command(`{"take": {"dataset": "big", "columns": ["id"]}}`), positionSchema)
	if err := x.ask(positions(1)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.answer(); err != nil {
		t.Fatal(err)
	}

	ended := f.draining(t.Context())
	const why = "the server is draining"
	_, err := f.client.GetFlightInfo(t.Context(), path("big"))
	wantCode(t, err, codes.Unavailable, why)
	_, err = f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "big"}`)})
	wantCode(t, err, codes.Unavailable, why)
	_, err = f.act("list", ``)
	wantCode(t, err, codes.Unavailable, why)
	_, err = f.put(path("e"), samples(0, 1))
	wantCode(t, err, codes.Unavailable, why)

	// Running streams go on.
	if err := drainStream(get); err != nil {
		t.Errorf("DoGet: %v", err)
	}
	if err := w.Write(samples(50, 60)); err != nil {
		t.Fatal(err)
	}
	if err := put.CloseSend(); err != nil {
		t.Fatal(err)
	}
	results, err := resultsOf(put)
	if err != nil {
		t.Fatalf("DoPut: %v", err)
	}
	if got := last[putAck](t, results); got.Rows != 60 {
		t.Errorf("got %+v", got)
	}
	// An idle exchange has no request left, so it ends.
	_, _, err = x.answer()
	wantCode(t, err, codes.Unavailable, why)
	if err := <-ended; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	f.wantDatasets("big", "d")
}

// TestDrainExchange: an exchange ends between two answers. The client gets the answer that
// it is reading when the drain begins.
func TestDrainExchange(t *testing.T) {
	f := serve(t, Options{DrainTimeout: time.Minute})
	f.fillLarge("big")
	all := make([]int64, largeRows)
	for i := range all {
		all[i] = int64(i)
	}
	x := f.exchange(t.Context(), command(`{"take": {"dataset": "big", "batch_bytes": 1048576}}`), positionSchema)
	for range 3 {
		if err := x.ask(positions(all...)); err != nil {
			t.Fatal(err)
		}
	}
	_, part, err := x.answer()
	if err != nil || part.Last {
		t.Fatalf("got %+v, %v", part, err)
	}
	ended := f.draining(t.Context())
	rows := part.Rows
	for {
		rec, next, err := x.answer()
		if err != nil {
			wantCode(t, err, codes.Unavailable, "the server is draining")
			break
		}
		rec.Release()
		part, rows = next, rows+next.Rows
	}
	if !part.Last || rows%largeRows != 0 {
		t.Errorf("got %d rows, and %+v as the last part", rows, part)
	}
	if err := <-ended; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestDrainDeadline: streams that have not ended at the deadline are cut off, whether the
// client does not read, does not write or is only slow. Clients that read get the reason.
func TestDrainDeadline(t *testing.T) {
	f := serve(t, Options{DrainTimeout: time.Minute})
	f.fillLarge("big")
	f.untilIdle() // the call that has put it ends a little after its client knows
	stalled := f.stalled(t.Context(), `{"dataset": "big", "batch": 4}`)
	put, _ := f.uploading(t.Context(), f.client, path("d"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := f.draining(ctx)
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "2 calls were cut off") {
		t.Errorf("Shutdown: got %v, want 2 calls cut off", err)
	}
	const why = "the server stopped"
	_, err := resultsOf(put)
	wantCode(t, err, codes.Unavailable, why)
	wantCode(t, drainStream(stalled), codes.Unavailable, "")
	f.wantDatasets("big")
}

// TestShutdownTwice: the second call has nothing to do.
func TestShutdownTwice(t *testing.T) {
	f := serve(t, Options{})
	for range 2 {
		if err := f.server.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestVanishedClients kills connections at many moments. The fixture's end checks that
// nothing remains.
func TestVanishedClients(t *testing.T) {
	f := serve(t, Options{})
	f.fillLarge("big")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	src := rand.New(rand.NewPCG(seed, 0))
	for i := range 20 {
		c := f.dial()
		stream, err := c.DoGet(t.Context(), &flight.Ticket{Ticket: []byte(`{"dataset": "big", "batch": 3}`)})
		if err != nil {
			t.Fatal(err)
		}
		for range src.IntN(10) {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 0 {
			f.uploading(t.Context(), c, path(fmt.Sprintf("d%d", i)))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	f.wantDatasets("big")
	if st := f.engine.Stats(); st.LiveStreams != 0 {
		t.Errorf("%d streams live on", st.LiveStreams)
	}
}

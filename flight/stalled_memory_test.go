package flight

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
)

// A client that does not read holds the buffers of its transport and the next sample. If
// there is little memory, no further batch is prepared, and another client can continue.
func TestLittleMemoryWithStalled(t *testing.T) {
	f := serve(t, Options{})
	f.fillLarge("big") // of samples of 1 MiB
	discard := slog.New(slog.DiscardHandler)
	engine, err := fetch.NewEngine(f.store, fetch.Options{WindowBytes: 5 << 20, Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	server := New(engine, Options{Logger: discard, DrainTimeout: time.Second})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	f.addr = lis.Addr().String()
	f.client = f.dial()
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		_ = server.Shutdown(context.Background()) // the drain may have cut off a client that did not read
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}()
	f.stalled(ctx, `{"dataset": "big", "batch": 1}`)
	used := int64(-1)
	waitFor(t, "the stalled stream to take nothing more", func() bool {
		before := used
		used = engine.Stats().WindowUsed
		time.Sleep(50 * time.Millisecond)
		return used > 2<<20 && used == before
	})
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	other, err := f.dial().DoGet(ctx, &flight.Ticket{Ticket: []byte(`{"dataset": "big", "batch": 1}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := drainStream(other); err != nil {
		t.Errorf("with a stalled stream: %v; %d bytes are held", err, engine.Stats().WindowUsed)
	}
}

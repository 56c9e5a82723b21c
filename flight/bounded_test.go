package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"bowstring/fetch/admission"
	"bowstring/flight/usage"
)

// acted makes a call of an action with a body of any bytes.
func (f *fixture) acted(action string, body []byte) error {
	stream, err := f.client.DoAction(f.t.Context(), &flight.Action{Type: action, Body: body})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// nested is a protobuf field of messages.
func nested(number protowire.Number, messages ...[]byte) (b []byte) {
	for _, m := range messages {
		b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), m)
	}
	return b
}

// The body of an action is decoded only if there is memory for the decoded message: two
// bytes can become a hundred.
func TestBodiesAreCountedBeforeTheyAreDecoded(t *testing.T) {
	f := serve(t, Options{})
	empty := bytes.Repeat(nested(3, nil), 900_000) // endpoints of a FlightInfo
	for name, body := range map[string][]byte{
		flight.CancelFlightInfoActionType:    nested(1, empty),
		flight.RenewFlightEndpointActionType: nested(1, bytes.Repeat(nested(2, nil), 900_000)), // locations
	} {
		wantCode(t, f.acted(name, body), codes.ResourceExhausted, "answers")
		body = bytes.Repeat([]byte{0x0a, 0xff}, 10)
		wantCode(t, f.acted(name, body), codes.InvalidArgument, "want a protobuf")
	}
	about := (&flight.CancelFlightInfoRequest{}).ProtoReflect().Descriptor()
	// The average of many runs hides what the server allocates meanwhile, such as a line of its log.
	small := nested(1, empty[:2_000])
	if n := testing.AllocsPerRun(1000, func() { _, _ = decodedCost(small, about, 0) }); n > 0 {
		t.Errorf("counting allocates %g times", n)
	}
	body := nested(1, empty)
	if cost, err := decodedCost(body, about, 0); err != nil || cost < 900_000*messageCost {
		t.Errorf("%d bytes, %v", cost, err)
	}
	for _, a := range f.server.opts.Ledger.Accounts() {
		if a.Use == admission.Results.String() && a.Used != 0 {
			t.Errorf("%d bytes of answers are still counted", a.Used)
		}
	}
}

// A CancelFlightInfo has a bounded number of endpoints and requests, because each request
// costs a pass over all calls.
func TestCancelledPlansAreBounded(t *testing.T) {
	f := serve(t, Options{MaxEndpoints: 1000})
	f.fill("d", 10)
	info := func(requests, endpoints int) []byte {
		var list []byte
		for i := range endpoints {
			ticket := fmt.Appendf(nil, `{"dataset": "d", "snapshot": 1, "batch": 1, "rank": 0, "shuffle": {"seed": %d}}`,
				i%requests)
			list = append(list, nested(3, nested(1, nested(1, ticket)))...)
		}
		return nested(1, list)
	}
	if err := f.acted(flight.CancelFlightInfoActionType, info(maxCancelled, 1000)); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
	wantCode(t, f.acted(flight.CancelFlightInfoActionType, info(maxCancelled+1, 1000)), codes.ResourceExhausted,
		"more than 16 requests")
	wantCode(t, f.acted(flight.CancelFlightInfoActionType, info(1, 1001)), codes.ResourceExhausted, "MaxEndpoints")
}

// Handlers that read tickets or records do so in turns of their tenant, and end with
// their caller while they wait for one.
func TestActionsTakeTurns(t *testing.T) {
	book, err := usage.Open(usage.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	f := serve(t, Options{Usage: book})
	f.fill("d", 10)
	if _, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.server.calls.wait(t.Context(), func(*call) bool { return true }); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	var busy sync.WaitGroup
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		began := make(chan struct{})
		busy.Go(func() {
			err := f.server.work.Do(context.Background(), "busy", func() error {
				close(began)
				<-release
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-began
	}
	ticket := nested(3, nested(1, nested(1, []byte(`{"dataset": "d", "snapshot": 1, "batch": 1, "rank": 0}`))))
	bodies := map[string][]byte{"usage": nil, "lineage": nil, flight.CancelFlightInfoActionType: nested(1, ticket)}
	run := func(ctx context.Context, a action) error {
		return a.run(actionHandler{f.server}, ctx, bodies[a.name], func([]byte) error { return nil })
	}
	gone := errors.New("the client has gone")
	for _, a := range actions() {
		if _, ok := bodies[a.name]; !ok {
			continue
		}
		// One that takes no turn ends well before this client goes.
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, gone)
		if err := run(ctx, a); !errors.Is(err, gone) {
			t.Errorf("%s: %v; want it to wait for its turn", a.name, err)
		}
		cancel()
	}
	close(release)
	busy.Wait()
	for _, a := range actions() {
		if _, ok := bodies[a.name]; ok {
			if err := run(t.Context(), a); err != nil {
				t.Errorf("%s: %v", a.name, err)
			}
		}
	}
}

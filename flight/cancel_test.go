package flight

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// stalled begins a DoGet of large batches and reads only one, so that the handler blocks in
// the transport.
func (f *fixture) stalled(ctx context.Context, ticket string) flight.FlightService_DoGetClient {
	f.t.Helper()
	stream, err := f.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(ticket)})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		f.t.Fatal(err)
	}
	return stream
}

// largeRows is how many images of 1 MiB fillLarge puts.
const largeRows = 48

// fillLarge makes a dataset whose epoch is larger than the buffers of a transport.
func (f *fixture) fillLarge(dataset string) {
	f.t.Helper()
	blob := make([]byte, 1<<20)
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	defer b.Release()
	for i := range largeRows {
		binary.LittleEndian.PutUint64(blob, uint64(i))
		b.Append(blob)
	}
	rec := array.NewRecord(arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil),
		[]arrow.Array{b.NewArray()}, largeRows)
	defer rec.Release()
	if _, err := f.put(path(dataset), rec); err != nil {
		f.t.Fatal(err)
	}
}

// drainStream reads a stream to its end.
func drainStream(stream flight.DataStreamReader) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestActionCancel(t *testing.T) {
	f := serve(t, Options{})
	f.fillLarge("big")
	const ticket = `{"dataset": "big", "batch": 4}`
	info, err := f.client.GetFlightInfo(t.Context(), command(ticket))
	if err != nil {
		t.Fatal(err)
	}
	plan := decoded[planInfo](t, info.AppMetadata).Plan

	// By its plan, with two streams running and one of another plan.
	one, two := f.stalled(t.Context(), ticket), f.stalled(t.Context(), string(info.Endpoint[0].Ticket.Ticket))
	other := f.stalled(t.Context(), `{"dataset": "big", "batch": 5}`)
	results, err := f.act("cancel", `{"plan": "`+plan+`"}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"plan":"` + plan + `","cancelled":2}`; string(results[0]) != want {
		t.Errorf("got %s, want %s", results[0], want)
	}
	for _, s := range []flight.FlightService_DoGetClient{one, two} {
		wantCode(t, drainStream(s), codes.Canceled, "cancelled")
	}
	if err := drainStream(other); err != nil {
		t.Errorf("another plan's stream ended with %v", err)
	}

	// By Flight's own action.
	three := f.stalled(t.Context(), ticket)
	result, err := f.client.CancelFlightInfo(t.Context(), &flight.CancelFlightInfoRequest{Info: info})
	if err != nil {
		t.Fatal(err)
	}
	if result.Status != flight.CancelStatusCancelled {
		t.Errorf("got %s", result.Status)
	}
	wantCode(t, drainStream(three), codes.Canceled, "cancelled")
	// Again: no stream runs, and that is the result the client wants.
	if result, err = f.client.CancelFlightInfo(t.Context(), &flight.CancelFlightInfoRequest{Info: info}); err != nil ||
		result.Status != flight.CancelStatusCancelled {
		t.Errorf("got %v, %v", result, err)
	}
	// It also works when the snapshot is gone. Its rows are not needed, although the
	// request has an expression.
	whole, err := f.client.GetFlightInfo(t.Context(),
		command(`{"dataset": "big", "batch": 5, "where": "position >= 0"}`))
	if err != nil {
		t.Fatal(err)
	}
	four := f.stalled(t.Context(), string(whole.Endpoint[0].Ticket.Ticket))
	defer func() {
		if _, err := f.act("drop", `{"dataset": "big"}`); err != nil {
			t.Fatal(err)
		}
		if result, err := f.client.CancelFlightInfo(t.Context(),
			&flight.CancelFlightInfoRequest{Info: whole}); err != nil || result.Status != flight.CancelStatusCancelled {
			t.Errorf("after the snapshot was dropped: %v, %v", result, err)
		}
		wantCode(t, drainStream(four), codes.Canceled, "cancelled")
	}()
	// A cancelled plan can be served again.
	recs, err := f.get(info.Endpoint[0].Ticket)
	if err != nil || rowsOf(recs) != largeRows {
		t.Errorf("after the cancellation: %d rows, %v", rowsOf(recs), err)
	}
}

func TestRenewFlightEndpoint(t *testing.T) {
	f := serve(t, Options{EndpointTTL: time.Hour})
	f.fill("d", 10)
	info, err := f.client.GetFlightInfo(t.Context(), path("d"))
	if err != nil {
		t.Fatal(err)
	}
	e := info.Endpoint[0]
	renewed, err := f.client.RenewFlightEndpoint(t.Context(), &flight.RenewFlightEndpointRequest{Endpoint: e})
	if err != nil {
		t.Fatal(err)
	}
	if !renewed.ExpirationTime.AsTime().After(e.ExpirationTime.AsTime()) {
		t.Errorf("it expired %s, and now %s", e.ExpirationTime.AsTime(), renewed.ExpirationTime.AsTime())
	}
	if renewed.ExpirationTime.Nanos%1000 != 0 {
		t.Errorf("%d ns are no whole microseconds", renewed.ExpirationTime.Nanos)
	}
	renewed.ExpirationTime = e.ExpirationTime
	if !proto.Equal(renewed, e) {
		t.Errorf("got %v, want %v", renewed, e)
	}
	if _, err := f.act("drop", `{"dataset": "d"}`); err != nil {
		t.Fatal(err)
	}
	_, err = f.client.RenewFlightEndpoint(t.Context(), &flight.RenewFlightEndpointRequest{Endpoint: e})
	wantCode(t, err, codes.NotFound, "d")
}

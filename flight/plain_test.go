package flight

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"

	"bowstring/flight/wire"
)

// plainTransport has every server of a test be plain; see TestPlainTransport.
var plainTransport bool

// The module has the release of gRPC that the transport was proven with. If this fails, gRPC was changed: read what
// wire.ProvenGRPC lists in the new release, run the tests of flight and flight/wire with -race, and set it anew. Until
// then servers copy what they send.
func TestGRPCIsTheProvenRelease(t *testing.T) {
	if grpc.Version != wire.ProvenGRPC {
		t.Errorf("gRPC is %s, the transport was proven with %s", grpc.Version, wire.ProvenGRPC)
	}
}

// Calls have the same outcomes if the server relies only on what gRPC promises.
func TestPlainTransport(t *testing.T) {
	plainTransport = true
	defer func() { plainTransport = false }()
	for name, test := range map[string]func(*testing.T){
		"epochs": TestEpochs, "early": TestEarly, "operators": TestOperators, "streams": Test64Streams,
		"stalled": TestStalledReader, "panic": TestPanic, "max_streams": TestMaxStreams, "large_image": TestLargeImage,
		"put_and_get": TestPutAndGet, "put_compressed": TestPutCompressed, "put_refuses": TestPutRefuses,
		"exchange": TestExchange, "exchange_pipelined": TestExchangePipelined, "info": TestGetFlightInfo,
		"schema": TestGetSchema, "lists": TestListFlights, "actions": TestActionDescribe,
		"max_request": TestMaxRequestBytes, "max_message": TestMaxMessageBytes, "compressed": TestAnswersAreNotCompressed,
		"certificates": TestCertificatesExchanged, "cancel": TestCancelledPlansAreBounded,
	} {
		t.Run(name, test)
	}
}

// A stream has the same bytes by both ways, except for the waiting time of its batches.
func TestPlainStreamIsTheSame(t *testing.T) {
	for _, ticket := range []string{
		`{"dataset":"d","batch":64,"shuffle":{"seed":3}}`,
		`{"dataset":"d","batch":1000,"columns":["position","image"],"layout":"huggingface"}`,
	} {
		t.Run(ticket, func(t *testing.T) {
			var ways [2][]*flight.FlightData
			for i := range ways {
				f := serve(t, Options{PlainTransport: i == 1})
				f.fill("d", 300)
				ways[i] = f.messages(ticket)
			}
			if len(ways[0]) < 2 || len(ways[0]) != len(ways[1]) {
				t.Fatalf("%d messages, and %d by the plain way", len(ways[0]), len(ways[1]))
			}
			for i, got := range ways[1] {
				want := ways[0][i]
				if !bytes.Equal(got.DataBody, want.DataBody) || !bytes.Equal(header(got), header(want)) {
					t.Errorf("message %d has other bytes", i)
				}
				if g, w := unwaited(t, got), unwaited(t, want); g != w {
					t.Errorf("message %d says %s, want %s", i, g, w)
				}
			}
		})
	}
}

// messages are those of a stream.
func (f *fixture) messages(ticket string) (list []*flight.FlightData) {
	f.t.Helper()
	stream, err := f.client.DoGet(f.t.Context(), &flight.Ticket{Ticket: []byte(ticket)})
	for err == nil {
		var m *flight.FlightData
		if m, err = stream.Recv(); err == nil {
			list = append(list, m)
		}
	}
	if !errors.Is(err, io.EOF) {
		f.t.Fatal(err)
	}
	return list
}

// header is the header of a message without what makes its body begin at a multiple of 64, which depends on the length
// of what says how long it waited.
func header(m *flight.FlightData) []byte { return bytes.TrimRight(m.DataHeader, "\x00") }

// unwaited is the metadata of a message without its waiting time.
func unwaited(t *testing.T, m *flight.FlightData) string {
	t.Helper()
	if len(m.AppMetadata) == 0 {
		return ""
	}
	var said map[string]any
	if err := json.Unmarshal(m.AppMetadata, &said); err != nil {
		t.Fatal(err)
	}
	delete(said, "wait")
	return fmt.Sprint(said)
}

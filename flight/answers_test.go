package flight

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"bowstring/fetch/admission"
)

// unreadAnswers requests n answers of some hundred kilobytes from 127.0.0.2, and reads none
// of them.
func unreadAnswers(f *fixture, n int) (streams []grpc.ClientStream) {
	f.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	for range n {
		stream, err := conn.NewStream(f.t.Context(), &grpc.StreamDesc{ServerStreams: true},
			"/"+flightService+"/GetFlightInfo")
		if err == nil {
			err = stream.SendMsg(command(`{"dataset": "d", "world": {"size": 4096}}`))
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err != nil {
			f.t.Fatal(err)
		}
		streams = append(streams, stream)
	}
	return streams
}

// smallAnswers is a ledger with room for two of those answers in the part of one address.
func smallAnswers() *admission.Ledger {
	limits := admission.Limits{Results: 5 << 20}
	limits.EnsureDefaults()
	return admission.NewLedger(limits)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to pass that %s", what)
		}
	}
}

// TestUnreadAnswersKeepNoOtherAddressWaiting: the memory of an answer counts for the
// client's address until the client has read it.
func TestUnreadAnswersKeepNoOtherAddressWaiting(t *testing.T) {
	f := serve(t, Options{Ledger: smallAnswers()})
	f.fill("d", 10)
	streams := unreadAnswers(f, 5)
	eventually(t, "answers wait for those that are not read", func() bool {
		used, waiting := f.server.answers.Holds("127.0.0.2")
		return used > 0 && waiting > 0 && waiting < 5
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	info, err := f.client.GetFlightInfo(ctx, command(`{"dataset": "d", "world": {"size": 1024}}`))
	if err != nil || len(info.Endpoint) != 1024 {
		t.Errorf("another address: %d endpoints, %v", len(info.GetEndpoint()), err)
	}
	var reading sync.WaitGroup
	for _, s := range streams { // in no order: those that wait have room once others are read
		reading.Go(func() {
			var late flight.FlightInfo
			if err := s.RecvMsg(&late); err != nil || len(late.Endpoint) != 4096 {
				t.Errorf("an answer that was read late: %d endpoints, %v", len(late.Endpoint), err)
			}
		})
	}
	reading.Wait()
	eventually(t, "all is given back", func() bool {
		return f.server.opts.Ledger.Accounts()[admission.Results].Used == 0
	})
}

// TestUnreadAnswersEnd: a client that does not read its answer in time loses its
// connection, and the server frees everything that it held for it.
func TestUnreadAnswersEnd(t *testing.T) {
	f := serve(t, Options{Ledger: smallAnswers(), MessageTimeout: time.Second})
	f.fill("d", 10)
	stream := unreadAnswers(f, 1)[0]
	eventually(t, "the call ends", func() bool { return strings.Contains(f.log.String(), "did not read its answer") })
	eventually(t, "its memory is given back", func() bool {
		used, _ := f.server.answers.Holds("127.0.0.2")
		return used == 0
	})
	wantCode(t, stream.RecvMsg(&flight.FlightInfo{}), codes.Unavailable, "")
}

package flight

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

// Watching health needs no credentials, and takes no place of calls that need some.
func TestAuxiliaryCalls(t *testing.T) {
	o := Options{MaxStreams: 2, MaxStreamsPerPeer: 1}
	r := newRegistry(&o)
	var calls []*call
	for host := range maxAuxiliary / maxPeerAuxiliary {
		peer := fmt.Sprintf("10.0.0.%d:1", host+1)
		for range maxPeerAuxiliary {
			_, c, err := r.begin(t.Context(), "/grpc.health.v1.Health/Watch", peer)
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, c)
		}
		if _, _, err := r.begin(t.Context(), "/grpc.health.v1.Health/Watch", peer); !errors.Is(err, schema.ErrLimit) {
			t.Fatalf("one more of an address: %v", err)
		}
	}
	if _, _, err := r.begin(t.Context(), "/grpc.health.v1.Health/Watch", "10.0.1.1:1"); !errors.Is(err,
		schema.ErrLimit) {
		t.Errorf("one more: %v", err)
	}
	// Flight has all of its own, also for one of those addresses.
	for range callsPerStream {
		_, c, err := r.begin(t.Context(), "/"+flightService+"/DoGet", "10.0.0.1:2")
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, c)
	}
	if _, _, err := r.begin(t.Context(), "/"+flightService+"/DoGet", "10.0.0.1:2"); !errors.Is(err, schema.ErrLimit) {
		t.Errorf("one more of Flight's: %v", err)
	}
	for _, c := range calls {
		r.end(c)
	}
	if r.auxiliary != 0 || len(r.peers) != 0 || len(r.calls) != 0 {
		t.Errorf("%d, %v, %v are left", r.auxiliary, r.peers, r.calls)
	}
}

// A name that no dataset can have is refused before it is recorded anywhere.
func TestNamesAreCheckedFirst(t *testing.T) {
	r := wrongServer(t)
	long := strings.Repeat("<", 1<<20)
	o := r.as("stranger").take(`{"take": {"dataset": "`+long+`"}}`, positions(1))
	wantCode(t, o.err, codes.InvalidArgument, "dataset: got")
	if n := len(o.err.Error()); n > 1000 {
		t.Errorf("an error of %d bytes", n)
	}
}

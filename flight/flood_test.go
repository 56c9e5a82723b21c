package flight

import (
	"flag"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"bowstring/flight/auth"
)

var floodFlag = flag.Int("flood", 500, "how many wrong tokens TestFloodOfWrongTokens sends")

// A client that sends wrong tokens as fast as the server answers gets nothing and fills
// neither log nor memory. Clients with a right token are served, also from the same
// address.
func TestFloodOfWrongTokens(t *testing.T) {
	d := newLogins(t, func(o *auth.Options) { o.WrongBurst = 30 })
	f, good := d.serve(Options{})
	f.fill("d", 10)
	client, _ := f.connect(d.trust(nil, nil))
	before := d.auth.Stats()
	start := time.Now()
	var sent, wrong, limited, others atomic.Int64
	var senders sync.WaitGroup
	for range 16 {
		senders.Go(func() {
			for n := sent.Add(1); n <= int64(*floodFlag); n = sent.Add(1) {
				token := good
				if n%2 == 0 {
					token = swapLast(good)
				} else {
					token = strings.Replace(token, tokenID(good), "0123456789abcdef", 1)
				}
				_, err := client.GetFlightInfo(metadata.AppendToOutgoingContext(t.Context(), "authorization",
					"Bearer "+token), path("d"))
				switch status.Code(err) {
				case codes.Unauthenticated:
					wrong.Add(1)
				case codes.ResourceExhausted:
					limited.Add(1)
				default:
					others.Add(1)
					t.Errorf("a wrong token: %v", err)
				}
			}
		})
	}
	// Meanwhile.
	for range 10 {
		if _, err := f.client.GetFlightInfo(t.Context(), path("d")); err != nil {
			t.Errorf("a right token: %v", err)
		}
	}
	senders.Wait()
	took := time.Since(start)
	if n := d.auth.Stats().Refused - before.Refused; n != int64(*floodFlag) || limited.Load() == 0 {
		t.Errorf("%d of %d are counted, %d got the error for too many", n, *floodFlag, limited.Load())
	}
	if lines := strings.Count(d.log.String(), "calls were refused"); lines > 2+int(took/time.Second) {
		t.Errorf("%d lines of the log are about it, in %s", lines, took)
	}
	t.Logf("flood: tokens=%d let_in=%d seconds=%.2f", *floodFlag, others.Load(), took.Seconds())
}

package wire

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"bowstring/flight/auth"
)

// grpc clears the deadlines of a connection once its handshake is over, even of one that
// was given to another node's call meanwhile. The deadlines of that call stay: its reads
// end, and so does its Close, whatever the other side does.
func TestDispatchedDeadlines(t *testing.T) {
	for name, encrypts := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			var running sync.WaitGroup
			defer running.Wait()
			gl := testListener(l, running.Go)
			gl.Encrypts = encrypts
			said := make(chan struct{})
			defer close(said)
			running.Go(func() {
				client, err := net.Dial("tcp", l.Addr().String())
				if err == nil && encrypts {
					client = tls.Client(client, &tls.Config{InsecureSkipVerify: true, //nolint:gosec // the server is this test
						NextProtos: []string{auth.PeerProtocol}})
					err = client.(*tls.Conn).HandshakeContext(t.Context())
				} else if err == nil {
					_, err = client.Write(peerPreface)
				}
				if err != nil {
					t.Error(err)
				}
				<-said // and stays, and says nothing more
				_ = client.Close()
			})
			raw, err := gl.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			var got *PeerConn
			_, _, err = Credentials(t.Context(), newAuthenticator(t), func(p *PeerConn) {
				got = p
				p.Interrupt()
			}).ServerHandshake(raw)
			if !errors.Is(err, credentials.ErrConnDispatched) || got == nil {
				t.Fatalf("the handshake: %v", err)
			}
			if err := raw.SetDeadline(time.Time{}); err != nil {
				t.Error(err)
			}
			if _, err := got.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a read that was to end at once: %v", err)
			}
			_ = got.Close()
		})
	}
}

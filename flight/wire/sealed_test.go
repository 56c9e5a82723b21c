package wire

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"bowstring/flight/auth"
	"bowstring/internal/authtest"
)

// newAuthenticator returns an Authenticator with TLS only.
func newAuthenticator(t testing.TB) *auth.Authenticator {
	t.Helper()
	dir, authority := t.TempDir(), authtest.NewAuthority(t, "authority")
	pair := authority.Server(t)
	authenticator, err := auth.New(t.Context(), auth.Options{TLS: auth.TLSOptions{
		Cert: authtest.Write(t, dir, "server.pem", pair.Cert), Key: authtest.Write(t, dir, "server.key", pair.Key),
	}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := authenticator.Close(); err != nil {
			t.Error(err)
		}
	})
	return authenticator
}

// sealedPair connects a Conn over TLS with a client.
func sealedPair(t testing.TB) (*Conn, *tls.Conn) {
	t.Helper()
	authenticator := newAuthenticator(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	gl := testListener(l, writers.Go)
	gl.Encrypts = true
	var client *tls.Conn
	var failed error
	var dialing sync.WaitGroup
	dialing.Go(func() {
		client, failed = tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // the server is this test
	})
	raw, err := gl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, peer, err := Credentials(t.Context(), authenticator, nil).ServerHandshake(raw)
	dialing.Wait()
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	if _, ok := peer.(*auth.Peer); !ok {
		t.Fatalf("the peer is a %T", peer)
	}
	t.Cleanup(func() {
		_ = l.Close()
		_ = raw.Close() // which closes c
		_ = client.Close()
		writers.Wait()
	})
	g, ok := c.(*Conn)
	if !ok {
		t.Fatalf("the connection is a %T", c)
	}
	return g, client
}

// Writes of all sizes arrive unchanged, through records and system calls that are split
// elsewhere.
func TestSealedConn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng, noise := rand.New(rand.NewPCG(seed, 1)), rand.NewChaCha8([32]byte{byte(seed)})
	g, client := sealedPair(t)
	var want []byte
	var sending sync.WaitGroup
	pieces := make([][]byte, 200)
	for i := range pieces {
		pieces[i] = make([]byte, 1+rng.IntN([]int{10, 1000, recordBytes, 3 * recordBytes, 2 * corkBytes}[rng.IntN(5)]))
		_, _ = noise.Read(pieces[i]) // never fails
		want = append(want, pieces[i]...)
	}
	sending.Go(func() {
		for _, p := range pieces {
			if _, err := g.Write(p); err != nil {
				t.Error(err)
				return
			}
		}
		if err := g.Close(); err != nil { // what was written goes out all the same
			t.Error(err)
		}
	})
	got, err := io.ReadAll(client)
	sending.Wait()
	if err != nil {
		t.Errorf("the connection does not end as TLS ends one: %v", err)
	}
	if string(got) != string(want) {
		t.Errorf("%d bytes arrived, %d were written, or others", len(got), len(want))
	}
}

// A client that reads nothing does not keep a connection from being closed.
func TestSealedConnStuck(t *testing.T) {
	g, _ := sealedPair(t)
	stuck := make(chan error, 1)
	go func() {
		b := make([]byte, 1<<20)
		for {
			if _, err := g.Write(b); err != nil {
				stuck <- err
				return
			}
		}
	}()
	for { // until the kernel takes no more, so that Write waits
		g.mu.Lock()
		full := g.size >= gatherBytes && g.writing
		g.mu.Unlock()
		if full {
			break
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-stuck; err == nil {
		t.Error("Write goes on after Close")
	}
}

// BenchmarkTransport: what it costs to send blobs of 110 KB, gathered as the
// transport of a server does, in plain, by crypto/tls as it is, and by a
// sealedConn. The client, in the same process, takes its part of the time.
func BenchmarkTransport(b *testing.B) {
	const blob, blobs = 110_000, 64
	list := make(net.Buffers, 0, 2*blobs)
	for range blobs {
		list = append(list, make([]byte, frameHeader), make([]byte, blob))
	}
	for _, how := range []string{"plain", "crypto_tls", "sealed"} {
		b.Run(how, func(b *testing.B) {
			g, client := sealedPair(b)
			sealed, ok := g.Conn.(*sealedConn)
			if !ok {
				b.Fatalf("the connection is a %T", g.Conn)
			}
			var from io.Reader = client
			send := sealed.writeBuffers
			switch how {
			case "plain":
				from = client.NetConn()
				send = func(l net.Buffers) error { _, err := l.WriteTo(sealed.below.Conn); return err }
			case "crypto_tls":
				send = func(l net.Buffers) error { _, err := l.WriteTo(sealed.Conn); return err }
			}
			total := int64(b.N) * blobs * (blob + frameHeader)
			b.SetBytes(total / int64(b.N))
			var reading sync.WaitGroup
			reading.Go(func() {
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(from, total),
					make([]byte, 256<<10)); err != nil {
					b.Error(err)
				}
			})
			b.ResetTimer()
			for range b.N {
				if err := send(append(net.Buffers(nil), list...)); err != nil {
					b.Fatal(err)
				}
			}
			reading.Wait()
		})
	}
}

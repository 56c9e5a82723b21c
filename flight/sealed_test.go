package flight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/flight/auth"
	"bowstring/internal/authtest"
)

// Certificates may be exchanged while streams run: each of them goes on, new
// connections get the new certificate, and what clients are trusted by may be
// exchanged with it.
func TestCertificatesExchanged(t *testing.T) {
	const exchanges, readers, rows = 20, 4, 400
	d := newDoors(t, nil)
	f, _ := d.serve(Options{})
	f.fill("d", rows)
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	var streams atomic.Int64
	for range readers {
		client := f.dial()
		reading.Go(func() {
			for ctx.Err() == nil {
				stream, err := client.DoGet(t.Context(), &flight.Ticket{Ticket: []byte(`{"dataset":"d","batch":10}`)})
				if err != nil {
					t.Error(err)
					return
				}
				recs, err := records(stream)
				if n := rowsOf(recs); err != nil || n != rows {
					t.Errorf("%d rows, %v", n, err)
					return
				}
				streams.Add(1)
			}
		})
	}
	for range exchanges {
		pair := d.authority.Server(t)
		d.exchange(pair)
		parsed, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		d.await(func() bool { return f.shown(t).Equal(parsed.Leaf) })
		if ends := f.server.opts.Door.CertificateEnds(); !ends.Equal(parsed.Leaf.NotAfter) {
			t.Errorf("the certificate is said to end %v, want %v", ends, parsed.Leaf.NotAfter)
		}
	}
	d.await(func() bool { return streams.Load() >= exchanges })
	stop()
	reading.Wait()
	t.Logf("%d streams", streams.Load())

	// What is no pair changes nothing.
	now := f.shown(t)
	authtest.Write(t, d.dir, "server.pem", d.authority.Server(t).Cert)
	d.await(func() bool { return d.log.has("what was read before stays in force") })
	if !f.shown(t).Equal(now) {
		t.Error("a certificate whose key is not there is shown")
	}

	// A client whose authority is trusted no longer is let in no longer, on a
	// connection that it has, too.
	own := d.authority.Client(t, "carol", nil)
	client, _ := f.connect(d.trust(&own, nil))
	if _, err := client.GetFlightInfo(t.Context(), command(`{"dataset":"d"}`)); err != nil {
		t.Fatal(err)
	}
	authtest.Write(t, d.dir, "clients.pem", authtest.NewAuthority(t, "another").PEM)
	d.await(func() bool {
		_, err := client.GetFlightInfo(t.Context(), command(`{"dataset":"d"}`))
		return err != nil
	})
}

// A session is resumed without its certificate being shown again, for as long as
// that would be good if it were.
func TestResumedSession(t *testing.T) {
	d := newDoors(t, nil)
	f, _ := d.serve(Options{})
	f.fill("d", 10)
	own := d.authority.Client(t, "carol", nil)
	var shown atomic.Int64
	cache := tls.NewLRUClientSessionCache(4)
	call := func() error {
		client, _ := f.connect(d.trust(&own, func(c *tls.Config) {
			show := c.GetClientCertificate
			c.ClientSessionCache = cache
			c.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				shown.Add(1)
				return show(r)
			}
		}))
		_, err := client.GetFlightInfo(t.Context(), command(`{"dataset":"d"}`))
		return err
	}
	for range 3 {
		d.exchange(d.authority.Server(t)) // which is no reason to begin anew
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	if n := shown.Load(); n != 1 {
		t.Errorf("the certificate was shown %d times", n)
	}
	authtest.Write(t, d.dir, "clients.pem", authtest.NewAuthority(t, "another").PEM)
	d.await(func() bool { return d.log.has("clients.pem") })
	if err := call(); err == nil {
		t.Error("a session of an authority that is trusted no more was resumed")
	}
}

func (l *lockedBuffer) has(s string) bool { return strings.Contains(l.String(), s) }

// shown is the certificate that a new connection gets.
func (f *fixture) shown(t *testing.T) *x509.Certificate {
	t.Helper()
	c, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // it is looked at only
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0]
}

// sealedPair connects a gatherConn over TLS with a client.
func sealedPair(t testing.TB) (*gatherConn, *tls.Conn) {
	t.Helper()
	d := newDoors(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	opts := Options{Door: d.door}
	opts.EnsureDefaults()
	gl := newListener(l, writers.Go, &opts)
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
	s := &Server{opts: opts, handshaking: t.Context()}
	c, peer, err := sealing{s}.ServerHandshake(raw)
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
	g, ok := c.(*gatherConn)
	if !ok {
		t.Fatalf("the connection is a %T", c)
	}
	return g, client
}

// What is written in pieces of all sizes arrives as it is, through records and
// system calls that are cut elsewhere.
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

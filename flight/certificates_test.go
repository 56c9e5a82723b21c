package flight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/internal/authtest"
)

// Certificates may be exchanged while streams run. Each stream continues, and new
// connections get the new certificate. The authorities of clients may be exchanged with it.
func TestCertificatesExchanged(t *testing.T) {
	const exchanges, readers, rows = 20, 4, 400
	d := newLogins(t, nil)
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
		if ends := f.server.opts.Auth.CertificateEnds(); !ends.Equal(parsed.Leaf.NotAfter) {
			t.Errorf("the certificate is said to end %v, want %v", ends, parsed.Leaf.NotAfter)
		}
	}
	d.await(func() bool { return streams.Load() >= exchanges })
	stop()
	reading.Wait()
	t.Logf("%d streams", streams.Load())

	// A certificate and a key that do not match change nothing.
	now := f.shown(t)
	authtest.Write(t, d.dir, "server.pem", d.authority.Server(t).Cert)
	d.await(func() bool { return d.log.has("what was read before stays in force") })
	if !f.shown(t).Equal(now) {
		t.Error("a certificate whose key is not there is shown")
	}

	// A client whose authority is no longer trusted is refused, also on a
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
	d := newLogins(t, nil)
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
		d.exchange(d.authority.Server(t)) // the stream need not begin again
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

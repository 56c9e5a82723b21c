package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

var errNotRooted = errors.New("the certificate is of no authority that is trusted now")

// Peer is who is at the other end of a TLS connection: the AuthInfo of its
// calls. It is safe for concurrent use.
type Peer struct {
	credentials.TLSInfo

	mu       sync.Mutex
	verified *roots   // against which the certificate was found good; guarded by mu
	identity Identity // valid if verified is not nil; guarded by mu
}

func newPeer(state tls.ConnectionState, by *roots) *Peer {
	p := &Peer{TLSInfo: credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}}
	// A resumed session has the chains of the handshake that began it, and by
	// whatever authorities were trusted then.
	if len(state.VerifiedChains) > 0 && !state.DidResume {
		p.acceptLocked(by, state.VerifiedChains)
	}
	return p
}

// roots are the authorities of clients' certificates.
type roots struct{ pool *x509.CertPool }

// identify returns who the certificate is for, by the authorities that are
// trusted now.
func (p *Peer) identify(now *roots) (Identity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verified != now {
		certs := p.State.PeerCertificates
		between := x509.NewCertPool()
		for _, c := range certs[1:] {
			between.AddCert(c)
		}
		chains, err := certs[0].Verify(x509.VerifyOptions{
			Roots: now.pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			p.verified = nil
			return Identity{}, fmt.Errorf("%w: %w", errNotRooted, err)
		}
		p.acceptLocked(now, chains)
	}
	return p.identity, p.identity.valid()
}

// acceptLocked takes over what a certificate says that was verified.
func (p *Peer) acceptLocked(by *roots, chains [][]*x509.Certificate) {
	leaf := chains[0][0]
	p.verified = by
	p.identity = Identity{
		Principal: principalOf(leaf), Groups: leaf.Subject.Organization,
		By: ByCertificate, ID: leaf.SerialNumber.Text(16), Expires: expiryOf(chains),
	}
}

// principalOf is a certificate's name: its first URI, which is where SPIFFE has
// its ID, else its first DNS name, mail address, or its common name.
func principalOf(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	}
	return c.Subject.CommonName
}

// expiryOf is when the last chain ends.
func expiryOf(chains [][]*x509.Certificate) (last time.Time) {
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// fromCertificate returns who is at the other end of a connection; errNone if
// it has shown no certificate.
func (d *Door) fromCertificate(p *Peer) (Identity, error) {
	if p == nil || d.tls == nil || len(p.State.PeerCertificates) == 0 {
		return Identity{}, errNone
	}
	now := d.tls.current.Load().roots
	if now == nil {
		return Identity{}, errNone
	}
	id, err := p.identify(now)
	if err != nil {
		return Identity{}, err
	}
	if err := id.still(d.now()); err != nil {
		return Identity{}, err
	}
	id.check = func() error {
		_, err := p.identify(d.tls.current.Load().roots)
		return err
	}
	return id, nil
}

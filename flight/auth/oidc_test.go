package auth

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/time/rate"

	"bowstring/internal/authtest"
	"bowstring/schema"
)

// asked returns an Authenticator that does not have its provider's configuration yet, and
// requests it at the next call.
func asked(t *testing.T, p *authtest.Provider) *Authenticator {
	t.Helper()
	p.Break(true)
	d, err := New(t.Context(), Options{
		OIDC:   OIDCOptions{Issuer: p.Issuer, Audience: "a", CA: authtest.Write(t, t.TempDir(), "ca.pem", p.CA)},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	p.Break(false)
	d.askAgain()
	return d
}

// askAgain has the provider asked at the next call, as if some seconds had passed.
func (d *Authenticator) askAgain() {
	d.provider.mu.Lock()
	defer d.provider.mu.Unlock()
	d.provider.again = time.Time{}
}

// If the caller whose request to the provider is under way goes away, other callers still
// get its answer.
func TestRequesterMayLeave(t *testing.T) {
	p := authtest.NewProvider(t)
	d := asked(t, p)
	questioned, release := p.Hold()
	gone, leave := context.WithCancel(from("10.0.0.1", p.Sign(p.Claims("a", map[string]any{"sub": "gone"}))))
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := d.Authenticate(gone)
		left <- err
	}()
	<-questioned
	go func() {
		_, err := d.Authenticate(from("10.0.0.2", p.Sign(p.Claims("a", nil))))
		stayed <- err
	}()
	leave()
	release()
	if err := <-stayed; err != nil {
		t.Errorf("a caller that waits for the request of another one, which has gone: %v", err)
	}
	if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone: %v", err)
	}
}

// A provider whose answers have no end is one that does not answer.
func TestProviderWithoutEnd(t *testing.T) {
	p := authtest.NewProvider(t)
	d := asked(t, p)
	d.provider.asking.limit = rate.NewLimiter(rate.Inf, 0)
	token := func() context.Context { return from("10.0.0.1", p.Sign(p.Claims("a", nil))) }
	p.Endless(true)
	if _, err := d.Authenticate(token()); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("its configuration has no end: %v", err)
	}
	p.Endless(false)
	d.askAgain()
	if _, err := d.Authenticate(token()); err != nil {
		t.Fatal(err)
	}
	p.Rotate(jose.ES256)
	p.Endless(true)
	fetched()
	if _, err := d.Authenticate(token()); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("its keys have no end: %v", err)
	}
	p.Endless(false)
	fetched()
	if _, err := d.Authenticate(token()); err != nil {
		t.Errorf("it answers again: %v", err)
	}
}

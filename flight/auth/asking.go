package auth

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// asking bounds how often the provider is asked, and notes when it could not be.
type asking struct {
	plain bool // HTTP without TLS will do
	next  http.RoundTripper
	limit *rate.Limiter

	mu     sync.Mutex
	failed time.Time // guarded by mu
}

// CloseIdleConnections is called by http.Client.
func (a *asking) CloseIdleConnections() {
	if c, ok := a.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// sameServer refuses to follow a provider to another server: what signs tokens is said by the one that is configured.
func sameServer(r *http.Request, via []*http.Request) error {
	if first := via[0].URL; r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
		return fmt.Errorf("%s://%s sends on to another server, %s://%s, which is not followed", first.Scheme,
			first.Host, r.URL.Scheme, r.URL.Host)
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("%s sends on more than %d times", via[0].URL.Host, maxRedirects)
	}
	return nil
}

// maxRedirects is how often a provider may send on.
const maxRedirects = 5

// RoundTrip implements http.RoundTripper.
func (a *asking) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !a.plain {
		return nil, fmt.Errorf("the provider names %s://%s: its keys are read encrypted only", r.URL.Scheme, r.URL.Host)
	}
	if !a.limit.Allow() {
		// No failure of the provider: somebody sends tokens that are not its own. Were
		// its keys exchanged just now, those tokens have let them be fetched, too.
		return nil, errors.New("the provider is asked too often")
	}
	answer, err := a.next.RoundTrip(r)
	if err != nil || answer.StatusCode >= http.StatusInternalServerError {
		a.note()
	}
	if err == nil {
		answer.Body = &boundedBody{http.MaxBytesReader(nil, answer.Body, maxProviderAnswer), a}
	}
	return answer, err
}

// boundedBody is an answer of the provider. One that is too long, or breaks off, is a
// failure of the provider, and not of the token that it was asked for.
type boundedBody struct {
	io.ReadCloser
	asking *asking
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.asking.note()
	}
	return n, err
}

func (a *asking) note() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = time.Now()
}

func (a *asking) failedSince(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.failed.Before(t)
}

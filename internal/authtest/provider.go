package authtest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Provider is an OpenID Connect provider: its configuration and its keys, over TLS. It
// serves until the test ends. Its methods are safe for concurrent use. Break, Hold and
// Endless simulate a provider that fails.
type Provider struct {
	Issuer string
	CA     []byte // of its certificate, as PEM

	t testing.TB

	mu      sync.Mutex
	keys    []jose.JSONWebKey // the signing keys, the current one last; guarded by mu
	fetches int               // requests for the keys; guarded by mu
	broken  bool              // guarded by mu
	asked   chan struct{}     // closed by the first request that is held, then nil; guarded by mu
	held    chan struct{}     // answers wait until it is closed; nil if they do not wait; guarded by mu
	endless bool              // whether answers have no end; guarded by mu
}

// NewProvider starts a provider with one RS256 key.
func NewProvider(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{t: t}
	mux := http.NewServeMux()
	// The configuration has the fields that OpenID Connect Discovery 1.0 requires.
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, map[string]any{
			"issuer": p.Issuer, "jwks_uri": p.Issuer + "/keys", "authorization_endpoint": p.Issuer + "/auth",
			"token_endpoint": p.Issuer + "/token", "id_token_signing_alg_values_supported": []string{"RS256", "ES256"},
			"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		p.fetches++
		// Only the public parts are served.
		set := jose.JSONWebKeySet{}
		for _, k := range p.keys {
			set.Keys = append(set.Keys, k.Public())
		}
		p.mu.Unlock()
		p.answer(w, set)
	})
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	p.Issuer = server.URL
	p.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p.Rotate(jose.RS256)
	return p
}

// answer answers a request, under the faults that are set. It copies the state first: a
// held answer must not hold the lock, or release could not take it.
func (p *Provider) answer(w http.ResponseWriter, v any) {
	p.mu.Lock()
	broken, held, endless := p.broken, p.held, p.endless
	if p.asked != nil {
		close(p.asked)
		p.asked = nil
	}
	p.mu.Unlock()
	if held != nil {
		<-held
	}
	if broken {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// Leading spaces are valid JSON, so that a client without a limit would read forever.
	for spaces := bytes.Repeat([]byte(" "), 64<<10); endless; {
		if _, err := w.Write(spaces); err != nil {
			return // the client has closed the connection
		}
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		p.t.Errorf("answering: %v", err)
	}
}

// Break makes the provider answer with errors, or correctly again.
func (p *Provider) Break(broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = broken
}

// Hold holds answers back until release is called. asked is closed when the first one is held.
func (p *Provider) Hold() (asked <-chan struct{}, release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reached, held := make(chan struct{}), make(chan struct{})
	p.asked, p.held = reached, held
	return reached, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = nil
		close(held)
	}
}

// Endless makes answers never end, or end again.
func (p *Provider) Endless(endless bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endless = endless
}

// Fetches is how often the keys were requested.
func (p *Provider) Fetches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fetches
}

// Rotate makes a new key the current one, and drops all others. Tokens that were signed
// before become invalid.
func (p *Provider) Rotate(algorithm jose.SignatureAlgorithm) {
	p.t.Helper()
	var key crypto.Signer
	var err error
	if algorithm == jose.ES256 {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The key's id is new each time, so that clients fetch the keys again.
	id := strconv.FormatInt(time.Now().UnixNano(), 36)
	p.keys = []jose.JSONWebKey{{Key: key, KeyID: id, Algorithm: string(algorithm), Use: "sig"}}
}

// Key is the current key.
func (p *Provider) Key() jose.JSONWebKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[len(p.keys)-1]
}

// Claims returns the claims of a valid token for an audience. others replaces claims; a
// nil value removes one.
func (p *Provider) Claims(audience string, others map[string]any) map[string]any {
	// The token was issued a minute ago and is valid for an hour.
	now := time.Now()
	c := map[string]any{
		"iss": p.Issuer, "aud": audience, "sub": "carol", "groups": []string{"ml", "ops"},
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(c, others)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// Sign makes a token with the current key.
func (p *Provider) Sign(claims map[string]any) string {
	k := p.Key()
	return SignWith(p.t, jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.Algorithm), Key: k}, claims)
}

// SignWith makes a token with any key, such as one that the provider does not have.
func SignWith(t testing.TB, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

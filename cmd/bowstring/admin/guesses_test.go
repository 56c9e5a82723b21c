package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const rightToken = "correct horse battery staple"

// guessed is a server whose clock stops until the test moves it.
type guessed struct {
	*Server
	log strings.Builder
	at  time.Time
}

func guessedServer(t *testing.T) *guessed {
	t.Helper()
	g := &guessed{at: time.Unix(1e9, 0)}
	s, err := New(Options{Metrics: prometheus.NewRegistry(), Ready: func() error { return nil },
		Token:  func() ([]byte, error) { return []byte(rightToken), nil },
		Logger: slog.New(slog.NewTextHandler(&g.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.guesses.now = func() time.Time { return g.at }
	s.guesses.delay = time.Nanosecond
	g.Server = s
	return g
}

func (g *guessed) try(addr, token string) error {
	return g.CheckToken(context.Background(), addr+":1234", token)
}

// An address that guesses is soon refused unheard, also with the right token, and heard again later. Others are not.
func TestGuessesAreLimited(t *testing.T) {
	g := guessedServer(t)
	for i := range 1000 {
		want := ErrUnknown
		if i >= guessBurst {
			want = ErrTooMany
		}
		if err := g.try("192.0.2.1", fmt.Sprint("guess ", i)); !errors.Is(err, want) {
			t.Fatalf("guess %d: %v, want %v", i, err, want)
		}
	}
	if err := g.try("192.0.2.1", rightToken); !errors.Is(err, ErrTooMany) {
		t.Errorf("the right token, after all of these: %v: so the answer reveals whether a guess is right", err)
	}
	for range 1000 { // it is wrong tokens that count
		if err := g.try("192.0.2.2", rightToken); err != nil {
			t.Fatalf("the holder: %v", err)
		}
	}
	if err := g.try("192.0.2.1", ""); !errors.Is(err, ErrUnknown) {
		t.Errorf("no token: %v", err)
	}
	if wrong, limited := g.Guesses(); wrong != guessBurst || limited != 1000-guessBurst+1 {
		t.Errorf("%d wrong ones and %d unheard are counted", wrong, limited)
	}
	if n := strings.Count(g.log.String(), "wrong tokens at the admin listener"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	if strings.Contains(g.log.String(), "guess ") {
		t.Error("the log has what was sent")
	}
	g.at = g.at.Add(time.Minute)
	heard := 0
	for i := range 100 {
		if err := g.try("192.0.2.1", fmt.Sprint("guess ", i)); errors.Is(err, ErrUnknown) {
			heard++
		}
	}
	if heard != guessesPerMinute {
		t.Errorf("%d guesses are heard in a minute, want %d", heard, guessesPerMinute)
	}
	// All addresses of a network of IPv6 are one.
	for i := range 1000 {
		if err := g.try(fmt.Sprintf("[2001:db8::%x]", i+1), "guess"); i >= guessBurst && !errors.Is(err, ErrTooMany) {
			t.Fatalf("address %d of a network: %v", i, err)
		}
	}
}

// Guesses that come together are not heard more often than ones that come one by one.
func TestGuessesTogether(t *testing.T) {
	g := guessedServer(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() { _ = g.try("192.0.2.1", fmt.Sprint("guess ", i)) })
	}
	wg.Wait()
	if wrong, limited := g.Guesses(); wrong != guessBurst || limited != 200-guessBurst {
		t.Errorf("%d were heard and %d not", wrong, limited)
	}
}

// While the token cannot be read nothing is a guess: its holder is let in as soon as it can be.
func TestNoGuessesWithoutAToken(t *testing.T) {
	g := guessedServer(t)
	token, broken := g.opts.Token, errors.New("permission denied")
	g.opts.Token = func() ([]byte, error) { return nil, broken }
	for i := range 10 * guessBurst {
		if err := g.try("192.0.2.1", rightToken); !errors.Is(err, broken) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	g.opts.Token = token
	if err := g.try("192.0.2.1", rightToken); err != nil {
		t.Errorf("the holder, now: %v", err)
	}
	if n := len(g.guesses.peers); n != 0 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// A flood from many addresses keeps no holder of the token out, and takes bounded memory.
// An address that sent the right token before is answered at once, others after a delay.
func TestFloodOfGuesses(t *testing.T) {
	g := guessedServer(t)
	if err := g.try("192.0.2.2", rightToken); err != nil {
		t.Fatal(err)
	}
	for i := range 20_000 {
		_ = g.try(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), "guess")
		if i%1000 == 0 {
			if err := g.try("192.0.2.2", rightToken); err != nil {
				t.Fatalf("after %d guesses: %v", i, err)
			}
		}
	}
	if n, m := len(g.guesses.peers), len(g.guesses.holders); n > maxGuessers || m != 1 {
		t.Errorf("%d addresses are remembered for wrong tokens, and %d for right ones", n, m)
	}
	for addr, want := range map[string]bool{"192.0.2.2": false, "192.0.2.3": true, "10.0.0.1": true} {
		if wait, err := g.guesses.take(addr); wait != want || err != nil {
			t.Errorf("%s waits: %t, %v; want %t", addr, wait, err, want)
		}
	}
	if err := g.try("192.0.2.3", rightToken); err != nil {
		t.Errorf("a holder at a new address: %v", err)
	}
	g.guesses.delay = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.CheckToken(ctx, "192.0.2.4:1", "guess"); !errors.Is(err, context.Canceled) {
		t.Errorf("a guess whose client has gone: %v", err)
	}
	for i := range 2 * maxHolders {
		g.guesses.right(fmt.Sprint(i))
	}
	if n := len(g.guesses.holders); n > maxHolders {
		t.Errorf("%d holders are remembered", n)
	}
}

// Requests are answered with 429 when their address has sent too many wrong tokens.
func TestGuessesOverHTTP(t *testing.T) {
	g := guessedServer(t)
	status := func(addr, authorization string) int {
		rec := &recorder{header: http.Header{}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = addr
		r.Header.Set("Authorization", authorization)
		g.handler().ServeHTTP(rec, r)
		rec.WriteHeader(http.StatusOK) // as net/http does where the handler says nothing
		return rec.code
	}
	for range guessBurst {
		if got := status("192.0.2.1:1", "Bearer x"); got != http.StatusUnauthorized {
			t.Fatal(got)
		}
	}
	if got := status("192.0.2.1:2", "Bearer "+rightToken); got != http.StatusTooManyRequests {
		t.Error(got)
	}
	if got := status("192.0.2.2:1", "bearer "+rightToken); got != http.StatusOK {
		t.Error(got)
	}
}

// recorder keeps the status of an answer.
type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
}
func (r *recorder) Write(b []byte) (int, error) { r.WriteHeader(http.StatusOK); return len(b), nil }

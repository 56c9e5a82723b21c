package auth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"bowstring/internal/authtest"
	"bowstring/schema"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// timed returns sources whose time is the test's, and the log that they write.
func timed(grace time.Duration) (*Sources, *clock, *buffer) {
	log := &buffer{}
	s := NewSources(grace, slog.New(slog.NewTextHandler(log, nil)))
	c := &clock{at: time.Now()}
	s.now = c.now
	return s, c, log
}

// The previous contents hold for the grace time. Then the server is closed until the
// source can be read again.
func TestSourcesClose(t *testing.T) {
	s, at, log := timed(time.Minute)
	a, b, own := s.Add("a", true), s.Add("b", true), s.Add("own", false)
	var ended []error
	s.WhenClosed(func(err error) { ended = append(ended, err) })
	ctx, broken := t.Context(), errors.New("permission denied")
	own.Note(ctx, broken)
	a.Note(ctx, broken)
	at.move(30 * time.Second)
	b.Note(ctx, broken)
	a.Note(ctx, broken)
	if s.Closed() != nil || len(ended) != 0 {
		t.Fatal("it is closed within the grace time")
	}
	at.move(30 * time.Second)
	if err := s.Closed(); !errors.Is(err, schema.ErrUnavailable) || strings.Contains(err.Error(), "permission") {
		t.Errorf("after the grace time: %v", err)
	}
	if own.Closed() == nil || a.Closed() == nil || b.Closed() != nil {
		t.Errorf("own: %v, a: %v, b: %v", own.Closed(), a.Closed(), b.Closed())
	}
	a.Note(ctx, broken)
	a.Note(ctx, broken)
	if len(ended) != 1 {
		t.Errorf("calls were ended %d times, want once", len(ended))
	}
	a.Note(ctx, nil)
	if s.Closed() != nil {
		t.Error("what can be read again is not known")
	}
	at.move(30 * time.Second) // now it is b
	if s.Closed() == nil {
		t.Error("the second source does not close it")
	}
	b.Note(ctx, nil)
	if s.Closed() != nil {
		t.Error("all can be read, and it is closed")
	}
	at.move(time.Hour) // a source of its own closes nothing else
	own.Note(ctx, broken)
	if s.Closed() != nil {
		t.Error("a source that is not of the server has closed it")
	}
	if n := strings.Count(log.String(), "does not hold any longer"); n != 2 {
		t.Errorf("the log says so %d times, want 2:\n%s", n, log)
	}
	for _, one := range s.List() {
		if one.Since.IsZero() != (one.What != "own") {
			t.Errorf("%+v", one)
		}
	}
	var none *Sources
	none.Add("x", true).Note(ctx, broken)
	if none.Closed() != nil || none.List() != nil {
		t.Error("no sources are closed")
	}
}

// step sets the wall clock, and not the monotonic one, as an administrator or a time server does.
func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// time.Time with a monotonic reading has the seconds of the wall clock above 30 bits of nanoseconds.
	wall := (*uint64)(unsafe.Pointer(&c.at))
	*wall += uint64(int64(d/time.Second)) << 30
}

// A wall clock that is set neither lengthens the grace time nor ends it.
func TestSourcesWithoutTheWallClock(t *testing.T) {
	s, at, _ := timed(time.Minute)
	a := s.Add("a", true)
	before := at.now()
	at.step(-time.Hour)
	if passed := at.now().Sub(before); passed != 0 || !at.now().Round(0).Before(before.Round(0)) {
		t.Fatalf("the test sets both clocks: %s passed", passed)
	}
	a.Note(t.Context(), errors.New("permission denied"))
	at.step(2 * time.Hour)
	if s.Closed() != nil {
		t.Error("it is closed early, as the clock was set forward")
	}
	at.step(-time.Hour)
	at.move(time.Minute)
	if s.Closed() == nil {
		t.Error("it is not closed, as the clock was set back")
	}
	at.step(-time.Hour)
	if s.Closed() == nil {
		t.Error("it is open again, as the clock was set back")
	}
}

// A source whose read does not end closes the server after the grace time, too, until the read has ended.
func TestSourcesThatHang(t *testing.T) {
	s := NewSources(time.Millisecond, slog.New(slog.DiscardHandler))
	s.least = 0
	a := s.Add("a", true)
	closed := make(chan error, 4)
	s.WhenClosed(func(err error) { closed <- err })
	a.Begin(t.Context())
	if err := <-closed; !errors.Is(err, schema.ErrUnavailable) || s.Closed() == nil || a.Closed() == nil {
		t.Errorf("running calls were ended for %v; new ones: %v", err, s.Closed())
	}
	a.Note(t.Context(), nil)
	if s.Closed() != nil {
		t.Error("the read has ended, and the server is closed")
	}
	a.Begin(t.Context())
	late, nth := a.late, a.nth
	a.Note(t.Context(), nil)
	if late.Stop() {
		t.Error("a read that has ended is waited for")
	}
	a.note(t.Context(), errHangs, nth) // which came at the same time
	a.Begin(t.Context())
	a.Note(t.Context(), nil)
	if s.Closed() != nil || !s.List()[0].Since.IsZero() {
		t.Errorf("%+v after reads that have ended", s.List())
	}
}

// If the file of tokens is removed or becomes invalid, the server accepts no call after
// the grace time.
func TestTokensThatCannotBeRead(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"taken away": os.Remove,
		"no file": func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		},
		"wrong": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.json")
			token, err := AddToken(path, &Token{Principal: "ada"})
			if err != nil {
				t.Fatal(err)
			}
			kept, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s, at, _ := timed(time.Minute)
			d, err := New(t.Context(), Options{Tokens: path, Poll: time.Millisecond, Sources: s, Logger: s.log})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.Close() }()
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			unread := func() bool { return !s.List()[0].Since.IsZero() }
			await(t, unread)
			if _, err := d.Authenticate(from("10.0.0.1", token)); err != nil || s.Closed() != nil {
				t.Errorf("within the grace time: %v, %v", err, s.Closed())
			}
			for range 3 { // it stays unread however often it is looked at
				time.Sleep(2 * time.Millisecond)
				if !unread() {
					t.Fatal("it is taken for readable")
				}
			}
			at.move(time.Minute)
			if s.Closed() == nil {
				t.Error("after the grace time a call is accepted")
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, kept, 0o600); err != nil {
				t.Fatal(err)
			}
			await(t, func() bool { return s.Closed() == nil })
		})
	}
}

// A provider that does not answer is one whose keys hold for a day, and no longer.
func TestProviderThatDoesNotAnswer(t *testing.T) {
	p := authtest.NewProvider(t)
	s, at, _ := timed(time.Minute)
	d, err := New(t.Context(), Options{
		OIDC:    OIDCOptions{Issuer: p.Issuer, Audience: "a", CA: authtest.Write(t, t.TempDir(), "ca.pem", p.CA)},
		Sources: s, Logger: s.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	call := func() error {
		_, err := d.Authenticate(from("10.0.0.1", p.Sign(p.Claims("a", nil))))
		return err
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	p.Break(true)
	if err := d.provider.refresh(t.Context()); err == nil {
		t.Fatal("a broken provider has answered")
	}
	at.move(keysGrace - time.Second)
	if err := call(); err != nil || s.Closed() != nil {
		t.Errorf("within its grace time: %v, %v", err, s.Closed())
	}
	at.move(time.Second)
	if err := call(); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("after its grace time: %v", err)
	}
	if s.Closed() != nil {
		t.Error("a provider has closed the server to callers of other kinds")
	}
	p.Break(false)
	if err := d.provider.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := call(); err != nil {
		t.Errorf("it answers again: %v", err)
	}
}

// Keys come from the server that is configured, encrypted, and from none that it sends on to.
func TestProviderRedirects(t *testing.T) {
	ask := func(to string) *http.Request {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Request{URL: u}
	}
	via := []*http.Request{ask("https://idp.example/keys")}
	for to, want := range map[string]bool{
		"https://idp.example/other": true, "https://idp.example:8443/keys": false, "http://idp.example/keys": false,
		"https://evil.example/keys": false,
	} {
		if got := sameServer(ask(to), via) == nil; got != want {
			t.Errorf("%s is followed: %v, want %v", to, got, want)
		}
	}
	if sameServer(via[0], append(via, via[0], via[0], via[0], via[0])) == nil {
		t.Error("it sends on without end")
	}
	a := &asking{next: http.NewFileTransport(http.Dir("/"))}
	r := ask("http://evil.example/keys").WithContext(context.Background())
	if answer, err := a.RoundTrip(r); err == nil {
		_ = answer.Body.Close()
		t.Error("keys came unencrypted")
	}
}

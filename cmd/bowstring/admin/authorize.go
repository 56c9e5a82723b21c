package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
)

// Right is what somebody may be shown.
type Right int

// What there is to see beside health.
const (
	// Metrics are the metrics: names of datasets, jobs and tenants, and figures.
	Metrics Right = iota
	// Profiles are profiles and stacks: also the command line, and what is in memory.
	Profiles
)

var (
	// ErrUnknown says that nobody knows who asks.
	ErrUnknown = errors.New("this takes a token: Authorization: Bearer TOKEN")
	// ErrTooMany says that too many wrong tokens came from an address: what it sends is not looked at.
	ErrTooMany = errors.New("too many wrong tokens came from this address; wait a minute")
	// ErrForbidden says that whoever asks may not see it.
	ErrForbidden = errors.New("profiles are shown to callers on this machine, or to those who have the token that " +
		"--admin-token-file sets")
)

// guard shows something to those who may see it.
func (s *Server) guard(right Right, h http.Handler) http.Handler {
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch err := s.may(r, right); {
		case err == nil:
			h.ServeHTTP(w, r)
		case errors.Is(err, ErrForbidden):
			say(w, http.StatusForbidden, ErrForbidden.Error())
		case errors.Is(err, ErrUnknown):
			w.Header().Set("WWW-Authenticate", "Bearer")
			say(w, http.StatusUnauthorized, ErrUnknown.Error())
		case errors.Is(err, ErrTooMany):
			w.Header().Set("Retry-After", "60")
			say(w, http.StatusTooManyRequests, ErrTooMany.Error())
		case r.Context().Err() != nil: // the client that asked is gone
		default: // the cause is for the log alone
			s.opts.Logger.ErrorContext(r.Context(), "it cannot be said who may see the metrics", "error", err)
			say(w, http.StatusInternalServerError, "it cannot be said who may see this; the server's log says why")
		}
	})
	if s.opts.Token != nil {
		return guarded // which no page of somebody else's has
	}
	return s.named(guarded)
}

// authorize is the rule where no other is set.
func (s *Server) authorize(r *http.Request, right Right) error {
	if s.opts.Token != nil {
		scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") { // the scheme's name is case-insensitive
			return ErrUnknown
		}
		return s.CheckToken(r.Context(), r.RemoteAddr, strings.TrimSpace(got))
	}
	if right == Profiles && (!isLoopback(r.RemoteAddr) || !isLoopback(r.Host)) {
		return ErrForbidden
	}
	return nil
}

// CheckToken returns nil if a token that came from an address (HOST:PORT) is the one of Options.Token, else ErrUnknown,
// or ErrTooMany where the address has sent too many wrong ones: then it is not looked at. It may wait for a second.
func (s *Server) CheckToken(ctx context.Context, addr, token string) error {
	if token == "" { // which is no guess
		return ErrUnknown
	}
	peer := guesser(addr)
	err := s.guesses.begin(ctx, peer)
	if err == nil {
		var want []byte
		if want, err = s.opts.Token(); err != nil {
			s.guesses.unheard(peer)
			return err
		}
		// Hashes have one length whatever the token's.
		a, b := sha256.Sum256([]byte(token)), sha256.Sum256(want)
		if len(want) > 0 && subtle.ConstantTimeCompare(a[:], b[:]) == 1 {
			s.guesses.right(peer)
			return nil
		}
		s.guesses.missed()
		err = ErrUnknown
	}
	if n, ok := s.guesses.toLog(); ok {
		s.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "wrong tokens at the admin listener", slog.String("peer", peer),
			slog.Bool("limited", errors.Is(err, ErrTooMany)), slog.Int64("count", n))
	}
	return err
}

// Guesses is how many wrong tokens came, and how many requests were refused unheard as too many had come from their
// addresses.
func (s *Server) Guesses() (wrong, limited int64) { return s.guesses.counts() }

// isLoopback reports whether an address is this machine's own. The host that a
// request names is looked at, too: a page of somebody else's in a browser here
// can have its own name lead to this address, but not change what it asks for.
func isLoopback(addr string) bool {
	host := hostOf(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

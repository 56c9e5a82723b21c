package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
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
	// ErrForbidden says that whoever asks may not see it.
	ErrForbidden = errors.New("profiles are shown to callers on this machine, or to those who have the token that " +
		"--admin-token-file sets")
)

// guard shows something to those who may see it.
func (s *Server) guard(right Right, h http.Handler) http.Handler {
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch err := s.opts.Authorize(r, right); {
		case err == nil:
			h.ServeHTTP(w, r)
		case errors.Is(err, ErrForbidden):
			say(w, http.StatusForbidden, ErrForbidden.Error())
		case errors.Is(err, ErrUnknown):
			w.Header().Set("WWW-Authenticate", "Bearer")
			say(w, http.StatusUnauthorized, ErrUnknown.Error())
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
func (o *Options) authorize(r *http.Request, right Right) error {
	if o.Token != nil {
		want, err := o.Token()
		if err != nil {
			return err
		}
		// The scheme's name is case-insensitive. Hashes have one length whatever the token's.
		scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		a, b := sha256.Sum256([]byte(strings.TrimSpace(got))), sha256.Sum256(want)
		if !strings.EqualFold(scheme, "Bearer") || len(want) == 0 || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
			return ErrUnknown
		}
		return nil
	}
	if right == Profiles && (!isLoopback(r.RemoteAddr) || !isLoopback(r.Host)) {
		return ErrForbidden
	}
	return nil
}

// isLoopback reports whether an address is this machine's own. The host that a
// request names is looked at, too: a page of somebody else's in a browser here
// can have its own name lead to this address, but not change what it asks for.
func isLoopback(addr string) bool {
	host := hostOf(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

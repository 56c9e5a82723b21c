package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"bowstring/flight"
	"bowstring/schema"
)

const (
	// maxSessions bounds the memory of sessions, and of addresses without sign-in. The
	// oldest one is removed.
	maxSessions = 1024
	// sessionLength is a working day: the next morning a viewer signs in again.
	sessionLength = 12 * time.Hour
	maxViews      = 16 // open pages of one session, or of one address without sign-in
	// maxToken is the most bytes read of a sign-in.
	maxToken = 16 << 10
)

// Modes of authentication, as the page gets them.
const (
	byCaller  = "caller" // by the token of a Flight client, with its rights
	byToken   = "token"  // by the token of operators
	openToAll = "open"   // no authentication, as for Flight clients
)

// session belongs to one viewer: a signed-in account, or an address if the console needs no sign-in. All
// fields but views are immutable after newSession and signIn.
type session struct {
	token string // token for Flight calls; "" for none
	// hash is that of the operators' token at the sign-in. If the token changes, the
	// session is no longer valid.
	hash   [sha256.Size]byte
	viewer *flight.Viewer
	since  time.Time
	// ended is done when the caller's token is revoked, when the viewer signs out, or
	// when the Console is closed.
	ended context.Context
	end   context.CancelFunc

	mu sync.Mutex
	// views is how many event streams of the session are open. It is guarded by mu.
	views int
}

// beginView counts an event stream, and returns false if the session has maxViews
// already.
func (s *session) beginView() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.views >= maxViews {
		return false
	}
	s.views++
	return true
}

// endView ends a view that beginView has counted.
func (s *session) endView() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.views--
}

// viewing reports whether an event stream is open.
func (s *session) viewing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.views > 0
}

// sessions are the sessions by the SHA-256 of their cookie. The secrets themselves are
// not kept.
type sessions struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*session // guarded by mu
	open   map[string]*session            // by address, if there is no sign-in; guarded by mu
}

func newSessions() *sessions {
	return &sessions{byHash: map[[sha256.Size]byte]*session{}, open: map[string]*session{}}
}

// close ends all sessions.
func (l *sessions) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.byHash {
		s.leave()
	}
	for _, s := range l.open {
		s.leave()
	}
	clear(l.byHash)
	clear(l.open)
}

// leave ends the session's requests and releases its viewer at the server.
func (s *session) leave() {
	s.end()
	s.viewer.Leave()
}

// add keeps a session under a new secret, which it returns for the cookie. If there are
// maxSessions, the oldest one ends.
func (l *sessions) add(s *session) string {
	secret := rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byHash) >= maxSessions {
		var oldest [sha256.Size]byte
		var first *session
		for h, one := range l.byHash {
			if first == nil || one.since.Before(first.since) {
				oldest, first = h, one
			}
		}
		delete(l.byHash, oldest)
		first.leave()
	}
	l.byHash[sha256.Sum256([]byte(secret))] = s
	return secret
}

// get returns the session of a secret, nil if there is none.
func (l *sessions) get(secret string) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byHash[sha256.Sum256([]byte(secret))]
}

// remove ends the session of a secret, if there is one.
func (l *sessions) remove(secret string) {
	h := sha256.Sum256([]byte(secret))
	l.mu.Lock()
	s := l.byHash[h]
	delete(l.byHash, h)
	l.mu.Unlock()
	if s != nil {
		s.leave()
	}
}

// mode returns how viewers authenticate.
func (c *Console) mode() string {
	switch {
	case c.opts.Server.Authenticates():
		return byCaller
	case c.opts.Token != nil:
		return byToken
	}
	return openToAll
}

// cookieName returns the name of the cookie. It contains the port, because browsers send
// a cookie to all ports of a host: two servers on one host would overwrite each other's.
func cookieName(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "bowstring_console_" + port
}

// secretOf returns the secret in a request's cookie, "" if there is none.
func secretOf(r *http.Request) string {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return ""
	}
	return cookie.Value
}

// signInNeeded is the answer to a request without a valid session. Mode shows the page
// which token to ask for.
type signInNeeded struct {
	problem
	Mode string `json:"mode"`
}

// viewer returns the session of a request, or the answer to a request without one.
func (c *Console) viewer(r *http.Request) (*session, *signInNeeded) {
	mode := c.mode()
	if mode == openToAll {
		return c.anybody(r)
	}
	secret := secretOf(r)
	if s := c.sessions.get(secret); s != nil {
		if c.alive(s) {
			return s, nil
		}
		c.sessions.remove(secret)
	}
	return nil, &signInNeeded{problem{Code: "UNAUTHENTICATED", Error: "sign in with a token"}, mode}
}

// anybody returns the session of an address, for servers without sign-in. If there are
// maxSessions, the oldest one without an open page ends.
func (c *Console) anybody(r *http.Request) (*session, *signInNeeded) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	c.sessions.mu.Lock()
	defer c.sessions.mu.Unlock()
	if s := c.sessions.open[host]; s != nil {
		return s, nil
	}
	if len(c.sessions.open) >= maxSessions && !c.sessions.makeRoomLocked() {
		return nil, &signInNeeded{problem{Code: "RESOURCE_EXHAUSTED", Error: "too many viewers of this server"}, openToAll}
	}
	s, err := c.newSession(r, "")
	if err != nil {
		return nil, &signInNeeded{problem{Code: "UNAUTHENTICATED", Error: err.Error()}, openToAll}
	}
	c.sessions.open[host] = s
	return s, nil
}

// makeRoomLocked ends the oldest session of an address without an open page, and reports
// whether there was one. l.mu is held.
func (l *sessions) makeRoomLocked() bool {
	host, oldest := "", (*session)(nil)
	for h, one := range l.open {
		if !one.viewing() && (oldest == nil || one.since.Before(oldest.since)) {
			host, oldest = h, one
		}
	}
	if oldest == nil {
		return false
	}
	delete(l.open, host)
	oldest.leave()
	return true
}

// alive reports whether a session is still valid. It compares the current token of
// operators, so that a changed token file locks out old sessions without a restart.
func (c *Console) alive(s *session) bool {
	if s.ended.Err() != nil {
		return false
	}
	if c.mode() == openToAll {
		return true
	}
	if time.Since(s.since) > sessionLength {
		return false
	}
	if c.mode() == byToken {
		want, err := c.opts.Token()
		now := sha256.Sum256(want)
		return err == nil && len(want) > 0 && subtle.ConstantTimeCompare(now[:], s.hash[:]) == 1
	}
	return true
}

// newSession registers a viewer at the server. token is the caller's own; the token of
// operators is never sent to the server. The server ends the session when it revokes the
// caller's token.
func (c *Console) newSession(r *http.Request, token string) (*session, error) {
	s := &session{since: time.Now()}
	s.ended, s.end = context.WithCancel(c.ctx)
	if c.mode() == byCaller {
		s.token = token
	}
	var err error
	if s.viewer, err = c.opts.Server.NewViewer(r.Context(), s.token, remote(r), func(error) { s.end() }); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// remote returns the address of a request; a zero address if it cannot be parsed.
func remote(r *http.Request) net.Addr {
	addr, err := net.ResolveTCPAddr("tcp", r.RemoteAddr) // the address is numeric: nothing is looked up
	if err != nil {
		return &net.TCPAddr{}
	}
	return addr
}

// me is the answer to a viewer about himself.
type me struct {
	Mode      string `json:"mode"`
	Principal string `json:"principal"`
}

// whoAmI answers with the viewer of the session.
func (c *Console) whoAmI(w http.ResponseWriter, r *http.Request) {
	s, why := c.viewer(r)
	if why != nil {
		answer(w, http.StatusUnauthorized, why)
		return
	}
	answer(w, http.StatusOK, me{c.mode(), s.viewer.Name()})
}

// errToken is the same for every kind of wrong token: the difference would help guessing.
var errToken = errors.New("this token is not one that lets anybody in")

// refuse answers a viewer whose token CheckToken has rejected. Errors of the server
// itself are logged, and the viewer learns only that there was one.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, schema.ErrUnauthenticated):
		fail(w, http.StatusUnauthorized, "UNAUTHENTICATED", errToken.Error())
	case errors.Is(err, schema.ErrLimit):
		fail(w, http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", err.Error())
	case r.Context().Err() != nil: // the browser is gone
	default:
		c.opts.Logger.ErrorContext(r.Context(), "it cannot be said who may see the console", "error", err)
		fail(w, http.StatusInternalServerError, "INTERNAL",
			"it cannot be said who may see this; the server's log says why")
	}
}

// signIn exchanges a token for a cookie. The page does not keep the token: scripts cannot
// read the cookie, and pages of other sites do not send it.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Token string `json:"token"`
	}
	// A form of another site cannot send JSON without the browser asking this server
	// first.
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", `want JSON: {"token": TOKEN}`)
		return
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxToken)).Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, "INVALID_ARGUMENT", `want JSON: {"token": TOKEN}`)
		return
	}
	token := strings.TrimSpace(in.Token)
	mode := c.mode()
	var hash [sha256.Size]byte
	if mode == byToken {
		if err := c.opts.CheckToken(r.Context(), r.RemoteAddr, token); err != nil {
			c.refuse(w, r, err)
			return
		}
		hash = sha256.Sum256([]byte(token))
	}
	s, err := c.newSession(r, token)
	switch {
	case errors.Is(err, schema.ErrUnauthenticated):
		fail(w, http.StatusUnauthorized, "UNAUTHENTICATED", errToken.Error())
		return
	case errors.Is(err, schema.ErrLimit):
		fail(w, http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", err.Error())
		return
	case err != nil:
		fail(w, http.StatusServiceUnavailable, "UNAVAILABLE", err.Error())
		return
	}
	s.hash = hash
	c.sessions.remove(secretOf(r)) // an earlier sign-in of this browser
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: c.sessions.add(s), Path: "/console/", MaxAge: int(sessionLength.Seconds()),
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
	answer(w, http.StatusOK, me{mode, s.viewer.Name()})
}

// signOut ends the session and removes the cookie. It succeeds without a session as well.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	c.sessions.remove(secretOf(r))
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Path: "/console/", MaxAge: -1, HttpOnly: true,
		Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}

// Package admin is the listener for those who operate a server: metrics for
// Prometheus, health for supervisors and load balancers, and profiles.
// It is plain HTTP or HTTPS on an address of its own, so that it can be kept to
// the machine or to a network of operators, and goes on while a server drains.
//
// Every caller that reaches the listener gets health. All other paths need the token, if
// one is set. Profiles show what is in memory: they need the token or a caller on the
// same machine. [Options.Authorize] replaces that rule. Without a token, a request must
// name the server by one of its own names. The number of connections is bounded.
//
// The package knows nothing of samples, streams or metrics: its caller passes what to
// show, and it imports nothing of Bowstring. Begin reading at [Server]; files.go reloads
// certificates and tokens, and limit.go bounds connections and guesses.
package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// These bound what one client can hold: a connection that sends its request slowly,
	// or keeps it open without a request, ends. net/http has no timeouts by default.
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// writeTimeout bounds an answer. A profile says for how long it is to be taken,
	// up to maxProfile.
	writeTimeout = 30 * time.Second
	maxProfile   = 2 * time.Minute
	// A header has a token and little else. net/http's default is 1 MiB for each
	// connection.
	maxHeaderBytes = 16 << 10
	// maxScrapes is how many scrapes may run at once: each has all metrics in memory.
	maxScrapes = 4
)

// Options say what a Server shows, and to whom. Metrics and Ready must be set.
type Options struct {
	// Metrics is what /metrics shows.
	Metrics prometheus.Gatherer
	// Ready returns nil if clients may be sent here, else why not.
	Ready func() error
	// TLS is how the listener presents itself; nil for plain HTTP.
	TLS *tls.Config
	// Token returns the bearer token that callers must present; nil if there is none. It
	// is called for each request, so that a token in a file can be replaced without a
	// restart.
	Token func() ([]byte, error)
	// Authorize replaces the token's rule: it says whether the server may answer a
	// request for something. It returns nil, ErrUnknown, ErrTooMany or ErrForbidden; the
	// client of another error gets status 500. It is not called for health.
	Authorize func(r *http.Request, right Right) error
	// Hosts are names of the server, besides its addresses, localhost and the machine's
	// name. Without a token, the server refuses requests that use other names.
	Hosts []string
	// Console serves /console/ and authenticates its callers itself; nil if there is
	// none.
	Console http.Handler
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.Metrics == nil:
		return errors.New("admin: Metrics is nil; want what to show")
	case o.Ready == nil:
		return errors.New("admin: Ready is nil; want a function that says whether clients may come")
	}
	return nil
}

// Server answers operators. It is safe for concurrent use.
type Server struct {
	opts   Options
	http   http.Server
	addr   net.Addr   // set by Start
	served chan error // what Serve returned

	// may is Options.Authorize, or authorize where none is set.
	may     func(r *http.Request, right Right) error
	guesses *guesses
}

// New checks the options and returns a Server. It does not listen yet: see Start.
func New(opts Options) (*Server, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Server{opts: opts, served: make(chan error, 1), may: opts.Authorize, guesses: newGuesses()}
	if s.may == nil {
		s.may = s.authorize
	}
	s.http = http.Server{
		Handler: s.shield(s.handler()), TLSConfig: opts.TLS, MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout,
		// A port scan causes errors here. They are not worth a warning.
		ErrorLog: slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Start answers on l in a goroutine of its own. The Server owns l from here on, and
// closes it in Close. A connection beyond 512, or beyond 128 of one address, is closed as
// it comes. Start is called once.
func (s *Server) Start(l net.Listener) {
	s.addr = l.Addr()
	l = newBoundedListener(l, maxConnections, maxConnectionsPerPeer)
	go func() {
		var err error
		if s.opts.TLS != nil {
			err = s.http.ServeTLS(l, "", "") // the configuration has the certificates
		} else {
			err = s.http.Serve(l)
		}
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.served <- err
	}()
}

// Addr is the address on which the server listens. It is valid after Start.
func (s *Server) Addr() net.Addr { return s.addr }

// Close stops listening and waits for the requests under way. When ctx ends, it cuts off
// the rest. It returns after Serve has returned, so that no goroutine of the server is
// left.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close() // a request that is left, such as a profile, is cut off
	}
	return errors.Join(err, <-s.served)
}

// handler builds the routes. Health has no guard, because supervisors and load balancers
// have no token. Unknown paths get a list of those that exist.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.opts.Ready(); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		say(w, http.StatusOK, "ok")
	})
	mux.Handle("GET /metrics", s.guard(Metrics, promhttp.HandlerFor(s.opts.Metrics, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError,
		ErrorLog: slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelWarn),
	})))
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/symbol": pprof.Symbol,
		"/debug/pprof/profile": timed(pprof.Profile), "/debug/pprof/trace": timed(pprof.Trace),
	} {
		mux.Handle("GET "+path, s.guard(Profiles, h))
	}
	there := "/metrics, /healthz, /readyz and /debug/pprof/"
	if s.opts.Console != nil {
		there = "/console/, " + there
		mux.Handle("/console/", s.named(s.opts.Console))
		mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusFound))
	}
	mux.Handle("/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		say(w, http.StatusNotFound, "there are "+there)
	}))
	return mux
}

// timed extends the write deadline of a profile by the time for which the client wants
// it. The listener's writeTimeout would cut off a profile of 30 s, which is pprof's
// default. pprof itself reads the timeout from the http.Server in the context, and
// refuses a longer profile, so the context gets a server with a longer one.
func timed(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		took, err := profileTime(r)
		if err != nil {
			say(w, http.StatusBadRequest, err.Error())
			return
		}
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(took + writeTimeout)); err != nil {
			say(w, http.StatusInternalServerError, "this connection takes no deadline")
			return
		}
		h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{ //nolint:gosec // never serves: pprof looks at its timeout
			WriteTimeout: took + writeTimeout, ReadHeaderTimeout: headerTimeout,
		})))
	}
}

// profileTime parses the parameter seconds as pprof does: 30 s by default. It is at most
// maxProfile, because a profile slows the server down while it runs.
func profileTime(r *http.Request) (time.Duration, error) {
	text := r.FormValue("seconds")
	if text == "" {
		return 30 * time.Second, nil
	}
	took, err := time.ParseDuration(text + "s")
	if err != nil || took <= 0 || took > maxProfile {
		return 0, fmt.Errorf("seconds: got %q, want a number up to %g", text, maxProfile.Seconds())
	}
	return took, nil
}

// say answers in one line of text. Caches must not keep it: it is a state of the moment.
func say(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // a failed write means that the client is gone
}

// Right is a kind of content that a caller may see or not.
type Right int

// The rights. Health has none: each caller sees it.
const (
	// Metrics are the metrics: names of datasets, jobs and tenants, and figures.
	Metrics Right = iota
	// Profiles are profiles and stacks: also the command line, and what is in memory.
	Profiles
)

var (
	// ErrUnknown says that a request has no valid token.
	ErrUnknown = errors.New("this takes a token: Authorization: Bearer TOKEN")
	// ErrTooMany says that an address sent too many wrong tokens: the server does not
	// compare the next ones.
	ErrTooMany = errors.New("too many wrong tokens came from this address; wait a minute")
	// ErrForbidden says that the caller may not see profiles.
	ErrForbidden = errors.New("profiles are shown to callers on this machine, or to those who have the token that " +
		"--admin-token-file sets")
)

// guard calls h only for requests that may see right, and answers the others with the
// status that fits the error. Without a token, it also refuses requests that name another
// server: see Named.
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
		case r.Context().Err() != nil: // the client is gone
		default: // the cause is for the log alone
			s.opts.Logger.ErrorContext(r.Context(), "it cannot be said who may see the metrics", "error", err)
			say(w, http.StatusInternalServerError, "it cannot be said who may see this; the server's log says why")
		}
	})
	if s.opts.Token != nil {
		return guarded // a page of another origin does not have the token
	}
	return s.named(guarded)
}

// authorize is the rule if Options.Authorize is nil.
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

// CheckToken compares a token that came from an address (HOST:PORT) with Options.Token.
// It returns nil if they are equal, else ErrUnknown. If the address has sent too many
// wrong tokens, CheckToken returns ErrTooMany and does not compare: otherwise guessing
// would only need more requests. It waits up to a second while all addresses together
// guess too often.
func (s *Server) CheckToken(ctx context.Context, addr, token string) error {
	if token == "" { // an absent token is no guess
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
		// The hashes have one length, so that the time of the comparison does not reveal
		// the token's.
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

// Guesses returns how many wrong tokens came, and how many requests were refused without
// a comparison, because their addresses had sent too many wrong tokens. Both count from
// the start of the server.
func (s *Server) Guesses() (wrong, limited int64) { return s.guesses.counts() }

// isLoopback reports whether an address is this machine's own. The caller checks the host
// that the request names as well: a foreign page in a local browser can have its own name
// resolve to this address, but it cannot change the name that the browser sends.
func isLoopback(addr string) bool {
	host := hostOf(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Named reports whether a request names this server by one of its own names: an address,
// localhost, the machine's name or one of hosts. A foreign page can have its own name
// resolve to this address (DNS rebinding) and then read the answers, but it cannot change
// the name that the browser sends. Over TLS the browser has compared the name with the
// certificate.
func Named(r *http.Request, hosts []string) bool {
	host := strings.ToLower(hostOf(r.Host))
	if r.TLS != nil || host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	own, err := os.Hostname()
	return err == nil && host == strings.ToLower(own) || slices.ContainsFunc(hosts, func(h string) bool {
		return strings.EqualFold(h, host)
	})
}

// named answers only requests that name this server.
func (s *Server) named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Named(r, s.opts.Hosts) {
			say(w, http.StatusForbidden, fmt.Sprintf("this server is not known to be called %.200q: ask by its "+
				"address, or have --admin-host name it", hostOf(r.Host)))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostOf returns an address without its port and without the brackets of IPv6.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	return strings.Trim(host, "[]")
}

// shield recovers from a panic of a handler: the client gets an id, and the log gets the
// id, the text and the stack. net/http would close the connection and log at the level of
// clients that hang up.
func (s *Server) shield(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(p)
			}
			id := rand.Text()
			s.opts.Logger.LogAttrs(r.Context(), slog.LevelError, "panic in a request", slog.String("id", id),
				slog.String("path", r.URL.Path), slog.String("panic", fmt.Sprint(p)),
				slog.String("stack", string(debug.Stack())))
			say(w, http.StatusInternalServerError, "a defect of the server; its log says more under the id "+id)
		}()
		h.ServeHTTP(w, r)
	})
}

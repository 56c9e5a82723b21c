package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// writeTimeout bounds an answer. A profile says for how long it is to be taken,
	// up to maxProfile.
	writeTimeout   = 30 * time.Second
	maxProfile     = 2 * time.Minute
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
	// Token returns what callers have to present as a bearer token; nil if there is none.
	Token func() ([]byte, error)
	// Authorize says whether a request for something may be answered, in place of
	// the token: nil, ErrUnknown, ErrTooMany or ErrForbidden. Health is not asked for.
	Authorize func(r *http.Request, right Right) error
	// Hosts are names under which the server is known beside its addresses, localhost and
	// the machine's name. Where there is no token, requests by other names are refused.
	Hosts []string
	// Console answers below /console/, to those whom it knows itself; nil if there is none.
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

	may     func(r *http.Request, right Right) error
	guesses *guesses
}

// New returns a Server, which Start starts.
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
		ErrorLog:    slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug), // whoever scans ports is no news
	}
	return s, nil
}

// Start answers on l, which the Server closes in the end. Connections beyond 512, and of
// one address beyond 128, are closed as they come.
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

// Addr is the address that it was started on.
func (s *Server) Addr() net.Addr { return s.addr }

// Close ends the server, after the requests under way or when ctx ends, and waits for it.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close() // whoever is left, say with a profile, is cut off
	}
	return errors.Join(err, <-s.served)
}

// handler is what the listener answers.
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

// timed lets a profile take the time that it was asked to.
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

// profileTime is how long a profile is to be taken, as pprof reads it.
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

// say answers in one line of text.
func say(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // whoever asked is gone, then
}

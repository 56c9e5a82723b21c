// Package console is a web page for operators and users of a server: the streams that
// run, where their time goes, and the contents of the datasets. It is served below
// /console/ by the listener of operators (cmd/bowstring/admin), from files that the
// program has in itself.
//
// It is a Flight client like any other: it reads datasets from the server in the same
// process, by calls with the viewer's token (package flight's ServeWithin), so that
// rules, limits and the audit log hold for it. The statistics are read once a second for
// all viewers together, and each gets what flight.Viewer.Visible returns for it.
//
// It changes nothing in the server, asks no other host for anything, and keeps no token
// but in memory.
package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"bowstring/flight"
)

// Options say what a Console shows, and to whom. Server must be set.
type Options struct {
	// Server is what is looked at. It outlives the Console's start, and may be shut down
	// before the Console is closed: what runs is shown until then.
	Server *flight.Server
	// Token returns the token that viewers need where the server does not know its
	// callers; nil if there is none.
	Token func() ([]byte, error)
	// CheckToken returns nil if a token that came from an address is the one of Token, or else
	// schema.ErrUnauthenticated, or schema.ErrLimit where too many wrong ones came from there. It
	// must be set where Token is.
	CheckToken func(ctx context.Context, addr, token string) error
	// Every is the time between two looks. Default 1 s.
	Every time.Duration
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.Server == nil:
		return errors.New("console: Server is nil; want the server to look at")
	case (o.Token == nil) != (o.CheckToken == nil):
		return errors.New("console: one of Token and CheckToken is nil; want both, or neither")
	case o.Every < 10*time.Millisecond:
		return errors.New("console: Every is too short; want 10ms or more")
	}
	return nil
}

// Console answers browsers. It is safe for concurrent use.
type Console struct {
	opts     Options
	mux      *http.ServeMux
	sampler  *sampler
	sessions *sessions
	links    *links
	turns    chan struct{} // one for each request for data that is worked on
	ctx      context.Context
	stop     context.CancelFunc
}

// maxRequests is how many requests for data are worked on at once; others wait.
const maxRequests = 8

// requestTimeout bounds a request for data: the listener ends an answer after 30 s.
const requestTimeout = 25 * time.Second

// New returns a Console, which the caller closes.
func New(opts Options) (*Console, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	c := &Console{opts: opts, mux: http.NewServeMux(), turns: make(chan struct{}, maxRequests)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.sampler = newSampler(opts.Server.Status, opts.Every)
	c.sessions = newSessions()
	c.links = newLinks(opts.Server, opts.Logger)
	c.pages()
	c.mux.HandleFunc("GET /console/api/session", c.whoAmI)
	c.mux.HandleFunc("POST /console/api/session", c.signIn)
	c.mux.HandleFunc("DELETE /console/api/session", c.signOut)
	c.mux.HandleFunc("GET /console/api/live", c.live)
	for path, f := range map[string]func(*query) error{
		"datasets": (*query).datasets, "dataset": (*query).dataset, "samples": (*query).samples,
		"summary": (*query).summary, "history": (*query).history, "blob": (*query).blob, "explain": (*query).explain,
		"lineage": (*query).lineage, "cluster": (*query).cluster,
	} {
		c.mux.HandleFunc("GET /console/api/"+path, c.data(f))
	}
	c.mux.HandleFunc("/console/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "NOT_FOUND", "there is no such page")
	})
	return c, nil
}

// Close ends what viewers are being sent, and waits until nothing of the Console runs.
func (c *Console) Close() error {
	c.stop()
	c.sampler.close()
	c.sessions.close()
	return c.links.close()
}

// policy is what pages may do: nothing but what comes from here as files of its own.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; " +
	"connect-src 'self'; " +
	"font-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if !ofOwnPage(r) {
		fail(w, http.StatusForbidden, "PERMISSION_DENIED", "another site's page asks for this")
		return
	}
	c.mux.ServeHTTP(w, r)
}

// ofOwnPage reports whether it is not a page of another site that makes the request, by
// what browsers say of it; only a person may come from elsewhere, to the page itself.
func ofOwnPage(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/console/"
	}
	origin := r.Header.Get("Origin")
	return origin == "" || origin == "http://"+r.Host || origin == "https://"+r.Host
}

// answer sends JSON.
func answer(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError,
			[]byte(`{"code":"INTERNAL","error":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(b) // a failed write means that the client is gone
}

// problem is what went wrong, for the page.
type problem struct {
	Code   string `json:"code"`
	Error  string `json:"error"`
	Line   int    `json:"line,omitempty"` // of the expression, from 1
	Column int    `json:"column,omitempty"`
}

func fail(w http.ResponseWriter, status int, code, text string) {
	answer(w, status, problem{Code: code, Error: text})
}

// static holds the page: modules of JavaScript, styles, and in vendor what others have
// made, with its licence; vendor/README.md says where from.
//
//go:embed static
var static embed.FS

// asset is a file of the page.
type asset struct {
	kind, tag    string
	plain, small []byte // small is compressed by gzip
}

// pages has the mux answer the files of the page.
func (c *Console) pages() {
	for name, a := range assets() {
		c.mux.HandleFunc("GET /console/"+name, a.serve)
	}
}

// assets reads the files, and compresses each once. The page itself has the name "{$}".
func assets() map[string]*asset {
	list := map[string]*asset{}
	err := fs.WalkDir(static, "static", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, ".md") {
			return err
		}
		b, err := static.ReadFile(p)
		if err != nil {
			return err
		}
		var small bytes.Buffer
		z, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := z.Write(b); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		name := strings.TrimPrefix(p, "static/")
		if name == "index.html" {
			name = "{$}"
		}
		list[name] = &asset{kind: kindOf(p), tag: `"` + hex.EncodeToString(sum[:12]) + `"`, plain: b,
			small: small.Bytes()}
		return nil
	})
	if err != nil {
		panic(err) // the files are part of the program, and read from memory
	}
	return list
}

func kindOf(p string) string {
	switch path.Ext(p) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(p))
}

func (a *asset) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Etag", a.tag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache") // another version of the program has other files
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = a.small
	}
	_, _ = w.Write(body) // a failed write means that the client is gone
}

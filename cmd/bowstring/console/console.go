// Package console is a web page for operators and users of a server. It shows the running
// streams, where their time goes, and the contents of the datasets. The listener of
// operators (cmd/bowstring/admin) serves it below /console/, from files embedded in the
// program.
//
// The console is a Flight client like any other. It reads datasets by calls to the server
// in the same process, with the viewer's token (ServeWithin of package flight). Policy,
// limits and the audit log therefore apply to it. The statistics are read once a second
// for all viewers together; each viewer gets what flight.Viewer.Visible returns for it.
//
// The console changes nothing in the server, sends no request to another host, and keeps
// tokens in memory only.
//
// Begin with New in console.go. session.go decides who may see what, sampler.go sends
// live statistics, query.go and summary.go answer requests for data, and link.go connects
// them to the server.
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

// Options configure a Console. Server must be set.
type Options struct {
	// Server is the server that the console shows. It is started before the Console. It
	// may be shut down before the Console is closed: running streams are shown until
	// then.
	Server *flight.Server
	// Token returns the token of operators, which viewers need if the server does not
	// authenticate its callers. nil means that no token is needed.
	Token func() ([]byte, error)
	// CheckToken compares a token from an address with that of Token. It returns
	// schema.ErrUnauthenticated for a wrong one, and schema.ErrLimit after too many wrong
	// ones from the address. It is set if and only if Token is.
	CheckToken func(ctx context.Context, addr, token string) error
	// Every is the time between two samples of the statistics. Default 1 s, at least 10
	// ms.
	Every time.Duration
	// Logger receives errors that viewers cannot be shown. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults sets the fields that are zero and have a default.
func (o *Options) EnsureDefaults() {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first invalid field.
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

// Console is the handler of the pages and their data. It is safe for concurrent use.
type Console struct {
	opts     Options
	mux      *http.ServeMux
	sampler  *sampler
	sessions *sessions
	links    *links
	// turns has an element for each request for data in progress.
	turns chan struct{}
	// ctx ends with Close, and with it all sessions and event streams.
	ctx  context.Context
	stop context.CancelFunc
}

// maxRequests is how many requests for data run at once; others wait. Each may hold a
// blob of 16 MiB.
const maxRequests = 8

// requestTimeout bounds a request for data. It is below the 30 s after which the listener
// cuts off an answer, so that the viewer gets an error and not a broken connection.
const requestTimeout = 25 * time.Second

// New returns a Console. The caller closes it. An invalid Options is the only error.
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
	// Other paths get an error as JSON, like all errors of the console.
	c.mux.HandleFunc("/console/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "NOT_FOUND", "there is no such page")
	})
	return c, nil
}

// Close ends the sessions and event streams, and waits until all goroutines of the
// Console have ended.
func (c *Console) Close() error {
	c.stop()
	c.sampler.close()
	c.sessions.close()
	return c.links.close()
}

// policy is the Content-Security-Policy of all pages. Only files of this host may run or
// load: text in a dataset that gets into a page cannot become a script. Trusted Types
// refuse the sinks that make HTML of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; " +
	"connect-src 'self'; " +
	"font-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler. It sets the headers and rejects requests of other
// sites before any handler runs.
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

// ofOwnPage reports whether a request may come from the console's own page. It checks
// what browsers state about the initiator: Sec-Fetch-Site, or Origin in older ones. A
// request from another site is allowed only if a person follows a link to the page
// itself. The cookie is SameSite=Strict as well; this check also protects consoles
// without sign-in.
func ofOwnPage(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/console/"
	}
	origin := r.Header.Get("Origin")
	return origin == "" || origin == "http://"+r.Host || origin == "https://"+r.Host
}

// answer sends v as JSON. A value that cannot be encoded becomes the status 500.
func answer(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError,
			[]byte(`{"code":"INTERNAL","error":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(b) // an error means that the client is gone
}

// problem is an error as the page gets it.
type problem struct {
	Code   string `json:"code"`
	Error  string `json:"error"`
	Line   int    `json:"line,omitempty"` // line of the expression, from 1
	Column int    `json:"column,omitempty"`
}

// fail sends an error. code is a name of a gRPC code, as Flight clients see it.
func fail(w http.ResponseWriter, status int, code, text string) {
	answer(w, status, problem{Code: code, Error: text})
}

// static holds the page: JavaScript modules, styles, and third-party files with their
// licences in vendor. vendor/README.md names their sources.
//
//go:embed static
var static embed.FS

// asset is a file of the page. It is immutable.
type asset struct {
	kind, tag    string
	plain, small []byte // small is compressed by gzip
}

// pages registers the files of the page.
func (c *Console) pages() {
	for name, a := range assets() {
		c.mux.HandleFunc("GET /console/"+name, a.serve)
	}
}

// assets reads the embedded files and compresses each of them once, at the start: they
// are few and small. The page itself has the name "{$}", which the mux matches with the
// bare path.
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

// kindOf returns the media type of a file. The types that the page needs are fixed here,
// because the table of the mime package depends on the machine.
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

// serve sends the file, compressed if the browser accepts that. The tag is a hash of the
// content, so that a browser revalidates each time and transfers only what a new version
// changed.
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
	_, _ = w.Write(body) // an error means that the client is gone
}

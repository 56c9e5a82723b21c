package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"bowstring/cmd/bowstring/admin"
	"bowstring/cmd/bowstring/console"
	"bowstring/cmd/bowstring/metrics"
	"bowstring/cmd/bowstring/tracing"
	"bowstring/fetch"
	"bowstring/flight"
	"bowstring/flight/auth"
	"bowstring/schema"
)

// adminTokenVariable names the environment variable with the token of the admin listener,
// if no file has it. It is no setting, because config print would show it.
const adminTokenVariable = "BOWSTRING_ADMIN_TOKEN" //nolint:gosec // a name

// check is part of Validate.
func (c *observeFlags) check() error {
	if c.Admin != "" {
		if _, _, err := net.SplitHostPort(c.Admin); err != nil {
			return fmt.Errorf("--admin: got %q, want HOST:PORT", c.Admin)
		}
	}
	if (c.AdminCert == "") != (c.AdminKey == "") {
		return errors.New("--admin-cert and --admin-key go together: a certificate and its key")
	}
	if c.TraceRatio < 0 || c.TraceRatio > 1 {
		return fmt.Errorf("--trace-ratio: got %g, want 0 to 1", c.TraceRatio)
	}
	return nil
}

// checkExposed returns an error if other machines could reach the admin listener without
// a token or without TLS. The listener shows names of datasets, jobs and tenants.
func (c *observeFlags) checkExposed() error {
	host, _, _ := net.SplitHostPort(c.Admin) // check has validated the address
	if ip := net.ParseIP(host); c.Admin == "" || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	if c.AdminCert != "" && (c.AdminTokenFile != "" || os.Getenv(adminTokenVariable) != "") {
		return nil
	}
	return fmt.Errorf("--admin: %s can be reached from other machines: give --admin-cert, --admin-key and "+
		"--admin-token-file, or --insecure to show everybody who reaches it the names of datasets, jobs and tenants",
		c.Admin)
}

// observation has everything that shows a server to its operators: metrics, console,
// traces and profiles. open makes it before the node exists, and start connects it to the
// node. The fields are constant after start. A nil observation shows nothing.
type observation struct {
	node        *node // set by start, before the server runs
	app         *App
	tracing     *tracing.Tracing
	collections *metrics.Collections
	collector   *metrics.Collector // nil without an admin listener, like the fields below
	options     admin.Options
	flags       *observeFlags
	console     *console.Console // set by start; nil with --no-console
	listener    net.Listener     // owned until the server has taken it over
	server      *admin.Server
}

// open prepares the observation. The listener is bound here, so that a used port ends the
// start early. It answers from start on, because the node does not exist before.
func (c *observeFlags) open(ctx context.Context, app *App, d *auth.Authenticator, sources *auth.Sources,
	collectEvery time.Duration) (_ *observation, err error) {
	o := &observation{app: app, flags: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	ratio := c.TraceRatio
	// Package tracing takes 0 for "as the environment says", and a negative ratio for
	// none.
	switch {
	case ratio == 0:
		ratio = -1
	case app.settings.origin("serve.trace-ratio").level == fromDefault:
		ratio = 0 // follow OTEL_TRACES_SAMPLER
	}
	b := thisBuild()
	if o.tracing, err = tracing.New(ctx, tracing.Options{Endpoint: c.OTLPEndpoint, Ratio: ratio, Version: b.Version,
		Logger: app.Log}); err != nil {
		return nil, err
	}
	if c.Admin == "" {
		return o, nil
	}
	if collectEvery > 0 {
		o.collections = metrics.NewCollections(collectEvery)
	}
	o.options = admin.Options{Ready: o.ready, Logger: app.Log,
		Hosts: strings.FieldsFunc(c.AdminHost, func(r rune) bool { return r == ',' || r == ' ' })}
	if !c.NoConsole {
		o.options.Console = http.HandlerFunc(o.serveConsole)
	}
	if o.options.Token, err = c.token(sources); err != nil {
		return nil, err
	}
	// The functions use o.node, which is nil until start. No scrape comes before.
	about := metrics.Options{
		Stats: func() flight.Stats {
			return o.node.server.Stats()
		}, Times: func() []fetch.Times { return o.node.engine.Times() },
		Collections: o.collections, MemoryLimit: memoryLimit(), Version: b.Version, GoVersion: b.Go,
	}
	about.AdminGuesses = o.guesses
	about.Cluster = func() *metrics.Cluster { return o.node.clusterNow() }
	// Both listeners can have a certificate, and each expires on its own.
	ends := map[string]func() time.Time{}
	if d.Encrypts() {
		ends["flight"] = d.CertificateEnds
	}
	if c.AdminCert != "" {
		cert, err := admin.LoadCertificate(c.AdminCert, c.AdminKey,
			sources.Add("the admin listener's certificate", false))
		if err != nil {
			return nil, fmt.Errorf("the certificate of the admin listener: %w", err)
		}
		o.options.TLS = cert.TLS()
		ends["admin"] = cert.NotAfter
	}
	// The certificates are read again when they change, so that their ends are functions.
	about.Certificates = func() map[string]time.Time {
		now := make(map[string]time.Time, len(ends))
		for listener, end := range ends {
			now[listener] = end()
		}
		return now
	}
	about.Sources = func() map[string]bool { return unreadable(sources) }
	if o.collector, err = metrics.New(about); err != nil {
		return nil, err
	}
	// A registry of its own has only the metrics of this server. The default registry has
	// what any imported package registers.
	registry := prometheus.NewRegistry()
	for _, one := range []prometheus.Collector{
		o.collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(one); err != nil {
			return nil, err
		}
	}
	o.options.Metrics = registry
	if o.server, err = admin.New(o.options); err != nil {
		return nil, err
	}
	if o.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", c.Admin); err != nil {
		// Without a listener the server was not started and must not be closed.
		o.server = nil
		return nil, fmt.Errorf("cannot listen on %s: %w; --admin names another address, port 0 any free one", c.Admin,
			err)
	}
	return o, nil
}

// unreadable returns for each source whether the last attempt to read it failed.
func unreadable(sources *auth.Sources) map[string]bool {
	now := map[string]bool{}
	for _, one := range sources.List() {
		now[one.What] = !one.Since.IsZero()
	}
	return now
}

// token returns a function that reads the token, and nil if there is no token. A token
// from a file is read again when the file changes.
func (c *observeFlags) token(sources *auth.Sources) (func() ([]byte, error), error) {
	if c.AdminTokenFile != "" {
		return admin.LoadToken(c.AdminTokenFile, sources.Add("the admin listener's token", false))
	}
	text := os.Getenv(adminTokenVariable)
	if text == "" {
		return nil, nil //nolint:nilnil // no token is none
	}
	token, err := admin.CheckToken(bytes.TrimSpace([]byte(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", adminTokenVariable, err)
	}
	return func() ([]byte, error) { return token, nil }, nil
}

// memoryLimit returns the bytes of memory that the process may use, and 0 if the limit is
// unknown. Control groups without a limit report a huge number.
func memoryLimit() int64 {
	limit, err := memlimit.FromCgroup()
	if err != nil {
		limit, err = memlimit.FromSystem()
	}
	if err != nil || limit > 1<<60 {
		return 0
	}
	return int64(limit)
}

// watch adds the tracer and the observer to the options of the server, before it is made.
func (o *observation) watch(opts *flight.Options) {
	opts.Tracer = o.tracing.Tracer()
	if o.collector != nil {
		opts.Observer = o.collector
	}
}

// ready returns an error if a load balancer should send no new clients: while the server
// drains.
func (o *observation) ready() error {
	if o.node.server.Draining() {
		return errors.New("draining")
	}
	return nil
}

// start begins to answer. From here on the node owns the observation, and closes it
// before the parts that it shows.
func (o *observation) start(ctx context.Context, n *node) error {
	o.node, n.observation = n, o
	if o.server == nil {
		return nil
	}
	if !o.flags.NoConsole {
		var err error
		viewers := console.Options{Server: n.server, Token: o.options.Token, Logger: o.app.Log}
		// Without a token the console asks for none.
		if viewers.Token != nil {
			viewers.CheckToken = o.checkToken
		}
		if o.console, err = console.New(viewers); err != nil {
			return err
		}
	}
	scheme := "http://"
	if o.options.TLS != nil {
		scheme = "https://"
	}
	o.server.Start(o.listener)
	// The server closes the listener now.
	o.listener = nil
	o.app.Log.InfoContext(ctx, "the admin listener answers", "address", scheme+dialable(o.server.Addr().String()))
	return nil
}

// checkToken checks a token from the console's form. It uses the counter of the admin
// listener, so that wrong tokens at the console and at the metrics are limited together.
func (o *observation) checkToken(ctx context.Context, addr, token string) error {
	err := o.server.CheckToken(ctx, addr, token)
	switch {
	case errors.Is(err, admin.ErrUnknown):
		return fmt.Errorf("%w: %w", schema.ErrUnauthenticated, err)
	case errors.Is(err, admin.ErrTooMany):
		return fmt.Errorf("%w: %w", schema.ErrLimit, err)
	}
	return err
}

// guesses returns the number of wrong tokens at the admin listener, and of requests that
// it refused without checking their token.
func (o *observation) guesses() (wrong, limited int64) {
	if o.server == nil { // not made yet
		return 0, 0
	}
	return o.server.Guesses()
}

// serveConsole answers below /console/. The listener starts only after the console
// exists.
func (o *observation) serveConsole(w http.ResponseWriter, r *http.Request) { o.console.ServeHTTP(w, r) }

// lastScrape is how long requests of the admin listener may continue after the server has
// stopped. A scrape takes milliseconds.
const lastScrape = time.Second

// close closes the listener and sends the remaining spans. It works at each point of a
// start that failed.
func (o *observation) close() error {
	if o == nil {
		return nil
	}
	var err error
	if o.console != nil {
		err = o.console.Close()
	}
	switch {
	case o.listener != nil:
		err = errors.Join(err, o.listener.Close())
	case o.server != nil:
		ctx, cancel := context.WithTimeout(context.Background(), lastScrape)
		defer cancel()
		err = errors.Join(err, o.server.Close(ctx))
	}
	if lost := o.tracing.Close(); lost != nil {
		o.app.Log.Warn("the end of tracing", "error", lost) // no reason for a server to fail
	}
	return err
}

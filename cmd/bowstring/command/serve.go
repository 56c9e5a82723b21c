package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/store"
	"bowstring/flight"
	"bowstring/flight/audit"
	"bowstring/flight/auth"
	"bowstring/flight/policy"
	"bowstring/flight/usage"
	"bowstring/schema"
	"bowstring/spill"
)

// ServeCmd is bowstring serve.
type ServeCmd struct {
	serveFlags
	HelpAll helpAll `help:"Show all flags, by what they are for."`

	experiment
}

// experiment is what only experiments say of a server: serve finds it out better by itself.
type experiment struct {
	MaxReads    int          `kong:"-"` // of the store at once; 0 for as many as pay
	SpillPolicy spill.Policy `kong:"-"` // what is kept, when not all can be; nil for what jobs will use soonest
}

// Validate is called by kong.
func (c *ServeCmd) Validate() error {
	if err := c.checkListen(); err != nil {
		return err
	}
	if c.MaxStreams < 1 {
		return fmt.Errorf("--max-streams: got %d, want 1 or more", c.MaxStreams)
	}
	if c.ExitWhenIdle < 0 {
		return fmt.Errorf("--exit-when-idle: got %s, want more than 0, or 0 for never", c.ExitWhenIdle)
	}
	if c.ReadTimeout <= 0 {
		return fmt.Errorf("--read-timeout: got %s, want more than 0", c.ReadTimeout)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("--drain-timeout: got %s, want 0 or more", c.DrainTimeout)
	}
	if c.AuditKeep < 0 {
		return fmt.Errorf("--audit-keep: got %d, want 1 or more, or 0 for all", c.AuditKeep)
	}
	if c.UsageKeep < 1 {
		return fmt.Errorf("--usage-keep: got %d, want 1 day or more", c.UsageKeep)
	}
	if c.GCEvery < 0 {
		return fmt.Errorf("--gc-every: got %s, want more than 0, or 0 for never", c.GCEvery)
	}
	if err := c.clusterFlags.check(); err != nil {
		return err
	}
	if err := c.localFlags.check(); err != nil {
		return err
	}
	return c.observeFlags.check()
}

// connectionsFor is how many connections may be open for a number of streams that may
// run.
func connectionsFor(streams int) int { return max(4*streams, 4096) }

// Own makes sure that there is a store to serve.
func (*ServeCmd) Own(app *App) error {
	if app.globals.Server == "" {
		return nil
	}
	if app.settings.origin("server").level == fromFlag {
		return usagef("serve runs a server, --server names one that runs already: use --store to say what to serve " +
			"and --listen to say where")
	}
	app.globals.Store, app.globals.Server = defaultStore(), "" // server is configured for the other commands
	return nil
}

// Run serves until a signal ends ctx.
func (c *ServeCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.Own(app); err != nil {
		return err
	}
	s := &running{ServeCmd: c, app: app}
	defer func() { err = errors.Join(err, s.closeOpened()) }()
	if err := s.configure(ctx); err != nil {
		return err
	}
	listener, err := s.open(ctx)
	if err != nil || listener == nil {
		return err
	}
	return s.serve(ctx, listener)
}

// running is a server, from its flags to its end.
type running struct {
	*ServeCmd
	app *App

	limits   limits
	rules    *auth.File[policy.Rules]   // nil if there are none
	tenants  *auth.File[policy.Tenants] // nil if there are none
	observed *observation
	opened   []func() error // closes what outlives the node, the last first
	node     *node
}

// closeOpened closes what configure has opened. The node has stopped by then.
func (s *running) closeOpened() (err error) {
	for _, shut := range slices.Backward(s.opened) {
		err = errors.Join(err, shut())
	}
	return err
}

// configure opens what the node is given: how callers are known, what they may, and what is kept of it.
func (s *running) configure(ctx context.Context) (err error) {
	s.limits = limits{
		windowBytes: cmp.Or(int64(s.WindowMemory), defaultWindow()),
		uploadBytes: int64(s.UploadMemory),
		evaluation:  int64(s.EvaluationMemory),
		maxReads:    s.MaxReads,
		readTimeout: s.ReadTimeout,
		flight: flight.Options{
			MaxStreams:            s.MaxStreams,
			MaxConnections:        connectionsFor(s.MaxStreams),
			MaxConnectionsPerPeer: max(s.MaxStreams, 1024),
			MaxMessageBytes:       int(s.UploadMemory / 2),
			DrainTimeout:          s.DrainTimeout,
			Sources:               auth.NewSources(s.SourceGrace, s.app.Log),
		},
	}
	l, to := &s.limits, &s.limits.flight
	if l.buckets, err = parseBuckets(s.Buckets); err != nil {
		return fmt.Errorf("--buckets: %w", err)
	}
	if s.BucketCredentials != "" {
		if l.rights, err = readBucketRights(s.BucketCredentials); err != nil {
			return fmt.Errorf("--bucket-credentials: %w", err)
		}
	}
	if to.Requests, err = s.requests(func() int { return s.node.sharers() }); err != nil {
		return err
	}
	if l.spill, err = s.spillFlags.config(s.app, s.SpillPolicy); err != nil {
		return err
	}
	if err := s.checkReferences(s.app.Far != nil || IsRemote(s.app.globals.Store), &l.spill); err != nil {
		return err
	}
	if to.Auth, err = s.authFlags.open(ctx, s.app, to.Sources, s.Listen); err != nil {
		return err
	}
	if d := to.Auth; d != nil {
		s.opened = append(s.opened, d.Close)
	}
	if l.cluster, err = s.clusterFlags.part(to.Auth, to.Sources, s.app.Log); err != nil {
		return err
	}
	if to.Shm, err = s.localFlags.open(s.app.Log, l.spill.bytes); err != nil {
		return err
	}
	if local := to.Shm; local != nil {
		s.opened = append(s.opened, local.Close)
	}
	if err := s.openPolicy(); err != nil {
		return err
	}
	if err := s.openRecords(); err != nil {
		return err
	}
	if !s.Insecure {
		if err := s.checkExposed(); err != nil {
			return err
		}
	}
	if s.observed, err = s.observeFlags.open(ctx, s.app, to.Auth, to.Sources, s.GCEvery); err != nil {
		return err
	}
	s.observed.watch(to)
	return nil
}

// openPolicy opens the files of rules and tenants, which are read again when they change.
func (s *running) openPolicy() (err error) {
	to := &s.limits.flight
	if s.Rules != "" {
		if s.rules, err = auth.OpenFile("rules", s.Rules, policy.Parse,
			func(rs *policy.Rules) int { return len(rs.List()) }, to.Sources, s.app.Log); err != nil {
			return err
		}
		to.Rules = s.rules.Current()
	}
	if s.Tenants != "" {
		if s.tenants, err = auth.OpenFile("tenants", s.Tenants, policy.ParseTenants,
			func(ts *policy.Tenants) int { return len(ts.List()) }, to.Sources, s.app.Log); err != nil {
			return err
		}
		to.Tenants = s.tenants.Current()
	}
	return nil
}

// openRecords opens the book of what is used, the record of what is handed out and the audit log.
func (s *running) openRecords() (err error) {
	to := &s.limits.flight
	if s.Usage != "" {
		if to.Usage, err = usage.Open(usage.Options{Dir: s.Usage, Keep: s.UsageKeep, Logger: s.app.Log}); err != nil {
			return err
		}
		s.opened = append(s.opened, to.Usage.Close)
	}
	if s.Lineage != "" {
		if s.limits.lineage, err = lineage.Open(lineage.Options{Dir: s.Lineage, MaxBytes: int64(s.LineageBytes),
			Logger: s.app.Log}); err != nil {
			return err
		}
		s.opened = append(s.opened, s.limits.lineage.Close)
	}
	if s.Audit != "" {
		if to.Audit, err = audit.Open(audit.Options{Path: s.Audit, MaxBytes: int64(s.AuditSize), Keep: s.AuditKeep,
			SyncReads: s.AuditSync, Logger: s.app.Log}); err != nil {
			return err
		}
		s.opened = append(s.opened, to.Audit.Close)
	}
	return nil
}

// open opens the store and listens; nil where ctx ended before the store was open.
func (s *running) open(ctx context.Context) (_ net.Listener, err error) {
	s.node, err = newNode(ctx, s.app.globals.Store, true, s.limits, s.app.Far, s.app.Log)
	if err != nil && ctx.Err() != nil {
		s.app.Log.InfoContext(ctx, "stopped before the store was open", "error", err)
		return nil, s.observed.close()
	}
	if err != nil {
		return nil, errors.Join(err, s.observed.close())
	}
	listener, err := s.listen(ctx)
	if err != nil {
		return nil, errors.Join(err, s.observed.close(), s.node.release())
	}
	s.prepare(ctx)
	if s.node.members != nil {
		if err := s.join(ctx, listener.Addr()); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot be a node of cluster %s: %w", s.Cluster, err), listener.Close(),
				s.observed.close(), s.node.release())
		}
	}
	return listener, nil
}

// prepare has a far store connect, and opens datasets, so that the first streams do not wait for it.
func (s *running) prepare(ctx context.Context) {
	far, ok := store.As[interface {
		Prepare(ctx context.Context, memory int64) error
	}](s.node.store)
	if !ok {
		return
	}
	opened := s.node.engine.OpenRecent()
	within, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	if err := far.Prepare(within, min(s.limits.windowBytes/8, readyMemory)); err != nil { // the first reader gets the error
		s.app.Log.WarnContext(ctx, "the store could not be prepared for reading", "error", err)
	}
	select {
	case <-opened:
	case <-time.After(openWithin): // it goes on
	case <-ctx.Done():
	}
}

// join makes the server a node of its cluster.
func (s *running) join(ctx context.Context, listens net.Addr) error {
	self, err := s.described(s.limits.cluster.node, listens, s.limits.flight.Auth.Encrypts(), s.limits.spill.bytes)
	if err == nil {
		err = s.node.members.Start(ctx, self)
	}
	if err != nil {
		return err
	}
	if until, _ := s.deadlines(time.Time{}); until.Sub(time.Time{}) < cluster.LeastHandover {
		s.app.Log.WarnContext(ctx, "the drain timeout is too short to hand the cache over after a signal: cluster "+
			"drain before it does so, or a longer --drain-timeout",
			"drain_timeout", s.DrainTimeout, "handover_takes", cluster.LeastHandover)
	}
	s.app.Log.InfoContext(ctx, "a node of a cluster", "cluster", s.Cluster, "node", self.ID, "address", self.Address,
		"nodes", len(s.node.members.View().Nodes))
	return nil
}

// serve answers until ctx ends, the cluster has the node leave, or the listener fails.
func (s *running) serve(ctx context.Context, listener net.Listener) error {
	n := s.node
	defer keepHeapRoom(func() int64 { return n.engine.Ledger().Free(admission.Windows) })()
	n.serve(listener)
	if err := s.observed.start(ctx, n); err != nil {
		return errors.Join(err, s.drain(ctx, time.Now()))
	}
	address := uriOf(listener.Addr(), s.limits.flight.Auth.Encrypts())
	if err := s.announce(address); err != nil {
		return errors.Join(err, s.drain(ctx, time.Now()))
	}
	s.app.Log.InfoContext(ctx, "serving", "address", address, "listen", listener.Addr().String(), "store",
		s.app.globals.Store, "window_memory", humanize.IBytes(uint64(s.limits.windowBytes)), "max_streams", s.MaxStreams)
	var background sync.WaitGroup
	defer background.Wait()
	serving, stop := context.WithCancel(ctx)
	defer stop() // also where it is the listener that has ended
	draining, drained := context.WithCancel(context.WithoutCancel(ctx))
	defer drained() // after the drain below
	idle := make(chan struct{})
	if s.ExitWhenIdle > 0 {
		background.Go(func() {
			if untilIdle(serving, s.ExitWhenIdle, n.server.Activity) {
				close(idle)
			}
		})
	}
	stopped := s.until(ctx, idle, s.background(serving, draining, &background))
	return s.drain(ctx, stopped)
}

// background starts what runs beside the calls: until serving ends, or, what streams that drain need, until draining does.
// The channel is closed when the node has left its cluster by an order.
func (s *running) background(serving, draining context.Context, background *sync.WaitGroup) <-chan struct{} {
	n := s.node
	background.Go(func() { logProblems(serving, s.app, s.app.globals.Store, n.store) })
	background.Go(func() { s.collect(serving, s.app, n.engine, s.observed.collections) })
	if s.rules != nil {
		background.Go(func() { s.rules.Watch(draining, n.server.EnforceRules) })
	}
	if s.tenants != nil {
		background.Go(func() { s.tenants.Watch(serving, n.server.EnforceTenants) })
	}
	if book := s.limits.flight.Usage; book != nil {
		background.Go(func() { book.Run(draining, n.server.CountUsage) })
	}
	if part := s.limits.cluster; part != nil && part.keys != nil {
		background.Go(func() { part.watchKeys(draining) })
	}
	if n.cluster != nil {
		background.Go(func() { n.cluster.Run(draining, n.engine) }) // what it holds is sent while it leaves
	}
	ordered := make(chan struct{})
	if n.members != nil {
		background.Go(func() {
			if s.obey(serving, s.app, n, s.limits.cluster.node) {
				close(ordered)
			}
		})
	}
	return ordered
}

// until waits for the end, and says when it began. After a signal, a node of a cluster hands over first.
func (s *running) until(ctx context.Context, idle, ordered <-chan struct{}) time.Time {
	select {
	case <-ordered:
	case <-idle:
		s.app.Log.InfoContext(ctx, "no client was connected, and --exit-when-idle is over", "for", s.ExitWhenIdle)
	case failed := <-s.node.served:
		s.node.served <- failed // close reports it
	case <-ctx.Done():
		stopped := time.Now()
		if s.node.members != nil {
			until, _ := s.deadlines(stopped)
			leaving, cancel := context.WithDeadline(s.app.Abort, until)
			defer cancel()
			_ = s.leave(s.app, s.node, s.limits.cluster.node).Run(leaving) // what it is not through with is cut off later
		}
		return stopped
	}
	return time.Now()
}

// readyMemory is how much memory for blobs a server has ready when it says that
// it serves, at most.
const readyMemory = 512 << 20

// prepareWithin is for how long a server prepares its store before it serves.
const prepareWithin = 5 * time.Second

// openWithin is for how long a server waits, when its store is prepared, for datasets to be open.
const openWithin = 2 * time.Second

// announce publishes the server's address for clients that wait for it.
func (s *running) announce(address string) error {
	// A store of one process names the process that has it open.
	if exclusive, ok := store.As[interface{ SetAddr(string) error }](s.node.store); ok {
		if err := exclusive.SetAddr(address); err != nil {
			return err
		}
	}
	if s.ReadyFile != "" {
		if err := writeFile(s.ReadyFile, address+"\n"); err != nil {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	return s.app.Printf("%s\n", address)
}

// deadlines are the ends of the handover of a cluster's node, and of the streams, of a
// server that stops. Streams go on while it hands over.
func (c *ServeCmd) deadlines(stopped time.Time) (handover, end time.Time) {
	return stopped.Add(time.Duration(handoverShare * float64(c.DrainTimeout))), stopped.Add(c.DrainTimeout)
}

// drain ends the server: in its own time, by the deadline, or at once after a second signal.
func (s *running) drain(ctx context.Context, stopped time.Time) error {
	s.app.Log.InfoContext(ctx, "stopping", "reason", context.Cause(ctx))
	_, end := s.deadlines(stopped)
	deadline, cancel := context.WithDeadlineCause(s.app.Abort, end, fmt.Errorf("the drain timeout of %s is over",
		s.DrainTimeout))
	defer cancel()
	err := s.node.close(deadline)
	if s.ReadyFile != "" {
		if gone := os.Remove(s.ReadyFile); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// writeFile makes path hold text, from one moment to the next.
func writeFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// options are the options of shared memory, from the flags.
func (f *authFlags) options(app *App) auth.Options {
	o := auth.Options{
		TLS: auth.TLSOptions{
			Cert: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA, RequireClientCert: f.TLSRequireClient,
			MinVersion: tls.VersionTLS13,
		},
		Tokens: f.Tokens,
		OIDC: auth.OIDCOptions{
			Issuer: f.OIDCIssuer, Audience: f.OIDCAudience, PrincipalClaim: f.OIDCPrincipal, GroupsClaim: f.OIDCGroups,
			TenantClaim: f.OIDCTenant, Prefix: f.OIDCPrefix, CA: f.OIDCCA,
		},
		Logger: app.Log,
	}
	if f.TLSMinVersion == "1.2" {
		o.TLS.MinVersion = tls.VersionTLS12
	}
	return o
}

// open opens the socket for the clients of a server that listens on addr; nil if it has
// none.
func (f *authFlags) open(ctx context.Context, app *App, sources *auth.Sources, addr string) (*auth.Authenticator, error) {
	o := f.options(app)
	o.Sources = sources
	if err := o.CheckExposed(addr); err != nil {
		if !f.Insecure {
			return nil, usagef("--listen: %v", err)
		}
		app.Log.WarnContext(ctx, "other machines can reach this server, and --insecure says not to mind", "reason",
			err.Error())
	}
	if o.TLS == (auth.TLSOptions{MinVersion: o.TLS.MinVersion}) && !o.Authenticates() {
		return nil, nil
	}
	withoutCore(ctx, app)
	return auth.New(ctx, o)
}

// noCore is the limit under which the kernel writes no core of a process, neither to a file,
// which would be longer, nor to a program, for which it would ignore a limit of zero.
const noCore = 1

// withoutCore keeps the server's memory out of files: it has the key of the certificate, and
// tokens that clients have sent.
func withoutCore(ctx context.Context, app *App) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &limit)
	if err == nil {
		limit.Cur = min(limit.Max, noCore)
		err = unix.Setrlimit(unix.RLIMIT_CORE, &limit)
	}
	if err != nil {
		app.Log.WarnContext(ctx, "a core of this process would have keys and tokens in it, and cannot be kept from "+
			"being written", "error", err)
	}
}

// collect collects garbage now and then while a server serves, if the flags say so.
func (c *ServeCmd) collect(ctx context.Context, app *App, engine *fetch.Engine, count *metrics.Collections) {
	if c.GCEvery == 0 {
		return
	}
	opts := store.GCOptions{BytesPerSecond: float64(c.GCRate)}
	nowAndThen(ctx, c.GCEvery, func(ctx context.Context) {
		start := time.Now()
		report, err := engine.GC(ctx, opts)
		switch {
		case ctx.Err() != nil:
		// another server collects, or the store is away: the next time, then
		case errors.Is(err, schema.ErrUnavailable):
			count.Elsewhere()
			app.Log.InfoContext(ctx, "no collection", "reason", err)
		case err != nil:
			count.Failed()
			app.Log.ErrorContext(ctx, "a collection failed; the next one tries again", "error", err)
		default:
			count.Done()
			app.Log.InfoContext(ctx, "collected", "seconds", time.Since(start).Seconds(), "live_blobs",
				report.LiveBlobs,
				"dead_blobs", report.DeadBlobs, "dead_bytes", report.DeadBytes, "freed_bytes", report.FreedBytes)
		}
	})
}

// nowAndThen calls do about once in every period until ctx ends. When in a period
// is left to chance, for the servers of a store are often started together.
func nowAndThen(ctx context.Context, every time.Duration, do func(context.Context)) {
	for {
		at := rand.N(every)
		if !sleep(ctx, at) {
			return
		}
		do(ctx)
		if !sleep(ctx, every-at) {
			return
		}
	}
}

// sleep reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

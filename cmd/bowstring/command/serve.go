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

// ServeCmd is bowstring serve. Run makes a running of it, which has the state of one
// server.
type ServeCmd struct {
	serveFlags
	HelpAll helpAll `help:"Show all flags, by what they are for."`

	experiment
}

// experiment has settings that only experiments use. serve finds better values by itself.
type experiment struct {
	MaxReads    int          `kong:"-"` // reads of the store at once; 0 for as many as pay
	SpillPolicy spill.Policy `kong:"-"` // what the spill keeps; nil for what jobs will use soonest
}

// Validate is called by kong. It checks everything that does not depend on the machine,
// so that config and scripts get the same errors.
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

// connectionsFor is the number of connections that may be open, for a number of streams.
// A client has connections that do not stream, and connections cost little memory.
func connectionsFor(streams int) int { return max(4*streams, 4096) }

// Own makes sure that there is a store to serve. A --server on the command line is an
// error. One of the configuration file is for the other commands and is ignored.
func (*ServeCmd) Own(app *App) error {
	if app.globals.Server == "" {
		return nil
	}
	if app.settings.origin("server").level == fromFlag {
		return usagef("serve runs a server, --server names one that runs already: use --store to say what to serve " +
			"and --listen to say where")
	}
	app.globals.Store, app.globals.Server = defaultStore(), ""
	return nil
}

// Run serves until a signal ends ctx. It has three phases: configure opens what does not
// need the store, open opens the store and listens, and serve answers. Wrong flags
// therefore end the start before the store is touched.
func (c *ServeCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.Own(app); err != nil {
		return err
	}
	s := &running{ServeCmd: c, app: app}
	// Everything that was opened is closed, also after a phase that failed.
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

// running is a server, from its flags to its end. One goroutine runs the phases.
// background starts others, which only read the fields.
type running struct {
	*ServeCmd
	app *App

	limits   limits
	rules    *auth.File[policy.Rules]   // nil without --rules
	tenants  *auth.File[policy.Tenants] // nil without --tenants
	observed *observation
	opened   []func() error // closes what outlives the node, in the order of opening
	node     *node
}

// closeOpened closes what configure has opened, the last first. The node has stopped by
// then.
func (s *running) closeOpened() (err error) {
	for _, shut := range slices.Backward(s.opened) {
		err = errors.Join(err, shut())
	}
	return err
}

// configure opens what the node gets: authentication, policies, records and the
// observation. On an error, Run closes what was opened so far.
func (s *running) configure(ctx context.Context) (err error) {
	s.limits = limits{
		windowBytes: cmp.Or(int64(s.WindowMemory), defaultWindow()),
		uploadBytes: int64(s.UploadMemory),
		evaluation:  int64(s.EvaluationMemory),
		maxReads:    s.MaxReads,
		readTimeout: s.ReadTimeout,
		serves:      true,
		flight: flight.Options{
			MaxStreams:     s.MaxStreams,
			MaxConnections: connectionsFor(s.MaxStreams),
			// One address may use a quarter of the connections, so that it cannot lock
			// out the others.
			MaxConnectionsPerPeer: max(s.MaxStreams, 1024),
			MaxMessageBytes:       int(s.UploadMemory / 2),
			DrainTimeout:          s.DrainTimeout,
			Sources:               auth.NewSources(s.SourceGrace, s.app.Log),
		},
	}
	// From here on the order is: buckets, spill, authentication, cluster, local clients,
	// policies, records, and the observation. A later one may need an earlier one.
	l, to := &s.limits, &s.limits.flight
	if l.buckets, err = parseBuckets(s.Buckets); err != nil {
		return fmt.Errorf("--buckets: %w", err)
	}
	// Credentials are checked at the start, although secrets are read when a bucket is
	// opened.
	if s.BucketCredentials != "" {
		if l.rights, err = readBucketRights(s.BucketCredentials); err != nil {
			return fmt.Errorf("--bucket-credentials: %w", err)
		}
	}
	// The closure reads s.node later: the number of nodes changes, and the node does not
	// exist yet.
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
	// A nil authenticator accepts all callers.
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
	// Policies are read before the records, so that a wrong file leaves no new directory.
	if err := s.openPolicy(); err != nil {
		return err
	}
	if err := s.openRecords(); err != nil {
		return err
	}
	// The admin listener shows names of datasets and tenants. It must not be reachable
	// from elsewhere by accident.
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

// openPolicy opens the files of rules and tenants. background watches them for changes.
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

// openRecords opens the usage, the lineage and the audit log. All three outlive the node,
// because its last calls are recorded too.
func (s *running) openRecords() (err error) {
	to := &s.limits.flight
	if s.Usage != "" {
		// The directory is locked, so that a second server cannot write to it.
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

// open opens the store and listens. If ctx ends before the store is open, it returns nil
// and no error: a signal during the start is no failure.
func (s *running) open(ctx context.Context) (_ net.Listener, err error) {
	s.node, err = newNode(ctx, s.app.globals.Store, true, s.limits, s.app.Far, s.app.Log)
	if err != nil && ctx.Err() != nil {
		s.app.Log.InfoContext(ctx, "stopped before the store was open", "error", err)
		return nil, s.observed.close()
	}
	if err != nil {
		return nil, errors.Join(err, s.observed.close())
	}
	// It listens after the store is open: a client that connects earlier would wait
	// without an answer.
	listener, err := s.listen(ctx)
	if err != nil {
		return nil, errors.Join(err, s.observed.close(), s.node.release())
	}
	// The store is prepared before the server announces itself. The first streams would
	// otherwise pay for it. A node joins its cluster at the same time, because either takes
	// some round trips to the store.
	var preparing sync.WaitGroup
	preparing.Go(func() { s.prepare(ctx) })
	if s.node.members != nil {
		err = s.join(ctx, listener.Addr())
	}
	preparing.Wait()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot be a node of cluster %s: %w", s.Cluster, err), listener.Close(),
			s.observed.close(), s.node.release())
	}
	return listener, nil
}

// prepare lets a remote store connect, and opens recent datasets. It waits for a limited
// time, because a slow store must not keep the server from starting.
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
	case <-time.After(openWithin): // opening continues in the background
	case <-ctx.Done():
	}
}

// join makes the server a node of its cluster. It warns if the drain timeout is too short
// for a handover: the cache would be lost at each restart by a signal.
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

// serve answers until ctx ends, the cluster orders the node to leave, or the listener
// fails. Then it drains. All goroutines have ended when it returns.
func (s *running) serve(ctx context.Context, listener net.Listener) error {
	n := s.node
	defer keepHeapRoom(func() int64 { return n.engine.Ledger().Free(admission.Windows) })()
	n.serve(listener)
	if err := s.observed.start(ctx, n); err != nil {
		return errors.Join(err, s.drain(ctx, time.Now()))
	}
	// The address is the real one, also for port 0.
	address := uriOf(listener.Addr(), s.limits.flight.Auth.Encrypts())
	if err := s.announce(address); err != nil {
		return errors.Join(err, s.drain(ctx, time.Now()))
	}
	s.app.Log.InfoContext(ctx, "serving", "address", address, "listen", listener.Addr().String(), "store",
		s.app.globals.Store, "window_memory", humanize.IBytes(uint64(s.limits.windowBytes)), "max_streams", s.MaxStreams)
	var background sync.WaitGroup
	defer background.Wait()
	// There are two contexts for two kinds of background work. serving ends with the
	// signal. draining ends after the drain, for work that streams need until their end.
	serving, stop := context.WithCancel(ctx)
	defer stop() // also if the listener has failed
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

// background starts the goroutines that run beside the calls. Some end with serving.
// Those that draining streams need end with draining. The returned channel is closed when
// the node has left its cluster by an order.
func (s *running) background(serving, draining context.Context, background *sync.WaitGroup) <-chan struct{} {
	n := s.node
	background.Go(func() { logProblems(serving, s.app, s.app.globals.Store, n.store) })
	background.Go(func() { s.collect(serving, s.app, n.engine, s.observed.collections) })
	// Rights that are withdrawn must end streams also during a drain.
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
		background.Go(func() { n.cluster.Run(draining, n.engine) }) // the cache is handed over while the node leaves
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

// until waits for the end of serving, and returns when it began. After a signal, a node
// of a cluster hands over its cache first, while its streams continue.
func (s *running) until(ctx context.Context, idle, ordered <-chan struct{}) time.Time {
	select {
	case <-ordered:
	case <-idle:
		s.app.Log.InfoContext(ctx, "no client was connected, and --exit-when-idle is over", "for", s.ExitWhenIdle)
	// The listener has failed. The value is put back, because close waits for it too.
	case failed := <-s.node.served:
		s.node.served <- failed // close reports it
	case <-ctx.Done():
		stopped := time.Now()
		if s.node.members != nil {
			until, _ := s.deadlines(stopped)
			leaving, cancel := context.WithDeadline(s.app.Abort, until)
			defer cancel()
			_ = s.leave(s.app, s.node, s.limits.cluster.node).Run(leaving) // the drain cuts off what has not ended
		}
		return stopped
	}
	return time.Now()
}

// readyMemory is the most memory for blobs that a server allocates before it announces
// itself.
const readyMemory = 512 << 20

// prepareWithin limits the preparation of the store before the server announces itself.
const prepareWithin = 5 * time.Second

// openWithin limits the wait for recent datasets to open, after the store is prepared.
const openWithin = 2 * time.Second

// announce publishes the server's address: in the store, in the ready file, and on
// standard output. Scripts read the line to learn the port.
func (s *running) announce(address string) error {
	// A store that one process has open at a time names that process, so that others find
	// the server.
	// Other processes that want to open the store print this address.
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

// deadlines returns the end of the handover of a node, and the end of the streams, for a
// server that stops. Streams continue during the handover.
func (c *ServeCmd) deadlines(stopped time.Time) (handover, end time.Time) {
	return stopped.Add(time.Duration(handoverShare * float64(c.DrainTimeout))), stopped.Add(c.DrainTimeout)
}

// drain ends the server: when all streams have ended, at the deadline, or at once after a
// second signal. It removes the ready file last, so that a script sees the end.
func (s *running) drain(ctx context.Context, stopped time.Time) error {
	s.app.Log.InfoContext(ctx, "stopping", "reason", context.Cause(ctx))
	_, end := s.deadlines(stopped)
	// A second signal ends Abort, and with it the deadline.
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

// writeFile replaces the file at path by one with the given text, atomically. A reader
// sees the old content or the new one.
func writeFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	// CreateTemp makes files that only the user can read. Others wait for this one, too.
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// options returns the options of authentication and TLS, from the flags.
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

// open makes the authenticator of a server that listens on addr. It is nil if there is
// neither TLS nor a way to authenticate. A server that other machines can reach without
// both is an error, unless --insecure is set.
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
	// Only a server with secrets needs this.
	withoutCore(ctx, app)
	return auth.New(ctx, o)
}

// noCore is the limit of the size of a core at which the kernel writes none. A file of
// one byte is too short for it, so that it is not written. For a program as the handler,
// the kernel ignores a limit of 0 but not of 1.
const noCore = 1

// withoutCore keeps the server's memory out of core files. It contains the key of the
// certificate, and tokens that clients have sent.
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

// collect collects garbage periodically while a server serves, if --gc-every is set.
func (c *ServeCmd) collect(ctx context.Context, app *App, engine *fetch.Engine, count *metrics.Collections) {
	if c.GCEvery == 0 {
		return
	}
	opts := store.GCOptions{BytesPerSecond: float64(c.GCRate)}
	nowAndThen(ctx, c.GCEvery, func(ctx context.Context) {
		// The duration shows whether the interval is long enough.
		start := time.Now()
		// The engine protects the snapshots that streams read.
		report, err := engine.GC(ctx, opts)
		switch {
		case ctx.Err() != nil:
		// Another server collects, or the store is unavailable. The next period tries
		// again.
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

// nowAndThen calls do once in every period until ctx ends, at a random moment of the
// period. Servers of a store are often started together, and would otherwise all collect
// at the same time.
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

// sleep waits for d. It returns false if ctx ends first.
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

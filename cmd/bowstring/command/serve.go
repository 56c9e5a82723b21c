package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch/admission"
	"bowstring/fetch/store/cql"
	"bowstring/flight"
	"bowstring/flight/auth"
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
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("--listen: got %q, want HOST:PORT", c.Listen)
	}
	if c.MaxStreams < 1 {
		return fmt.Errorf("--max-streams: got %d, want 1 or more", c.MaxStreams)
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

// connectionsFor is how many connections may be open where so many streams may run.
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
	l := limits{
		windowBytes: int64(c.WindowMemory),
		uploadBytes: int64(c.UploadMemory),
		maxReads:    c.MaxReads,
		readTimeout: c.ReadTimeout,
		flight: flight.Options{
			MaxStreams:            c.MaxStreams,
			MaxConnections:        connectionsFor(c.MaxStreams),
			MaxConnectionsPerPeer: max(c.MaxStreams, 1024),
			MaxMessageBytes:       int(c.UploadMemory / 2),
			DrainTimeout:          c.DrainTimeout,
		},
	}
	if l.windowBytes == 0 {
		l.windowBytes = defaultWindow()
	}
	if l.spill, err = c.spillFlags.config(app, c.SpillPolicy); err != nil {
		return err
	}
	if err := c.checkReferences(app.Far != nil || cql.IsURI(app.globals.Store), &l.spill); err != nil {
		return err
	}
	l.flight.Sources = auth.NewSources(c.SourceGrace, app.Log)
	if l.flight.Door, err = c.authFlags.open(ctx, app, l.flight.Sources, c.Listen); err != nil {
		return err
	}
	if d := l.flight.Door; d != nil {
		defer func() { err = errors.Join(err, d.Close()) }() // when the node is closed
	}
	if l.cluster, err = c.clusterFlags.part(l.flight.Door, l.flight.Sources, app.Log); err != nil {
		return err
	}
	if l.flight.SameNode, err = c.localFlags.open(app.Log, l.spill.bytes); err != nil {
		return err
	}
	if local := l.flight.SameNode; local != nil {
		defer func() { err = errors.Join(err, local.Close()) }() // when no call has a ring of it
	}
	files, err := c.guards(app, &l)
	if err != nil {
		return err
	}
	if log := l.flight.Audit; log != nil {
		defer func() { err = errors.Join(err, log.Close()) }() // the node has stopped by then
	}
	if record := l.lineage; record != nil {
		defer func() { err = errors.Join(err, record.Close()) }() // likewise
	}
	if book := l.flight.Usage; book != nil {
		defer func() { err = errors.Join(err, book.Close()) }() // likewise
	}
	if !c.Insecure {
		if err := c.observeFlags.checkExposed(); err != nil {
			return err
		}
	}
	dir := app.globals.Store
	seen, err := c.observeFlags.open(ctx, app, l.flight.Door, l.flight.Sources, c.GCEvery)
	if err != nil {
		return err
	}
	seen.watch(&l.flight)
	n, err := newNode(ctx, dir, true, l, app.Far, app.Log)
	if err != nil && ctx.Err() != nil {
		app.Log.InfoContext(ctx, "stopped before the store was open", "error", err)
		return seen.close()
	}
	if err != nil {
		return errors.Join(err, seen.close())
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("cannot listen on %s: %w; --listen names another address, port 0 any free one",
			c.Listen, err), seen.close(), n.release())
	}
	if far, ok := n.store.(interface {
		Prepare(ctx context.Context, memory int64) error
	}); ok {
		opened := n.engine.OpenAhead()
		within, cancel := context.WithTimeout(ctx, prepareWithin)
		if err := far.Prepare(within, min(l.windowBytes/8, readyMemory)); err != nil { // the first reader will be told
			app.Log.WarnContext(ctx, "the store could not be prepared for reading", "error", err)
		}
		cancel()
		select {
		case <-opened:
		case <-time.After(openWithin): // it goes on
		case <-ctx.Done():
		}
	}
	defer keepHeapRoom(func() int64 { return n.engine.Ledger().Free(admission.Windows) })()
	if n.members != nil {
		self, err := c.clusterFlags.described(l.cluster.node, listener.Addr(), l.flight.Door.Encrypts(), l.spill.bytes)
		if err == nil {
			err = n.members.Start(ctx, self)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("cannot be a node of cluster %s: %w", c.Cluster, err), listener.Close(),
				seen.close(), n.release())
		}
		if until, _ := c.deadlines(time.Time{}); until.Sub(time.Time{}) < cluster.LeastHandover {
			app.Log.WarnContext(ctx, "the drain timeout is too short to hand the cache over after a signal: cluster "+
				"drain before it does so, or a longer --drain-timeout",
				"drain_timeout", c.DrainTimeout, "handover_takes", cluster.LeastHandover)
		}
		app.Log.InfoContext(ctx, "a node of a cluster", "cluster", c.Cluster, "node", self.ID, "address", self.Address,
			"nodes", len(n.members.View().Nodes))
	}
	n.serve(listener)
	if err := seen.start(ctx, n); err != nil {
		return errors.Join(err, c.drain(ctx, app, n, time.Now()))
	}
	scheme := "grpc://"
	if l.flight.Door.Encrypts() {
		scheme = "grpc+tls://"
	}
	address := scheme + dialable(listener.Addr())
	var told time.Time // when a signal came
	err = c.announce(app, n, address)
	if err == nil {
		app.Log.InfoContext(ctx, "serving", "address", address, "listen", listener.Addr().String(), "store", dir,
			"window_memory", humanize.IBytes(uint64(l.windowBytes)), "max_streams", l.flight.MaxStreams)
		var beside sync.WaitGroup
		serving, stop := context.WithCancel(ctx)
		beside.Go(func() { logProblems(serving, app, dir, n.store) })
		// Streams that drain are held to the rules, and counted, until the last has ended.
		draining, drained := context.WithCancel(context.WithoutCancel(ctx))
		if files.rules != nil {
			beside.Go(func() { files.rules.Watch(draining, n.server.EnforceRules) })
		}
		if files.tenants != nil {
			beside.Go(func() { files.tenants.Watch(serving, n.server.EnforceTenants) })
		}
		if book := l.flight.Usage; book != nil {
			beside.Go(func() { book.Run(draining, n.server.CountUsage) })
		}
		beside.Go(func() { c.collect(serving, app, n.engine, seen.collections) })
		if l.cluster != nil && l.cluster.keys != nil {
			beside.Go(func() { l.cluster.watchKeys(draining) })
		}
		if n.cluster != nil {
			beside.Go(func() { n.cluster.Run(draining, n.engine) }) // what it holds is lent while it leaves
		}
		ordered := make(chan struct{})
		if n.members != nil {
			beside.Go(func() {
				if c.obey(serving, app, n, l.cluster.node) {
					close(ordered)
				}
			})
		}
		defer beside.Wait()
		defer stop()    // also where it is the listener that has ended
		defer drained() // after the drain below
		select {
		case <-ctx.Done():
			told = time.Now()
			if n.members != nil {
				until, _ := c.deadlines(told)
				leaving, cancel := context.WithDeadline(app.Abort, until)
				_ = c.leave(app, n, l.cluster.node).Run(leaving) // whatever it is not through with is cut off below
				cancel()
			}
		case <-ordered:
		case failed := <-n.served:
			n.served <- failed // close reports it
		}
	}
	if told.IsZero() {
		told = time.Now()
	}
	return errors.Join(err, c.drain(ctx, app, n, told))
}

// readyMemory is how much memory for blobs a server has ready when it says that
// it serves, at most.
const readyMemory = 512 << 20

// prepareWithin is for how long a server prepares its store before it serves.
const prepareWithin = 5 * time.Second

// openWithin is for how long a server waits, when its store is prepared, for datasets to be open.
const openWithin = 2 * time.Second

// announce says to those who wait for the server that it is there.
func (c *ServeCmd) announce(app *App, n *node, address string) error {
	// A store of one process tells others who has it open.
	if exclusive, ok := n.store.(interface{ SetAddr(string) error }); ok {
		if err := exclusive.SetAddr(address); err != nil {
			return err
		}
	}
	if c.ReadyFile != "" {
		if err := writeFile(c.ReadyFile, address+"\n"); err != nil {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	return app.Printf("%s\n", address)
}

// deadlines are until when a server that was told to stop hands over, as a node of a cluster, and when its streams end.
// Streams go on while it hands over.
func (c *ServeCmd) deadlines(told time.Time) (handover, end time.Time) {
	return told.Add(time.Duration(handoverShare * float64(c.DrainTimeout))), told.Add(c.DrainTimeout)
}

// drain ends the server: in its own time, by the deadline, or at once after a second signal.
func (c *ServeCmd) drain(ctx context.Context, app *App, n *node, told time.Time) error {
	app.Log.InfoContext(ctx, "stopping", "reason", context.Cause(ctx))
	_, end := c.deadlines(told)
	deadline, cancel := context.WithDeadlineCause(app.Abort, end, fmt.Errorf("the drain timeout of %s is over",
		c.DrainTimeout))
	defer cancel()
	err := n.close(deadline)
	if c.ReadyFile != "" {
		if gone := os.Remove(c.ReadyFile); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// dialable is an address that a client on this machine can connect to.
func dialable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
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

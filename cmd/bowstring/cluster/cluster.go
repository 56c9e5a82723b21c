// Package cluster connects the parts of a cluster's node: the members and what they own
// (fetch/members), the tier that reads from them (fetch/peers), and the links
// (flight/peer). The parts do not import each other. Begin reading at [Cluster.Run];
// [Drain] is how a node leaves.
package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// refreshEvery is how often a node takes over the current view, and sends the other nodes
// the progress of its streams. It costs no request to the store: the members read the
// leases on their own.
const refreshEvery = time.Second

// doubtEvery is how often the leases are read while a node that has one cannot be reached: each time costs as many rows
// as there are nodes. With it, one that has died has left the view some 14 s later at most.
const doubtEvery = 3 * time.Second

// Options says what a Cluster works with.
type Options struct {
	// Name is the name of the cluster, and Node the id of this node.
	Name, Node string
	// Members has the leases of the nodes. The caller closes it, after the Cluster.
	Members *members.Members
	// SnapshotName returns the name of a snapshot by its number, as the spill of this
	// node has it.
	SnapshotName func(number uint32) string
	// Zone is the zone of this node.
	Zone string
	// Keys authenticate the nodes to each other; nil for none.
	Keys *peer.Keys
	// TLS is the configuration for nodes with an address grpc+tls://; nil for the
	// system's roots.
	TLS *tls.Config
	// Plaintext says that this node reads from nodes with an address grpc://.
	Plaintext bool
	// Protocol is the only version of the protocol for the other nodes; 0 for all
	// versions of this program.
	Protocol int
	// Dial returns the link to a node. Default: a connection to its address.
	Dial   func(node layout.Node) (peers.Link, error)
	Logger *slog.Logger // default slog.Default()
}

// Cluster is a node's part in a cluster. It is safe for concurrent use.
type Cluster struct {
	opts Options
	tier *peers.Tier

	mu    sync.Mutex
	nodes []layout.Node // of the last Refresh; guarded by mu
	known bool          // there was a Refresh; guarded by mu
	met   bool          // a node called that was not among them; guarded by mu
	links map[string]*peer.Link
}

// directory adapts the members to the interface of the tier.
type directory struct{ *members.Members }

// Route implements peers.Directory.
func (d directory) Route(ref schema.BlobRef) peers.Route { return peers.Route(d.Members.Route(ref)) }

// New returns a Cluster without known nodes. Run or Refresh finds them.
func New(opts Options) (*Cluster, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	c := &Cluster{opts: opts, links: map[string]*peer.Link{}}
	var err error
	c.tier, err = peers.New(peers.Options{
		Directory: directory{opts.Members}, Dial: c.dial, SnapshotName: opts.SnapshotName, Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Tier returns the tier that reads from the other nodes. Close closes it.
func (c *Cluster) Tier() *peers.Tier { return c.tier }

// dial opens the link to a node of the last Refresh. It returns schema.ErrNotFound for
// another node, and schema.ErrInvalid for an address without a port. A node without a
// certificate gets the link refused if this node has one: its blobs could be read or
// changed on the way, and the store has them as well.
func (c *Cluster) dial(id string) (peers.Link, error) {
	c.mu.Lock()
	at := slices.IndexFunc(c.nodes, func(n layout.Node) bool { return n.ID == id })
	var node layout.Node
	if at >= 0 {
		node = c.nodes[at]
	}
	c.mu.Unlock()
	if at < 0 {
		return nil, fmt.Errorf("%w: no node %s is known", schema.ErrNotFound, id)
	}
	if c.opts.Dial != nil {
		return c.opts.Dial(node)
	}
	address := node.Address
	opts := peer.Options{Cluster: c.opts.Name, Node: c.opts.Node, Other: id, Zone: c.opts.Zone, Keys: c.opts.Keys,
		Protocol: c.opts.Protocol, Logger: c.opts.Logger}
	where, err := url.Parse(address)
	if err != nil || where.Port() == "" {
		return nil, fmt.Errorf("%w: node %s has the address %q; want grpc://HOST:PORT or grpc+tls://HOST:PORT",
			schema.ErrInvalid, id, address)
	}
	switch {
	case where.Scheme != "grpc+tls" && !c.opts.Plaintext:
		c.opts.Logger.Warn("another node is not asked, as its address says that it has no certificate, and this one "+
			"has one; the store is read instead", "node", id, "address", address)
		return refused{}, nil
	case where.Scheme == "grpc+tls":
		if opts.TLS = c.opts.TLS; opts.TLS == nil {
			opts.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
		}
	}
	link, err := peer.Dial(where.Host, opts)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.links[id] = link
	c.mu.Unlock()
	return link, nil
}

// WarmOthers makes each other node load its part of a request. It calls progress, one
// call at a time, with each message of a node, or with the error that ended its messages.
// It returns when all nodes have ended.
func (c *Cluster) WarmOthers(ctx context.Context, request []byte, tenant string,
	progress func(node string, said []byte, err error)) {
	c.mu.Lock()
	links := map[string]*peer.Link{}
	for _, n := range c.nodes {
		if n.ID != c.opts.Node && c.links[n.ID] != nil {
			links[n.ID] = c.links[n.ID]
		}
	}
	c.mu.Unlock()
	var mu sync.Mutex
	var all sync.WaitGroup
	for id, link := range links {
		all.Go(func() {
			report := func(said []byte, err error) {
				mu.Lock()
				defer mu.Unlock()
				progress(id, said, err)
			}
			err := link.Warm(ctx, peer.Warm{Request: request, Tenant: tenant}, func(said []byte) { report(said, nil) })
			if err != nil && ctx.Err() == nil {
				report(nil, err)
			}
		})
	}
	all.Wait()
}

// Run takes over the view of the members, and sends the other nodes the progress of e's
// streams, every second until ctx ends. Reading the leases may be slow, so that it runs
// in a goroutine of its own, one at a time.
func (c *Cluster) Run(ctx context.Context, e *fetch.Engine) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	var reading sync.WaitGroup
	defer reading.Wait()
	free, last := make(chan struct{}, 1), time.Now() // free has room for one read
	for {
		if c.doubts(time.Since(last)) {
			select {
			case free <- struct{}{}:
				last = time.Now()
				reading.Go(func() { c.read(ctx); <-free })
			default: // it is under way
			}
		}
		if err := c.Refresh(); err != nil {
			c.opts.Logger.WarnContext(ctx, "the nodes of the cluster cannot be gone by", "error", err)
		}
		if err := c.opts.Members.SetWants(e.Wants()); err != nil {
			c.opts.Logger.WarnContext(ctx, "what jobs read cannot be gone by", "error", err)
		}
		e.SendProgress()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Met records that a node has called. If it is not known, as it has just begun, Run reads
// the leases at once.
func (c *Cluster) Met(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.met = c.met || !slices.ContainsFunc(c.nodes, func(n layout.Node) bool { return n.ID == id })
}

// doubts reports whether the known nodes may be out of date: an unknown node has called,
// or a known one cannot be reached and the leases were read doubtEvery ago or earlier.
func (c *Cluster) doubts(ago time.Duration) bool {
	c.mu.Lock()
	met := c.met
	c.met = false
	c.mu.Unlock()
	return met || ago >= doubtEvery && slices.ContainsFunc(c.tier.Stats(), func(n peers.NodeStats) bool {
		return !n.Up || n.Silent
	})
}

// read reads the leases now. Its error is also in the view, as that of the regular reads.
func (c *Cluster) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, doubtEvery)
	defer cancel()
	if _, err := c.opts.Members.Refresh(ctx); err != nil && ctx.Err() == nil {
		c.opts.Logger.DebugContext(ctx, "the members of the cluster could not be read", "error", err)
	}
}

// Refresh opens links to the nodes of the current view, and closes links to nodes that
// are gone. Nodes that leave keep their links: peers still read from them.
func (c *Cluster) Refresh() error {
	view := c.opts.Members.View()
	nodes := view.Nodes
	for _, n := range view.Leaving { // peers still read from them
		nodes = append(nodes, n.Node)
	}
	c.mu.Lock()
	was := c.nodes
	same := c.known && slices.Equal(was, nodes)
	c.nodes, c.known = nodes, true
	c.mu.Unlock()
	if same || len(nodes) == 0 {
		return nil
	}
	var others, stay []string
	for _, n := range nodes {
		if n.ID == c.opts.Node {
			continue
		}
		others = append(others, n.ID)
		// A link to an old address is opened again, to the new one.
		if !slices.ContainsFunc(was, func(old layout.Node) bool { return old.ID == n.ID && old.Address != n.Address }) {
			stay = append(stay, n.ID)
		}
	}
	var err error
	if len(stay) < len(others) {
		err = c.tier.SetNodes(stay)
	}
	c.opts.Logger.Info("the nodes of the cluster are others now", "nodes", len(nodes))
	err = errors.Join(err, c.tier.SetNodes(others))
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.links, func(id string, _ *peer.Link) bool { return !slices.Contains(others, id) })
	return err
}

// Close closes the links to the other nodes. The engine that uses the tier must be closed
// before.
func (c *Cluster) Close() error { return c.tier.Close() }

const (
	usualSettle = 10 * time.Second
	usualQuiet  = 3 * time.Second
	// LeastHandover is the least time of a handover, however small: until all nodes know
	// that this one leaves, and no node has read for usualQuiet.
	LeastHandover = usualSettle + usualQuiet
)

// Server is the part of flight.Server that Drain uses: Leave moves streams to other
// nodes, Return undoes that, WaitStreams waits for streams to end and returns how many
// are left.
type Server interface {
	Leave(locations func() []string)
	Return()
	WaitStreams(ctx context.Context) (left int)
}

// Drain makes a node leave its cluster. Run is called once.
type Drain struct {
	Node    string
	Members *members.Members
	Server  Server
	// Handed returns how much of this node's cache other nodes have read; nil if it has
	// no cache that they know of.
	Handed func() (blobs, bytes int64)
	// Held returns the bytes in the cache. Jobs returns whether a job runs that needs
	// them.
	Held func() int64
	Jobs func() bool
	// Most bounds the bytes that are handed over; 0 for no bound.
	Most int64
	// Settle is the time until all other nodes know that this one leaves. Default 10 s:
	// they read the members every 6 s.
	Settle time.Duration
	// Quiet is the time without a read after which the handover is complete. Default 3 s.
	Quiet time.Duration
	// Every is how often Run checks the progress. Default 250 ms.
	Every  time.Duration
	Logger *slog.Logger
}

// ErrStays is the cause of a context that ends because the node must stay.
var ErrStays = errors.New("the node stays")

// Run makes the node leave. From now on it owns no keys, its streams move to other nodes,
// and the new owners of its blobs read those that their jobs need, in the order of their
// use. Run returns when no stream is left and no node reads more, or with ctx's cause.
// Then the caller ends the node, unless the cause is ErrStays: in that case everything is
// as before. A node that is alone keeps its streams, because there is no other node for
// them.
func (d Drain) Run(ctx context.Context) error {
	d.Settle, d.Quiet, d.Every = cmp.Or(d.Settle, usualSettle), cmp.Or(d.Quiet, usualQuiet),
		cmp.Or(d.Every, 250*time.Millisecond)
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	began := time.Now()
	state := members.Draining{Since: began.UTC()}
	d.update(&state)
	said := state // the members keep it
	if err := d.Members.SetDraining(ctx, &said); err != nil {
		d.Logger.WarnContext(ctx, "other nodes do not know yet that this one leaves", "error", err)
	}
	if len(d.locations()) == 0 {
		return nil
	}
	d.Server.Leave(d.locations)
	d.Logger.InfoContext(ctx, "this node leaves its cluster: streams move, and others take over what it holds", "held",
		state.Held)
	tick := time.NewTicker(d.Every)
	defer tick.Stop()
	last, lastBytes := began, state.Bytes
	for {
		d.update(&state)
		now := time.Now()
		if state.Bytes != lastBytes {
			last, lastBytes = now, state.Bytes
		}
		pays := d.Handed != nil && d.Jobs() && state.Held > 0 && (d.Most == 0 || state.Bytes < d.Most)
		if state.Streams == 0 && (!pays || now.Sub(began) >= d.Settle && now.Sub(last) >= d.Quiet) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if errors.Is(cause, ErrStays) {
				d.stay(context.WithoutCancel(ctx))
			}
			return cause
		}
		copied := state
		if err := d.Members.SetDraining(ctx, &copied); err != nil && ctx.Err() == nil {
			d.Logger.DebugContext(ctx, "the progress of the drain is published later", "error", err)
		}
	}
	state.Done = true
	_ = d.Members.SetDraining(ctx, &state)
	d.Logger.InfoContext(ctx, "this node has left its cluster", "handed_blobs", state.Blobs, "handed_bytes",
		state.Bytes, "seconds", time.Since(began).Seconds())
	return nil
}

// update reads the progress of the drain: the streams that are left, and what was handed
// over.
func (d Drain) update(state *members.Draining) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	state.Streams = d.Server.WaitStreams(over)
	if d.Handed != nil {
		state.Blobs, state.Bytes = d.Handed()
		state.Held = d.Held()
	}
}

// stay undoes the drain: streams stay, and the node owns its keys again.
func (d Drain) stay(ctx context.Context) {
	d.Server.Return()
	if err := d.Members.SetDraining(ctx, nil); err != nil {
		d.Logger.WarnContext(ctx, "other nodes do not know yet that this one stays", "error", err)
	}
	d.Logger.InfoContext(ctx, "this node stays in its cluster")
}

// locations are the addresses of the other nodes, where streams can continue.
func (d Drain) locations() []string {
	var list []string
	for _, n := range d.Members.View().Nodes {
		if n.ID != d.Node && n.Address != "" {
			list = append(list, n.Address)
		}
	}
	return list
}

// refused is the link to a node from which this one must not read: it is never up.
type refused struct{}

// Get implements peers.Link.
func (refused) Get(context.Context, peers.Ask) (schema.Blob, error) {
	return schema.Blob{}, fmt.Errorf("%w: nodes without a certificate are not asked", schema.ErrUnavailable)
}

// SendProgress implements peers.Link.
func (refused) SendProgress([]peers.Progress) {}

// Up implements peers.Link.
func (refused) Up() bool { return false }

// Heard implements peers.Link.
func (refused) Heard() time.Time { return time.Time{} }

// Protocol implements peers.Link.
func (refused) Protocol() int { return 0 }

// Secure implements peers.Link.
func (refused) Secure() bool { return false }

// Close implements peers.Link.
func (refused) Close() error { return nil }

// HostOf is the HOST:PORT of a node's address, by which others dial it; "" if it has none.
func HostOf(address string) string {
	where, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return where.Host
}

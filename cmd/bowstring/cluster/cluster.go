// Package cluster joins what a node of a cluster is made of: who the members are and what they own,
// the tier that they are to each other, and the server that answers them. The parts live
// elsewhere; none of them knows the others.
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

// lookEvery is how often a node looks whether others have come or gone, and tells them what its
// streams do. Looking asks nobody: the members read the leases by themselves.
const lookEvery = time.Second

// doubtEvery is how often the leases are read while a node that has one cannot be reached: each time costs as many rows
// as there are nodes. With it, one that has died has left the view some 14 s later at most.
const doubtEvery = 3 * time.Second

// Options says what a Cluster works with.
type Options struct {
	// Name is the cluster's, and Node this node's id.
	Name, Node string
	// Members is who the members are. It stays the caller's to close.
	Members *members.Members
	// SnapshotName is the name of a place's dataset, as the spill of this node has it.
	SnapshotName func(number uint32) string
	// Zone is where it is.
	Zone string
	// Keys are what the nodes know each other by; nil for none.
	Keys *peer.Keys
	// TLS is how the others are reached whose address is grpc+tls://.
	TLS *tls.Config
	// Plaintext says that others are asked whose address is grpc://.
	Plaintext bool
	// Protocol is the only one that is spoken with the others; 0 for those of this program.
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
	nodes []layout.Node // as they were last looked at
	known bool          // they were
	met   bool          // somebody has called who was not among them
	links map[string]*peer.Link
}

// directory is the members as the tier wants them.
type directory struct{ *members.Members }

// Route implements peers.Directory.
func (d directory) Route(ref schema.BlobRef) peers.Route { return peers.Route(d.Members.Route(ref)) }

// New returns a part in a cluster of which nobody is known yet.
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

// Tier returns the tier that the other nodes are. Close closes it.
func (c *Cluster) Tier() *peers.Tier { return c.tier }

// dial returns the link to a node that was looked at.
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

// WarmOthers has each other node bring its part of a request, and calls progress, one call at a time, with what it says
// or why it says nothing more. It returns when all have ended.
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
			tell := func(said []byte, err error) {
				mu.Lock()
				defer mu.Unlock()
				progress(id, said, err)
			}
			err := link.Warm(ctx, peer.Warm{Request: request, Tenant: tenant}, func(said []byte) { tell(said, nil) })
			if err != nil && ctx.Err() == nil {
				tell(nil, err)
			}
		})
	}
	all.Wait()
}

// Run keeps looking who is there, and tells the others what the streams of e do, until ctx ends.
func (c *Cluster) Run(ctx context.Context, e *fetch.Engine) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var reading sync.WaitGroup
	defer reading.Wait()
	free, last := make(chan struct{}, 1), time.Now() // free has room for one who reads
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

// Met is told who has called: a node that is not known yet, as it has just begun, is looked for at once.
func (c *Cluster) Met(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.met = c.met || !slices.ContainsFunc(c.nodes, func(n layout.Node) bool { return n.ID == id })
}

// doubts reports whether the members may be others than those that are known, after they were looked for so long ago.
func (c *Cluster) doubts(ago time.Duration) bool {
	c.mu.Lock()
	met := c.met
	c.met = false
	c.mu.Unlock()
	return met || ago >= doubtEvery && slices.ContainsFunc(c.tier.Stats(), func(n peers.NodeStats) bool {
		return !n.Up || n.Silent
	})
}

// read reads the leases now. What is wrong is in the view, as it is when they are read in their time.
func (c *Cluster) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, doubtEvery)
	defer cancel()
	if _, err := c.opts.Members.Refresh(ctx); err != nil && ctx.Err() == nil {
		c.opts.Logger.DebugContext(ctx, "the members of the cluster could not be read", "error", err)
	}
}

// Refresh opens links to the nodes of the current view, and closes links to nodes that are gone.
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

// Close gives up the links to the others. The engine that uses the tier is closed.
func (c *Cluster) Close() error { return c.tier.Close() }

const (
	usualSettle = 10 * time.Second
	usualQuiet  = 3 * time.Second
	// LeastHandover is how long it takes to hand over, however little: until all know that the node leaves, and nobody
	// wants more.
	LeastHandover = usualSettle + usualQuiet
)

// Server is what serves the streams of a node that drains: see flight.Server.
type Server interface {
	Leave(locations func() []string)
	Return()
	WaitStreams(ctx context.Context) (left int)
}

// Drain is how a node leaves its cluster.
type Drain struct {
	Node    string
	Members *members.Members
	Server  Server
	// Handed is what others have taken over of this node's cache; nil if it has none that they know of.
	Handed func() (blobs, bytes int64)
	// Held is how many bytes the cache has, Jobs whether one runs that has a use for them.
	Held func() int64
	Jobs func() bool
	// Most is how many bytes are handed over at most; 0 for all.
	Most int64
	// Settle is after how long all others know that the node leaves. Default 10 s: they read the members every 6.
	Settle time.Duration
	// Quiet is after how long without a blob that was taken over nobody is taken to want more. Default 3 s.
	Quiet time.Duration
	// Every is how often that is looked at. Default 250 ms.
	Every  time.Duration
	Logger *slog.Logger
}

// ErrStays is the cause of a context that ends as the node is to stay.
var ErrStays = errors.New("the node stays")

// Run has the node leave: it owns nothing from now on, its streams move to other nodes, and the new owners of what it
// holds take over, soonest used first, what their jobs want. It returns when nothing runs and nobody wants more, or
// with ctx's cause; the caller ends the node, unless that is ErrStays: then all is as before. A node that is alone
// keeps its streams, which have nowhere to go.
func (d Drain) Run(ctx context.Context) error {
	d.Settle, d.Quiet, d.Every = cmp.Or(d.Settle, usualSettle), cmp.Or(d.Quiet, usualQuiet),
		cmp.Or(d.Every, 250*time.Millisecond)
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	began := time.Now()
	state := members.Draining{Since: began.UTC()}
	d.look(&state)
	said := state // the members keep it
	if err := d.Members.SetDraining(ctx, &said); err != nil {
		d.Logger.WarnContext(ctx, "other nodes are not told yet that this one leaves", "error", err)
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
		d.look(&state)
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
			d.Logger.DebugContext(ctx, "how far the node is, is told later", "error", err)
		}
	}
	state.Done = true
	_ = d.Members.SetDraining(ctx, &state)
	d.Logger.InfoContext(ctx, "this node has left its cluster", "handed_blobs", state.Blobs, "handed_bytes",
		state.Bytes, "seconds", time.Since(began).Seconds())
	return nil
}

// look sees how far the node is.
func (d Drain) look(state *members.Draining) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	state.Streams = d.Server.WaitStreams(over)
	if d.Handed != nil {
		state.Blobs, state.Bytes = d.Handed()
		state.Held = d.Held()
	}
}

// stay undoes it.
func (d Drain) stay(ctx context.Context) {
	d.Server.Return()
	if err := d.Members.SetDraining(ctx, nil); err != nil {
		d.Logger.WarnContext(ctx, "other nodes are not told yet that this one stays", "error", err)
	}
	d.Logger.InfoContext(ctx, "this node stays in its cluster")
}

// locations are where streams can go on.
func (d Drain) locations() []string {
	var list []string
	for _, n := range d.Members.View().Nodes {
		if n.ID != d.Node && n.Address != "" {
			list = append(list, n.Address)
		}
	}
	return list
}

// refused is the link to a node that is not to be asked: it is never up.
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

package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch/admission"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/flight"
	"bowstring/flight/auth"
	"bowstring/flight/peer"
	"bowstring/schema"
	"bowstring/spill"
)

// check is part of Validate. It reports flags of a node without --cluster, and values
// that the layout of a cluster would reject later.
func (f *clusterFlags) check() error {
	if f.Cluster == "" {
		if f.Node != "" || f.Advertise != "" || f.Zone != "" || f.ClusterKeyFile != "" || f.ClusterCA != "" ||
			f.PeerPlaintext {
			return fmt.Errorf("--node, --advertise, --zone, --cluster-key-file, --cluster-ca and --peer-plaintext " +
				"are of a node of a cluster: --cluster names it")
		}
		return nil
	}
	if err := schema.CheckName("--cluster", f.Cluster); err != nil {
		return err
	}
	if f.HandoverTimeout <= 0 {
		return fmt.Errorf("--handover-timeout: got %s, want more than 0", f.HandoverTimeout)
	}
	if f.PeerProtocol < 0 {
		return fmt.Errorf("--peer-protocol: got %d, want 1 or more", f.PeerProtocol)
	}
	if _, err := f.egress(); err != nil {
		return err
	}
	// The machine's name is not known to be valid here; described checks it at the start.
	n := layout.Node{ID: cmp.Or(f.Node, "node"), Address: f.Advertise, Zone: f.Zone, Weight: f.NodeRanks}
	if err := n.Check(); err != nil {
		return fmt.Errorf("--node, --advertise, --zone or --node-ranks: %w", err)
	}
	return nil
}

// egress parses the limits of bytes a second that are sent to other nodes.
func (f *clusterFlags) egress() (admission.EgressLimits, error) {
	limits := admission.EgressLimits{All: int64(f.PeerEgress), Zones: map[string]int64{}}
	for part := range strings.SplitSeq(f.PeerEgressZones, ",") {
		if part == "" {
			continue
		}
		zone, text, ok := strings.Cut(part, "=")
		var rate size
		if err := rate.UnmarshalText([]byte(text)); !ok || err != nil || rate == 0 {
			return limits, fmt.Errorf("--peer-egress-zones: got %q, want ZONE=SIZE, such as b=100MB", part)
		}
		limits.Zones[zone] = int64(rate)
	}
	return limits, nil
}

// part returns the server's part in a cluster, and nil without --cluster. It reads the
// keys and roots, so that a wrong file ends the start and not the first read of a peer.
// The watch of the key file begins with watchKeys.
func (f *clusterFlags) part(d *auth.Authenticator, sources *auth.Sources, log *slog.Logger) (*clusterPart, error) {
	if f.Cluster == "" {
		return nil, nil
	}
	limits, err := f.egress()
	if err != nil {
		return nil, err
	}
	p := &clusterPart{name: f.Cluster, node: f.Node, zone: f.Zone, protocol: f.PeerProtocol,
		plaintext: f.PeerPlaintext || !d.Encrypts(), egress: admission.NewEgress(limits)}
	if p.node == "" {
		// In Kubernetes this is the pod's name, which a StatefulSet keeps over restarts.
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--node: the name of this machine is not known: %w", err)
		}
		p.node = host
	}
	if f.ClusterKeyFile != "" {
		if p.keyFile, err = auth.OpenFile("keys of the cluster", f.ClusterKeyFile, peer.ParseKeys,
			func(keys *[][]byte) int { return len(*keys) }, sources, log); err != nil {
			return nil, usagef("--cluster-key-file: %v", err)
		}
		p.keys = peer.NewKeys(*p.keyFile.Current().Load()...)
	}
	// Without keys, peers cannot prove who they are. Blobs then go to other nodes only if
	// the server authenticates no client either.
	p.peers = p.keys != nil || !d.Authenticates()
	// Nodes of a cluster are of the same program, so that TLS 1.3 is no restriction.
	p.tls = &tls.Config{MinVersion: tls.VersionTLS13}
	if f.ClusterCA != "" {
		text, err := os.ReadFile(f.ClusterCA)
		if err != nil {
			return nil, fmt.Errorf("--cluster-ca: %w", err)
		}
		p.tls.RootCAs = x509.NewCertPool()
		if !p.tls.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("--cluster-ca: %s has no certificate in PEM", f.ClusterCA)
		}
	}
	return p, nil
}

// clusterPart is a server's part in a cluster. part makes it, and it is constant
// afterwards. The contents of keys change with the file.
type clusterPart struct {
	name, node, zone string
	keys             *peer.Keys // nil if there are none
	keyFile          *auth.File[[][]byte]
	tls              *tls.Config
	protocol         int  // the only protocol to use with other nodes; 0 for all that this version has
	plaintext        bool // whether nodes with a grpc:// address are asked
	peers            bool // whether blobs are exchanged with other nodes
	egress           *admission.Egress
}

// join creates the tier that reads from other nodes, and sets the options with which the
// server answers them. A node keeps the blobs that it owns in its spill. Without a spill
// it owns nothing and is a member only.
func (p *clusterPart) join(n *node, to *flight.Options, log *slog.Logger) (err error) {
	n.figures = &clusterFigures{
		cluster: p.name, node: p.node, view: n.members.View, layout: n.members.Now,
		sent: func() []flight.SentStats { return n.server.SentToPeers() },
	}
	n.part = p
	if !p.peers || n.spill == nil {
		log.Info("blobs are not read from other nodes, nor by them", "key", p.keys != nil, "spill", n.spill != nil)
		return nil
	}
	n.cluster, err = cluster.New(cluster.Options{Name: p.name, Node: p.node, Zone: p.zone, Members: n.members,
		SnapshotName: n.spill.DatasetName, Keys: p.keys, TLS: p.tls, Plaintext: p.plaintext, Protocol: p.protocol,
		Logger: log})
	if err != nil {
		return err
	}
	n.figures.tier = n.cluster.Tier()
	to.Cluster = &flight.Cluster{Name: p.name, Node: p.node, Keys: p.keys, Protocol: p.protocol, Met: n.cluster.Met,
		Address: func() string { return cluster.HostOf(n.members.Self().Address) },
		Egress:  p.egress, WarmOthers: n.cluster.WarmOthers}
	return nil
}

// watchKeys replaces the keys when the file changes, until ctx ends. A file with two keys
// lets the nodes change to a new one without an outage.
func (p *clusterPart) watchKeys(ctx context.Context) {
	p.keyFile.Watch(ctx, func() { p.keys.Set(*p.keyFile.Current().Load()...) })
}

// Members implements flight.Node. The result is for the JSON of stats; nil outside of a
// cluster.
func (n *node) Members() any {
	if n.part == nil {
		return nil
	}
	// The view is of the leases, and the shares are computed from the layout.
	view := viewOf(n.part.name, n.members.View())
	view.Node, view.Sent = n.part.node, n.server.SentToPeers()
	if l := n.members.Now(); l != nil {
		view.View, view.Shares = l.Name(), n.members.Shares()
	}
	if n.cluster != nil {
		view.Peers = n.cluster.Tier().Stats()
		sent := n.part.egress.Stats()
		view.Egress = &sent
	}
	return view
}

// Others implements flight.Node. The addresses are those of the last view.
func (n *node) Others() (addresses []string) {
	if n.part == nil {
		return nil
	}
	for _, other := range n.members.View().Nodes {
		if other.ID != n.part.node {
			addresses = append(addresses, other.Address)
		}
	}
	return addresses
}

// described returns what the cluster publishes about a server with this listener. It
// returns an error if other nodes could not reach the address, or if it would make them
// send plain text to a server with a certificate.
func (f *clusterFlags) described(id string, listen net.Addr, encrypted bool, spillBytes int64) (layout.Node, error) {
	n := layout.Node{ID: id, Address: f.Advertise, Zone: f.Zone, Weight: f.NodeRanks,
		Capacity: spill.Capacity(spillBytes)}
	if n.Address == "" {
		// A listener on all addresses has no address that others could use.
		tcp, ok := listen.(*net.TCPAddr)
		if !ok || tcp.IP.IsUnspecified() {
			return n, usagef("--advertise: the server listens on %s, which is no address that others could reach: "+
				"say grpc://HOST:PORT", listen)
		}
		n.Address = "grpc://" + tcp.String()
		if encrypted {
			n.Address = "grpc+tls://" + tcp.String()
		}
	}
	if encrypted && !f.PeerPlaintext && !strings.HasPrefix(n.Address, "grpc+tls://") {
		return n, usagef("--advertise: got %s, want grpc+tls://HOST:PORT: the server has a certificate, and a peer "+
			"uses TLS; --peer-plaintext says that something before it takes off TLS", n.Address)
	}
	return n, n.Check()
}

// membersOf returns the members of a cluster in a store. Only stores that several
// machines share can have a cluster.
func membersOf(s store.Store, cluster string, log *slog.Logger) (*members.Members, error) {
	shared, ok := store.As[members.Shared](s)
	if !ok {
		return nil, usagef("--cluster: the nodes of a cluster share a store in Scylla or Cassandra, or in a bucket: --store " +
			"cql://HOST/KEYSPACE or s3://BUCKET/PREFIX names one")
	}
	return members.New(members.Options{Cluster: cluster, Shared: shared, Version: version, Logger: log})
}

// clusterView is the cluster as a server sees it, for its stats. Its JSON is part of the
// protocol.
type clusterView struct {
	Cluster string        `json:"cluster"`
	Nodes   []layout.Node `json:"nodes"`
	Read    time.Time     `json:"read"`            // when the leases were last read
	Error   string        `json:"error,omitempty"` // why a later attempt to read them failed
	// Node is the node that reports. View identifies its assignment of keys to owners,
	// and Shares are the shares of all keys that the nodes own.
	Node   string          `json:"node"`
	View   string          `json:"view,omitempty"`
	Shares []members.Share `json:"shares,omitempty"`
	// Sent is the traffic to each other node.
	Sent []flight.SentStats `json:"sent,omitempty"`
	// Peers are the links to the other nodes, if blobs are read from them.
	Peers []peers.NodeStats `json:"peers,omitempty"`
	// Leaving are the nodes that drain. Wants is the bytes that the jobs of all nodes
	// read.
	Leaving []leavingNode `json:"leaving,omitempty"`
	Wants   int64         `json:"wants,omitempty"`
	// Egress is the state of the limits of what is sent to other nodes.
	Egress *admission.EgressStats `json:"egress,omitempty"`
}

// leavingNode is a node that drains, with its progress.
type leavingNode struct {
	layout.Node
	Draining members.Draining `json:"draining"`
}

// viewOf converts the members' view for JSON.
func viewOf(cluster string, v members.View) clusterView {
	view := clusterView{Cluster: cluster, Nodes: v.Nodes, Read: v.At, Wants: v.Wants}
	for _, n := range v.Leaving {
		view.Leaving = append(view.Leaving, leavingNode{n.Node, n.Draining})
	}
	if v.Err != nil {
		view.Error = v.Err.Error()
	}
	return view
}

// clusterFigures sum the traffic between this node and others, by class, for metrics. It
// is safe for concurrent use: scrapes may overlap.
type clusterFigures struct {
	cluster, node string
	view          func() members.View
	layout        func() *layout.Layout
	tier          *peers.Tier // nil if no blobs are read from others
	sent          func() []flight.SentStats

	// zones has the zone of each node that was ever seen, and mu guards it. Without it
	// the traffic of a node that left would move to another class, and two counters would
	// jump.
	mu    sync.Mutex
	zones map[string]string
}

// maxZones limits the nodes whose zone is remembered. Names of nodes may be random, as
// those of pods are, so that the map would otherwise grow without end. Traffic with
// further nodes counts as that with another zone.
const maxZones = 1 << 14

// clusterNow returns the state of the node in its cluster, and nil outside of a cluster.
func (n *node) clusterNow() *metrics.Cluster {
	if n.figures == nil {
		return nil
	}
	return n.figures.now()
}

// now returns the current state and the sums since the start.
func (f *clusterFigures) now() *metrics.Cluster {
	v, l := f.view(), f.layout()
	c := &metrics.Cluster{
		Name: f.cluster, Node: f.node, Members: len(v.Nodes), Read: v.At, Failed: v.Err != nil,
		Peers: map[string]metrics.Peers{}, Sent: map[string]metrics.Sent{},
	}
	if l != nil {
		// 16 characters are enough to compare views, and keep the label short.
		c.View = l.Name()[:16]
		if at, ok := l.Index(f.node); ok {
			c.Share = float64(l.Owned(at)) / layout.Slots
		}
	}
	classOf, zone := f.classes(v.Nodes)
	c.Zone = zone
	if f.tier != nil {
		for _, p := range f.tier.Stats() {
			switch {
			case !p.Up:
				c.Down++
			case p.Silent:
				c.Silent++
			default:
				c.Up++
			}
			c.InFlight += int64(p.InFlight)
		}
		for name, p := range f.tier.Totals() {
			// Totals include nodes that have left, so that counters never fall.
			class := classOf(name)
			sum := c.Peers[class]
			c.Peers[class] = metrics.Peers{Asked: sum.Asked + p.Asked, Answered: sum.Answered + p.Answered,
				Bytes: sum.Bytes + p.Bytes, Refused: sum.Refused + p.Refused}
		}
	}
	for _, s := range f.sent() {
		class := classOf(s.Node)
		sum := c.Sent[class]
		c.Sent[class] = metrics.Sent{Blobs: sum.Blobs + s.Blobs, Bytes: sum.Bytes + s.Bytes,
			Refused: sum.Refused + s.Refused}
	}
	return c
}

// classes returns a function from a node's name to its class, and this node's zone. A
// node that comes back in another zone keeps its class, because its counter would jump.
func (f *clusterFigures) classes(nodes []layout.Node) (classOf func(node string) string, own string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	zones := make(map[string]string, len(f.zones)+len(nodes))
	for name, zone := range f.zones {
		zones[name] = zone
	}
	for _, n := range nodes {
		if _, known := zones[n.ID]; !known && len(zones) < maxZones {
			zones[n.ID] = n.Zone
		}
	}
	f.zones = zones // replaced and never changed, because classOf reads it without the lock
	own = zones[f.node]
	return func(node string) string {
		if zone, known := zones[node]; known && zone == own {
			return metrics.SameZone
		}
		return metrics.OtherZone
	}, own
}

// ClusterCmd is bowstring cluster. Its commands work on the store, where the nodes have
// their leases. They need no connection to a node.
type ClusterCmd struct {
	Status  ClusterStatusCmd  `cmd:"" help:"List the nodes of a cluster and what they own."`
	Drain   ClusterDrainCmd   `cmd:"" help:"Have a node leave its cluster: its streams move, its cache is handed over, and it ends."`
	Undrain ClusterUndrainCmd `cmd:"" help:"Cancel the drain of a node that has not ended."`
}

// ClusterStatusCmd is bowstring cluster status.
type ClusterStatusCmd struct {
	Name string `arg:"" help:"The cluster, as serve --cluster names it."`
	JSON bool   `name:"json" help:"Print a JSON object."`
}

// Help is shown below the summary.
func (*ClusterStatusCmd) Help() string {
	return `The nodes are those whose leases are in the store now; one that dies is gone from it after ten seconds. What they own is a part of
all keys, if everything fits; which part of a dataset they have cached, only they know.`
}

// clusterStatus is the output of cluster status.
type clusterStatus struct {
	Cluster string       `json:"cluster"`
	Layout  string       `json:"layout,omitempty"` // the assignment of keys that these nodes would have now
	Nodes   []nodeStatus `json:"nodes"`
}

type nodeStatus struct {
	layout.Node
	Share    float64           `json:"share"`              // of all keys
	Draining *members.Draining `json:"draining,omitempty"` // progress, if the node drains
}

// state returns the state of a node in a few words.
func (n *nodeStatus) state() string {
	d := n.Draining
	switch {
	case d == nil:
		return "active"
	case d.Done:
		return "drained"
	}
	return fmt.Sprintf("draining for %s: %s, handed over %s of %s", time.Since(d.Since).Round(time.Second),
		plural(int64(d.Streams), "stream"),
		humanize.IBytes(uint64(d.Bytes)), humanize.IBytes(uint64(d.Held)))
}

// Run lists the nodes. A cluster without a node is no error.
func (c *ClusterStatusCmd) Run(ctx context.Context, app *App) error {
	m, done, err := openMembers(ctx, app, "cluster status", c.Name)
	if err != nil {
		return err
	}
	defer done()
	// A store that does not answer would otherwise leave the command without a message.
	reading, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	view, err := m.Refresh(reading)
	if err != nil {
		return err
	}
	status, err := statusOf(c.Name, view)
	if err != nil {
		return err
	}
	if len(status.Nodes) == 0 && !c.JSON {
		app.Notef("no node of cluster %s is there", c.Name)
		return nil
	}
	t := tableOf("NODE", "ADDRESS", "ZONE", ">RANKS", ">SPILL", ">SHARE", "STATE")
	for _, n := range status.Nodes {
		t.add(n.ID, n.Address, n.Zone, strconv.FormatInt(n.Weight, 10), humanize.IBytes(uint64(n.Capacity)),
			fmt.Sprintf("%.1f %%", 100*n.Share), n.state())
	}
	return app.show(c.JSON, status, t)
}

// openMembers returns the members of a cluster, for a caller that is no node of it. The
// second result closes the store.
func openMembers(ctx context.Context, app *App, command, name string) (*members.Members, func(), error) {
	addr, err := app.ownStore(command)
	if err != nil {
		return nil, nil, err
	}
	s, err := openStore(ctx, addr, false, app.quietLog())
	if err != nil {
		return nil, nil, err
	}
	// The members are read only: this process writes no lease.
	m, err := membersOf(s, name, app.quietLog())
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return m, func() { _ = s.Close() }, nil
}

// statusOf computes what each node owns, and adds the nodes that drain. It computes the
// assignment by itself, because the nodes publish only their descriptions.
func statusOf(cluster string, view members.View) (clusterStatus, error) {
	status := clusterStatus{Cluster: cluster, Nodes: []nodeStatus{}}
	if len(view.Nodes) > 0 {
		r, err := layout.NewRecord(0, view.Nodes, nil)
		if err != nil {
			return status, err
		}
		l, err := layout.New(r)
		if err != nil {
			return status, err
		}
		status.Layout = l.Name()
		for i := range l.Nodes() {
			status.Nodes = append(status.Nodes, nodeStatus{Node: l.Node(i), Share: float64(l.Owned(i)) / layout.Slots})
		}
	}
	for _, n := range view.Leaving {
		status.Nodes = append(status.Nodes, nodeStatus{Node: n.Node, Draining: &n.Draining})
	}
	return status, nil
}

// drainPoll is the interval at which drain --wait reads the progress.
const drainPoll = time.Second

// ClusterDrainCmd is bowstring cluster drain.
type ClusterDrainCmd struct {
	Name string `arg:"" help:"The cluster, as serve --cluster names it."`
	Node string `arg:"" help:"The node, as serve --node names it."`
	Wait bool   `help:"Wait until the node has ended, and say how far it is."`
}

// Help is shown below the summary.
func (*ClusterDrainCmd) Help() string {
	return `The node reads the request from the store, within some seconds. Then it owns nothing any more, its streams end at a batch with a
ticket and the addresses to go on at, and the new owners of what it has cached take over what running jobs will use, soonest first. The node
ends when no other one reads more, or after --handover-timeout of the server. SIGTERM to the server does the same within --drain-timeout.`
}

// Run writes the order to drain to the store. With --wait it reports the progress until
// the node's process has ended.
func (c *ClusterDrainCmd) Run(ctx context.Context, app *App) error {
	m, done, err := openMembers(ctx, app, "cluster drain", c.Name)
	if err != nil {
		return err
	}
	defer done()
	if err := m.Order(ctx, c.Node, true); err != nil {
		return err
	}
	if !c.Wait {
		app.Notef("node %s will drain", c.Node)
		return nil
	}
	// A node that restarts has the same name and another process.
	process, said := m.Process(c.Node), ""
	for {
		view, err := m.Refresh(ctx)
		if err != nil {
			return err
		}
		if m.Process(c.Node) != process {
			app.Notef("node %s has ended", c.Node)
			return nil
		}
		for _, n := range view.Leaving {
			status := nodeStatus{Node: n.Node, Draining: &n.Draining}
			if line := fmt.Sprintf("node %s: %s", c.Node, status.state()); n.ID == c.Node && line != said {
				said = line
				app.Notef("%s", line)
			}
		}
		if !sleep(ctx, drainPoll) {
			return context.Cause(ctx)
		}
	}
}

// ClusterUndrainCmd is bowstring cluster undrain.
type ClusterUndrainCmd struct {
	Name string `arg:"" help:"The cluster, as serve --cluster names it."`
	Node string `arg:"" help:"The node, as serve --node names it."`
}

// Run removes the order to drain. It cannot know whether the node has ended meanwhile.
func (c *ClusterUndrainCmd) Run(ctx context.Context, app *App) error {
	m, done, err := openMembers(ctx, app, "cluster undrain", c.Name)
	if err != nil {
		return err
	}
	defer done()
	if err := m.Order(ctx, c.Node, false); err != nil {
		return err
	}
	app.Notef("node %s will stay, if it has not ended", c.Node)
	return nil
}

// leave returns the plan by which this server leaves its cluster. Without a tier there is
// no cache to hand over.
func (c *ServeCmd) leave(app *App, n *node, id string) cluster.Drain {
	d := cluster.Drain{Node: id, Members: n.members, Server: n.server, Logger: app.Log}
	if n.cluster != nil {
		d.Handed = n.egress.Handed
		d.Held = func() int64 { return n.spill.Stats().Bytes }
		d.Jobs = func() bool { return len(n.engine.Wants()) > 0 }
	}
	return d
}

// obey makes the server leave its cluster when it is ordered to. It returns true when the
// server has left, and false if ctx ended. If the order is removed, the drain is
// cancelled and obey waits for the next order.
func (c *ServeCmd) obey(ctx context.Context, app *App, n *node, id string) bool {
	tick := time.NewTicker(orderPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		if !n.members.Ordered() {
			continue
		}
		// Two contexts: draining ends when the order is removed, and bounded with the
		// timeout as well.
		draining, end := context.WithCancelCause(ctx)
		bounded, cancel := context.WithTimeoutCause(draining, c.HandoverTimeout, errHandover)
		left := make(chan error, 1)
		go func() { left <- c.leave(app, n, id).Run(bounded) }()
		var err error
		// The drain runs in a goroutine, so that this loop sees the end of the order. It
		// always waits for the drain: two of them at once would publish different states.
		for waiting := true; waiting; {
			select {
			case err = <-left:
				waiting = false
			case <-tick.C:
				if !n.members.Ordered() {
					end(cluster.ErrStays)
				}
			}
		}
		cancel()
		end(nil)
		// A handover that took too long is a departure too: the new owners read the rest
		// from the store.
		if err == nil || errors.Is(err, errHandover) {
			return true
		}
	}
}

// orderPoll is how often a server looks whether it is ordered to drain. That sends no
// request.
const orderPoll = 200 * time.Millisecond

// errHandover is the cause of the end of a handover that exceeds --handover-timeout.
var errHandover = errors.New("the handover timeout is over")

// handoverShare is the share of the drain timeout that a node may hand over after a
// signal. The rest is for streams that have not ended by then.
const handoverShare = 0.9

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/flight"
	"bowstring/flight/door"
	"bowstring/schema"
)

// clusterFlags make a server a node of a cluster.
type clusterFlags struct {
	Cluster   string `setting:"" placeholder:"NAME" help:"Be a node of this cluster, of all servers on the same store in Scylla or Cassandra that say so (default: none)."`
	Node      string `setting:"" placeholder:"ID" help:"What the node is called; it stays so when it is started again (default: the name of this machine)."`
	Advertise string `setting:"" placeholder:"grpc://HOST:PORT" help:"Where clients and other nodes reach it (default: the address of --listen, which must be one of this machine's then)."`
	Zone      string `setting:"" placeholder:"NAME" help:"Where it is: a zone, a rack. Bytes between zones are dear (default: all are in one)."`
	NodeRanks int64  `setting:"" default:"1" placeholder:"N" help:"How many ranks run beside it, in proportion to others: so much it owns (default: ${default})."`

	ClusterKeyFile string `setting:"" type:"path" placeholder:"FILE" help:"What the nodes know each other by: a secret of 32 characters or more, the same for all. Without it they read from each other only where everybody may read everything."`
	ClusterCA      string `setting:"" name:"cluster-ca" type:"path" placeholder:"FILE" help:"Who has signed the other nodes' certificates (default: who the system trusts)."`
}

// check is called as part of Validate.
func (f *clusterFlags) check() error {
	if f.Cluster == "" {
		if f.Node != "" || f.Advertise != "" || f.Zone != "" || f.ClusterKeyFile != "" || f.ClusterCA != "" {
			return fmt.Errorf("--node, --advertise, --zone, --cluster-key-file and --cluster-ca are of a node of a cluster: --cluster names it")
		}
		return nil
	}
	if err := schema.CheckName("--cluster", f.Cluster); err != nil {
		return err
	}
	n := layout.Node{ID: cmp.Or(f.Node, "node"), Address: f.Advertise, Zone: f.Zone, Weight: f.NodeRanks}
	if err := n.Check(); err != nil {
		return fmt.Errorf("--node, --advertise, --zone or --node-ranks: %w", err)
	}
	return nil
}

// leastKey is how many characters a cluster's key has at least.
const leastKey = 32

// part is what a server takes on as a node; nil if it is none.
func (f *clusterFlags) part(door *door.Door) (*clusterPart, error) {
	if f.Cluster == "" {
		return nil, nil
	}
	p := &clusterPart{name: f.Cluster, node: f.Node}
	if p.node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--node: the name of this machine is not known: %w", err)
		}
		p.node = host
	}
	if f.ClusterKeyFile != "" {
		text, err := os.ReadFile(f.ClusterKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--cluster-key-file: %w", err)
		}
		if p.key = bytes.TrimSpace(text); len(p.key) < leastKey {
			return nil, usagef("--cluster-key-file: %s has a key of %d characters; want %d or more, such as openssl rand -hex 32 makes", f.ClusterKeyFile, len(p.key), leastKey)
		}
	}
	p.lends = len(p.key) > 0 || !door.Authenticates()
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

// clusterPart is a server's part in a cluster.
type clusterPart struct {
	name, node string
	key        []byte
	tls        *tls.Config
	lends      bool // other nodes read by way of it, and it by way of them
}

// join makes the tier of the other nodes, and the door for them, as far as there is a spill: what a node
// owns, it keeps there.
func (p *clusterPart) join(n *node, to *flight.Options, log *slog.Logger) (err error) {
	n.figures = &clusterFigures{
		cluster: p.name, node: p.node, view: n.members.View, layout: n.members.Now,
		lent: func() []flight.LentStats { return n.server.Lent() },
	}
	to.Members = func() any {
		view := viewOf(p.name, n.members.View())
		view.Node, view.Lent = p.node, n.server.Lent()
		if l := n.members.Now(); l != nil {
			view.View = l.Name()
			for i := range l.Nodes() {
				view.Shares = append(view.Shares, nodeShare{l.Node(i).ID, float64(l.Owned(i)) / layout.Slots})
			}
		}
		if n.cluster != nil {
			view.Peers = n.cluster.Tier().Stats()
		}
		return view
	}
	to.Others = func() (addresses []string) {
		for _, other := range n.members.View().Nodes {
			if other.ID != p.node {
				addresses = append(addresses, other.Address)
			}
		}
		return addresses
	}
	if !p.lends || n.spill == nil {
		log.Info("blobs are not read from other nodes, nor by them", "key", len(p.key) > 0, "spill", n.spill != nil)
		return nil
	}
	n.cluster, err = cluster.New(cluster.Options{Name: p.name, Node: p.node, Members: n.members, SnapshotName: n.spill.DatasetName, Key: p.key, TLS: p.tls, Logger: log})
	if err != nil {
		return err
	}
	n.figures.tier = n.cluster.Tier()
	to.Cluster = &flight.Cluster{Name: p.name, Node: p.node, Key: p.key, Met: n.cluster.Met}
	return nil
}

// described is what the cluster is to know of a server that listens there.
func (f *clusterFlags) described(id string, listen net.Addr, encrypted bool, spillBytes int64) (layout.Node, error) {
	n := layout.Node{ID: id, Address: f.Advertise, Zone: f.Zone, Weight: f.NodeRanks, Capacity: spillBytes}
	if n.Address == "" {
		tcp, ok := listen.(*net.TCPAddr)
		if !ok || tcp.IP.IsUnspecified() {
			return n, usagef("--advertise: the server listens on %s, which is no address that others could reach: say grpc://HOST:PORT", listen)
		}
		n.Address = "grpc://" + tcp.String()
		if encrypted {
			n.Address = "grpc+tls://" + tcp.String()
		}
	}
	return n, n.Check()
}

// membersOf returns the members of a cluster in a store.
func membersOf(s store.Store, cluster string, log *slog.Logger) (*members.Members, error) {
	shared, ok := s.(members.Shared)
	if !ok {
		return nil, usagef("--cluster: the nodes of a cluster share a store in Scylla or Cassandra: --store cql://HOST/KEYSPACE names one")
	}
	return members.New(members.Options{Cluster: cluster, Shared: shared, Version: version, Logger: log})
}

// clusterView is what a server's stats say of its cluster.
type clusterView struct {
	Cluster string        `json:"cluster"`
	Nodes   []layout.Node `json:"nodes"`
	Read    time.Time     `json:"read"`            // when the leases were last read
	Error   string        `json:"error,omitempty"` // why they could not be since
	// Node is the one that says so. View names who owns what as it has it, and Shares say how much of all keys, where everything fits.
	Node   string      `json:"node"`
	View   string      `json:"view,omitempty"`
	Shares []nodeShare `json:"shares,omitempty"`
	// Lent is what the other nodes were sent.
	Lent []flight.LentStats `json:"lent,omitempty"`
	// Peers are the ways to the other nodes, if they are asked for blobs.
	Peers []peers.NodeStats `json:"peers,omitempty"`
}

// nodeShare is what a node owns.
type nodeShare struct {
	Node  string  `json:"node"`
	Share float64 `json:"share"`
}

func viewOf(cluster string, v members.View) clusterView {
	view := clusterView{Cluster: cluster, Nodes: v.Nodes, Read: v.At}
	if v.Err != nil {
		view.Error = v.Err.Error()
	}
	return view
}

// ClusterCmd is bowstring cluster.
type ClusterCmd struct {
	Status ClusterStatusCmd `cmd:"" help:"List the nodes of a cluster and what they own."`
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

// clusterStatus is what status prints.
type clusterStatus struct {
	Cluster string       `json:"cluster"`
	Layout  string       `json:"layout,omitempty"` // that these nodes would have now, where all fits
	Nodes   []nodeStatus `json:"nodes"`
}

type nodeStatus struct {
	layout.Node
	Share float64 `json:"share"` // of all keys
}

// Run lists the nodes.
func (c *ClusterStatusCmd) Run(ctx context.Context, app *App) error {
	addr, err := app.ownStore("cluster status")
	if err != nil {
		return err
	}
	s, err := openStore(addr, false, app.quietLog())
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	m, err := membersOf(s, c.Name, app.quietLog())
	if err != nil {
		return err
	}
	look, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	view, err := m.Look(look)
	if err != nil {
		return err
	}
	status, err := statusOf(c.Name, view.Nodes)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, status)
	}
	if len(status.Nodes) == 0 {
		app.Notef("no node of cluster %s is there", c.Name)
		return nil
	}
	t := table{numbers: []bool{false, false, false, true, true, true}}
	t.add("NODE", "ADDRESS", "ZONE", "RANKS", "SPILL", "SHARE")
	for _, n := range status.Nodes {
		t.add(n.ID, n.Address, n.Zone, strconv.FormatInt(n.Weight, 10), humanize.IBytes(uint64(n.Capacity)), fmt.Sprintf("%.1f %%", 100*n.Share))
	}
	return t.print(app.Stdout)
}

// statusOf says what nodes own where everything fits.
func statusOf(cluster string, nodes []layout.Node) (clusterStatus, error) {
	status := clusterStatus{Cluster: cluster, Nodes: []nodeStatus{}}
	if len(nodes) == 0 {
		return status, nil
	}
	r, err := layout.NewRecord(0, nodes, nil)
	if err != nil {
		return status, err
	}
	l, err := layout.New(r)
	if err != nil {
		return status, err
	}
	status.Layout = l.Name()
	for i := range l.Nodes() {
		status.Nodes = append(status.Nodes, nodeStatus{l.Node(i), float64(l.Owned(i)) / layout.Slots})
	}
	return status, nil
}

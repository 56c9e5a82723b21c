package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"bowstring/cmd/bowstring/cluster"
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

// check is called as part of Validate.
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
	if f.PeerProtocol < 0 || f.PeerProtocol > peer.Protocol {
		return fmt.Errorf("--peer-protocol: got %d, want 1 to %d", f.PeerProtocol, peer.Protocol)
	}
	if _, err := f.egress(); err != nil {
		return err
	}
	n := layout.Node{ID: cmp.Or(f.Node, "node"), Address: f.Advertise, Zone: f.Zone, Weight: f.NodeRanks}
	if err := n.Check(); err != nil {
		return fmt.Errorf("--node, --advertise, --zone or --node-ranks: %w", err)
	}
	return nil
}

// egress is what may be sent to other nodes.
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

// part is what a server takes on as a node; nil if it is none.
func (f *clusterFlags) part(d *auth.Door, sources *auth.Sources, log *slog.Logger) (*clusterPart, error) {
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
	p.lends = p.keys != nil || !d.Authenticates()
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
	name, node, zone string
	keys             *peer.Keys // nil if there are none
	keyFile          *auth.File[[][]byte]
	tls              *tls.Config
	protocol         int  // the only one that is spoken with other nodes; 0 for those that there are
	plaintext        bool // nodes whose address is grpc:// are asked
	lends            bool // other nodes read by way of it, and it by way of them
	egress           *admission.Egress
}

// join makes the tier of the other nodes, and the door for them, as far as there is a spill: what a node
// owns, it keeps there.
func (p *clusterPart) join(n *node, to *flight.Options, log *slog.Logger) (err error) {
	n.figures = &clusterFigures{
		cluster: p.name, node: p.node, view: n.members.View, layout: n.members.Now,
		lent: func() []flight.LentStats { return n.server.Lent() },
	}
	n.part = p
	if !p.lends || n.spill == nil {
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

// watchKeys takes over the keys of the file as it changes, until ctx ends.
func (p *clusterPart) watchKeys(ctx context.Context) {
	p.keyFile.Watch(ctx, func() { p.keys.Set(*p.keyFile.Current().Load()...) })
}

// Members implements flight.Node.
func (n *node) Members() any {
	if n.part == nil {
		return nil
	}
	view := viewOf(n.part.name, n.members.View())
	view.Node, view.Lent = n.part.node, n.server.Lent()
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

// Others implements flight.Node.
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

// described is what the cluster is to know of a server that listens there.
func (f *clusterFlags) described(id string, listen net.Addr, encrypted bool, spillBytes int64) (layout.Node, error) {
	n := layout.Node{ID: id, Address: f.Advertise, Zone: f.Zone, Weight: f.NodeRanks,
		Capacity: spill.Capacity(spillBytes)}
	if n.Address == "" {
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
		return n, usagef("--advertise: got %s, want grpc+tls://HOST:PORT: the server has a certificate, and who asks it "+
			"uses TLS; --peer-plaintext says that something before it takes off TLS", n.Address)
	}
	return n, n.Check()
}

// membersOf returns the members of a cluster in a store.
func membersOf(s store.Store, cluster string, log *slog.Logger) (*members.Members, error) {
	shared, ok := s.(members.Shared)
	if !ok {
		return nil, usagef("--cluster: the nodes of a cluster share a store in Scylla or Cassandra: --store " +
			"cql://HOST/KEYSPACE names one")
	}
	return members.New(members.Options{Cluster: cluster, Shared: shared, Version: version, Logger: log})
}

// clusterView is what a server's stats say of its cluster.
type clusterView struct {
	Cluster string        `json:"cluster"`
	Nodes   []layout.Node `json:"nodes"`
	Read    time.Time     `json:"read"`            // when the leases were last read
	Error   string        `json:"error,omitempty"` // why they could not be since
	// Node is the one that says so. View names who owns what as it has it, and Shares say how much of all keys, where
	// everything fits.
	Node   string          `json:"node"`
	View   string          `json:"view,omitempty"`
	Shares []members.Share `json:"shares,omitempty"`
	// Lent is what the other nodes were sent.
	Lent []flight.LentStats `json:"lent,omitempty"`
	// Peers are the ways to the other nodes, if they are asked for blobs.
	Peers []peers.NodeStats `json:"peers,omitempty"`
	// Leaving are nodes that drain, and Wants the bytes that the jobs of all nodes read.
	Leaving []leavingNode `json:"leaving,omitempty"`
	Wants   int64         `json:"wants,omitempty"`
	// Egress is what was sent to other nodes.
	Egress *admission.EgressStats `json:"egress,omitempty"`
}

// leavingNode is a node that drains, and how far it is.
type leavingNode struct {
	layout.Node
	Draining members.Draining `json:"draining"`
}

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

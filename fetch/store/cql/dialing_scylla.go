//go:build !gocql

package cql

import (
	"net"

	"github.com/gocql/gocql"
)

// newDialing makes a session use a new dialing for its connections and look-ups of hosts. Without a dialer in the
// configuration, connections are made by ScyllaDB's fork, which selects the shard by the source port.
func newDialing(cl *gocql.ClusterConfig) *dialing {
	var dialer Dialer = &gocql.ScyllaShardAwareDialer{
		Dialer: net.Dialer{Timeout: cl.ConnectTimeout, KeepAlive: cl.SocketKeepalive},
	}
	if cl.Dialer != nil {
		dialer = cl.Dialer
	}
	d := &dialing{}
	d.begin(dialer)
	cl.Dialer, cl.DNSResolver = d, d
	return d
}

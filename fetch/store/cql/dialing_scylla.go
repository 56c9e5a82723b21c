//go:build !gocql

package cql

import (
	"net"

	"github.com/gocql/gocql"
)

// newDialing has a session's connections made by a new dialing, and its hosts looked up. Without a dialer in the
// configuration they are made as ScyllaDB's fork makes them, which chooses the shard by the port that a connection
// comes from.
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

//go:build gocql

package cql

import (
	"net"

	"github.com/gocql/gocql"
)

// newDialing makes a session use a new dialing for its connections. gocql itself looks up hosts, for as long as the
// system's resolver takes.
func newDialing(cl *gocql.ClusterConfig) *dialing {
	var dialer Dialer = &net.Dialer{Timeout: cl.ConnectTimeout, KeepAlive: cl.SocketKeepalive}
	if cl.Dialer != nil {
		dialer = cl.Dialer
	}
	d := &dialing{}
	d.begin(dialer)
	cl.Dialer = d
	return d
}

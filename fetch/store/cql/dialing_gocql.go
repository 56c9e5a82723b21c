//go:build gocql

package cql

import (
	"net"

	"github.com/gocql/gocql"
)

// newDialing has a session's connections made by a new dialing. Hosts are looked up by gocql itself, for as long as
// the system's resolver takes.
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

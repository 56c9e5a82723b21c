package peer

import (
	"net"
	"time"
)

// writeTime is for how long a write may find no room. It is longer than silence may be, and bounds how long who writes
// keeps others from writing, and a watch from seeing that the other side is gone.
const writeTime = time.Minute

// timely is a connection whose writes end in time.
type timely struct {
	net.Conn
	time time.Duration // of one write
}

// Write implements io.Writer. After an error that is a timeout the connection is of no use any longer.
func (c timely) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.time)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

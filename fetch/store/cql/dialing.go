package cql

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/gocql/gocql"
)

// connect opens a session and has ready ask it something. When ctx ends meanwhile it gives up and returns the cause.
// The driver knows no context there: what it waits for are connections, all of which end with ctx until the session is
// open. So connect waits for the driver in any case, which may sleep for a second between two attempts.
// The session's connections end with life.
func connect(ctx, life context.Context, cl *gocql.ClusterConfig, ready func()) (*gocql.Session, error) {
	own := *cl
	d := newDialing(&own)
	defer d.end(context.Canceled) // for those who dial, if any are left
	stop := context.AfterFunc(ctx, func() { d.end(context.Cause(ctx)) })
	defer stop()
	policy := &introduced{HostSelectionPolicy: own.PoolConfig.HostSelectionPolicy}
	if policy.HostSelectionPolicy == nil { // of one host alone
		policy.HostSelectionPolicy = gocql.RoundRobinHostPolicy()
	}
	own.PoolConfig.HostSelectionPolicy = policy
	session, err := own.CreateSession()
	if err == nil {
		ready()
		if d.open(life) {
			return session, nil
		}
		err = context.Cause(d.ended)
	}
	if policy.session != nil {
		policy.session.Close() // ScyllaDB's fork does not
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, err
}

// introduced is a policy that remembers the session it is for, even of one that could not be opened.
type introduced struct {
	gocql.HostSelectionPolicy
	session *gocql.Session
}

// Init implements gocql.HostSelectionPolicy.
func (p *introduced) Init(s *gocql.Session) {
	p.session = s
	p.HostSelectionPolicy.Init(s)
}

// dialing makes the connections of a session. Until that is open, all of them end together; and then with the session's
// life.
type dialing struct {
	dialer Dialer
	ended  context.Context //nolint:containedctx // ends when the session is given up
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	opened bool
	conns  []net.Conn // made so far, but for some that were closed
}

func (d *dialing) begin(dialer Dialer) {
	d.dialer = dialer
	d.ended, d.cancel = context.WithCancelCause(context.Background())
}

// open says that the session is open: from now on its connections end with life. It is false if they have been ended.
func (d *dialing) open(life context.Context) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = d.ended.Err() == nil
	if d.opened {
		context.AfterFunc(life, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.cutLocked(context.Cause(life))
		})
	}
	return d.opened
}

// end gives the session up, unless it is open.
func (d *dialing) end(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened {
		d.cutLocked(cause)
	}
}

// cutLocked ends all connections, and has none made any more.
func (d *dialing) cutLocked(cause error) {
	d.cancel(cause)
	for _, c := range d.conns {
		_ = c.Close() // the driver may have closed it
	}
	d.conns = nil
}

// bound is ctx, and ends when the session is given up. The caller calls release.
func (d *dialing) bound(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.ended, func() { cancel(context.Cause(d.ended)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// DialContext implements [Dialer]. What it returns is the dialer's own connection: the driver writes several buffers
// at once to one that it knows.
func (d *dialing) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	bound, release := d.bound(ctx)
	defer release()
	c, err := d.dialer.DialContext(bound, network, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended.Err() != nil:
		if err == nil {
			_ = c.Close() // nobody has used it
		}
		// The driver does not try again, which it does after a pause, where an error is of this type.
		return nil, &net.OpError{Op: "dial", Net: network, Err: context.Cause(d.ended)}
	case err == nil:
		d.conns = append(slices.DeleteFunc(d.conns, isClosed), c)
	}
	return c, err
}

// isClosed reports whether a connection is known to be closed on this side.
func isClosed(c net.Conn) bool {
	if s, ok := c.(syscall.Conn); ok {
		raw, err := s.SyscallConn()
		return err != nil || raw.Control(func(uintptr) {}) != nil
	}
	return false
}

// LookupIP has the addresses of a host looked up, until the session is given up.
func (d *dialing) LookupIP(host string) ([]net.IP, error) {
	ctx, release := d.bound(context.Background())
	defer release()
	return net.DefaultResolver.LookupIP(ctx, "ip", host)
}

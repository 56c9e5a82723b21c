package flight

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"bowstring/fetch"
	"bowstring/flight/wire"
)

// ServeWithin answers calls that come in by l from within this process, as Serve does but
// for TLS: such a connection leaves the process no more than a function call does. Who
// calls has to say so all the same, and the remote addresses of l's connections are those
// that limits go by. It returns nil after Shutdown, and closes l in the end.
func (s *Server) ServeWithin(l net.Listener) error {
	which := s.listening()
	which.Encrypts, which.Within = false, true
	err := s.grpc.Serve(wire.Listen(l, s.sending.Go, which))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Authenticates reports whether callers have to say who they are.
func (s *Server) Authenticates() bool { return s.opts.Door.Authenticates() }

// Visitor is somebody who is shown what the server does, beside calls: by a console. What
// he sees is what the action stats would tell him.
type Visitor struct {
	server *Server
	caller fetch.Caller
	leave  func()
}

// Visit finds out whose a token is, as a call would that carries it from an address. gone
// is called, once at most, when the token has ended meanwhile. Where nobody has to say
// who he is the token is not looked at. The caller of Visit calls Leave.
func (s *Server) Visit(ctx context.Context, token string, from net.Addr, gone func(error)) (*Visitor, error) {
	v := &Visitor{server: s, leave: func() {}}
	d := s.opts.Door
	if d.Authenticates() {
		md := metadata.MD{}
		if token != "" {
			md.Set("authorization", "Bearer "+token)
		}
		ctx = metadata.NewIncomingContext(peer.NewContext(ctx, &peer.Peer{Addr: from}), md)
		id, err := d.Authenticate(ctx)
		if err != nil {
			return nil, err
		}
		v.caller = fetch.Caller{Principal: id.Principal, Groups: id.Groups, Tenant: id.Tenant}
		v.leave = d.Watch(id, gone)
	}
	if s.identify != nil {
		v.caller = s.identify(ctx, v.caller)
	}
	return v, nil
}

// Name is the visitor's principal, "" of one who has not to say who he is.
func (v *Visitor) Name() string { return v.caller.Principal }

// Leave ends the watch over the visitor's token.
func (v *Visitor) Leave() { v.leave() }

package flight

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/flight/peer"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// The door for other nodes of the cluster: it is opened by a proof that they know the
// cluster's key, and leads to blobs by their keys. Rules are kept by the node that the
// caller has called, which has asked them before it asks others.

// letInNode lets a node say what it wants, and prove what it is: see meet. Without a key
// of the cluster all are let in where all callers may do everything, and nobody where
// they may not: blobs by their keys are beyond the rules.
func (s *Server) letInNode(ctx context.Context) error {
	if !s.opts.Cluster.Keys.Any() && (s.opts.Door.Authenticates() || s.source.Ruled()) {
		return s.refuseNode(ctx, "the cluster has no key")
	}
	return nil
}

// refuseNode is what a node is told that is not let in. Whoever guesses keys is told no
// more than who guesses tokens, and no more often.
func (s *Server) refuseNode(ctx context.Context, why string) error {
	err := fmt.Errorf("%w: %s", schema.ErrUnauthenticated, why)
	if s.opts.Door.Authenticates() {
		return s.opts.Door.Refuse(ctx, err)
	}
	return err
}

// meet gets to know the node that makes a call, before anything is done for it. It has
// as long for that as a call has to say what it wants. The call ends when the key that
// the node has proven to know is accepted no longer; stop ends that.
func (s *Server) meet(ss grpc.ServerStream, method string) (hello peer.Hello, stop func() bool, err error) {
	ctx, c := ss.Context(), callFrom(ss.Context())
	timeout := s.opts.RequestTimeout
	late := time.AfterFunc(timeout, func() {
		s.calls.killCall(c, fmt.Errorf("%w: the node has not proven what it is, and RequestTimeout is %s",
			schema.ErrLimit, timeout))
	})
	defer late.Stop()
	way := peer.Way{
		Method: method,
		Receive: func() ([]byte, error) {
			var m wrapperspb.BytesValue
			err := ss.RecvMsg(&m)
			return m.GetValue(), err
		},
		Send: func(b []byte) error { return ss.SendMsg(wire.OwnFrame(b)) },
	}
	if way.Binding, err = bindingOf(ctx); err != nil {
		return hello, nil, err
	}
	cluster := s.opts.Cluster
	host := peer.Host{Cluster: cluster.Name, Node: cluster.Node, Keys: cluster.Keys, Protocol: cluster.Protocol,
		Refuse: func(why string) error { return s.refuseNode(ctx, why) }}
	if cluster.Address != nil {
		host.Address = cluster.Address()
	}
	hello, known, err := host.Meet(way)
	if err != nil {
		return hello, nil, err
	}
	return hello, known.Ends(func() {
		s.calls.killCall(c, fmt.Errorf("%w: the key that the node has proven to know is accepted no longer",
			schema.ErrUnavailable))
	}), nil
}

// bindingOf is what tells the connection of a call from all others; nil without TLS.
func bindingOf(ctx context.Context) ([]byte, error) {
	g := wire.ConnOf(ctx)
	if g == nil {
		return nil, nil
	}
	state, ok := g.TLS()
	if !ok {
		return nil, nil
	}
	b, err := peer.Binding(state)
	if err != nil {
		return nil, fmt.Errorf("%w: nodes use TLS 1.3: %w", schema.ErrInvalid, err)
	}
	return b, nil
}

package flight

import (
	"context"
	"errors"
	"fmt"
	"io"

	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"google.golang.org/grpc/metadata"

	"bowstring/flight/auth"
)

const handshakeMethod = "/" + flightService + "/Handshake"

// letIn finds out who makes a call, and returns a context that says so. The
// call ends when what let it in does.
func (s *Server) letIn(ctx context.Context, c *call) (context.Context, error) {
	d := s.opts.Door
	if !d.Open(c.method) {
		if err := s.opts.Sources.Closed(); err != nil {
			return ctx, err
		}
	}
	if isNodes(c.method) && s.opts.Cluster != nil {
		return ctx, s.letInNode(ctx)
	}
	// A handshake says who calls in its own way.
	if !d.Authenticates() || c.method == handshakeMethod || d.Open(c.method) {
		return ctx, nil
	}
	id, err := d.Authenticate(ctx)
	if err != nil {
		return ctx, err
	}
	c.identity = id
	c.leave = d.Watch(id, func(why error) { s.calls.killCall(c, why) })
	return auth.WithIdentity(ctx, id), nil
}

// Handshake answers a client that sends a name and a token as its password, in
// the Authorization header or in the message, with that token in all the places
// where clients look for it.
func (s *Server) Handshake(stream gen.FlightService_HandshakeServer) error {
	if !s.opts.Door.Authenticates() {
		return s.UnimplementedFlightServiceServer.Handshake(stream)
	}
	inMessage := false
	token, id, err := s.opts.Door.Handshake(stream.Context(), func() ([]byte, error) {
		inMessage = true
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return m.GetPayload(), err
	})
	if err != nil {
		return err
	}
	callFrom(stream.Context()).identity = id // for the log
	bearer := metadata.Pairs("authorization", "Bearer "+token)
	if err := stream.SetHeader(bearer); err != nil {
		return fmt.Errorf("sending headers: %w", err)
	}
	stream.SetTrailer(bearer)
	if !inMessage {
		return nil // who sent headers reads headers
	}
	return stream.Send(&gen.HandshakeResponse{Payload: []byte(token)})
}

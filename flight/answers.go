package flight

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"bowstring/fetch"
	"bowstring/flight/wire"
)

// reserveAnswer counts in what a call takes to put an answer together whole, and to keep it until its client has read it.
// Calls of one address wait for their own part: see shares.
func (s *Server) reserveAnswer(ctx context.Context, n int64) (release func(), err error) {
	peer := ""
	if c := callFrom(ctx); c != nil { // there is none where an action is run by itself
		peer = c.host
	}
	return s.answers.Reserve(ctx, peer, fetch.CallerFrom(ctx).Tenant, n)
}

// awaitedBytes is from how many bytes on an answer is waited for until it is written.
const awaitedBytes = 4 * wire.InlineBytes

// written is closed when the bytes of an answer are in the kernel, or are discarded.
type written chan struct{}

// Release implements wire.Releaser.
func (w written) Release() { close(w) }

// answer sends an answer that is no stream's, and returns when it is written. grpc takes a message whatever its length,
// and keeps it until the client reads: meanwhile the call goes on, is one of those that its address may have, and keeps
// what was counted for the answer.
func (c *callStream) answer(m any) error {
	msg, ok := m.(proto.Message)
	if !ok || c.call.lane == nil || proto.Size(msg) < awaitedBytes {
		return c.ServerStream.SendMsg(m)
	}
	b, err := proto.Marshal(msg)
	if err != nil {
		return err
	}
	done := make(written)
	f := wire.NewFrame([]wire.Piece{{Bytes: b, Held: true}}, done, time.Time{})
	if err := c.call.lane.Send(c.ctx, c.ServerStream, f); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

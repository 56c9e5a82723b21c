package flight

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"bowstring/fetch"
	"bowstring/flight/wire"
)

// reserveAnswer reserves n bytes for an answer that is built whole. The caller calls
// release when the client has read it. Calls of one address share a part of the memory and
// wait for it: see [wire.Shares].
func (s *Server) reserveAnswer(ctx context.Context, n int64) (release func(), err error) {
	peer := ""
	if c := callFrom(ctx); c != nil { // nil if an action runs outside of a call
		peer = c.host
	}
	return s.answers.Reserve(ctx, peer, fetch.CallerFrom(ctx).Tenant, n)
}

// awaitedBytes is the size from which the server waits until an answer is written. Smaller
// answers are left to grpc, which copies them.
const awaitedBytes = 4 * wire.InlineBytes

// written is closed when the bytes of an answer are in the kernel, or are discarded.
type written chan struct{}

// Release implements wire.Releaser.
func (w written) Release() { close(w) }

// answer sends the answer of a call that is not a stream, and returns when it is written.
// The obvious SendMsg returns at once: grpc accepts a message of any length and keeps it
// until the client reads. A client that does not read could then collect answers without
// limit. With the wait, the call remains one of those that its address may have, and its
// reservation remains.
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

package wire

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"google.golang.org/grpc"
)

// Lane is what a call has under way on its connection: the frames that grpc was handed and has not freed yet. Each
// frame is released once, by the first of these:
//
//   - grpc has freed all its pieces, as their bytes are written (Conn.retire);
//   - the HTTP/2 stream has ended on the wire (over), or its client has reset it (cut);
//   - the connection has ended (Conn.write).
//
// The last two are needed as grpc drops frames without freeing them: a frame that SendMsg queues behind the end of its
// stream, and all that is queued where a connection breaks. The connection learns of every end, as it sees all frames
// of HTTP/2 in both directions. A batch is released early only where no byte of it is read any more: a connection reads
// nothing of a lane that has ended, and SendMsg has returned.
type Lane struct {
	conn   *Conn
	stream uint32 // its number in HTTP/2

	frames []*Frame // guarded by conn.mu
	listed bool     // in conn.lanes; guarded by conn.mu
	ended  bool     // no frame may be handed to grpc any more; guarded by conn.mu
	cut    bool     // its client has reset it: what grpc still writes of it is replaced by zeros; guarded by conn.mu
	// newest is the newest stream of the connection when it was cut: of a newer one, grpc writes nothing before it has
	// dropped what it had of this one. Guarded by conn.mu.
	newest uint32
}

// errGone says that nothing can be sent any more.
var errGone = fmt.Errorf("%w: the client has ended the call, or its connection has ended", context.Canceled)

// NewLane returns the lane of a call, nil if its connection is plain, or of another kind than Conn.
func NewLane(ctx context.Context) (*Lane, error) {
	conn := ConnOf(ctx)
	if conn == nil || conn.plain {
		return nil, nil
	}
	// grpc keeps the number to itself.
	stream := reflect.ValueOf(grpc.ServerTransportStreamFromContext(ctx))
	if stream.Kind() != reflect.Pointer || stream.Elem().Kind() != reflect.Struct {
		return nil, errTransport
	}
	id := stream.Elem().FieldByName("id")
	if !id.IsValid() || id.Kind() != reflect.Uint32 {
		return nil, errTransport
	}
	return &Lane{conn: conn, stream: uint32(id.Uint())}, nil
}

// Send hands a frame to grpc, by way of its stream. It takes the frame over. ctx is the call's.
func (l *Lane) Send(ctx context.Context, stream MessageStream, f *Frame) error {
	if l == nil || f.batch == nil {
		defer f.discard()
		return stream.SendMsg(f)
	}
	if err := l.expect(ctx, f); err != nil {
		f.release()
		return err
	}
	defer l.sent(f)
	return stream.SendMsg(f)
}

// expect announces a frame to the connection that grpc is about to get.
func (l *Lane) expect(ctx context.Context, f *Frame) error {
	g := l.conn
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing || g.writeErr != nil {
		return errGone
	}
	if !l.listed && !l.ended {
		g.lanes[l.stream], l.listed = l, true
	}
	// The context ends before the connection learns that the client has reset the stream.
	// If it has not ended by now, the end is still to come, and finds this lane.
	if ctx.Err() != nil {
		if len(l.frames) == 0 {
			l.endLocked()
		}
		return context.Cause(ctx)
	}
	if l.ended {
		return errGone
	}
	f.lane, f.sending = l, true
	l.frames = append(l.frames, f)
	return nil
}

// sent says that SendMsg has returned: grpc has queued the frame, has freed it, or has dropped it.
func (l *Lane) sent(f *Frame) {
	g := l.conn
	g.mu.Lock()
	f.sending = false
	var free []*Frame
	if !f.adopted || l.ended {
		free = g.retireLocked(f)
		if !l.cut || !f.adopted {
			l.forgetLocked(f)
		}
	}
	g.mu.Unlock()
	releaseAll(free)
}

// endLocked takes the lane out of its connection, where the stream has ended.
func (l *Lane) endLocked() {
	l.ended = true
	if !l.listed {
		return
	}
	delete(l.conn.lanes, l.stream)
	l.listed = false
	if l.cut {
		l.conn.cut--
	}
}

// releaseLocked has the frames released, now that the lane has ended, and returns those
// that can be at once: the others are once the kernel has got what is pending. A message
// that SendMsg has is released by sent.
func (l *Lane) releaseLocked() (free []*Frame) {
	for _, f := range l.frames {
		if !f.sending {
			free = append(free, l.conn.retireLocked(f)...)
		}
	}
	return free
}

// next returns b as part of its piece, if it is what comes next of a frame; else nil. The connection's mu is held.
func (l *Lane) next(b []byte) []byte {
	for _, f := range l.frames {
		if part := f.next(b); part != nil {
			l.conn.resident = sooner(l.conn.resident, f.resident)
			return part
		}
	}
	return nil
}

// forgetLocked is called where grpc can write no more of a frame.
func (l *Lane) forgetLocked(f *Frame) {
	if i := slices.Index(l.frames, f); i >= 0 {
		l.frames = slices.Delete(l.frames, i, i+1)
	}
	if l.cut && len(l.frames) == 0 {
		l.endLocked()
	}
}

// overLocked ends a lane whose stream grpc has ended on the wire: it has freed all that it had queued until then, and
// drops what comes later. Bytes of the stream's end are pending.
func (l *Lane) overLocked() {
	l.endLocked()
	l.releaseLocked()
	l.frames = slices.DeleteFunc(l.frames, func(f *Frame) bool { return !f.sending })
}

// reset ends lanes whose clients have reset the streams, where grpc has dealt with that: what it puts into its queue of
// them from now on it drops, and what is there already it frees, or still writes some of.
func (g *Conn) reset(streams []uint32) {
	var free []*Frame
	g.mu.Lock()
	for _, id := range streams {
		l := g.lanes[id]
		if l == nil || l.cut {
			continue
		}
		l.ended, l.cut, l.newest = true, true, g.reading.newest
		g.cut++
		free = append(free, l.releaseLocked()...)
		if len(l.frames) == 0 {
			l.endLocked()
		}
	}
	g.mu.Unlock()
	releaseAll(free)
}

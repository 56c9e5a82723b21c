package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"bowstring/schema"
)

// resetFrame is a RST_STREAM.
func resetFrame(stream uint32) []byte {
	h := dataHeader(stream, 4)
	h[3] = typeReset
	return append(h, 0, 0, 0, 8)
}

// headersFrame has those of a request or an answer.
func headersFrame(stream uint32) []byte {
	h := dataHeader(stream, 0)
	h[3] = typeHeaders
	return h
}

// sentFrame is a frame of one piece that grpc has queued, or dropped. Its bytes cannot be read, as if its batch had
// been released already: a connection that reads them fails.
func sentFrame(t *testing.T, l *Lane, out *atomic.Int64) *Frame {
	t.Helper()
	out.Add(1)
	b := &schema.Batch{Blobs: [][]schema.Blob{{schema.NewBlob(nil, counted{out})}}}
	f := NewFrame([]Piece{{Bytes: cutShort(t, 10*InlineBytes), Held: true}}, b, time.Time{})
	if err := l.expect(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	f.buffers()
	return f
}

// see has g read what its client sends.
func see(t *testing.T, g *Conn, peer net.Conn, sent []byte) {
	t.Helper()
	if _, err := peer.Write(sent); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(g, make([]byte, len(sent))); err != nil {
		t.Fatal(err)
	}
}

// Bytes that grpc has dropped from a stream that its client has reset are released once
// the transport knows of the reset. Bytes that it writes after that go out as zeros.
func TestResetReleases(t *testing.T) {
	g, peer := gathered(t)
	var out atomic.Int64
	l := laneFor(g, 1)
	f := sentFrame(t, l, &out)
	l.sent(f)
	late := sentFrame(t, l, &out)
	see(t, g, peer, slices.Concat(make([]byte, clientPreface), headersFrame(1), resetFrame(1)))
	if out.Load() != 2 {
		t.Fatal("a frame was released before the transport knew of the reset")
	}
	see(t, g, peer, resetFrame(3))
	if n := out.Load(); n != 1 {
		t.Fatalf("%d frames are held; want that which grpc's SendMsg has", n)
	}
	l.sent(late)
	if n := out.Load(); n != 0 {
		t.Fatalf("%d frames are held", n)
	}
	if err := l.expect(t.Context(), f); !errors.Is(err, context.Canceled) {
		t.Errorf("a frame is expected after the end: %v", err)
	}
	b := f.pieces[0].Bytes
	for _, part := range [][]byte{dataHeader(1, len(b)), b[:10], b[10:]} {
		if _, err := g.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, frameHeader+len(b))
	if _, err := io.ReadFull(peer, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[frameHeader:], make([]byte, len(b))) {
		t.Error("other than zeros were sent of a stream that was reset")
	}
	lanes := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.lanes) + g.cut
	}
	if lanes() != 2 {
		t.Error("a lane is forgotten while grpc may write of it")
	}
	see(t, g, peer, headersFrame(5))
	if _, err := g.Write(headersFrame(5)); err != nil { // after the reset: grpc has dropped what it had of stream 1
		t.Fatal(err)
	}
	if n := lanes(); n != 0 {
		t.Errorf("%d lanes are left", n)
	}
}

// A stream that is reset while grpc is about to write of it keeps its lane until grpc has freed its frames.
func TestResetWhileWriting(t *testing.T) {
	g, peer := gathered(t)
	var out atomic.Int64
	l := laneFor(g, 1)
	f := sentFrame(t, l, &out)
	l.sent(f)
	see(t, g, peer, slices.Concat(make([]byte, clientPreface), resetFrame(1)))
	see(t, g, peer, resetFrame(3))
	if out.Load() != 0 {
		t.Fatal("a frame is held")
	}
	f.Put(nil) // grpc frees its only piece
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lanes) != 0 || g.cut != 0 {
		t.Errorf("%d lanes are left", len(g.lanes))
	}
}

// The rest of a stream is released after grpc has written its end, once pending bytes are
// out.
func TestEndReleases(t *testing.T) {
	trailers := dataHeader(1, 0)
	trailers[3], trailers[4] = typeHeaders, flagEndStream
	for name, end := range map[string][]byte{"reset": resetFrame(1), "trailers": trailers} {
		t.Run(name, func(t *testing.T) {
			g, _ := gathered(t)
			var out, other atomic.Int64
			l, another := laneFor(g, 1), laneFor(g, 3)
			l.sent(sentFrame(t, l, &out))
			another.sent(sentFrame(t, another, &other))
			if _, err := g.Write(end); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the frame", func() bool { return out.Load() == 0 })
			if other.Load() != 1 {
				t.Error("a frame of another stream was released")
			}
			_ = g.Close()
			waitFor(t, "the frame of another stream", func() bool { return other.Load() == 0 })
			if err := another.expect(t.Context(), &Frame{}); !errors.Is(err, context.Canceled) {
				t.Errorf("a frame is expected on a closed connection: %v", err)
			}
		})
	}
}

// queueing is a message of a frame that stops where grpc is about to queue it: grpc has looked whether the stream has
// ended, and takes its reference.
type queueing struct {
	*Frame
	stop func()
}

// queueingCodec sends those.
type queueingCodec struct{ codec }

// stoppingBuffer calls stop when somebody takes a reference.
type stoppingBuffer struct {
	mem.Buffer
	stop func()
}

// Ref implements mem.Buffer.
func (b stoppingBuffer) Ref() {
	b.stop()
	b.Buffer.Ref()
}

// Marshal implements encoding.CodecV2.
func (c queueingCodec) Marshal(v any) (mem.BufferSlice, error) {
	q, ok := v.(queueing)
	if !ok {
		return c.codec.Marshal(v)
	}
	list := q.buffers()
	list[0] = stoppingBuffer{list[0], q.stop}
	return list, nil
}

// grpc drops a frame without freeing it that it queues behind its stream's end, and the frames of a connection that
// breaks. Each is released all the same, when the stream or the connection ends, and not before SendMsg has returned.
// If this fails with a new release of grpc at "freed", that release frees what it drops; at anything else, lane does
// not know how its transport ends streams.
func TestGrpcDropsFrames(t *testing.T) {
	for _, how := range []string{"cancel", "deadline", "cut"} {
		t.Run(how, func(t *testing.T) {
			var out atomic.Int64
			var left atomic.Int32
			sent := make(chan error, 1)
			ready := make(chan struct{})
			send := func(s grpc.ServerStream) error {
				l, err := NewLane(s.Context())
				if err != nil {
					return err
				}
				b, want := encodable(t, schema.LayoutLargeBinary, 64, 20_000, 3, &out)
				want.Release()
				enc := newEncoder(b.Schema)
				first, err := enc.schemaFrame()
				if err != nil {
					return err
				}
				f, err := enc.batchFrame(b, math.MaxInt64, nil, time.Time{})
				if err != nil {
					return err
				}
				if err := s.SendMsg(first); err != nil {
					return err
				}
				if err := l.expect(s.Context(), f); err != nil {
					return err
				}
				err = s.SendMsg(queueing{f, func() {
					if how == "cut" { // queued messages are in the transport when the connection breaks
						return
					}
					close(ready)
					// Events of the connection: no test can wait for them otherwise.
					for ended := false; !ended; time.Sleep(time.Millisecond) {
						l.conn.mu.Lock()
						ended = l.ended
						l.conn.mu.Unlock()
					}
					if out.Load() == 0 {
						t.Error("a batch was released while SendMsg had it")
					}
				}})
				if how == "cut" {
					close(ready)
					<-s.Context().Done()
				}
				l.sent(f)
				left.Store(f.left.Load())
				sent <- err
				return err
			}
			client, conns := frameClient(t, send, grpc.ForceServerCodecV2(queueingCodec{codec{encoding.GetCodecV2("proto"), false}}))
			ctx, cancel := context.WithCancel(t.Context())
			if how == "deadline" {
				// The call has to be queued before the deadline, however busy the machine is.
				ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
			}
			defer cancel()
			stream, err := client.DoGet(ctx, &flight.Ticket{})
			if err != nil {
				t.Fatal(err)
			}
			conn := <-conns
			<-ready
			if how == "deadline" {
				conn.(*silentConn).mute.Store(true) // else the client's reset may be first
			}
			switch how {
			case "cancel":
				cancel()
			case "cut":
				waitFor(t, "the window to be full", func() bool { return conn.(*silentConn).came.Load() > 64<<10 })
				_ = conn.Close()
			}
			<-sent
			waitFor(t, "every blob", func() bool { return out.Load() == 0 })
			if left.Load() == 0 {
				t.Error("freed: grpc has freed what it has dropped")
			}
			for err == nil {
				_, err = stream.Recv()
			}
		})
	}
}

// silentConn is a client's connection that can stop to send.
type silentConn struct {
	net.Conn
	mute atomic.Bool
	came atomic.Int64 // bytes
}

// Read implements net.Conn.
func (c *silentConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.came.Add(int64(n))
	return n, err
}

// Write implements net.Conn.
func (c *silentConn) Write(b []byte) (int, error) {
	if c.mute.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// The reader finds streams that are reset wherever reads cut what the client sends.
func TestResetsAreSeen(t *testing.T) {
	stream := slices.Concat(make([]byte, clientPreface), settings(false, 4, 65_535), resetFrame(7),
		dataHeader(1, 30), bytes.Repeat([]byte{0, 0, 4, 3, 0}, 6), // looks like a reset
		resetFrame(9))
	binary.BigEndian.PutUint32(stream[len(stream)-8:], 1<<31|9) // the reserved bit says nothing
	for n := 1; n < len(stream); n++ {
		var r settingsReader
		for rest := stream; len(rest) > 0; rest = rest[min(n, len(rest)):] {
			r.see(rest[:min(n, len(rest))])
		}
		if !slices.Equal(r.resets, []uint32{7, 9}) {
			t.Fatalf("%d bytes at a time: streams %v", n, r.resets)
		}
	}
}

// A stream counts as reset when the whole frame has come: a call may begin to send between its header and the rest.
func TestResetInParts(t *testing.T) {
	g, peer := gathered(t)
	var out atomic.Int64
	l := laneFor(g, 1)
	reset := resetFrame(1)
	see(t, g, peer, slices.Concat(make([]byte, clientPreface), headersFrame(1), reset[:frameHeader]))
	see(t, g, peer, reset[frameHeader:frameHeader+1])
	l.sent(sentFrame(t, l, &out))
	see(t, g, peer, reset[frameHeader+1:])
	see(t, g, peer, resetFrame(3))
	if n := out.Load(); n != 0 {
		t.Errorf("%d frames are held of a stream that was reset", n)
	}
}

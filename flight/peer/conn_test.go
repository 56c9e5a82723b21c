package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

// framed is a frame as it goes over a connection.
func framed(kind byte, message []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(message)))
	return append(append(b, kind), message...)
}

// connTo returns the asking side of a call. serve runs on the other side after the preface
// and the method have arrived. The unread rest is read before the connection is closed,
// because a close with unread data would discard what was sent.
func connTo(t *testing.T, serve func(far net.Conn)) *Conn {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		want := append([]byte(Preface), framed(frameMessage, []byte("/x"))...)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("a call begins with %q, %v; want %q", got, err, want)
			return
		}
		serve(conn)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	})
	c, end, err := Connect(t.Context(), lis.Addr().String(), nil, "/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end()
		_ = lis.Close()
		serving.Wait()
	})
	return c
}

// Messages arrive as they were sent, with any frames between them; then comes the end.
func TestConnReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	want := make([][]byte, 50)
	var all []byte
	for i := range want {
		want[i] = make([]byte, []int{0, 1, 1 + rng.IntN(1000), rng.IntN(500_000)}[rng.IntN(4)])
		for j := range want[i] {
			want[i][j] = byte(rng.Uint32())
		}
		all = append(all, framed(frameMessage, want[i])...)
		if rng.IntN(2) == 0 {
			all = append(all, framed([]byte{framePing, framePong}[rng.IntN(2)], nil)...)
		}
	}
	all = append(all, framed(frameEnd, append([]byte{14, 0, 0, 0}, "gone"...))...)
	c := connTo(t, func(far net.Conn) {
		for b := all; len(b) > 0; {
			n := min(len(b), 1+rng.IntN(100_000))
			if _, err := far.Write(b[:n]); err != nil {
				t.Error(err)
				return
			}
			b = b[n:]
		}
	})
	counted := &counting{}
	c.Memory = counted
	for i := range want {
		if i%5 == 4 { // the unread rest is skipped
			if n, err := c.next(maxMessage); err != nil || n != len(want[i]) {
				t.Fatalf("message %d has %d bytes, %v; want %d", i, n, err, len(want[i]))
			}
			continue
		}
		got, err := c.Receive(maxMessage)
		if err != nil || !bytes.Equal(got, want[i]) {
			t.Fatalf("message %d is another one, of %d bytes, %v", i, len(got), err)
		}
		if n := cap(c.message); n > keptBytes && counted.n != n || n <= keptBytes && counted.n != 0 {
			t.Fatalf("message %d takes %d bytes, and %d are counted", i, n, counted.n)
		}
	}
	if _, err := c.Receive(maxMessage); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "gone" {
		t.Errorf("the call ends with %v", err)
	}
}

// counting is a Memory without a limit.
type counting struct{ n int }

func (c *counting) Grow(n int64) error { c.n += int(n); return nil }
func (c *counting) Shrink(n int64)     { c.n -= int(n) }

// A frame that is not allowed ends the call. It takes no memory before its bytes have
// arrived.
func TestConnHostile(t *testing.T) {
	head := func(n uint32, kind byte) []byte { return append(binary.LittleEndian.AppendUint32(nil, n), kind) }
	for name, test := range map[string]struct {
		sent []byte
		want error
	}{
		"a message too long":     {head(101, frameMessage), schema.ErrInvalid},
		"one of 4 GiB":           {head(1<<32-1, frameMessage), schema.ErrInvalid},
		"another kind":           {head(0, 4), schema.ErrInvalid},
		"a ping that says more":  {framed(framePing, []byte("x")), schema.ErrInvalid},
		"a pong that says more":  {framed(framePong, []byte("x")), schema.ErrInvalid},
		"an end too long":        {head(maxEnd+1, frameEnd), schema.ErrInvalid},
		"an end without a code":  {framed(frameEnd, []byte{1, 2}), schema.ErrUnavailable},
		"half an end":            {framed(frameEnd, make([]byte, 100))[:20], ErrBroken},
		"half a message":         {framed(frameMessage, make([]byte, 100))[:50], ErrBroken},
		"half a head":            {head(0, frameMessage)[:3], ErrBroken},
		"nothing":                {nil, ErrBroken},
		"the end, and all is ok": {framed(frameEnd, make([]byte, 4)), io.EOF},
	} {
		c := connTo(t, func(far net.Conn) { _, _ = far.Write(test.sent) })
		if got, err := c.Receive(100); !errors.Is(err, test.want) || got != nil {
			t.Errorf("%s: %d bytes, %v; want %v", name, len(got), err, test.want)
		}
		if cap(c.message) > keptBytes {
			t.Errorf("%s: %d bytes were taken", name, cap(c.message))
		}
	}
	c := connTo(t, func(far net.Conn) { _, _ = far.Write(append(head(MaxAsking, frameMessage), 1)) })
	if _, err := c.Receive(MaxAsking); !errors.Is(err, ErrBroken) || cap(c.message) > keptBytes {
		t.Errorf("a byte of a long message: %v, and %d bytes were taken", err, cap(c.message))
	}
}

// A pinged side answers, and messages of several goroutines arrive whole.
func TestConnSends(t *testing.T) {
	const each, senders = 100, 4
	over := make(chan struct{})
	c := connTo(t, func(far net.Conn) {
		if _, err := far.Write(framed(framePing, nil)); err != nil {
			t.Error(err)
		}
		other := newConn(dialled{far}, nil, nil)
		for messages := 0; messages < each*senders; messages++ {
			b, err := other.Receive(1 << 20)
			if err != nil {
				t.Error(err)
				return
			}
			if len(b) != 1+1000*int(b[0]) || bytes.Count(b, b[:1]) != len(b) {
				t.Errorf("a message of %d bytes is mixed with another", len(b))
			}
		}
		if err := other.End(codes.OK, ""); err != nil {
			t.Error(err)
		}
	})
	go func() {
		defer close(over)
		if _, err := c.Receive(0); !errors.Is(err, io.EOF) {
			t.Errorf("the end: %v", err)
		}
	}()
	var sending sync.WaitGroup
	for i := range byte(senders) {
		sending.Go(func() {
			for range each {
				if err := c.Send(bytes.Repeat([]byte{i}, 1+1000*int(i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sending.Wait()
	<-over
	// Nothing else is being sent now.
	asked := connTo(t, func(far net.Conn) {
		if _, err := far.Write(framed(framePing, nil)); err != nil {
			t.Error(err)
		}
		b := make([]byte, FrameHead)
		if _, err := io.ReadFull(far, b); err != nil || !bytes.Equal(b, framed(framePong, nil)) {
			t.Errorf("the answer is %q, %v", b, err)
		}
	})
	if _, err := asked.Receive(0); !errors.Is(err, ErrBroken) {
		t.Errorf("the end: %v", err)
	}
}

// A write to a side that does not read ends. A write that holds the lock does not keep the
// watch from noticing the silence.
func TestWritesEnd(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	if err := (dialled{here}).WriteBuffers(net.Buffers{[]byte("ping")}, time.Time{}, time.Now()); !errors.Is(err,
		os.ErrDeadlineExceeded) {
		t.Errorf("without a receiver: %v", err)
	}
	// The time is that of one write.
	c := newConn(dialled{here}, nil, nil)
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := c.Send([]byte("pong")); err != nil {
			t.Error(err)
		}
	})
	b := make([]byte, FrameHead+4)
	if _, err := io.ReadFull(there, b); err != nil || string(b[FrameHead:]) != "pong" {
		t.Errorf("%q, %v", b, err)
	}
	writing.Wait()
	// Nothing follows an incomplete message.
	_ = there.Close()
	first, second := c.Send([]byte("x")), c.Send([]byte("y"))
	if !errors.Is(first, ErrBroken) || !errors.Is(second, ErrBroken) {
		t.Errorf("on a broken connection: %v, then %v", first, second)
	}
}

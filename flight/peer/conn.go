package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

const (
	// ALPN is the name by which TLS knows a connection between nodes. A server that
	// accepts both protocols at one port distinguishes them by it.
	ALPN = "bowstring-peer/1"
	// Preface begins a connection between nodes without TLS. No HTTP/2 connection begins
	// with it.
	Preface = ALPN + "\n"
	// MaxMethod bounds the name of a method in bytes.
	MaxMethod = 64
	// MaxHello bounds each message of the handshake.
	MaxHello = 64 << 10
	// MaxAsking bounds all other messages of the requesting side.
	MaxAsking = 8 << 20
	// FrameHead is the length of a frame's head: the length of the message u32, and the
	// kind of the frame u8.
	FrameHead = 5
	// readBuffer bounds the bytes that are read before a frame's head. At most this many bytes of a
	// blob are copied twice.
	readBuffer = 8 << 10
	// maxEnd bounds the frame that ends a call: a gRPC code u32, and a text.
	maxEnd = 4 << 10
	// keptBytes is how much memory is kept from one message to the next, and how much is
	// allocated before any byte of a message has arrived.
	keptBytes = 64 << 10
	// writeTime is how long a write may make no progress. A long message has more time, at
	// leastRate bytes a second.
	writeTime = time.Minute
	leastRate = 1 << 20
)

// Kinds of frames. All numbers are little-endian.
const (
	frameMessage = iota
	framePing    // requests a pong
	framePong    // answers a ping
	frameEnd     // the sender has ended the call
)

// ErrBroken says that a connection has ended without a frameEnd, or cannot be used any
// more.
var ErrBroken = errors.New("the connection to the other node has broken")

// Transport carries the bytes of frames. One goroutine reads. One goroutine at a time
// writes.
type Transport interface {
	io.Reader
	// WriteBuffers writes all of list before the time until. It may change the list.
	// resident is the time until which the bytes are known to be in memory; zero if they
	// always are.
	WriteBuffers(list net.Buffers, resident, until time.Time) error
	// Interrupt makes reads fail at once, and writes soon.
	Interrupt()
}

// Memory accounts for the memory of messages.
type Memory interface {
	Grow(n int64) error
	Shrink(n int64)
}

// Conn is a call between two nodes, over a connection of its own. Each message is a frame:
// its length, its kind, and its bytes. One goroutine receives. Any goroutine may send.
type Conn struct {
	// Memory accounts for messages longer than 64 KiB; nil for none. It is set before the
	// first of them.
	Memory Memory

	transport Transport
	binding   []byte       // identifies the TLS connection, see Binding; nil without TLS
	made      time.Time    // the origin of last
	last      atomic.Int64 // time of the last received byte, in nanoseconds since made
	heard     func()       // called when bytes of a message have arrived; nil for none
	reading   atomic.Bool  // the receiving goroutine waits for bytes

	// Fields of the receiving goroutine.
	in      *bufio.Reader
	vectors *vectorReader // only on the asking side without TLS, on systems with readv
	left    int           // unread bytes of the current message
	message []byte        // the result of the last Receive

	writing sync.Mutex
	broken  error // why sending is impossible; guarded by writing
}

// Accept returns the answering side of a call whose preface was read. The caller closes the
// transport.
func Accept(t Transport, binding []byte) *Conn { return newConn(t, binding, nil) }

// newConn returns a call over t. heard may be nil.
func newConn(t Transport, binding []byte, heard func()) *Conn {
	c := &Conn{transport: t, binding: binding, made: time.Now(), heard: heard}
	c.in = bufio.NewReaderSize(tracked{c}, readBuffer)
	return c
}

// dialled is the transport of the requesting side.
type dialled struct{ net.Conn }

// WriteBuffers implements Transport.
func (d dialled) WriteBuffers(list net.Buffers, _, until time.Time) error {
	if err := d.SetWriteDeadline(until); err != nil {
		return err
	}
	_, err := list.WriteTo(d.Conn)
	return err
}

// Interrupt implements Transport. The requesting side sends no frameEnd, so it may close.
func (d dialled) Interrupt() { _ = d.Close() }

// Connect connects to a node and begins a call of a method. It does not wait for an answer.
// config is nil for no TLS. heard, if not nil, is called whenever bytes arrive. The
// connection ends with ctx, or by end, which the caller calls.
func Connect(ctx context.Context, address string, config *tls.Config, method string,
	heard func()) (c *Conn, end func(), err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	var binding []byte
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{ALPN}
		if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
			config.ServerName = host
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, nil, errors.Join(err, conn.Close())
		}
		if binding, err = Binding(secure.ConnectionState()); err != nil {
			return nil, nil, errors.Join(err, secure.Close())
		}
		conn = secure
	}
	c = newConn(dialled{conn}, binding, heard)
	if config == nil {
		c.vectors = newVectorReader(conn) // with TLS bytes must be decrypted first
		_, err = conn.Write([]byte(Preface))
	}
	stop := context.AfterFunc(ctx, c.transport.Interrupt) // reads and writes fail then
	end = func() {
		stop()
		c.transport.Interrupt()
	}
	if err == nil {
		err = c.Send([]byte(method))
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// Way returns the path of a handshake for a method.
func (c *Conn) Way(method string) Way {
	return Way{Method: method, Binding: c.binding, Send: c.Send,
		Receive: func() ([]byte, error) { return c.Receive(MaxHello) }}
}

// Interrupt makes reads fail at once, and writes soon.
func (c *Conn) Interrupt() { c.transport.Interrupt() }

// Send sends a message, which it copies.
func (c *Conn) Send(message []byte) error {
	b := make([]byte, FrameHead, FrameHead+len(message))
	return c.send(frameMessage, net.Buffers{append(b, message...)}, time.Time{})
}

// SendBuffers sends a message of several pieces without a copy. The first piece begins with
// FrameHead bytes for the head, which are not part of the message. When it returns, nothing
// reads the pieces any more. resident is as for Transport.
func (c *Conn) SendBuffers(list net.Buffers, resident time.Time) error {
	return c.send(frameMessage, list, resident)
}

// End ends the call with a gRPC code and a text. Nothing may be sent afterwards.
func (c *Conn) End(code codes.Code, why string) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, FrameHead), uint32(code))
	return c.send(frameEnd, net.Buffers{append(b, why[:min(len(why), maxEnd-4)]...)}, time.Time{})
}

// send sends a frame. A failure is final: a frame may be incomplete, so all later sends
// fail with the same error.
func (c *Conn) send(kind byte, list net.Buffers, resident time.Time) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.sendLocked(kind, list, resident)
}

func (c *Conn) sendLocked(kind byte, list net.Buffers, resident time.Time) error {
	if c.broken != nil {
		return c.broken
	}
	n := -FrameHead
	for _, b := range list {
		n += len(b)
	}
	binary.LittleEndian.PutUint32(list[0], uint32(n))
	list[0][4] = kind
	until := time.Now().Add(writeTime + time.Duration(n/leastRate)*time.Second)
	if err := c.transport.WriteBuffers(list, resident, until); err != nil {
		c.broken = fmt.Errorf("%w: %w", ErrBroken, err) // a frame may be incomplete
	}
	return c.broken
}

// trySend sends a frame without a message, unless another goroutine is sending. In that
// case the other frame shows as well that this side is alive.
func (c *Conn) trySend(kind byte) (sent bool) {
	if !c.writing.TryLock() {
		return false
	}
	defer c.writing.Unlock()
	_ = c.sendLocked(kind, net.Buffers{make([]byte, FrameHead)}, time.Time{}) // the receiving goroutine reports errors
	return true
}

// tracked reads from the transport and notes the time.
type tracked struct{ *Conn }

// Read implements io.Reader.
func (t tracked) Read(p []byte) (int, error) {
	t.reading.Store(true)
	n, err := t.transport.Read(p)
	t.came()
	return n, err
}

// came notes that a read has returned.
func (c *Conn) came() {
	c.last.Store(int64(time.Since(c.made)))
	c.reading.Store(false)
}

// next waits for a message of at most most bytes and returns its length. It skips the
// unread rest of the previous message.
func (c *Conn) next(most int) (int, error) {
	if err := discard(c, c.left); err != nil {
		return 0, err
	}
	for {
		var head [FrameHead]byte
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			return 0, lost(err)
		}
		n, kind := binary.LittleEndian.Uint32(head[:]), head[4]
		switch {
		case kind == frameMessage && int64(n) <= int64(most):
			c.left = int(n)
			if c.heard != nil {
				c.heard()
			}
			return c.left, nil
		case kind == framePing && n == 0:
			c.trySend(framePong)
		case kind == framePong && n == 0:
		case kind == frameEnd && n <= maxEnd:
			return 0, c.over(int(n))
		default:
			return 0, &schema.FieldError{Field: "frame", Got: fmt.Sprintf("one of kind %d and %d bytes", kind, n),
				Want: fmt.Sprintf("a message of up to %d bytes", most)}
		}
	}
}

// over reads the other side's reason for the end of the call. It returns io.EOF if the code
// is OK.
func (c *Conn) over(n int) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(c.in, b); err != nil {
		return lost(err)
	}
	if n < 4 {
		return errAnswers
	}
	if code := codes.Code(binary.LittleEndian.Uint32(b)); code != codes.OK {
		return status.Error(code, string(b[4:]))
	}
	return io.EOF
}

// lost returns the error of a connection that has ended without a frameEnd.
func lost(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// Read implements io.Reader for the bytes of the current message.
func (c *Conn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	return n, c.got(n, err)
}

// fill reads the bytes that are available, at least one, into several places in order. The
// places must not be empty, and not larger than the rest of the message.
func (c *Conn) fill(to [][]byte) (int, error) {
	if c.vectors == nil || c.in.Buffered() > 0 {
		return c.Read(to[0])
	}
	c.reading.Store(true)
	n, err := c.vectors.read(to, c.left)
	c.came()
	return n, c.got(n, err)
}

// got notes that n bytes of the message were read.
func (c *Conn) got(n int, err error) error {
	c.left -= n
	if err != nil {
		return lost(err)
	}
	if c.heard != nil {
		c.heard()
	}
	return nil
}

// Receive waits for a message of at most most bytes and returns all of it. The memory is
// valid until the next call. Its errors are those of next. It allocates as bytes arrive and
// not when their number is announced: an announcement costs the other side nothing.
func (c *Conn) Receive(most int) ([]byte, error) {
	if n := cap(c.message); n > keptBytes {
		c.message = nil
		if c.Memory != nil {
			c.Memory.Shrink(int64(n))
		}
	}
	n, err := c.next(most)
	if err != nil {
		return nil, err
	}
	b := c.message[:0]
	for len(b) < n {
		if len(b) == cap(b) {
			if b, err = c.grow(b, min(n, max(2*len(b), keptBytes))); err != nil {
				return nil, err
			}
		}
		to := b[len(b):min(n, cap(b))]
		if _, err := io.ReadFull(c, to); err != nil {
			return nil, err
		}
		b = b[:len(b)+len(to)]
	}
	c.message = b
	return b, nil
}

// grow returns b with capacity for n bytes. It accounts for the memory first.
func (c *Conn) grow(b []byte, n int) ([]byte, error) {
	if c.Memory != nil && n > keptBytes {
		more := n
		if cap(b) > keptBytes {
			more -= cap(b)
		}
		if err := c.Memory.Grow(int64(more)); err != nil {
			return nil, err
		}
	}
	larger := append(make([]byte, 0, n), b...)
	c.message = larger
	return larger, nil
}

// Watch pings the other side after a long silence, and calls end if there is no answer. It
// does not count time in which this side does not read. It returns when ctx ends.
func (c *Conn) Watch(ctx context.Context, end func(error)) {
	tick := time.NewTicker(keepaliveAnswer)
	defer tick.Stop()
	quiet := quiet{looked: time.Now()}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		if !c.reading.Load() {
			c.last.Store(int64(now.Sub(c.made)))
		}
		heard := c.made.Add(time.Duration(c.last.Load()))
		switch quiet.check(now, heard) {
		case excused:
			c.last.Store(int64(time.Since(c.made)))
		case gone:
			end(fmt.Errorf("%w: it has said nothing for %s", ErrBroken, now.Sub(heard).Round(time.Second)))
			return
		case doubted:
			if !c.trySend(framePing) { // another send is blocked; writeTime bounds that
				quiet.asked = time.Time{}
			}
		case lively:
		}
	}
}

// quiet tracks the silence of the other side. Watch's goroutine uses it.
type quiet struct {
	looked time.Time // time of the last check
	asked  time.Time // time of the last ping
}

// liveness is the result of a check of the other side.
type liveness int

const (
	lively  liveness = iota
	doubted          // it must be pinged
	excused          // this process was paused: bytes may have arrived unread
	gone
)

// check is called about every keepaliveAnswer, with the time at which the other side was
// last heard. A side is gone only after a ping. The age of the silence alone would not do:
// checks can be late, and then silence is longer than it should have become.
func (q *quiet) check(now, heard time.Time) liveness {
	late := now.Sub(q.looked) > 2*keepaliveAnswer
	q.looked = now
	switch {
	case late:
		return excused
	case now.Sub(heard) < keepaliveTime:
		return lively
	case !q.asked.After(heard):
		q.asked = now
		return doubted
	case now.Sub(q.asked) < keepaliveAnswer/2: // after a late check the next one follows soon
		return lively
	}
	return gone
}

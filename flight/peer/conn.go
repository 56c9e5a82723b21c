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
	// Preface begins a connection between nodes without TLS. No connection of HTTP/2 begins like it.
	Preface = ALPN + "\n"
	// MaxMethod is how long a method's name may be.
	MaxMethod = 64
	// MaxHello is how long a message may be by which nodes meet.
	MaxHello = 64 << 10
	// MaxAsking is how long any other message of the asking side may be.
	MaxAsking = 8 << 20
	// FrameHead is how long the head of a frame is: the length of what follows u32, and the kind of the frame u8.
	FrameHead = 5
	// readBuffer bounds the bytes that are read before a frame's head. At most this many bytes of a
	// blob are copied twice.
	readBuffer = 8 << 10
	// maxEnd is how long the frame that ends a call may be: a code of gRPC u32, and a text.
	maxEnd = 4 << 10
	// keptBytes is how long the memory for messages is that is kept from one to the next, and how much is made ready
	// before any byte of one has come.
	keptBytes = 64 << 10
	// writeTime is for how long a write may find no room, and leastRate how many bytes a second it has to make besides.
	writeTime = time.Minute
	leastRate = 1 << 20
)

// Kinds of frames. All numbers are little-endian.
const (
	frameMessage = iota
	framePing    // is the other side there?
	framePong    // it is
	frameEnd     // the side that sends it has nothing more to say
)

// ErrBroken says that a connection has ended without a word, or is of no use any more.
var ErrBroken = errors.New("the connection to the other node has broken")

// Transport is what frames go over. One goroutine reads, and one at a time writes.
type Transport interface {
	io.Reader
	// WriteBuffers writes all of a list until a time. It may change the list. resident is until when the bytes are known
	// to be in memory, zero for always.
	WriteBuffers(list net.Buffers, resident, until time.Time) error
	// Interrupt ends reads at once, and writes soon.
	Interrupt()
}

// Memory counts the memory that messages take.
type Memory interface {
	Grow(n int64) error
	Shrink(n int64)
}

// Conn is a call between two nodes, over a connection of its own. Each message is a frame: its length, its kind, and its
// bytes. One goroutine receives, any may send.
type Conn struct {
	// Memory counts what messages take that are longer than 64 KiB; nil does not. It is set before the first of them.
	Memory Memory

	transport Transport
	binding   []byte       // of TLS, see Binding; nil without
	made      time.Time    // what last counts from
	last      atomic.Int64 // when anything came, in nanoseconds
	heard     func()       // called when bytes of a message have come; nil for none
	reading   atomic.Bool  // the goroutine that receives waits for bytes

	// Fields of the receiving goroutine.
	in      *bufio.Reader
	vectors *vectorReader // nil where there is none
	left    int           // bytes of the present message that are still to come
	message []byte        // what Receive has returned last

	writing sync.Mutex
	broken  error // why nothing can be sent any more; guarded by writing
}

// Accept returns the answering side of a call, whose preface has come already. The caller closes the transport.
func Accept(t Transport, binding []byte) *Conn { return newConn(t, binding, nil) }

func newConn(t Transport, binding []byte, heard func()) *Conn {
	c := &Conn{transport: t, binding: binding, made: time.Now(), heard: heard}
	c.in = bufio.NewReaderSize(tracked{c}, readBuffer)
	return c
}

// dialled is the transport of the asking side.
type dialled struct{ net.Conn }

// WriteBuffers implements Transport.
func (d dialled) WriteBuffers(list net.Buffers, _, until time.Time) error {
	if err := d.SetWriteDeadline(until); err != nil {
		return err
	}
	_, err := list.WriteTo(d.Conn)
	return err
}

// Interrupt implements Transport: this side has no last words.
func (d dialled) Interrupt() { _ = d.Close() }

// Connect connects to a node and begins a call of a method. It waits for no answer. config is nil for no TLS; heard is
// called whenever bytes come, unless it is nil. The connection ends with ctx, or by end.
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
		c.vectors = newVectorReader(conn) // over TLS nothing is where it stays before it was decrypted
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

// Way is how two nodes meet that have begun a call of a method.
func (c *Conn) Way(method string) Way {
	return Way{Method: method, Binding: c.binding, Send: c.Send,
		Receive: func() ([]byte, error) { return c.Receive(MaxHello) }}
}

// Interrupt ends reads at once, and writes soon.
func (c *Conn) Interrupt() { c.transport.Interrupt() }

// Send sends a message.
func (c *Conn) Send(message []byte) error {
	b := make([]byte, FrameHead, FrameHead+len(message))
	return c.send(frameMessage, net.Buffers{append(b, message...)}, time.Time{})
}

// SendBuffers sends a message of several pieces, of which the first one begins with FrameHead bytes that are not of the
// message. Nothing reads the pieces any more when it returns. resident is as for Transport.
func (c *Conn) SendBuffers(list net.Buffers, resident time.Time) error {
	return c.send(frameMessage, list, resident)
}

// End says that this side has nothing more to say, and why: OK if all is well.
func (c *Conn) End(code codes.Code, why string) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, FrameHead), uint32(code))
	return c.send(frameEnd, net.Buffers{append(b, why[:min(len(why), maxEnd-4)]...)}, time.Time{})
}

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
		c.broken = fmt.Errorf("%w: %w", ErrBroken, err) // a frame may be cut
	}
	return c.broken
}

// trySend sends a frame without a message unless another goroutine sends just now, which says as much.
func (c *Conn) trySend(kind byte) (sent bool) {
	if !c.writing.TryLock() {
		return false
	}
	defer c.writing.Unlock()
	_ = c.sendLocked(kind, net.Buffers{make([]byte, FrameHead)}, time.Time{}) // receiving says why
	return true
}

// tracked reads from the transport and notes that.
type tracked struct{ *Conn }

// Read implements io.Reader.
func (t tracked) Read(p []byte) (int, error) {
	t.reading.Store(true)
	n, err := t.transport.Read(p)
	t.came()
	return n, err
}

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

// over reads why the other side has ended the call.
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

// lost is the error of a connection that has ended without a word.
func lost(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// Read implements io.Reader: it reads what the present message consists of.
func (c *Conn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	return n, c.got(n, err)
}

// fill reads to several places, the first of them first, as much as is there: at least a byte. They have room for one,
// and together no more than what is left of the message.
func (c *Conn) fill(to [][]byte) (int, error) {
	if c.vectors == nil || c.in.Buffered() > 0 {
		return c.Read(to[0])
	}
	c.reading.Store(true)
	n, err := c.vectors.read(to, c.left)
	c.came()
	return n, c.got(n, err)
}

// got takes note of n bytes of a message.
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

// Receive waits for a message of at most most bytes and returns all of it; the memory is
// valid until the next call. Its errors are those of next. Memory is taken as the bytes
// come, not as their number is said.
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

// grow returns b with room for n bytes.
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

// Watch asks the other side whether it is there when it has said nothing for long, and ends the call if it is not. While
// nothing is read, for whatever reason, the other side is not to blame. It returns when ctx ends.
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
			if !c.trySend(framePing) { // what is sent may wait for the other side, until its time is over
				quiet.asked = time.Time{}
			}
		case lively:
		}
	}
}

// quiet is what is made of the silence of the other side.
type quiet struct {
	looked time.Time // the last time
	asked  time.Time // when it was last to be asked whether it is there
}

// liveness is the result of a check of the other side.
type liveness int

const (
	lively  liveness = iota
	doubted          // it is to be asked whether it is there
	excused          // this process was not run: what came meanwhile has not been read yet
	gone
)

// check is called about every keepaliveAnswer, with the time at which the other side was
// last heard. A side is gone only once it was asked: looks come a little late at times,
// and silence may be longer than it was to become.
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
	case now.Sub(q.asked) < keepaliveAnswer/2: // looks that were late follow each other closely
		return lively
	}
	return gone
}

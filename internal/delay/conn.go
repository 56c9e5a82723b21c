package delay

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"
)

// conn is a connection through a link. Read reads from the underlying connection. Write adds to a queue, which
// deliver empties.
type conn struct {
	net.Conn
	link *Link
	id   uint64 // of its sequence of jitters

	reading, writing turn // make Read and Write one at a time

	mu                     sync.Mutex
	reader, writer, sender waiter

	// Received data.
	readWindow window
	acks       marks
	readHeld   time.Duration // until when the bottleneck serves this connection, or a lost packet is sent again
	losses     uint64        // packets of received data that were lost
	nextLoss   float64       // received bytes until the next one is lost
	sentAgain  int           // received bytes until a loss holds Read again: those in flight with the last one

	// Sent data.
	sendWindow window
	sent       queue
	due        marks // the bytes of sent that have not arrived
	ripe       int   // bytes of sent that have arrived
	sendHeld   time.Duration
	last       time.Duration // arrival of the last chunk, or of the end
	chunks     uint64
	ended      bool  // nothing is sent after what is in sent
	broken     error // the error of Write

	closed bool
	gone   bool // what is in sent will not be delivered
}

// turn is a mutex that testing/synctest counts as a durable wait, because the wait may be long.
type turn chan struct{}

func (t turn) end() { <-t }

// waiter is how one goroutine at a time waits.
type waiter struct {
	waiting  bool
	blocked  bool          // waits for something to happen, not for a time
	deadline time.Duration // 0: none
	wake     chan struct{}
	timer    *time.Timer
}

// signal ends the wait, if there is one. The woken goroutine decides whether it waits again.
func (w *waiter) signal() {
	if w.waiting {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *waiter) expired(now time.Duration) bool { return w.deadline != 0 && now >= w.deadline }

func newConn(l *Link, inner net.Conn, id uint64) *conn {
	c := &conn{
		Conn: inner, link: l, id: id,
		reading: make(turn, 1), writing: make(turn, 1),
		readWindow: newWindow(&l.config), sendWindow: newWindow(&l.config),
	}
	for _, w := range []*waiter{&c.reader, &c.writer, &c.sender} {
		w.wake = make(chan struct{}, 1)
	}
	return c
}

// wait waits for a signal, at most until a time or w's deadline. The caller holds c.mu; wait unlocks it meanwhile.
func (c *conn) wait(w *waiter, until, now time.Duration) {
	w.waiting, w.blocked = true, until == never
	if w.deadline != 0 {
		until = min(until, w.deadline)
	}
	if until != never {
		if w.timer == nil {
			w.timer = time.NewTimer(until - now)
		} else {
			w.timer.Reset(until - now)
		}
	}
	c.mu.Unlock()
	if until == never {
		<-w.wake
	} else {
		select {
		case <-w.wake:
			w.timer.Stop()
		case <-w.timer.C:
		}
	}
	c.mu.Lock()
	w.waiting, w.blocked = false, false
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (n int, err error) {
	c.reading <- struct{}{}
	defer c.reading.end()
	most, err := c.mayRead(len(b))
	if err == nil {
		n, err = c.Conn.Read(b[:most])
		err = c.hasRead(n, err)
	}
	if err != nil {
		err = c.fault("read", err)
	}
	return n, err
}

// mayRead waits until some of want bytes may be read, and returns how many.
func (c *conn) mayRead(want int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		now := c.link.now()
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.reader.expired(now):
			return 0, os.ErrDeadlineExceeded
		}
		c.readWindow.acknowledge(c.acks.until(now))
		until := c.readHeld
		if until <= now {
			if n := c.readWindow.room(c.link.down.chunk(want)); n > 0 || want == 0 {
				return n, nil
			}
			until = c.acks.next()
		}
		c.wait(&c.reader, until, now)
	}
}

// hasRead accounts for n bytes and waits until they have passed the bottleneck, or until Read has to return: then the
// next Read waits for the rest. It returns the error that replaces err.
func (c *conn) hasRead(n int, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		now := c.link.now()
		whole := now // when the bytes are there, what was lost among them included
		if c.lose(n) {
			whole = c.link.round(now + c.link.config.RTT)
		}
		if c.readWindow.size > 0 {
			c.readWindow.used += n
			c.acks.add(c.link.round(whole+c.link.config.RTT), n)
		}
		_, c.readHeld = c.link.down.send(now, int64(n))
		if whole > now {
			c.readHeld = max(c.readHeld, whole)
		}
		for now < c.readHeld && !c.closed && !c.reader.expired(now) {
			c.wait(&c.reader, c.readHeld, now)
			now = c.link.now()
		}
	}
	if err != nil && c.closed {
		return net.ErrClosed // Close ended the read by a deadline
	}
	return err
}

// lose reports whether Read is held for a packet among n received bytes that was lost. All
// that is lost of one window is sent again within one round trip, so that it holds Read
// once. The caller holds c.mu.
func (c *conn) lose(n int) bool {
	if c.link.config.Loss == 0 {
		return false
	}
	again := c.sentAgain > 0
	c.sentAgain = max(0, c.sentAgain-n)
	if c.losses == 0 { // no number was drawn yet
		c.losses++
		c.nextLoss = c.link.lossless(lossesOf+c.id, c.losses)
	}
	lost := false
	for c.nextLoss -= float64(n); c.nextLoss <= 0; lost = true {
		c.losses++
		c.nextLoss += c.link.lossless(lossesOf+c.id, c.losses)
	}
	if lost && !again {
		c.sentAgain = int(c.link.config.Window)
	}
	return lost && !again
}

// lossesOf begins the sequences of lost packets, so that none is one of jitters.
const lossesOf = uint64(1) << 32

// Write implements net.Conn. It returns when b is in the queue.
func (c *conn) Write(b []byte) (n int, err error) {
	c.writing <- struct{}{}
	defer c.writing.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		most, err := c.mayWrite(len(b) - n)
		if err != nil {
			return n, c.fault("write", err)
		}
		if most > 0 {
			c.enqueue(b[n : n+most])
		}
		n += most
		if n == len(b) {
			return n, nil
		}
	}
}

// mayWrite waits until some of want bytes may be sent, and returns how many. The caller holds c.mu; mayWrite unlocks
// it meanwhile.
func (c *conn) mayWrite(want int) (int, error) {
	for {
		now := c.link.now()
		switch {
		case c.closed, c.ended:
			return 0, net.ErrClosed
		case c.writer.expired(now):
			return 0, os.ErrDeadlineExceeded
		case c.broken != nil:
			return 0, c.broken
		}
		c.ripe += c.due.until(now)
		until := c.sendHeld
		if until <= now {
			n := c.sendWindow.room(min(c.link.up.chunk(want), chunkSize))
			if n > 0 && c.ripe < maxBacklog || want == 0 {
				return n, nil
			}
			until = never // until delivered signals
		}
		c.wait(&c.writer, until, now)
	}
}

// enqueue sends b as one chunk. The caller holds c.mu.
func (c *conn) enqueue(b []byte) {
	var passed time.Duration
	passed, c.sendHeld = c.link.up.send(c.link.now(), int64(len(b)))
	c.sendWindow.used += len(b)
	c.sent.push(b)
	if loss := c.link.config.Loss; loss > 0 {
		packets := float64((len(b) + packet - 1) / packet)
		if c.link.share(lossesOf<<1+c.id, c.chunks) < 1-math.Pow(1-loss, packets) {
			passed += c.link.config.RTT // until it is sent again
		}
	}
	c.due.add(c.arrival(passed), len(b))
	if c.sender.blocked {
		c.sender.signal()
	}
}

// arrival is when data sent at a time arrives, after all data sent before.
func (c *conn) arrival(sent time.Duration) time.Duration {
	c.last = max(c.last, c.link.round(sent+c.link.config.RTT+c.link.jitter(c.id, c.chunks)))
	c.chunks++
	return c.last
}

// end ends the sent stream. The caller holds c.mu.
func (c *conn) end() {
	if !c.ended {
		c.ended = true
		_ = c.arrival(c.link.now())
	}
	c.sender.signal()
	c.writer.signal()
}

// deliver sends what was written, in its time, until Close and all before it has arrived,
// then closes the connection to the server.
func (c *conn) deliver() {
	defer c.link.forget(c)
	for b := c.arrived(); b != nil; b = c.arrived() {
		c.delivered(c.Conn.Write(b))
	}
	c.mu.Lock()
	if !c.closed { // CloseWrite, or an error
		if half, ok := c.Conn.(halfCloser); ok {
			_ = half.CloseWrite()
		}
	}
	for !c.closed {
		c.wait(&c.sender, never, 0)
	}
	c.mu.Unlock()
	_ = c.Conn.Close()
}

// arrived waits for bytes to arrive and returns some, or nil if no more will.
func (c *conn) arrived() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		now := c.link.now()
		c.ripe += c.due.until(now)
		until := c.due.next()
		switch {
		case c.gone || c.broken != nil:
			return nil
		case c.ripe > 0:
			return c.sent.peek(c.ripe)
		case c.ended && until == never:
			if until = c.last; until <= now {
				return nil
			}
		}
		c.wait(&c.sender, until, now)
	}
}

// delivered reports how the delivery of arrived's bytes ended.
func (c *conn) delivered(n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ripe -= n
	c.sent.drop(n)
	c.sendWindow.acknowledge(n)
	c.broken = err
	c.writer.signal()
}

type halfCloser interface{ CloseWrite() error }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.fault("close", net.ErrClosed)
	}
	c.closed = true
	c.end()
	c.reader.signal()
	return errors.Join(
		c.Conn.SetReadDeadline(past), // ends Read
		c.Conn.SetWriteDeadline(c.link.start.Add(c.last+linger)),
	)
}

// CloseWrite ends what the server reads, after what was written. The
// connection can still be read from, and has to be closed.
func (c *conn) CloseWrite() error {
	if _, ok := c.Conn.(halfCloser); !ok {
		return c.fault("close", errors.ErrUnsupported)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
	return nil
}

// cut closes the connection at once.
func (c *conn) cut() {
	_ = c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.sender.signal()
	_ = c.Conn.SetWriteDeadline(past)
}

// past is a deadline that has expired.
var past = time.Unix(1, 0)

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.setDeadline(&c.reader, t); err != nil {
		return err
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setDeadline(&c.writer, t)
}

func (c *conn) setDeadline(w *waiter, t time.Time) error {
	if c.closed {
		return c.fault("set", net.ErrClosed)
	}
	w.deadline = 0
	if !t.IsZero() {
		w.deadline = max(t.Sub(c.link.start), 1)
	}
	w.signal()
	return nil
}

// fault converts an error of the link to the form of package net's errors.
func (c *conn) fault(op string, err error) error {
	var formed *net.OpError
	if errors.Is(err, io.EOF) || errors.As(err, &formed) {
		return err
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

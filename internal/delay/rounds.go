package delay

import (
	"context"
	"net"
	"sync"
	"time"
)

// Rounds counts round trips in sequence, for tests of what a program waits for on a long link. Requests that come
// before any of them is answered are one round. A round ends when no request has come for the time Silence, and its
// answers are passed on then. So the count does not depend on how fast the machine is, unless the program itself pauses
// for longer: a test that counts too many rounds counts them again with twice the silence. It is safe for concurrent use.
type Rounds struct {
	Silence time.Duration // more than 0, and unchanged in use

	mu     sync.Mutex
	ended  int
	timer  *time.Timer
	over   chan struct{} // closed at the end of the present round; nil if no request has come in it
	dialer net.Dialer
}

// Join adds a request to the present round. Its answer is passed on when over is closed.
func (r *Rounds) Join() (over <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		r.timer.Reset(r.Silence)
		return r.over
	}
	r.over = make(chan struct{})
	r.timer = time.AfterFunc(r.Silence, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.over == nil {
			return // Reset came as the timer ended
		}
		r.ended++
		close(r.over)
		r.over = nil
	})
	return r.over
}

// Count is the number of rounds that have ended.
func (r *Rounds) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// DialContext connects to a server, in a round of its own. The connection is for a protocol with one request at a
// time, such as HTTP/1.1: Read waits until the round of what was last written has ended.
func (r *Rounds) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	<-r.Join()
	c, err := r.dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &counted{Conn: c, rounds: r}, nil
}

// counted is a connection of Rounds.
type counted struct {
	net.Conn
	rounds *Rounds

	mu   sync.Mutex
	over <-chan struct{} // of the last request; nil if its answer is passed on
}

// Write implements net.Conn.
func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.over = c.rounds.Join()
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// Read implements net.Conn.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	over := c.over
	c.over = nil
	c.mu.Unlock()
	if over != nil && err == nil {
		<-over
	}
	return n, err
}

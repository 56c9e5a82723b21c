package delay

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Config describes a link. The zero Config is one without latency or limits.
type Config struct {
	RTT    time.Duration // from a request to its answer
	Jitter time.Duration // most that it takes longer; uniform
	// Bandwidth is in bytes a second, in each direction, shared by all
	// connections. 0: no limit.
	Bandwidth int64
	// Window is the bytes of a connection and direction that may be
	// unacknowledged. 0: no limit.
	Window int64
	// SlowStart makes each connection begin with a window of 14,600 bytes.
	SlowStart bool
	// Loss is the share of packets that are lost, from 0 to below 1. It needs a Window: what
	// is lost of one window is sent again together. Blobs read from [Link.Store] know nothing
	// of it.
	Loss float64
	// Seed determines all that is drawn.
	Seed uint64
	// SlowShare, from 0 to 1, of the blobs read from [Link.Store] take SlowBy
	// longer. Connections know nothing of it.
	SlowShare float64
	SlowBy    time.Duration
	// Dialer makes the connections that are delayed. Default: a net.Dialer.
	Dialer Dialer
}

// Dialer makes connections. A [Link] is one.
type Dialer interface {
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// Check reports the first field that is impossible, as a schema.FieldError.
func (c *Config) Check() error {
	for name, d := range map[string]time.Duration{"rtt": c.RTT, "jitter": c.Jitter, "slow-by": c.SlowBy} {
		if d < 0 || d > maxDelay {
			return &schema.FieldError{Field: name, Got: d.String(),
				Want: fmt.Sprintf("a duration from 0 to %s", maxDelay)}
		}
	}
	for name, n := range map[string]int64{"bandwidth": c.Bandwidth, "window": c.Window} {
		if n < 0 {
			return &schema.FieldError{Field: name, Got: fmt.Sprint(n), Want: "a number of bytes, or 0 for no limit"}
		}
	}
	switch {
	case !(c.Loss >= 0 && c.Loss < 1): // so written for NaN's sake
		return &schema.FieldError{Field: "loss", Got: fmt.Sprint(c.Loss), Want: "a share from 0 to below 1"}
	case c.Loss > 0 && c.Window == 0:
		return &schema.FieldError{Field: "window", Got: "0", Want: "a number of bytes, because there is loss"}
	}
	if !(c.SlowShare >= 0 && c.SlowShare <= 1) { // so written for NaN's sake
		return &schema.FieldError{Field: "slow-share", Got: fmt.Sprint(c.SlowShare), Want: "a share from 0 to 1"}
	}
	return nil
}

const (
	// maxDelay keeps sums of delays far from overflow.
	maxDelay = time.Hour
	// initialWindow is ten segments of Ethernet: RFC 6928.
	initialWindow = 14600
	packet        = 1460
	// maxWindow is a limit that no window reaches.
	maxWindow = math.MaxInt / 2
	// chunkSize is the most that is sent, or passes the bottleneck, at once.
	chunkSize = 64 << 10
	// laneLead is how far a connection may be ahead of the bottleneck, so that it does not wake for each chunk. It is
	// woken when half of that is left, so that waking late does not leave the bottleneck idle.
	laneLead = time.Millisecond
	// maxBacklog is how much may have arrived that the server leaves unread.
	maxBacklog = 8 << 20
	// linger is how long a closed connection may take to deliver what it has due.
	linger = 5 * time.Second
	never  = time.Duration(math.MaxInt64)
)

// Link is a long link. It is safe for concurrent use.
type Link struct {
	config   Config
	grain    time.Duration // that times are rounded up to
	start    time.Time
	dialer   Dialer
	up, down lane
	timers   sync.Pool     // of *time.Timer, stopped
	dials    atomic.Uint64 // connections dialled

	running sync.WaitGroup // goroutines of connections
	mu      sync.Mutex
	closed  bool
	conns   map[*conn]struct{} // whose goroutine runs
}

// New makes a link. It panics where config.Check reports a fault.
func New(config Config) *Link {
	if err := config.Check(); err != nil {
		panic(err)
	}
	l := &Link{
		config: config,
		grain:  max(config.RTT/1000, 1),
		start:  time.Now(),
		dialer: config.Dialer,
		conns:  map[*conn]struct{}{},
	}
	l.up.rate, l.down.rate = config.Bandwidth, config.Bandwidth
	if l.dialer == nil {
		l.dialer = &net.Dialer{}
	}
	return l
}

// DialContext connects through the link. The caller closes the connection.
func (l *Link) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	id := l.dials.Add(1) - 1
	established := l.now() + l.config.RTT
	inner, err := l.dialer.DialContext(ctx, network, addr)
	if cut := l.sleep(ctx, established); cut != nil && err == nil { // a refusal takes a round trip too
		_ = inner.Close()
		err = &net.OpError{Op: "dial", Net: network, Err: cut}
	}
	if err != nil {
		return nil, err
	}
	c := newConn(l, inner, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = inner.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.ErrClosed}
	}
	l.conns[c] = struct{}{}
	l.running.Go(c.deliver)
	return c, nil
}

// Close cuts the connections that are open and waits until nothing of them
// runs. Without it, a connection that was closed is gone once it has delivered what it had.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.cut()
	}
	l.mu.Unlock()
	l.running.Wait()
	return nil
}

func (l *Link) forget(c *conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
}

// now is the time since the link was made.
func (l *Link) now() time.Duration { return time.Since(l.start) }

// round rounds a time of now up.
func (l *Link) round(t time.Duration) time.Duration { return (t + l.grain - 1).Truncate(l.grain) }

// sleep waits until a time of now, or returns why ctx has ended.
func (l *Link) sleep(ctx context.Context, until time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d := until - l.now()
	if d <= 0 {
		return nil
	}
	t, _ := l.timers.Get().(*time.Timer)
	if t == nil {
		t = time.NewTimer(d)
	} else {
		t.Reset(d)
	}
	defer l.timers.Put(t)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		t.Stop()
		return context.Cause(ctx)
	}
}

// draw is the n-th random number of a sequence.
func (l *Link) draw(sequence, n uint64) uint64 {
	return mix(mix(l.config.Seed+mix(sequence)) + n)
}

// jitter is the n-th jitter of a sequence.
func (l *Link) jitter(sequence, n uint64) time.Duration {
	if l.config.Jitter <= 0 {
		return 0
	}
	part, _ := bits.Mul64(l.draw(sequence, n), uint64(l.config.Jitter))
	return time.Duration(part)
}

// share is the n-th number from 0 to below 1 of a sequence.
func (l *Link) share(sequence, n uint64) float64 { return float64(l.draw(sequence, n)>>11) / (1 << 53) }

// lossless is how many bytes pass before the n-th lost packet of a sequence, after the one
// before it.
func (l *Link) lossless(sequence, n uint64) float64 {
	return packet * (1 + math.Floor(math.Log1p(-l.share(sequence, n))/math.Log1p(-l.config.Loss)))
}

// mix is the finalizer of SplitMix64: each bit of x changes half of the result's.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// lane is the bottleneck of one direction.
type lane struct {
	rate int64 // bytes a second, 0: no limit

	mu   sync.Mutex
	free time.Duration // when all that it was given has passed
}

// chunk is how many of want bytes it is given at once.
func (l *lane) chunk(want int) int {
	if l.rate == 0 {
		return want
	}
	return int(min(int64(want), chunkSize, max(int64(laneLead.Seconds()*float64(l.rate)), packet)))
}

// send gives the lane n bytes that arrive before it at a time. It returns when the last has
// passed, and until when their sender is held back: until it is its turn again.
func (l *lane) send(at time.Duration, n int64) (passed, held time.Duration) {
	if l.rate == 0 {
		return at, 0
	}
	// In two parts, so that no number of bytes overflows.
	takes := time.Duration(n/l.rate)*time.Second + time.Duration(float64(n%l.rate)/float64(l.rate)*1e9)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = max(l.free, at) + takes
	if l.free > at+laneLead {
		held = l.free - laneLead/2
	}
	return l.free, held
}

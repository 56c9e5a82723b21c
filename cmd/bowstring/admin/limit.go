package admin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The bounds of connections. Every client that reaches the listener gets health, and a
// client that only holds connections must not keep others from it.
const (
	maxConnections        = 512
	maxConnectionsPerPeer = 128
)

// boundedListener accepts up to a number of connections, in total and for each address,
// and closes the others as they come. Closing is better than waiting here: a full backlog
// would stop health checks as well.
type boundedListener struct {
	net.Listener
	// most bounds all connections, mostOf those of one address.
	most, mostOf int

	mu    sync.Mutex
	open  int            // guarded by mu
	peers map[string]int // connections by address, as guesses are counted; guarded by mu
}

func newBoundedListener(l net.Listener, most, mostOf int) *boundedListener {
	return &boundedListener{Listener: l, most: most, mostOf: mostOf, peers: map[string]int{}}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := guesser(c.RemoteAddr().String())
		if l.admit(host) {
			return &boundedConn{Conn: c, leave: func() { l.leave(host) }}, nil
		}
		_ = c.Close() // no request was read, so there is no way to answer
	}
}

func (l *boundedListener) admit(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most || l.peers[host] >= l.mostOf {
		return false
	}
	l.open++
	l.peers[host]++
	return true
}

func (l *boundedListener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.peers[host]--; l.peers[host] == 0 {
		delete(l.peers, host)
	}
}

// boundedConn gives its place free when it is closed. net/http may close a connection
// twice.
type boundedConn struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.leave)
	return err
}

// CloseWrite lets net/http end an answer before the connection, so that a client that is
// still sending reads it.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// The limits of guesses. An address has guessBurst wrong tokens at once, and
// guessesPerMinute in the long run; after that the server refuses its requests without a
// comparison. For all addresses together the limits are allBurst and allPerMinute. Above
// them, a request waits for guessDelay before its token is compared, unless the right
// token came from its address before. A flood of guesses from other addresses therefore
// costs the holder of the token one second once, and never a refusal.
const (
	guessBurst       = 10
	guessesPerMinute = 10
	allBurst         = 100
	allPerMinute     = 60
	guessDelay       = time.Second
	// maxGuessers and maxHolders bound the addresses in memory: an attacker has many.
	maxGuessers = 4096
	maxHolders  = 1024
	// guessesLogged is the least time between two log lines about wrong tokens.
	guessesLogged = time.Second
)

// guesses counts wrong tokens by address. It is safe for concurrent use, and its memory
// is bounded.
type guesses struct {
	now   func() time.Time
	delay time.Duration // guessDelay, or less in tests

	mu             sync.Mutex
	peers          map[string]*bucket   // addresses that sent wrong tokens; guarded by mu
	holders        map[string]time.Time // addresses that sent the right one, with the last time; guarded by mu
	all            bucket               // wrong tokens of all addresses; guarded by mu
	wrong, limited int64                // guarded by mu
	logged         time.Time            // when wrong tokens were logged last; guarded by mu
	since          int64                // guesses since logged; guarded by mu
}

// bucket is a leaky bucket: n guesses as of at.
type bucket struct {
	n  float64
	at time.Time
}

// leak lowers the level to that of now, and returns it.
func (b *bucket) leak(now time.Time, perMinute float64) float64 {
	if passed := now.Sub(b.at).Minutes(); passed > 0 {
		b.n, b.at = max(0, b.n-passed*perMinute), now
	}
	return b.n
}

func newGuesses() *guesses {
	return &guesses{now: time.Now, delay: guessDelay, peers: map[string]*bucket{}, holders: map[string]time.Time{}}
}

// begin counts a guess before its token is compared, so that guesses in parallel count as
// well. If all addresses together guess too often, it waits for the delay. It returns
// ErrTooMany if the token must not be compared, and ctx's cause if ctx ends first. The
// caller reports the outcome by right, unheard or missed.
func (g *guesses) begin(ctx context.Context, peer string) error {
	wait, err := g.take(peer)
	if err != nil || !wait {
		return err
	}
	timer := time.NewTimer(g.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take counts a guess, and returns whether it must wait. A holder of the token never
// waits.
func (g *guesses) take(peer string) (wait bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	b := g.peers[peer]
	if b == nil {
		if len(g.peers) >= maxGuessers {
			g.forgetLocked(now)
		}
		b = &bucket{at: now}
		g.peers[peer] = b
	}
	if b.leak(now, guessesPerMinute)+1 > guessBurst {
		g.limited++
		return false, ErrTooMany
	}
	b.n++
	_, holder := g.holders[peer]
	return !holder && g.all.leak(now, allPerMinute) >= allBurst, nil
}

// right takes the guess back, as the token was right, and remembers the address as a
// holder. The holder that has been away for longest makes room.
func (g *guesses) right(peer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.undoLocked(peer)
	if _, known := g.holders[peer]; !known && len(g.holders) >= maxHolders {
		oldest, at := "", time.Time{}
		for p, t := range g.holders {
			if oldest == "" || t.Before(at) {
				oldest, at = p, t
			}
		}
		delete(g.holders, oldest)
	}
	g.holders[peer] = g.now()
}

// unheard takes the guess back, as the token could not be compared.
func (g *guesses) unheard(peer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.undoLocked(peer)
}

// undoLocked takes back what begin has counted.
func (g *guesses) undoLocked(peer string) {
	if b := g.peers[peer]; b != nil { // its address may have been forgotten
		if b.n--; b.n <= 0 {
			delete(g.peers, peer)
		}
	}
}

// missed counts a wrong token for all addresses together. begin has counted it for its
// own address.
func (g *guesses) missed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wrong++
	g.all.n = min(g.all.leak(g.now(), allPerMinute)+1, allBurst+1)
}

// toLog counts a guess for the log. Every guessesLogged it returns how many there were
// since the last line, with ok set.
func (g *guesses) toLog() (n int64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since++
	if now := g.now(); now.Sub(g.logged) >= guessesLogged {
		n, g.since, g.logged = g.since, 0, now
		return n, true
	}
	return 0, false
}

// forgetLocked halves the addresses: those with the fewest guesses go first. So an
// attacker who uses many addresses does not free the address that guesses most.
func (g *guesses) forgetLocked(now time.Time) {
	for limit := 1.0; len(g.peers) > maxGuessers/2; limit *= 2 {
		for peer, b := range g.peers {
			if b.leak(now, guessesPerMinute) <= limit && len(g.peers) > maxGuessers/2 {
				delete(g.peers, peer)
			}
		}
	}
}

// counts returns the wrong tokens, and the requests that were refused without a
// comparison.
func (g *guesses) counts() (wrong, limited int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wrong, g.limited
}

// guesser returns the part of an address by which guesses are counted. For IPv6 it is the
// network of 64 bits, because a client of such a network has all of its addresses.
func guesser(addr string) string {
	host := hostOf(addr)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() && !ip.Is4In6() && !ip.IsLoopback() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return host
}

package admin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// What may be connected at once. Health is answered to all who reach the listener, and
// someone who only holds connections is not to keep others from it.
const (
	maxConnections        = 512
	maxConnectionsPerPeer = 128
)

// boundedListener closes connections that are too many as they come.
type boundedListener struct {
	net.Listener
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
		_ = c.Close() // there is nobody to tell
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

// boundedConn is counted out when it is closed.
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

// How often the token may be guessed. An address has guessBurst wrong tokens at once, and guessesPerMinute in the long
// run; then its requests are refused unheard. Of all addresses together, allBurst at once and allPerMinute in the long
// run are heard at once; then a request waits for guessDelay before its token is looked at, unless the right token came
// from its address before. So a flood of guesses from other addresses costs the holder of the token a second once, and
// never a refusal.
const (
	guessBurst       = 10
	guessesPerMinute = 10
	allBurst         = 100
	allPerMinute     = 60
	guessDelay       = time.Second
	// maxGuessers and maxHolders are how many addresses are remembered.
	maxGuessers = 4096
	maxHolders  = 1024
	// guessesLogged is how often wrong tokens are logged.
	guessesLogged = time.Second
)

// guesses counts wrong tokens. It is safe for concurrent use, and bounded.
type guesses struct {
	now   func() time.Time
	delay time.Duration

	mu             sync.Mutex
	peers          map[string]*bucket   // of addresses that sent wrong tokens; guarded by mu
	holders        map[string]time.Time // addresses that sent the right one, and when last; guarded by mu
	all            bucket               // guarded by mu
	wrong, limited int64                // guarded by mu
	logged         time.Time            // guarded by mu
	since          int64                // guesses since then; guarded by mu
}

// bucket leaks.
type bucket struct {
	n  float64
	at time.Time
}

// leak brings a bucket up to now.
func (b *bucket) leak(now time.Time, perMinute float64) float64 {
	if passed := now.Sub(b.at).Minutes(); passed > 0 {
		b.n, b.at = max(0, b.n-passed*perMinute), now
	}
	return b.n
}

func newGuesses() *guesses {
	return &guesses{now: time.Now, delay: guessDelay, peers: map[string]*bucket{}, holders: map[string]time.Time{}}
}

// begin counts a guess of an address before it is looked at, so that guesses that come together count, too. It waits
// where all addresses together guess too often. ErrTooMany says that the guess must not be looked at.
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

// take counts a guess, and says whether it is to wait.
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

// right takes note that a guess was no guess.
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

// unheard takes note that a guess was not looked at.
func (g *guesses) unheard(peer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.undoLocked(peer)
}

// undoLocked has what begin has counted last not be counted.
func (g *guesses) undoLocked(peer string) {
	if b := g.peers[peer]; b != nil { // its address may have been forgotten
		if b.n--; b.n <= 0 {
			delete(g.peers, peer)
		}
	}
}

// missed takes note that a guess was wrong.
func (g *guesses) missed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wrong++
	g.all.n = min(g.all.leak(g.now(), allPerMinute)+1, allBurst+1)
}

// toLog returns how many guesses there were since that was logged last, and whether it is to be logged again.
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

// forgetLocked makes room for half as many addresses: those with the fewest guesses go first.
func (g *guesses) forgetLocked(now time.Time) {
	for limit := 1.0; len(g.peers) > maxGuessers/2; limit *= 2 {
		for peer, b := range g.peers {
			if b.leak(now, guessesPerMinute) <= limit && len(g.peers) > maxGuessers/2 {
				delete(g.peers, peer)
			}
		}
	}
}

// counts is what was turned away.
func (g *guesses) counts() (wrong, limited int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wrong, g.limited
}

// guesser is the part of an address by which guesses are counted: of IPv6 the network of 64 bits, as a client that has
// one has all of its addresses.
func guesser(addr string) string {
	host := hostOf(addr)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() && !ip.Is4In6() && !ip.IsLoopback() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return host
}

package auth

import (
	"sync"
	"time"
)

// maxWrongPeers is how many addresses are remembered for their wrong
// credentials.
const maxWrongPeers = 4096

// wrongs counts wrong credentials by address: so many at once, so many a minute
// in the long run. It is safe for concurrent use, and bounded: where more
// addresses send wrong ones than it remembers, those with the fewest are
// forgotten.
type wrongs struct {
	burst     float64
	perSecond float64
	now       func() time.Time

	mu    sync.Mutex
	peers map[string]*level // guarded by mu
}

// level is a bucket that leaks.
type level struct {
	n  float64
	at time.Time
}

func newWrongs(burst, perMinute int, now func() time.Time) *wrongs {
	return &wrongs{burst: float64(burst), perSecond: float64(perMinute) / 60, now: now, peers: map[string]*level{}}
}

// leak brings a level up to now.
func (l *level) leak(now time.Time, perSecond float64) float64 {
	if passed := now.Sub(l.at).Seconds(); passed > 0 {
		l.n, l.at = max(0, l.n-passed*perSecond), now
	}
	return l.n
}

// over reports whether an address has sent more than it may.
func (w *wrongs) over(peer string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.peers[peer]
	return l != nil && l.leak(w.now(), w.perSecond)+1 > w.burst
}

// count takes note of wrong credentials of an address.
func (w *wrongs) count(peer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	l := w.peers[peer]
	if l == nil {
		if len(w.peers) >= maxWrongPeers {
			w.forgetLocked(now)
		}
		l = &level{at: now}
		w.peers[peer] = l
	}
	// What is refused unheard does not count further, so that an address is not
	// shut out for ever.
	l.n = min(l.leak(now, w.perSecond)+1, w.burst)
}

// forgetLocked makes room for half as many; mu is held. It takes a pass for every two
// thousand new addresses.
func (w *wrongs) forgetLocked(now time.Time) {
	for peer, l := range w.peers {
		if l.leak(now, w.perSecond) < 1 {
			delete(w.peers, peer)
		}
	}
	for limit := 2.0; len(w.peers) > maxWrongPeers/2; limit *= 2 {
		for peer, l := range w.peers {
			if l.n < limit && len(w.peers) > maxWrongPeers/2 {
				delete(w.peers, peer)
			}
		}
	}
}

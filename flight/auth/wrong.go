package auth

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxWrongPeers is how many addresses are remembered for their wrong
// credentials.
const maxWrongPeers = 4096

// wrongs counts wrong credentials by address: so many at once, so many a minute
// in the long run. It is safe for concurrent use, and bounded: where more
// addresses send wrong ones than it remembers, those with the fewest are
// forgotten.
type wrongs struct {
	burst int
	rate  rate.Limit
	now   func() time.Time

	mu    sync.Mutex
	peers map[string]*rate.Limiter // guarded by mu
}

func newWrongs(burst, perMinute int, now func() time.Time) *wrongs {
	return &wrongs{burst: burst, rate: rate.Limit(float64(perMinute) / 60), now: now,
		peers: map[string]*rate.Limiter{}}
}

// over reports whether an address has sent more than it may.
func (w *wrongs) over(peer string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.peers[peer]
	return l != nil && l.TokensAt(w.now()) < 1
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
		l = rate.NewLimiter(w.rate, w.burst)
		w.peers[peer] = l
	}
	// What is refused unheard does not count further, so that an address is not
	// shut out for ever.
	l.AllowN(now, 1)
}

// forgetLocked makes room for half as many; mu is held. It takes a pass for every two
// thousand new addresses.
func (w *wrongs) forgetLocked(now time.Time) {
	for most := 1.0; len(w.peers) > maxWrongPeers/2; most *= 2 {
		for peer, l := range w.peers {
			if float64(w.burst)-l.TokensAt(now) < most && len(w.peers) > maxWrongPeers/2 {
				delete(w.peers, peer)
			}
		}
	}
}

package peer

import (
	"fmt"

	"bowstring/schema"
)

// GiveUp implements peers.Quitter.
func (l *Link) GiveUp(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks = nil
	l.failLocked(cause)
}

// failLocked has all that is waited for fail.
func (l *Link) failLocked(cause error) {
	for id, w := range l.waiting {
		w.answer <- answer{err: cause}
		delete(l.waiting, id)
	}
}

// down fails what is under way.
func (l *Link) down(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up.Store(false)
	l.protocol.Store(0)
	l.asks = nil
	l.failLocked(fmt.Errorf("%w: the connection broke: %w", schema.ErrUnavailable, err))
}

package peer

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"bowstring/fetch/peers"
)

// ask sends what is asked for, until ctx ends.
func (l *Link) ask(ctx context.Context, w *wire) error {
	told := map[uint64]bool{} // streams whose ticket was sent
	for {
		l.mu.Lock()
		doing := l.doing
		l.doing = nil
		n := min(len(l.asks), maxAsks)
		asks := l.asks[:n:n]
		if l.asks = l.asks[n:]; len(l.asks) == 0 {
			l.asks = nil
		}
		l.mu.Unlock()
		var err error
		if doing != nil {
			err = w.send(progressMessage(doing, told))
		}
		if n > 0 && err == nil {
			err = w.send(AppendAsks(nil, asks))
		}
		if err != nil {
			_ = w.close()
			return nil //nolint:nilerr // receiving says why
		}
		if n == 0 {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// progressMessage is a message of what streams do. Tickets are sent once, and as many
// at a time as there is room for.
func progressMessage(list []peers.Progress, told map[uint64]bool) []byte {
	list = slices.Clone(list)
	there := make(map[uint64]bool, len(list))
	room := maxTickets
	for i := range list {
		p := &list[i]
		there[p.ID] = true
		if told[p.ID] || len(p.Ticket) > room {
			p.Ticket = nil
			continue
		}
		room -= len(p.Ticket)
		told[p.ID] = true
	}
	maps.DeleteFunc(told, func(id uint64, _ bool) bool { return !there[id] })
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // tickets are JSON
	}
	return append([]byte{KindProgress}, b...)
}

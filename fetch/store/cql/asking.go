package cql

import (
	"context"
	"time"

	"github.com/gocql/gocql"
)

// askEvery is how often a host is asked that is not read from.
const askEvery = time.Second

// asking is the context of a request to one host.
type asking struct {
	context.Context //nolint:containedctx // it is one
	host            *host
}

func (a asking) Value(key any) any {
	if key == (routeKey{}) {
		return a.host
	}
	return a.Context.Value(key)
}

// keepAsking repeats reads at a host that is silent or slow until it is to be read
// from again: one that is waited for would be served late if it were the one to find
// out. r is a read that the host was not asked for.
func (s *Store) keepAsking(h *host, r *reading) {
	s.asking.Go(func() { h.steering.askUntilRested(s.ending, h, r) })
}

func (st *steering) askUntilRested(ctx context.Context, h *host, r *reading) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		turned := h.turned.Swap(nil)
		if turned != nil {
			r = turned
		}
		// A slow one need not be asked while nobody wants to read from it.
		if turned != nil || h.quiet.Load() {
			limited, cancel := context.WithTimeout(ctx, h.patience())
			sent := st.now()
			err := st.repeat(limited, h, r)
			cancel()
			now := st.now()
			if isAnswer(err) {
				h.answer(now)
			}
			if err == nil {
				h.probed(r, now-sent, now)
			}
		}
		if h.rested() {
			return
		}
		select {
		case <-tick.C:
		case <-h.gone:
			return
		case <-ctx.Done():
			return
		}
	}
}

// repeatAt makes a read again, at one host, and drops what it brings.
func (st *steering) repeatAt(ctx context.Context, h *host, r *reading) error {
	q := st.session.Query(r.stmt, r.args[:r.bound]...).Consistency(gocql.LocalOne).WithContext(asking{ctx, h})
	return q.Iter().Close()
}

// patience is how long an answer is waited for.
func (h *host) patience() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(askEvery, h.limit())
}

package cql

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
)

// host is what is known of a host.
type host struct {
	info     *gocql.HostInfo
	steering *steering
	gone     chan struct{}           // closed when the host has left the cluster
	quiet    atomic.Bool             // silent; written under mu
	share    atomic.Int32            // of its reads that it gets, in parts of fullShare; written under mu
	turned   atomic.Pointer[reading] // one that went elsewhere lately, for who asks the host

	mu      sync.Mutex
	removed bool
	asked   bool          // by a goroutine of asking.go
	waiting int           // reads that wait for an answer
	owes    bool          // an answer to a read, perhaps one that nobody waits for any more
	overdue bool          // which somebody has waited for for too long
	since   time.Duration // when the first such read was sent, or the last answer came
	last    time.Duration // when the last read was sent
	usual   time.Duration // from since to an answer, a moving mean
	fresh   time.Duration // reads sent before then met a silent host
	pace    pace

	gathered gathered // of the session that reads the store's own blobs
}

const (
	// silenceLeast and silenceTimes say after how long a host is silent: the first,
	// or the second times as long as it usually goes without an answer while it owes
	// some, whichever is more. With one read at a time that is its latency; with many,
	// a load that makes each of them wait does not hide that none is answered.
	silenceLeast = 500 * time.Millisecond
	silenceTimes = 8
	// usualWeight is the inverse of what one answer counts for in what is usual.
	usualWeight = 16
)

func newHost(st *steering, info *gocql.HostInfo) *host {
	h := &host{info: info, steering: st, gone: make(chan struct{}), gathered: gathered{conns: st.conns}}
	h.share.Store(fullShare)
	return h
}

// limit is after how long without an answer the host is silent.
func (h *host) limit() time.Duration { return max(silenceLeast, silenceTimes*h.usual) }

// isSilent looks at the time.
func (h *host) isSilent(now time.Duration, r *reading) bool {
	if h.quiet.Load() {
		return true
	}
	h.mu.Lock()
	// Where nobody has waited or asked for so long, an answer may have come unseen.
	if h.owes && !h.overdue && h.waiting == 0 && now-h.last > h.limit() {
		h.owes = false
	}
	silent := h.owes && now-h.since > h.limit() && !h.removed && !h.quiet.Load()
	ask := false
	if silent {
		h.quiet.Store(true)
		h.steering.silent.Add(1)
		ask = h.askLocked()
	}
	since := now - h.since
	h.mu.Unlock()
	if silent {
		h.steering.log.Warn("a database host is silent: others are asked first until it answers",
			"host", h.steering.name(h.info), "without_answer", since.Round(time.Millisecond))
	}
	if ask {
		h.steering.ask(h, r)
	}
	return silent
}

func (h *host) sent(now time.Duration) {
	h.mu.Lock()
	if !h.owes {
		h.owes, h.since = true, now
	}
	h.waiting++
	h.last = now
	h.mu.Unlock()
}

// ended says that nobody waits for the read any more that was sent at that time.
func (h *host) ended(r *reading, sent, now time.Duration, err error) {
	answered := isAnswer(err)
	h.mu.Lock()
	h.waiting--
	if answered {
		if sent >= h.fresh && !h.quiet.Load() {
			if took := now - max(h.since, sent); h.usual == 0 {
				h.usual = took
			} else {
				h.usual += (took - h.usual) / usualWeight
			}
		}
		h.owes, h.overdue, h.since = h.waiting > 0, false, now
	} else if now-max(h.since, sent) > h.limit() {
		h.overdue = true
	}
	h.pace.note(h.steering, sizeClass(r.want), sent, now, err)
	h.mu.Unlock()
	if answered {
		h.answer(now)
	}
}

// answer says that the host has answered something. One that was silent begins
// with a small share of its reads, for it may have been started just now.
func (h *host) answer(now time.Duration) {
	if !h.quiet.Load() {
		return
	}
	h.mu.Lock()
	back := h.quiet.Load()
	if back {
		h.quiet.Store(false)
		h.steering.silent.Add(-1)
		h.owes, h.overdue, h.since, h.fresh = h.waiting > 0, false, now, now
		if h.share.Load() > 0 {
			h.shareLocked(leastShare)
			h.pace.restart(now)
		}
	}
	h.mu.Unlock()
	if back {
		h.steering.log.Info("a database host answers again", "host", h.steering.name(h.info))
	}
}

func (h *host) remove() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed = true
	close(h.gone)
	if h.quiet.Load() {
		h.quiet.Store(false)
		h.steering.silent.Add(-1)
	}
	h.shareLocked(fullShare)
}

// avoided says whether others are asked first.
func (h *host) avoided() bool { return h.quiet.Load() || h.share.Load() == 0 }

// askLocked says whether the caller is to have the host asked until it is to be
// read from again: whether nobody does so already.
func (h *host) askLocked() bool {
	begin := !h.asked && !h.removed
	h.asked = h.asked || begin
	return begin
}

// rested says whether the host needs to be asked no more: it is read from.
func (h *host) rested() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.removed || !h.quiet.Load() && h.share.Load() > 0 {
		h.asked = false
	}
	return !h.asked
}

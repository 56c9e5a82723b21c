package cql

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
)

// host is the state of a host.
type host struct {
	info     *gocql.HostInfo
	steering *steering
	gone     chan struct{}           // closed when the host has left the cluster
	quiet    atomic.Bool             // silent; written under mu
	share    atomic.Int32            // share of its reads that it gets, in units of 1/fullShare; written under mu
	turned   atomic.Pointer[reading] // a recent read that went elsewhere, for the next probe

	mu      sync.Mutex
	removed bool
	asked   bool          // a goroutine is probing it
	waiting int           // reads that wait for an answer
	owes    bool          // an answer is outstanding, perhaps to a read that was cancelled
	overdue bool          // a reader has waited too long for it
	since   time.Duration // when the first such read was sent, or the last answer came
	last    time.Duration // when the last read was sent
	usual   time.Duration // from since to an answer, a moving average
	fresh   time.Duration // reads sent before this met a silent host
	pace    pace

	gathered gathered // for the session that reads the store's own blobs
}

const (
	// A host is silent after silenceLeast, or silenceTimes the usual time without an answer while one is outstanding,
	// whichever is longer. With one read at a time that is its latency. With many, a load that makes each read wait
	// does not hide that none is answered.
	silenceLeast = 500 * time.Millisecond
	silenceTimes = 8
	// usualWeight is the inverse of the weight of an answer in the moving average.
	usualWeight = 16
)

// newHost returns the state of a host that gets its full share.
func newHost(st *steering, info *gocql.HostInfo) *host {
	h := &host{info: info, steering: st, gone: make(chan struct{}), gathered: gathered{conns: st.conns}}
	h.share.Store(fullShare)
	return h
}

// limit is the time without an answer after which the host is silent.
func (h *host) limit() time.Duration { return max(silenceLeast, silenceTimes*h.usual) }

// isSilent checks whether the host is silent now.
func (h *host) isSilent(now time.Duration, r *reading) bool {
	if h.quiet.Load() {
		return true
	}
	h.mu.Lock()
	// If no read has waited or was sent for that long, an answer may have come unnoticed.
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

// sent records that a read was sent to the host.
func (h *host) sent(now time.Duration) {
	h.mu.Lock()
	if !h.owes {
		h.owes, h.since = true, now
	}
	h.waiting++
	h.last = now
	h.mu.Unlock()
}

// ended records that the read sent at that time has ended or was cancelled.
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

// answer records an answer. A host that was silent begins with a small share of its reads, because it may have just
// started.
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

// remove records that the host has left the cluster. Its probes end.
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

// avoided reports whether other hosts are asked first.
func (h *host) avoided() bool { return h.quiet.Load() || h.share.Load() == 0 }

// askLocked reports whether the caller must start to probe the host; false if a goroutine does so already.
func (h *host) askLocked() bool {
	begin := !h.asked && !h.removed
	h.asked = h.asked || begin
	return begin
}

// rested reports whether probing may end, because the host is read from again.
func (h *host) rested() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.removed || !h.quiet.Load() && h.share.Load() > 0 {
		h.asked = false
	}
	return !h.asked
}

// How replicas are chosen. The order of the ring decides, so that each replica is always asked for the same part of
// the data. A host loses reads to the next one only if it is much slower than the quickest. Cassandra's own dynamic
// snitch does both among its replicas (B. Williams, "Dynamic snitching in Cassandra: past, present, and future",
// 2012): every 100 ms it compares medians of recent latencies, and avoids the pinned replica if that is worse than
// the best by the badness threshold, by default 1.0, which is twice the latency.
//
// A snitch that moves all of a host's reads at once overloads one host after the other (P. L. Suresh et al., "C3:
// Cutting Tail Latency in Cloud Data Stores via Adaptive Replica Selection", NSDI'15, section 2.3). So, as C3 does
// with rates, a share is moved here: it falls in proportion to how much too slow the host is, and rises step by step
// while it is not. A hash of the key decides which reads are moved: a host with half its share is always asked for
// the same half of its data.
//
// A host without a share is probed, as in Prequal (B. Wydrowski et al., "Load is not what you should balance",
// NSDI'24): once a second, a read that went elsewhere is repeated there, and its bytes are dropped. No caller waits
// for a probe.
//
// Latencies are compared between reads of about the same size.
const (
	// fullShare is all reads that have a host as their first replica.
	fullShare = 1024
	// leastShare is the initial share of a host that was not read from. A smaller share becomes none.
	leastShare = fullShare / 16
	// shareStep is by how much a share rises, at most once per paceEvery.
	shareStep = fullShare / 8
	// paceEvery is how often hosts are compared.
	paceEvery = 100 * time.Millisecond
	// A host is too slow if its median exceeds slowTimes the lowest of all hosts, and that by slowLeast. A smaller
	// difference does not matter to prefetching, and would prevent reads from a server with a disk of its own.
	slowTimes = 2
	slowLeast = 20 * time.Millisecond
	// paceKept is the number of reads in the median, and paceFew the minimum.
	paceKept = 32
	paceFew  = 8
	// paceOld is the age at which a host's latencies are no longer compared.
	paceOld = 10 * time.Second
	// probesWell is how many good probes in a row bring a host back.
	probesWell = 3
)

// Classes of sizes: less than 16 KiB, 128 KiB, 512 KiB, and more.
const sizeClasses = 4

// sizeClass returns the class of a size in bytes.
func sizeClass(size int) int {
	switch n := bits.Len(uint(size)); {
	case n <= 14:
		return 0
	case n <= 17:
		return 1
	case n <= 19:
		return 2
	}
	return 3
}

// pace holds the latencies of a host's reads.
type pace struct {
	classes [sizeClasses]latencies
	since   time.Duration // reads sent before this do not count: the share was another one
	well    int           // good probes in a row
}

// latencies are those of the last reads of a class of sizes.
type latencies struct {
	took  [paceKept]time.Duration
	kept  int           // number of values
	at    int           // index of the next one
	fresh int           // values since the last decision on the share
	last  time.Duration // when the newest came
}

// note records the end of a read. A cancelled read counts if it had taken longer than the limit, because an answer
// would have been slower still. An error counts as twice the limit, because hosts that fail quickly would otherwise
// win.
func (p *pace) note(st *steering, class int, sent, now time.Duration, err error) {
	if sent < p.since {
		return
	}
	took := now - sent
	if err != nil {
		limit := time.Duration(st.limits[class].Load())
		switch {
		case limit == 0:
			return
		case isAnswer(err):
			took = max(took, 2*limit)
		case took <= limit:
			return
		}
	}
	p.classes[class].add(took, now)
}

// add records a latency, in place of the oldest one.
func (l *latencies) add(took, now time.Duration) {
	l.took[l.at] = took
	l.at = (l.at + 1) % paceKept
	l.kept = min(l.kept+1, paceKept)
	l.fresh++
	l.last = now
}

// median returns the median of the last latencies; false if there are too few.
func (l *latencies) median() (time.Duration, bool) {
	if l.kept < paceFew {
		return 0, false
	}
	sorted := l.took
	slices.Sort(sorted[:l.kept])
	return sorted[l.kept/2], true
}

// restart drops the latencies, and those of reads that were sent before now.
func (p *pace) restart(now time.Duration) { *p = pace{since: now} }

// compare compares the latencies of hosts, if it is time to, and sets their shares. Reads do not block each other
// here.
func (st *steering) compare(now time.Duration, r *reading) {
	if now < time.Duration(st.due.Load()) || !st.comparing.TryLock() {
		return
	}
	defer st.comparing.Unlock()
	st.due.Store(int64(now + paceEvery))
	if st.replicas.Load() == 1 {
		return // there is no other host
	}
	var least [sizeClasses]time.Duration
	for h := range st.known() {
		if h.quiet.Load() {
			continue
		}
		h.mu.Lock()
		for i := range h.pace.classes {
			c := &h.pace.classes[i]
			if median, ok := c.median(); ok && now-c.last < paceOld && (least[i] == 0 || median < least[i]) {
				least[i] = max(median, 1)
			}
		}
		h.mu.Unlock()
	}
	for i, l := range least {
		if l > 0 {
			st.limits[i].Store(int64(slowTimes*l + slowLeast))
		}
	}
	for h := range st.known() {
		h.judge(now, r)
	}
}

// known yields the hosts of the cluster.
func (st *steering) known() func(yield func(*host) bool) {
	return func(yield func(*host) bool) {
		st.hosts.Range(func(_, h any) bool { return yield(h.(*host)) })
	}
}

// judge sets a host's share, if there are enough reads.
func (h *host) judge(now time.Duration, r *reading) {
	h.mu.Lock()
	share := h.share.Load()
	if h.quiet.Load() || share == 0 {
		h.mu.Unlock()
		return
	}
	var fresh int
	var took, allowed float64
	for i := range h.pace.classes {
		c := &h.pace.classes[i]
		limit := h.steering.limits[i].Load()
		if median, ok := c.median(); ok && limit > 0 && c.fresh > 0 {
			fresh += c.fresh
			took += float64(c.fresh) * float64(median)
			allowed += float64(c.fresh) * float64(limit)
		}
	}
	if fresh < paceFew {
		h.mu.Unlock()
		return
	}
	// The classes of sizes are weighted by their numbers of recent reads.
	slow := took > allowed
	ask := false
	switch {
	case slow:
		if share = int32(float64(share) * allowed / took); share < leastShare {
			share = 0
			ask = h.askLocked()
		}
		h.shareLocked(share)
		h.pace.restart(now)
	case share < fullShare:
		share = min(share+shareStep, fullShare)
		h.shareLocked(share)
		for i := range h.pace.classes {
			h.pace.classes[i].fresh = 0
		}
	}
	h.mu.Unlock()
	if slow && share == 0 {
		h.steering.log.Warn("a database host is slow: others are asked first until it is as quick as they are",
			"host", h.steering.name(h.info), "times_the_limit", float64(int(10*took/allowed))/10)
	}
	if ask {
		h.steering.ask(h, r)
	}
}

// shareLocked sets the share, and counts the hosts without their full share.
func (h *host) shareLocked(share int32) {
	before := h.share.Swap(share)
	switch {
	case before == fullShare && share < fullShare:
		h.steering.partial.Add(1)
	case before < fullShare && share == fullShare:
		h.steering.partial.Add(-1)
	}
}

// takes reports whether the host is asked for the read as its first replica.
func (h *host) takes(r *reading) bool {
	share := h.share.Load()
	if share == fullShare || int32(r.route.draw%fullShare) < share {
		return true
	}
	if h.turned.Load() == nil {
		h.turned.Store(r)
	}
	return false
}

// probed records the latency of a probe.
func (h *host) probed(r *reading, took, now time.Duration) {
	limit := time.Duration(h.steering.limits[sizeClass(r.want)].Load())
	h.mu.Lock()
	back := false
	switch {
	case h.share.Load() > 0 || limit == 0:
	case took > limit:
		h.pace.well = 0
	default:
		h.pace.well++
		if back = h.pace.well == probesWell && !h.removed; back {
			h.shareLocked(leastShare)
			h.pace.restart(now)
		}
	}
	h.mu.Unlock()
	if back {
		h.steering.log.Info("a database host is quick again", "host", h.steering.name(h.info), "answers_in",
			took.Round(time.Millisecond))
	}
}

// askEvery is the period of probes.
const askEvery = time.Second

// asking is the context of a request to one host.
type asking struct {
	context.Context //nolint:containedctx // it is one
	host            *host
}

// Value implements context.Context. It passes the host to the policy that chooses the
// host.
func (a asking) Value(key any) any {
	if key == (routeKey{}) {
		return a.host
	}
	return a.Context.Value(key)
}

// keepAsking probes a host that is silent or slow until it is to be read from again. Otherwise a reader would have to
// find that out, and would wait. r is a read that the host was not asked for.
func (s *Store) keepAsking(h *host, r *reading) {
	s.asking.Go(func() { h.steering.askUntilRested(s.ending, h, r) })
}

// askUntilRested probes a host once per askEvery, until the host is read from again,
// leaves the cluster, or ctx ends. It never probes concurrently.
func (st *steering) askUntilRested(ctx context.Context, h *host, r *reading) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		turned := h.turned.Swap(nil)
		if turned != nil {
			r = turned
		}
		// A slow host need not be probed while no read would go to it.
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

// repeatAt repeats a read at one host, and drops the answer.
func (st *steering) repeatAt(ctx context.Context, h *host, r *reading) error {
	q := st.session.Query(r.stmt, r.args[:r.bound]...).Consistency(gocql.LocalOne).WithContext(asking{ctx, h})
	return q.Iter().Close()
}

// patience is the timeout of a probe: long enough to see an answer that is only slow.
func (h *host) patience() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(askEvery, h.limit())
}

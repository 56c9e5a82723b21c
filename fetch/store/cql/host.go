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
	asked   bool          // by a goroutine
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

// How replicas are chosen. The order of the ring decides, which has each replica
// asked for the same part of the data all the time, and a host loses reads to the
// next one only where it is slower than the quickest by far. Both are what
// Cassandra's own dynamic snitch does among its replicas (B. Williams, "Dynamic
// snitching in Cassandra: past, present, and future", 2012): every 100 ms it
// compares medians of recent latencies, and passes over the pinned replica where
// that is worse than the best by the badness threshold, 1.0 by default, which is
// twice its latency.
//
// A snitch that moves all of a host's reads at once has hosts take turns at being
// overloaded (P. L. Suresh et al., "C3: Cutting Tail Latency in Cloud Data Stores
// via Adaptive Replica Selection", NSDI'15, section 2.3). So, as C3 does with
// rates, what moves here is a share: it falls in proportion to how much too slow
// the host is, and rises step by step while it is not. Which reads those are is
// decided by a hash of the key: a host with half its share has the same half of
// its data asked all the time.
//
// A host without a share is probed, apart from what anybody waits for, as Prequal
// does (B. Wydrowski et al., "Load is not what you should balance", NSDI'24): a
// read that went elsewhere is repeated there once a second, its bytes dropped.
//
// Latencies are compared between reads of about the same size.
const (
	// fullShare is the whole of the reads of which a host is the first replica.
	fullShare = 1024
	// leastShare is what a host begins with that was not read from; less is none.
	leastShare = fullShare / 16
	// shareStep is by how much a share rises, once in a paceEvery at most.
	shareStep = fullShare / 8
	// paceEvery is how often hosts are compared.
	paceEvery = 100 * time.Millisecond
	// A host is too slow whose median is more than slowTimes the least of all hosts,
	// and slowLeast beyond that: less is nothing to a reader that reads ahead, and
	// would keep it from a server with a disk of its own.
	slowTimes = 2
	slowLeast = 20 * time.Millisecond
	// paceKept is of how many reads the median is taken, paceFew how many there must be.
	paceKept = 32
	paceFew  = 8
	// paceOld is after how long a host's latencies say nothing about others'.
	paceOld = 10 * time.Second
	// probesWell is how many probes in a row bring a host back.
	probesWell = 3
)

// Classes of sizes: less than 16 KiB, 128 KiB, 512 KiB, and more.
const sizeClasses = 4

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

// pace is how long a host's reads take.
type pace struct {
	classes [sizeClasses]latencies
	since   time.Duration // reads sent before then do not count: the share was another one
	well    int           // probes in a row
}

// latencies are those of the last reads of a class of sizes.
type latencies struct {
	took  [paceKept]time.Duration
	kept  int           // of them
	at    int           // where the next one goes
	fresh int           // that came since the share was decided last
	last  time.Duration // when the newest came
}

// note takes note of how a read ended. One that was given up counts if that was
// after more than a read may take: an answer would have been slower still. An error
// counts for that much, or else hosts would win that are quick to fail.
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

func (l *latencies) add(took, now time.Duration) {
	l.took[l.at] = took
	l.at = (l.at + 1) % paceKept
	l.kept = min(l.kept+1, paceKept)
	l.fresh++
	l.last = now
}

// median is known if there are enough latencies.
func (l *latencies) median() (time.Duration, bool) {
	if l.kept < paceFew {
		return 0, false
	}
	sorted := l.took
	slices.Sort(sorted[:l.kept])
	return sorted[l.kept/2], true
}

// restart forgets what was before.
func (p *pace) restart(now time.Duration) { *p = pace{since: now} }

// compare looks at how long reads take where, if it is time to, and decides upon
// the hosts' shares. Reads do not wait for one another here.
func (st *steering) compare(now time.Duration, r *reading) {
	if now < time.Duration(st.due.Load()) || !st.comparing.TryLock() {
		return
	}
	defer st.comparing.Unlock()
	st.due.Store(int64(now + paceEvery))
	if st.replicas.Load() == 1 {
		return // there is nobody else to ask
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

// known are the hosts of the cluster.
func (st *steering) known() func(yield func(*host) bool) {
	return func(yield func(*host) bool) {
		st.hosts.Range(func(_, h any) bool { return yield(h.(*host)) })
	}
}

// judge decides upon a host's share, if there are enough reads to go by.
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

// shareLocked sets the share.
func (h *host) shareLocked(share int32) {
	before := h.share.Swap(share)
	switch {
	case before == fullShare && share < fullShare:
		h.steering.partial.Add(1)
	case before < fullShare && share == fullShare:
		h.steering.partial.Add(-1)
	}
}

// takes says whether the host is to be asked for the read as its first replica.
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

// probed says how long an answer took to a read that was repeated for it.
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

package cql

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
)

// steering decides which host a read asks first, and which ones after it. It
// wraps the driver's token-aware policy, which knows the replicas, for one session.
//
// Attempt n of a read begins at replica n of its token, in the order of the
// ring: so a replica is asked for the same third of the data all the time, which
// its page cache then holds, and a read that is tried again, or for a second time
// meanwhile, asks another. A host that is silent is asked last: one that owes an
// answer for longer than is usual, by far, and has given none since. It is no
// longer silent when it answers anything, and is asked now and then whether it does.
//
// Only reads of blobs are watched. Other requests avoid silent hosts too.
type steering struct {
	gocql.HostSelectionPolicy // the token-aware one
	dc, keyspace              string
	log                       *slog.Logger
	now                       func() time.Duration // since some time
	name                      func(*gocql.HostInfo) string
	// ask begins to ask a host that is silent until it answers, which it tells the
	// host, or is gone. r is a read that it was to be asked for.
	ask func(st *steering, h *host, r *reading)

	session  *gocql.Session
	replicas atomic.Int32 // in dc; 0 if that is not known
	silent   atomic.Int32 // hosts
	hosts    sync.Map     // *gocql.HostInfo to *host
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
	// replicasGuess is for replication that this package cannot read.
	replicasGuess = 3
	// mostTurns bounds how many replicas take turns.
	mostTurns = 8
)

func (s *Store) newSteering(keyspace string) *steering {
	start := time.Now()
	return &steering{
		HostSelectionPolicy: gocql.TokenAwareHostPolicy(gocql.DCAwareRoundRobinPolicy(s.dc), gocql.NonLocalReplicasFallback()),
		dc:                  s.dc,
		keyspace:            keyspace,
		log:                 s.log,
		ask:                 s.askSilent,
		now:                 func() time.Duration { return time.Since(start) },
		name:                func(h *gocql.HostInfo) string { return h.ConnectAddress().String() },
	}
}

// Init implements gocql.HostSelectionPolicy.
func (st *steering) Init(s *gocql.Session) {
	st.session = s
	st.HostSelectionPolicy.Init(s)
}

// KeyspaceChanged implements gocql.HostSelectionPolicy. The driver calls it when
// a session is opened too.
func (st *steering) KeyspaceChanged(u gocql.KeyspaceUpdateEvent) {
	st.HostSelectionPolicy.KeyspaceChanged(u)
	if u.Keyspace != st.keyspace || st.session == nil {
		return
	}
	if meta, err := st.session.KeyspaceMetadata(u.Keyspace); err == nil {
		st.replicas.Store(replicasIn(st.dc, meta.StrategyOptions))
	}
}

// replicasIn reads from a keyspace's replication how many there are in a
// datacenter, 0 if it does not say.
func replicasIn(dc string, options map[string]any) int32 {
	for _, name := range []string{dc, "replication_factor"} {
		if text, ok := options[name].(string); ok {
			full, _, _ := strings.Cut(text, "/") // of N/M, M are transient
			n, err := strconv.ParseInt(full, 10, 16)
			if err == nil && n > 0 {
				return int32(n)
			}
		}
	}
	return 0
}

// RemoveHost implements gocql.HostSelectionPolicy.
func (st *steering) RemoveHost(info *gocql.HostInfo) {
	st.HostSelectionPolicy.RemoveHost(info)
	if h, ok := st.hosts.LoadAndDelete(info); ok {
		h.(*host).remove()
	}
}

func (st *steering) host(info *gocql.HostInfo) *host {
	if h, ok := st.hosts.Load(info); ok {
		return h.(*host)
	}
	h, _ := st.hosts.LoadOrStore(info, &host{info: info, steering: st, gone: make(chan struct{})})
	return h.(*host)
}

// Pick implements gocql.HostSelectionPolicy.
func (st *steering) Pick(q gocql.ExecutableQuery) gocql.NextHost {
	if q != nil {
		switch v := q.Context().Value(routeKey{}).(type) {
		case *reading:
			v.route.begin(st, v, q)
			return v.route.next
		case *host:
			return only(v.info, st.HostSelectionPolicy.Pick(q))
		}
	}
	next := st.HostSelectionPolicy.Pick(q)
	if st.silent.Load() == 0 {
		return next
	}
	var late []gocql.SelectedHost
	return func() gocql.SelectedHost {
		for {
			h := next()
			if h == nil {
				if len(late) == 0 {
					return nil
				}
				h, late = late[0], late[1:]
				return h
			}
			if info := h.Info(); info == nil || !st.host(info).quiet.Load() {
				return h
			}
			late = append(late, h)
		}
	}
}

// routeKey finds in a request's context what decides about its route: a
// *reading, or the one *host that is to be asked.
type routeKey struct{}

// only leaves one host.
func only(info *gocql.HostInfo, next gocql.NextHost) gocql.NextHost {
	return func() gocql.SelectedHost {
		for h := next(); h != nil; h = next() {
			if h.Info() == info {
				return h
			}
		}
		return nil
	}
}

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

// host is what is known of a host.
type host struct {
	info     *gocql.HostInfo
	steering *steering
	gone     chan struct{} // closed when the host has left the cluster
	quiet    atomic.Bool   // silent; written under mu

	mu      sync.Mutex
	removed bool
	waiting int           // reads that wait for an answer
	owes    bool          // an answer to a read, perhaps one that nobody waits for any more
	overdue bool          // which somebody has waited for for too long
	since   time.Duration // when the first such read was sent, or the last answer came
	last    time.Duration // when the last read was sent
	usual   time.Duration // from since to an answer, a moving mean
	fresh   time.Duration // reads sent before then met a silent host
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
	if silent {
		h.quiet.Store(true)
		h.steering.silent.Add(1)
	}
	since := now - h.since
	h.mu.Unlock()
	if silent {
		h.steering.log.Warn("a database host is silent: others are asked first until it answers",
			"host", h.steering.name(h.info), "without_answer", since.Round(time.Millisecond))
		h.steering.ask(h.steering, h, r)
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
func (h *host) ended(sent, now time.Duration, answered bool) {
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
	h.mu.Unlock()
	if answered {
		h.answer(now)
	}
}

// answer says that the host has answered something.
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
}

// route is the order in which one read asks the hosts, and where it stands.
type route struct {
	steering *steering
	read     *reading
	attempt  int

	rest  gocql.NextHost // what the driver would ask next
	query inOrder
	turns [mostTurns]gocql.SelectedHost // taken out of rest, to be asked before it
	n, at int                           // turns, and how many of them were asked
	late  []gocql.SelectedHost          // silent ones
	last  bool                          // only these are left

	asked selected
	host  *host         // being asked; nil if none is
	sent  time.Duration // since when
}

// inOrder makes ScyllaDB's fork give out replicas in the order of the ring: it
// shuffles those of all queries but lightweight transactions, and gocql itself
// has no name for the option that turns this off.
type inOrder struct{ gocql.ExecutableQuery }

// IsLWT overrides a method of the fork's queries.
func (inOrder) IsLWT() bool { return true }

// selected tells the route when the host it stands for has failed. It embeds
// the driver's own, whose methods differ between gocql and its fork.
type selected struct {
	gocql.SelectedHost
	route *route
}

// Mark implements gocql.SelectedHost. The fork does not call it when all is
// well, and both call it with nil when the request was cancelled.
func (s *selected) Mark(err error) {
	s.SelectedHost.Mark(err)
	if err != nil {
		s.route.end(err)
	}
}

func (r *route) begin(st *steering, read *reading, q gocql.ExecutableQuery) {
	*r = route{steering: st, read: read, attempt: r.attempt, query: inOrder{q}}
	r.asked.route = r
	r.rest = st.HostSelectionPolicy.Pick(&r.query)
	replicas := int(st.replicas.Load())
	if replicas == 0 {
		replicas = replicasGuess
	}
	// The only replica is asked in any case: others would have to ask it.
	r.last = replicas == 1
	if r.attempt == 0 || replicas == 1 {
		return
	}
	now := st.now()
	var live [mostTurns]gocql.SelectedHost
	for range min(replicas, mostTurns) {
		h := r.rest()
		if h == nil {
			break
		}
		if st.host(h.Info()).isSilent(now, read) {
			r.late = append(r.late, h)
			continue
		}
		live[r.n] = h
		r.n++
	}
	for i := range r.n {
		r.turns[i] = live[(i+r.attempt)%r.n]
	}
}

// next implements gocql.NextHost.
func (r *route) next() gocql.SelectedHost {
	r.end(errNotAsked)
	now := r.steering.now()
	for {
		var to gocql.SelectedHost
		if r.at < r.n {
			to = r.turns[r.at]
			r.at++
		} else if to = r.rest(); to == nil {
			if len(r.late) == 0 {
				return nil
			}
			to, r.late, r.last = r.late[0], r.late[1:], true
		}
		h := r.steering.host(to.Info())
		if silent := h.isSilent(now, r.read); silent && !r.last {
			r.late = append(r.late, to)
			continue
		}
		h.sent(now)
		r.host, r.sent = h, now
		r.asked.SelectedHost = to
		return &r.asked
	}
}

// errNotAsked stands for the driver's having no connection to a host.
var errNotAsked = errors.New("not asked")

// end says how the request to the host ended that was asked last, once.
func (r *route) end(err error) {
	if h := r.host; h != nil {
		r.host = nil
		h.ended(r.sent, r.steering.now(), isAnswer(err))
	}
}

// isAnswer says whether the host itself has said something: a connection that
// broke, a request that nobody waits for any more and a timeout are none.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	_, ok := codeOf(err)
	return ok
}

// askEvery is how often a silent host is asked.
const askEvery = time.Second

// askSilent repeats a read at a host until it answers. A read that is waited for
// would be served late if it were the one to find out.
func (s *Store) askSilent(st *steering, h *host, r *reading) {
	s.asking.Go(func() {
		tick := time.NewTicker(askEvery)
		defer tick.Stop()
		for {
			ctx, cancel := context.WithTimeout(s.ending, h.patience())
			q := st.session.Query(r.stmt, r.args[:r.bound]...).Consistency(gocql.LocalOne).WithContext(asking{ctx, h})
			err := q.Iter().Close()
			cancel()
			if isAnswer(err) {
				h.answer(st.now())
				return
			}
			select {
			case <-tick.C:
			case <-h.gone:
				return
			case <-s.ending.Done():
				return
			}
		}
	})
}

// patience is how long an answer of a silent host is waited for.
func (h *host) patience() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(askEvery, h.limit())
}

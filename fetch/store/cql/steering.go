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
	"github.com/zeebo/xxh3"

	"bowstring/schema"
)

// steering decides which host a read asks first, and which ones after it. It wraps the driver's token-aware policy,
// which knows the replicas, for one session.
//
// Attempt n of a read begins at replica n of its token, in the order of the ring. So a replica is always asked for
// the same third of the data, which stays in its page cache, and a retry or a hedge asks another replica. Two kinds
// of hosts are avoided, and probed apart from reads:
//
//   - A silent host is asked last: an answer has been outstanding for much longer than usual, and no other answer has
//     come since (host.go).
//   - A slow host gets a part of its reads, or none, and comes after the other replicas for the rest: its reads take
//     much longer than those of the quickest host (host.go, with the sources of the method).
//
// Only reads of blobs are watched. Other requests avoid such hosts too.
type steering struct {
	gocql.HostSelectionPolicy // the token-aware policy
	dc, keyspace              string
	conns                     int // per host
	log                       *slog.Logger
	now                       func() time.Duration // since some fixed time
	name                      func(*gocql.HostInfo) string
	// ask starts to probe a host that is not read from, until it is read from again or has left. r is a read that it
	// was to be asked for.
	ask func(h *host, r *reading)
	// repeat repeats a read at one host.
	repeat func(ctx context.Context, h *host, r *reading) error

	// reads is the steering of the session that reads blobs, if that is another session: it knows which hosts are
	// silent.
	reads *steering

	session     *gocql.Session
	partitioner atomic.Pointer[string] // that the token-aware policy gets with the first host; nil once it has it
	replicas    atomic.Int32           // in dc; 0 if unknown
	silent      atomic.Int32           // hosts
	partial     atomic.Int32           // hosts with less than their full share
	hosts       sync.Map               // *gocql.HostInfo -> *host

	comparing sync.Mutex
	due       atomic.Int64              // when hosts are compared next
	limits    [sizeClasses]atomic.Int64 // how long a read may take; 0 if unknown
}

const (
	// replicasGuess is for replication that this package cannot parse.
	replicasGuess = 3
	// mostTurns bounds how many replicas a read asks in order.
	mostTurns = 8
)

// newSteering returns the steering of a new session on a keyspace.
func (s *Store) newSteering(keyspace string) *steering {
	start := time.Now()
	st := &steering{
		HostSelectionPolicy: gocql.TokenAwareHostPolicy(gocql.DCAwareRoundRobinPolicy(s.dc),
			gocql.NonLocalReplicasFallback()),
		dc:       s.dc,
		keyspace: keyspace,
		conns:    s.conns,
		log:      s.log,
		ask:      s.keepAsking,
		now:      func() time.Duration { return time.Since(start) },
		reads:    s.reader(keyspace),
		name:     func(h *gocql.HostInfo) string { return h.ConnectAddress().String() },
	}
	st.repeat = st.repeatAt
	return st
}

// Init implements gocql.HostSelectionPolicy.
func (st *steering) Init(s *gocql.Session) {
	st.session = s
	st.HostSelectionPolicy.Init(s)
}

// KeyspaceChanged implements gocql.HostSelectionPolicy. The driver also calls it when a session is opened.
func (st *steering) KeyspaceChanged(u gocql.KeyspaceUpdateEvent) {
	st.HostSelectionPolicy.KeyspaceChanged(u)
	if u.Keyspace == st.keyspace && st.session != nil {
		st.countReplicas()
	}
}

// countReplicas reads the keyspace's replication from the driver. ScyllaDB's fork only returns it once the session is
// open.
func (st *steering) countReplicas() {
	if meta, err := st.session.KeyspaceMetadata(st.keyspace); err == nil {
		st.replicas.Store(replicasIn(st.dc, meta.StrategyOptions))
	}
}

// replicasIn reads the number of replicas in a datacenter from a keyspace's replication, 0 if it is not given.
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

// SetPartitioner implements gocql.HostSelectionPolicy. The token-aware policy reads the schema of the keyspace there,
// in two round trips. When a session is opened, the driver calls it before it connects to the hosts. So the policy
// gets the partitioner with the first host, when the connections are being made.
func (st *steering) SetPartitioner(name string) {
	for range st.known() {
		st.HostSelectionPolicy.SetPartitioner(name)
		return
	}
	st.partitioner.Store(&name)
}

// AddHost implements gocql.HostSelectionPolicy.
func (st *steering) AddHost(info *gocql.HostInfo) {
	if name := st.partitioner.Swap(nil); name != nil {
		st.HostSelectionPolicy.SetPartitioner(*name)
	}
	st.HostSelectionPolicy.AddHost(info)
	st.host(info)
}

// RemoveHost implements gocql.HostSelectionPolicy.
func (st *steering) RemoveHost(info *gocql.HostInfo) {
	st.HostSelectionPolicy.RemoveHost(info)
	if h, ok := st.hosts.LoadAndDelete(info); ok {
		h.(*host).remove()
	}
}

// host returns the state of a host, and creates it if needed.
func (st *steering) host(info *gocql.HostInfo) *host {
	if h, ok := st.hosts.Load(info); ok {
		return h.(*host)
	}
	h, _ := st.hosts.LoadOrStore(info, newHost(st, info))
	return h.(*host)
}

// seen is the steering that watches reads: the session's own, or that of the session that
// reads blobs.
func (st *steering) seen() *steering {
	if st.reads != nil {
		return st.reads
	}
	return st
}

// avoids reports whether a host is asked after the others.
func (st *steering) avoids(info *gocql.HostInfo) bool {
	if st.reads == nil {
		return st.host(info).avoided()
	}
	avoided := false
	st.reads.hosts.Range(func(_, value any) bool { // each session has infos of its own
		h := value.(*host)
		if h.info.HostID() == info.HostID() {
			avoided = h.avoided()
			return false
		}
		return true
	})
	return avoided
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
	if seen := st.seen(); seen.silent.Load() == 0 && seen.partial.Load() == 0 {
		return next
	}
	// Requests other than reads of blobs keep the driver's order, with avoided hosts
	// moved to the end.
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
			if info := h.Info(); info == nil || !st.avoids(info) {
				return h
			}
			late = append(late, h)
		}
	}
}

// routeKey is the key, in a request's context, of what decides its route: a *reading, or the single *host to ask.
type routeKey struct{}

// only limits the hosts to one.
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

// route is the order in which one read asks the hosts, and its progress.
type route struct {
	steering *steering
	read     *reading
	attempt  int
	draw     uint32 // pseudorandom, but the same in every read of one cell

	rest  gocql.NextHost // what the driver would ask next
	query inOrder
	turns [mostTurns]gocql.SelectedHost // taken out of rest, to be asked before it
	n, at int                           // number of turns, and how many were asked
	late  []gocql.SelectedHost          // silent hosts
	last  bool                          // only silent hosts are left

	asked selected
	host  *host         // being asked; nil if none is
	sent  time.Duration // when host was asked
}

// inOrder makes ScyllaDB's fork return replicas in the order of the ring. The fork shuffles them for all queries
// except lightweight transactions, and gocql itself has no name for the option that turns this off.
type inOrder struct{ gocql.ExecutableQuery }

// IsLWT overrides a method of the fork's queries.
func (inOrder) IsLWT() bool { return true }

// selected reports to the route when its host has failed. It embeds the driver's own type, whose methods differ
// between gocql and its fork.
type selected struct {
	gocql.SelectedHost
	route *route
}

// Mark implements gocql.SelectedHost. The fork does not call it on success, and both call it with nil when the
// request was cancelled.
func (s *selected) Mark(err error) {
	s.SelectedHost.Mark(err)
	if err != nil {
		s.route.end(err)
	}
}

// begin determines the order of hosts for an attempt. First come the replicas in the
// order of the ring, from the attempt's own on, and then those from which this read was
// moved away. Then follows the order of the driver, and silent hosts come last.
func (r *route) begin(st *steering, read *reading, q gocql.ExecutableQuery) {
	*r = route{steering: st, read: read, attempt: r.attempt, draw: r.draw, query: inOrder{q}}
	r.asked.route = r
	r.rest = st.HostSelectionPolicy.Pick(&r.query)
	replicas := int(st.replicas.Load())
	if replicas == 0 {
		replicas = replicasGuess
	}
	// The only replica is asked in any case, because other hosts would have to ask it.
	r.last = replicas == 1
	if replicas == 1 || r.attempt == 0 && st.partial.Load() == 0 {
		return
	}
	// The replicas are taken out of the driver's order one by one. Other hosts stay in it
	// behind them.
	now := st.now()
	var order, behind [mostTurns]gocql.SelectedHost
	passed := 0
	for range min(replicas, mostTurns) {
		to := r.rest()
		if to == nil {
			break
		}
		switch h := st.host(to.Info()); {
		case h.isSilent(now, read):
			r.late = append(r.late, to)
		case h.takes(read):
			order[r.n] = to
			r.n++
		default:
			behind[passed] = to
			passed++
		}
	}
	r.n += copy(order[r.n:], behind[:passed])
	for i := range r.n {
		r.turns[i] = order[(i+r.attempt)%r.n]
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

// errNotAsked is the error of a host that the driver has no connection to.
var errNotAsked = errors.New("not asked")

// end records, once, how the request to the last host ended.
func (r *route) end(err error) {
	if h := r.host; h != nil {
		r.host = nil
		now := r.steering.now()
		h.ended(r.read, r.sent, now, err)
		r.steering.compare(now, r.read)
	}
}

// isAnswer reports whether the host itself has answered. Broken connections, cancelled requests and timeouts are no
// answers.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	_, ok := codeOf(err)
	return ok
}

// drawOf hashes the address of a part of a blob.
func drawOf(key *schema.Key, part int) uint32 { return uint32(xxh3.HashSeed(key[:], uint64(part))) }

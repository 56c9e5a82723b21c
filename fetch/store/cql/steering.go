package cql

import (
	"context"
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
// meanwhile, asks another. Two kinds of hosts are passed over, and asked now and
// then, apart from what anybody waits for, whether they still are of that kind:
//
//   - A host that is silent is asked last: one that owes an answer for longer than
//     is usual, by far, and has given none since (host.go).
//   - A host that is slow has a part of its reads, or none, and is behind the other
//     replicas for the rest: one whose reads take longer than those of the quickest, by
//     far (pace.go, which says whose method that is).
//
// Only reads of blobs are watched. Other requests avoid such hosts too.
type steering struct {
	gocql.HostSelectionPolicy // the token-aware one
	dc, keyspace              string
	conns                     int // to each host
	log                       *slog.Logger
	now                       func() time.Duration // since some time
	name                      func(*gocql.HostInfo) string
	// ask begins to ask a host that is not read from, until it is to be again or is
	// gone. r is a read that it was to be asked for.
	ask func(h *host, r *reading)
	// repeat makes a read again, at one host.
	repeat func(ctx context.Context, h *host, r *reading) error

	// reads is the steering of the session that reads blobs, if that is another one: it knows which hosts are silent.
	reads *steering

	session  *gocql.Session
	replicas atomic.Int32 // in dc; 0 if that is not known
	silent   atomic.Int32 // hosts
	partial  atomic.Int32 // hosts with less than their full share
	hosts    sync.Map     // *gocql.HostInfo to *host

	comparing sync.Mutex
	due       atomic.Int64              // when hosts are compared next
	limits    [sizeClasses]atomic.Int64 // how long a read may take; 0 if that is not known
}

const (
	// replicasGuess is for replication that this package cannot read.
	replicasGuess = 3
	// mostTurns bounds how many replicas take turns.
	mostTurns = 8
)

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

// KeyspaceChanged implements gocql.HostSelectionPolicy. The driver calls it when
// a session is opened too.
func (st *steering) KeyspaceChanged(u gocql.KeyspaceUpdateEvent) {
	st.HostSelectionPolicy.KeyspaceChanged(u)
	if u.Keyspace == st.keyspace && st.session != nil {
		st.countReplicas()
	}
}

// countReplicas asks the driver how the keyspace is replicated. ScyllaDB's fork says
// so only when the session is open, and not while it opens one.
func (st *steering) countReplicas() {
	if meta, err := st.session.KeyspaceMetadata(st.keyspace); err == nil {
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

// AddHost implements gocql.HostSelectionPolicy.
func (st *steering) AddHost(info *gocql.HostInfo) {
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

func (st *steering) host(info *gocql.HostInfo) *host {
	if h, ok := st.hosts.Load(info); ok {
		return h.(*host)
	}
	h, _ := st.hosts.LoadOrStore(info, newHost(st, info))
	return h.(*host)
}

// seen is the steering whose reads tell how hosts do.
func (st *steering) seen() *steering {
	if st.reads != nil {
		return st.reads
	}
	return st
}

// avoids reports whether a host is to be asked after the others.
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

package cql

import (
	"errors"
	"time"

	"github.com/gocql/gocql"
	"github.com/zeebo/xxh3"

	"bowstring/schema"
)

// route is the order in which one read asks the hosts, and where it stands.
type route struct {
	steering *steering
	read     *reading
	attempt  int
	draw     uint32 // by chance, but the same in every read of one cell

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
	*r = route{steering: st, read: read, attempt: r.attempt, draw: r.draw, query: inOrder{q}}
	r.asked.route = r
	r.rest = st.HostSelectionPolicy.Pick(&r.query)
	replicas := int(st.replicas.Load())
	if replicas == 0 {
		replicas = replicasGuess
	}
	// The only replica is asked in any case: others would have to ask it.
	r.last = replicas == 1
	if replicas == 1 || r.attempt == 0 && st.partial.Load() == 0 {
		return
	}
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

// errNotAsked stands for the driver's having no connection to a host.
var errNotAsked = errors.New("not asked")

// end says how the request to the host ended that was asked last, once.
func (r *route) end(err error) {
	if h := r.host; h != nil {
		r.host = nil
		now := r.steering.now()
		h.ended(r.read, r.sent, now, err)
		r.steering.compare(now, r.read)
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

// drawOf hashes the address of a part of a blob.
func drawOf(key *schema.Key, part int) uint32 { return uint32(xxh3.HashSeed(key[:], uint64(part))) }

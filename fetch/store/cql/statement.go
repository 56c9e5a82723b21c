package cql

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// selectGathered asks for several blobs of one part each. One list is bound, so the server prepares one statement for
// all numbers of keys.
const selectGathered = "SELECT key, data FROM " + tableParts + " WHERE key IN ? AND part = 0"

// statement asks for several blobs. Its members are written until it is sent, under gathered.mu.
type statement struct {
	gathering *gathering
	host      *gathered
	kind      *kind // where it is open
	members   []*joined
	bytes     int64           // of those that have not left; guarded by gathered.mu, as is waiting
	full      chan struct{}   // closed when no more may join
	context   context.Context //nolint:containedctx // ends when nobody waits any more
	cancel    context.CancelCauseFunc
	waiting   int // members that have not left
}

// Stages of a member.
const (
	memberWaits int32 = iota
	memberServed
	memberLeft
)

// joined is one read of a statement.
type joined struct {
	ref   schema.BlobRef
	stage atomic.Int32 // who moves it from memberWaits decides its outcome
	ended chan struct{}

	// Written before ended is closed.
	buffer *buffer // the reader's; nil if the blob is to be read alone
	moved  bool    // from the next replica on
}

// errCut is why a statement is given up that takes far longer than others.
var errCut = errors.New("a statement for several blobs took far longer than usual")

// leave says that a member does not wait any more. A statement that nobody waits for is given up.
func (st *statement) leave(m *joined) {
	h := st.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads--
	st.waiting--
	st.bytes -= m.ref.Size
	if st.waiting == 0 {
		if st.kind.open == st {
			st.kind.closeLocked()
		}
		st.cancel(context.Canceled)
	}
}

// run sends a statement when others have had the time to join it, and serves its members.
func (st *statement) run(linger time.Duration) {
	defer st.cancel(nil)
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-st.full:
	case <-timer.C:
	}
	h := st.host
	h.mu.Lock()
	if st.kind.open == st {
		st.kind.closeLocked()
	}
	several := st.waiting > 1
	h.mu.Unlock()
	moved := several && st.send()
	for _, m := range st.members {
		if m.stage.CompareAndSwap(memberWaits, memberServed) {
			m.moved = moved
			close(m.ended)
		}
	}
}

// send asks for the blobs of those members that still wait, and hands out what comes. It reports whether what did not
// come is to be read from another host.
func (st *statement) send() (moved bool) {
	g, s := st.gathering, st.gathering.store
	var total int64
	answer := answered{arena: &s.buffers}
	for _, m := range st.members {
		if m.stage.Load() == memberWaits {
			answer.members = append(answer.members, m)
			total += m.ref.Size
		}
	}
	if len(answer.members) == 0 {
		return false
	}
	g.statements.Add(1)
	g.shared.Add(int64(len(answer.members)))
	first := &answer.members[0].ref.Key
	r := newReading(st.context, selectGathered, int(total))
	r.bind(keysOf(answer.members))
	r.route.draw = drawOf(first, 0)
	sent := time.Now()
	defer st.cutWhenOverdue(sent).Stop()
	q, made := r.query(s.db)
	// A single read has the retry.
	iter := q.RoutingKey(routingKey(first)).Consistency(s.config.Read).RetryPolicy(movingRetries(0)).PageSize(0).Iter()
	into := [2]any{(*answeredKey)(&answer), &answer}
	for iter.Scan(into[:]...) {
	}
	err := iter.Close()
	r.route.end(err)
	made.Release()
	switch {
	case err == nil:
		st.host.took(st.kind, sent, time.Now())
		return false
	case errors.Is(context.Cause(st.context), errCut):
		st.host.gaveUp(st.kind, sent, time.Now())
	case refuses(err):
		g.refuse(len(answer.members), err)
		return false
	}
	return true
}

// cutWhenOverdue gives the statement up once it is overdue, until the timer is stopped and its context has ended.
func (st *statement) cutWhenOverdue(sent time.Time) *time.Timer {
	var timer *time.Timer
	timer = time.AfterFunc(time.Hour, func() {
		if st.context.Err() != nil {
			return
		}
		overdue, wait := st.overdue(sent, time.Now())
		if overdue {
			st.cancel(errCut)
			return
		}
		timer.Reset(wait)
	})
	_, wait := st.overdue(sent, sent)
	timer.Reset(wait)
	return timer
}

// overdue says whether the statement, which was sent at some time, is to be given up, or else when to ask again. While
// nothing is answered that was sent after it, all wait for the same thing, such as a link that has become slow: to read
// its blobs again would add to that.
func (st *statement) overdue(sent, now time.Time) (overdue bool, wait time.Duration) {
	h := st.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := st.gathering.patience(st.kind.usual) - now.Sub(sent); left > 0 {
		return false, left
	}
	return h.last.After(sent), cutLeast
}

// refuses says whether a server does not answer statements for several keys, or for so many. A server that cannot read
// the statement does not know the form: its text never changes. What is invalid may be something else, such as a table
// that is missing, which fewer keys are no help against; protocol and servers have no code for what it is, so the text
// decides.
func refuses(err error) bool {
	code, ok := codeOf(err)
	return ok && (code == codeSyntax || code == codeInvalid && aboutKeys.MatchString(err.Error()))
}

// aboutKeys is what servers say of too many keys. Cassandra has two limits, whose texts are "Aborting query with
// partition keys in IN clause ..." and "Aborting query because the cartesian product of the IN restrictions ..."; before
// version 2.2 it is "Partition KEY part key cannot be restricted by IN relation". Scylla's is "partition key cartesian
// product size ...".
var aboutKeys = regexp.MustCompile(`\bIN\b|\bpartition[ _]keys\b|\bcartesian product\b`)

// refuse has statements ask for fewer blobs than one that was refused.
func (g *gathering) refuse(keys int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if int(g.most.Load()) < keys {
		return // others have seen to it
	}
	fewer := int32(keys / 2)
	g.most.Store(fewer)
	g.refused = g.store.steering.now()
	if fewer >= g.lowest {
		return // it was said then
	}
	g.lowest = fewer
	g.store.log.Warn("the database refuses statements with several keys: they ask for fewer for now, which costs "+
		"more; see partition_keys_in_select_fail_threshold, or give the store's address the parameter keys",
		"keys", keys, "keys_for_now", fewer, "error", err)
}

// keys is how many blobs a statement may ask for.
func (g *gathering) keys() int32 {
	most := g.most.Load()
	if most >= g.wanted {
		return most
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	most = g.most.Load()
	if now := g.store.steering.now(); most < g.wanted && now-g.refused >= raiseAfter {
		most = min(2*max(most, 1), g.wanted)
		g.most.Store(most)
		g.refused = now
	}
	return most
}

// answered has the rows of an answer copied to the members that asked for them. The driver's buffer is not held.
type answered struct {
	arena   *arena
	members []*joined
	key     schema.Key // of the row being read
}

// answeredKey is the first column.
type answeredKey answered

// UnmarshalCQL implements gocql.Unmarshaler.
func (a *answeredKey) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	a.key = schema.Key{}
	if len(data) == len(a.key) {
		copy(a.key[:], data)
	}
	return nil
}

// UnmarshalCQL implements gocql.Unmarshaler. The driver lends its buffer only. A cell that is not what was asked for is
// left to a single read, whose errors say more.
func (a *answered) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	for _, m := range a.members {
		if int64(len(data)) != m.ref.Size || !bytes.Equal(a.key[:], m.ref.Key[:]) ||
			!m.stage.CompareAndSwap(memberWaits, memberServed) {
			continue
		}
		if b, err := a.arena.take(m.ref.Size); err == nil { // a single read says why not
			copy(b.data, data)
			m.buffer = b
		}
		close(m.ended)
	}
	return nil
}

// boundKeys is a list of keys as a value for a statement.
type boundKeys []byte

// MarshalCQL implements gocql.Marshaler.
func (k boundKeys) MarshalCQL(gocql.TypeInfo) ([]byte, error) { return k, nil }

func keysOf(members []*joined) boundKeys {
	k := make(boundKeys, 0, 4+len(members)*(4+len(schema.Key{})))
	k = binary.BigEndian.AppendUint32(k, uint32(len(members)))
	for _, m := range members {
		k = binary.BigEndian.AppendUint32(k, uint32(len(m.ref.Key)))
		k = append(k, m.ref.Key[:]...)
	}
	return k
}

// routingKey is the key of the partition of a blob's first part, as tokens are hashed of it.
func routingKey(key *schema.Key) []byte {
	k := make([]byte, 0, 2+len(key)+1+2+4+1)
	k = binary.BigEndian.AppendUint16(k, uint16(len(key)))
	k = append(append(k, key[:]...), 0)
	return append(k, 0, 4, 0, 0, 0, 0, 0)
}

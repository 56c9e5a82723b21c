package cql

import (
	"bytes"
	"context"
	"encoding/binary"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	// gatherKeys is how many blobs one statement requests if the address does not say.
	gatherKeys = 16
	// gatherBytes bounds the answer to a statement, which the server and the driver hold as a whole.
	gatherBytes = 1 << 20
	// gatherLargest is the largest blob that shares a statement: two of them fill it.
	gatherLargest = gatherBytes / 2
	// gatherSmall is the largest blob in the statements for small blobs, which are separate so that a label does not
	// wait for images.
	gatherSmall = 16 << 10

	// nearLanes is the number of lanes of a near host. A host is near if it has answered within nearAnswer: the time
	// that TCP needs to open its windows is negligible there.
	nearLanes  = 4
	nearAnswer = 5 * time.Millisecond

	// lingerShare is the inverse of the share of the usual answer time that a read waits for others; lingerMost
	// bounds that wait.
	lingerShare = 8
	lingerMost  = 2 * time.Millisecond
	// usualStatement is the inverse of the weight of an answer in the moving average.
	usualStatement = 8
	// After statements were refused, the number of keys is doubled every raiseAfter, because the refusal may have had
	// another cause, such as a table being altered.
	raiseAfter = time.Minute
)

// selectGathered requests several blobs of one part each. The keys are bound as one list, so the server prepares a
// single statement for all numbers of keys.
const selectGathered = "SELECT key, data FROM " + tableParts + " WHERE key IN ? AND part = 0"

// gathering requests several blobs from one host in one statement, if many are wanted at the same time. Each
// statement costs the server and the driver a fixed time: most of the time of a blob of 5 KB, and a third of that of
// one of 110 KB.
//
// A host has lanes, the number of requests that should be in flight to it at least. A statement takes as many blobs
// as there are in flight per lane. While these are fewer than two, a read goes alone and at once. So the blobs in
// flight are spread over the lanes as evenly as single reads would be. That matters on a long path: the lanes of a
// distant host are its connections, and each connection begins with a small window. An open statement is sent when it is
// full, or after a small part of the usual answer time.
//
// Only first attempts are gathered, and a blob that a statement does not bring is read again alone: one that is
// missing, of another size, or in a failed statement. So retries, consistency and errors are those of a single read,
// and a hedge shares nothing with the attempt that it replaces.
//
// Reads from hosts with shards are not gathered, because the driver sends those to the shard that has the blob.
type gathering struct {
	store   *Store
	query   *gocql.Query // template of keyed; never sent
	wanted  int32        // blobs per statement, as the address says
	most    atomic.Int32 // blobs per statement that hosts accept; less than 2: no gathering
	running sync.WaitGroup

	mu      sync.Mutex
	refused time.Duration // when most was changed, by the steering's clock
	lowest  int32         // minimum of most so far

	// linger returns how long a statement stays open, given the usual answer time.
	linger func(usual time.Duration) time.Duration

	statements, shared atomic.Int64 // statements sent for several blobs, and the blobs in them
}

// gathered is the state of what is in flight to a host.
type gathered struct {
	conns int

	mu    sync.Mutex
	reads int           // begun and not ended
	least time.Duration // minimum answer time; 0: no answer yet
	kinds [2]kind       // statements for small blobs, and for others
}

// kind is the state of a host's statements for blobs of similar sizes.
type kind struct {
	open  *statement    // statement that reads may join; nil if there is none
	usual time.Duration // from a statement to its answer, a moving average
}

// newGathering returns the gathering of a store whose session is open.
func newGathering(s *Store) *gathering {
	g := &gathering{store: s, query: s.db.Query(selectPart), linger: lingerBy}
	if g.wanted = int32(s.config.Keys); g.wanted == 0 {
		g.wanted = gatherKeys
	}
	g.most.Store(g.wanted)
	g.lowest = g.wanted
	return g
}

// lingerBy is the default of gathering.linger. A longer wait would delay reads by more
// than a statement saves.
func lingerBy(usual time.Duration) time.Duration { return min(usual/lingerShare, lingerMost) }

// single is the state of a read that goes on alone.
type single struct {
	attempt int
	host    *gathered // host that counts it as in flight; nil if none does
	began   time.Time
}

// end records the end of the read.
func (a *single) end(err error) {
	if a.host == nil {
		return
	}
	h := a.host
	h.mu.Lock()
	if err == nil {
		h.answeredLocked(time.Since(a.began))
	}
	h.reads--
	h.mu.Unlock()
}

// read reads a blob of one part together with others. If the blob is to be read alone, it returns a nil buffer and no
// error; the caller then reads it and calls single's end.
func (g *gathering) read(ctx context.Context, ref *schema.BlobRef) (*buffer, single, error) {
	by := single{attempt: store.AttemptFrom(ctx)}
	if g == nil || by.attempt > 0 || ref.Size == 0 || ref.Size > gatherLargest || g.keys() < 2 {
		return nil, by, nil
	}
	// A statement is for one host, so only reads of the same first replica share one.
	host := g.hostOf(ref)
	if host == nil {
		return nil, by, nil
	}
	by.host = host
	host.mu.Lock()
	host.reads++
	if host.perLaneLocked() < 2 {
		host.mu.Unlock()
		by.began = time.Now()
		return nil, by, nil
	}
	// From here on the read waits for the statement that it joins, or leaves it.
	m := &joined{ref: *ref, ended: make(chan struct{})}
	st := g.joinLocked(host, m)
	host.mu.Unlock()
	select {
	case <-m.ended:
	case <-ctx.Done():
		if m.stage.CompareAndSwap(memberWaits, memberLeft) {
			st.leave(m)
			return nil, single{}, context.Cause(ctx)
		}
		<-m.ended // it is being served
	}
	if m.buffer != nil {
		host.mu.Lock()
		host.reads--
		host.mu.Unlock()
		return m.buffer, single{}, nil
	}
	if m.moved {
		by.attempt++
	}
	by.began = time.Now()
	return nil, by, nil
}

// hostOf returns the host that is asked first for a blob. It is nil for hosts that get single reads: those with
// shards, and those that are silent or slow, whose reads are distributed by key.
func (g *gathering) hostOf(ref *schema.BlobRef) *gathered {
	st := g.store.steering
	to := st.HostSelectionPolicy.Pick(&keyed{ExecutableQuery: g.query, keyspace: st.keyspace, key: routingKey(&ref.Key)})()
	if to == nil {
		return nil
	}
	info := to.Info()
	if sharded, ok := any(info).(interface{ ScyllaShardCount() int }); ok && sharded.ScyllaShardCount() > 0 {
		return nil
	}
	h := st.host(info)
	if h.quiet.Load() || h.share.Load() < fullShare {
		return nil
	}
	return &h.gathered
}

// perLaneLocked is how many reads are in flight per lane.
func (h *gathered) perLaneLocked() int {
	if h.least > 0 && h.least < nearAnswer {
		return h.reads / nearLanes
	}
	return h.reads / max(h.conns, 1)
}

// joinLocked adds a read to the open statement, or to a new one. host.mu is held.
func (g *gathering) joinLocked(host *gathered, m *joined) *statement {
	k := &host.kinds[0]
	if m.ref.Size > gatherSmall {
		k = &host.kinds[1]
	}
	if k.open != nil && k.open.bytes+m.ref.Size > gatherBytes {
		k.closeLocked()
	}
	st := k.open
	if st == nil {
		st = &statement{gathering: g, host: host, kind: k, full: make(chan struct{})}
		st.context, st.cancel = context.WithCancel(context.Background())
		k.open = st
		usual := k.usual
		if usual == 0 { // no statement of this kind was answered yet
			usual = host.least
		}
		linger := g.linger(usual)
		g.running.Go(func() { st.run(linger) })
	}
	st.members = append(st.members, m)
	st.bytes += m.ref.Size
	st.waiting++
	if st.waiting >= min(int(g.most.Load()), host.perLaneLocked()) {
		k.closeLocked()
	}
	return st
}

// closeLocked closes the open statement to further reads. gathered.mu is held.
func (k *kind) closeLocked() {
	close(k.open.full)
	k.open = nil
}

// answeredLocked records an answer time.
func (h *gathered) answeredLocked(took time.Duration) {
	if h.least == 0 || took < h.least {
		h.least = took
	}
}

// took records the answer time of a statement.
func (h *gathered) took(k *kind, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answeredLocked(d)
	if k.usual == 0 {
		k.usual = d
	} else {
		k.usual += (d - k.usual) / usualStatement
	}
}

// statement requests several blobs. Until it is sent, its members are changed under gathered.mu.
type statement struct {
	gathering *gathering
	host      *gathered
	kind      *kind // the kind that it is open in
	members   []*joined
	bytes     int64           // of members that have not left; guarded by gathered.mu, like waiting
	full      chan struct{}   // closed when no more reads may join
	context   context.Context //nolint:containedctx // ends when no member waits any more
	cancel    context.CancelFunc
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
	stage atomic.Int32 // the goroutine that changes it from memberWaits decides the outcome
	ended chan struct{}

	// Written before ended is closed.
	buffer *buffer // owned by the reader; nil if the blob is to be read alone
	moved  bool    // continue at the next replica
}

// leave removes a member that does not wait any more. A statement without waiting members is cancelled.
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
		st.cancel()
	}
}

// run sends a statement after other reads have had time to join it, and serves its members.
func (st *statement) run(linger time.Duration) {
	defer st.cancel()
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

// send requests the blobs of the members that still wait, and distributes the answer. moved reports that missing
// blobs are to be read from another host.
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
	// The statement is routed by its first key. The other keys have the same host as
	// first replica.
	first := &answer.members[0].ref.Key
	r := newReading(st.context, selectGathered, int(total))
	r.bind(keysOf(answer.members))
	r.route.draw = drawOf(first, 0)
	sent := time.Now()
	q, made := r.query(s.db)
	// The single read that follows has the retry.
	iter := q.RoutingKey(routingKey(first)).Consistency(s.config.Read).RetryPolicy(movingRetries(0)).PageSize(0).Iter()
	into := [2]any{(*answeredKey)(&answer), &answer}
	for iter.Scan(into[:]...) {
	}
	err := iter.Close()
	r.route.end(err)
	made.Release()
	switch {
	case err == nil:
		st.host.took(st.kind, time.Since(sent))
		return false
	case refuses(err):
		g.refuse(len(answer.members), err)
		return false
	}
	return true
}

// refuses reports whether a server refuses statements with several keys, or with that many. A server that cannot
// parse the statement does not support its form, because the text never changes. An "invalid" error may have other
// causes, such as a missing table, where fewer keys do not help. The protocol has no code for the cause, so the text
// decides.
func refuses(err error) bool {
	code, ok := codeOf(err)
	return ok && (code == codeSyntax || code == codeInvalid && aboutKeys.MatchString(err.Error()))
}

// aboutKeys matches servers' messages about too many keys. Cassandra has two limits, whose texts are "Aborting query
// with partition keys in IN clause ..." and "Aborting query because the cartesian product of the IN restrictions
// ..."; before version 2.2 it is "Partition KEY part key cannot be restricted by IN relation". Scylla's is "partition
// key cartesian product size ...".
var aboutKeys = regexp.MustCompile(`\bIN\b|\bpartition[ _]keys\b|\bcartesian product\b`)

// refuse lowers the number of keys after a statement was refused.
func (g *gathering) refuse(keys int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if int(g.most.Load()) < keys {
		return // another goroutine has done it
	}
	fewer := int32(keys / 2)
	g.most.Store(fewer)
	g.refused = g.store.steering.now()
	if fewer >= g.lowest {
		return // it was logged then
	}
	g.lowest = fewer
	g.store.log.Warn("the database refuses statements with several keys: they ask for fewer for now, which costs "+
		"more; see partition_keys_in_select_fail_threshold, or give the store's address the parameter keys",
		"keys", keys, "keys_for_now", fewer, "error", err)
}

// keys is how many blobs a statement may request.
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

// answered copies the rows of an answer to the members that requested them. It does not keep the driver's buffer.
type answered struct {
	arena   *arena
	members []*joined
	key     schema.Key // of the current row
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

// UnmarshalCQL implements gocql.Unmarshaler. The driver's buffer is only valid during the call. A cell that does not
// match a request is left to a single read, whose errors say more.
func (a *answered) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	for _, m := range a.members {
		if int64(len(data)) != m.ref.Size || !bytes.Equal(a.key[:], m.ref.Key[:]) ||
			!m.stage.CompareAndSwap(memberWaits, memberServed) {
			continue
		}
		if b, err := a.arena.take(m.ref.Size); err == nil { // a single read returns the error
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

// keysOf encodes the members' keys as a list, in the native protocol's form: a count,
// then for each key its length and its bytes.
func keysOf(members []*joined) boundKeys {
	k := make(boundKeys, 0, 4+len(members)*(4+len(schema.Key{})))
	k = binary.BigEndian.AppendUint32(k, uint32(len(members)))
	for _, m := range members {
		k = binary.BigEndian.AppendUint32(k, uint32(len(m.ref.Key)))
		k = append(k, m.ref.Key[:]...)
	}
	return k
}

// routingKey is the partition key of a blob's first part, from which tokens are hashed.
func routingKey(key *schema.Key) []byte {
	k := make([]byte, 0, 2+len(key)+1+2+4+1)
	k = binary.BigEndian.AppendUint16(k, uint16(len(key)))
	k = append(append(k, key[:]...), 0)
	return append(k, 0, 4, 0, 0, 0, 0, 0)
}

// keyed is a query that is only used to choose hosts. It has what the driver's policy reads.
type keyed struct {
	gocql.ExecutableQuery
	keyspace string
	key      []byte
}

// GetRoutingKey implements gocql.ExecutableQuery, as the others do; only the fork has Table and IsLWT.
func (k *keyed) GetRoutingKey() ([]byte, error) { return k.key, nil }

func (k *keyed) Keyspace() string { return k.keyspace }

func (*keyed) Table() string { return tableParts }

func (*keyed) IsLWT() bool { return true } // see inOrder

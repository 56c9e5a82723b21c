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
	// gatherKeys is how many blobs one statement asks for where the address does not say.
	gatherKeys = 16
	// gatherBytes bounds the answer to a statement, which is held whole by the server and by the driver.
	gatherBytes = 1 << 20
	// gatherLargest is the largest blob that shares a statement: two make a full one.
	gatherLargest = gatherBytes / 2
	// gatherSmall is the largest of the blobs that share statements of their own, so that a label does not wait for
	// images.
	gatherSmall = 16 << 10

	// nearLanes are the lanes of a near host. A host is near that has answered within nearAnswer: there, what TCP needs
	// to open its windows is nothing.
	nearLanes  = 4
	nearAnswer = 5 * time.Millisecond

	// lingerShare is for which part of what an answer usually takes a read waits for others, and lingerMost bounds it.
	lingerShare = 8
	lingerMost  = 2 * time.Millisecond
	// usualStatement is the inverse of what one answer counts for in what is usual.
	usualStatement = 8
	// Where statements were refused, twice as many keys are tried after raiseAfter: what was refused may have been
	// something else, as while a table is altered.
	raiseAfter = time.Minute
)

// selectGathered asks for several blobs of one part each. One list is bound, so the server prepares one statement for
// all numbers of keys.
const selectGathered = "SELECT key, data FROM " + tableParts + " WHERE key IN ? AND part = 0"

// gathering asks for several blobs of one host by one statement, where many are wanted at the same time. Each
// statement costs the server and the driver a fixed time, whatever it brings: that is most of the time of a blob of
// 5 KB, and a third of that of one of 110 KB.
//
// A host has lanes: so many requests are to be on their way to it at least. A statement asks for as many blobs as are
// on their way for each lane. While these are fewer than two, a read goes alone and at once. So what is on its way is
// spread over the lanes as evenly as single reads would be, which matters where the way is long: the lanes of a far
// host are its connections, each of which begins with a small window. An open statement is sent when it is full, or
// after a small part of what answers take at the time.
//
// What is gathered is the first attempt alone, and what a statement does not bring is read again by itself: a blob that
// is missing, of another size, or in a statement that failed. So retries, consistency and errors
// are those of a single read, and an attempt that is made because this one takes long shares nothing with it.
//
// To hosts with shards nothing is gathered: there the driver asks the shard that has the blob.
type gathering struct {
	store   *Store
	query   *gocql.Query // what keyed stands on; never sent
	wanted  int32        // blobs in a statement, as the address says
	most    atomic.Int32 // of them, what hosts take; less than 2: nothing is gathered
	running sync.WaitGroup

	mu      sync.Mutex
	refused time.Duration // when most was changed, by the steering's clock
	lowest  int32         // that most has been

	// linger is how long a statement stays open, by how long one usually takes.
	linger func(usual time.Duration) time.Duration

	statements, shared atomic.Int64 // sent for several blobs, and the blobs asked for by them
}

// gathered is what is on its way to a host.
type gathered struct {
	conns int

	mu    sync.Mutex
	reads int           // that have begun and not ended
	least time.Duration // an answer took; 0: none came yet
	kinds [2]kind       // of statements: for small blobs, and for others
}

// kind is what is known of the statements of a host that are for blobs of like sizes.
type kind struct {
	open  *statement    // that reads may join; nil if there is none
	usual time.Duration // from a statement to its answer, a moving mean
}

func newGathering(s *Store) *gathering {
	g := &gathering{store: s, query: s.db.Query(selectPart), linger: lingerBy}
	if g.wanted = int32(s.config.Keys); g.wanted == 0 {
		g.wanted = gatherKeys
	}
	g.most.Store(g.wanted)
	g.lowest = g.wanted
	return g
}

func lingerBy(usual time.Duration) time.Duration { return min(usual/lingerShare, lingerMost) }

// single is how a read goes on by itself.
type single struct {
	attempt int
	host    *gathered // where it counts as on its way; nil if it does not
	began   time.Time
}

// end says that it has ended.
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

// read reads a blob of one part together with others. It returns a nil buffer and no error if the blob is to be read
// alone: the caller ends single when it has been.
func (g *gathering) read(ctx context.Context, ref *schema.BlobRef) (*buffer, single, error) {
	by := single{attempt: store.AttemptFrom(ctx)}
	if g == nil || by.attempt > 0 || ref.Size == 0 || ref.Size > gatherLargest || g.keys() < 2 {
		return nil, by, nil
	}
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

// hostOf is the host that is asked first for a blob. It is nil for hosts that get single reads: those with shards, and
// those that are silent or slow, whose reads are shared out by their keys.
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

// perLaneLocked is how many reads are on their way for each lane.
func (h *gathered) perLaneLocked() int {
	if h.least > 0 && h.least < nearAnswer {
		return h.reads / nearLanes
	}
	return h.reads / max(h.conns, 1)
}

// joinLocked has a read join the statement that is open, or a new one. It wants host.mu held.
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
		if usual == 0 { // no statement of the kind was answered yet
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

// closeLocked has nobody join the open statement any more. It wants gathered.mu held.
func (k *kind) closeLocked() {
	close(k.open.full)
	k.open = nil
}

// answeredLocked takes note of how long an answer took.
func (h *gathered) answeredLocked(took time.Duration) {
	if h.least == 0 || took < h.least {
		h.least = took
	}
}

// took takes note of how long a statement took.
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

// statement asks for several blobs. Its members are written until it is sent, under gathered.mu.
type statement struct {
	gathering *gathering
	host      *gathered
	kind      *kind // where it is open
	members   []*joined
	bytes     int64           // of those that have not left; guarded by gathered.mu, as is waiting
	full      chan struct{}   // closed when no more may join
	context   context.Context //nolint:containedctx // ends when nobody waits any more
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
	stage atomic.Int32 // who moves it from memberWaits decides its outcome
	ended chan struct{}

	// Written before ended is closed.
	buffer *buffer // the reader's; nil if the blob is to be read alone
	moved  bool    // from the next replica on
}

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
		st.cancel()
	}
}

// run sends a statement when others have had the time to join it, and serves its members.
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
		st.host.took(st.kind, time.Since(sent))
		return false
	case refuses(err):
		g.refuse(len(answer.members), err)
		return false
	}
	return true
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

// keyed is a query for the choice of hosts alone: it has what the driver's policy looks at.
type keyed struct {
	gocql.ExecutableQuery
	keyspace string
	key      []byte
}

// GetRoutingKey implements gocql.ExecutableQuery, as do the others; Table and IsLWT are of the fork's alone.
func (k *keyed) GetRoutingKey() ([]byte, error) { return k.key, nil }

func (k *keyed) Keyspace() string { return k.keyspace }

func (*keyed) Table() string { return tableParts }

func (*keyed) IsLWT() bool { return true } // see inOrder

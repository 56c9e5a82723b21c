package cql

import (
	"context"
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
	// A statement without an answer is given up after cutTimes what one usually takes, and cutLeast at least, if one was
	// answered that was sent after it: its blobs are read one by one then, so that a slow one holds up no other.
	// Whether it was is looked at every cutLeast.
	cutTimes = 8
	cutLeast = 500 * time.Millisecond
	// usualStatement is the inverse of what one answer counts for in what is usual.
	usualStatement = 8
	// Where statements were refused, twice as many keys are tried after raiseAfter: what was refused may have been
	// something else, as while a table is altered.
	raiseAfter = time.Minute
)

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
// is missing, of another size, or in a statement that failed or took far too long. So retries, consistency and errors
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

	// linger is how long a statement stays open, patience for how long it is waited for, by how long one usually takes.
	linger, patience func(usual time.Duration) time.Duration

	statements, shared atomic.Int64 // sent for several blobs, and the blobs asked for by them
}

// gathered is what is on its way to a host.
type gathered struct {
	conns int

	mu    sync.Mutex
	reads int           // that have begun and not ended
	least time.Duration // an answer took; 0: none came yet
	last  time.Time     // that something was sent which has been answered
	kinds [2]kind       // of statements: for small blobs, and for others
}

// kind is what is known of the statements of a host that are for blobs of like sizes.
type kind struct {
	open  *statement    // that reads may join; nil if there is none
	usual time.Duration // from a statement to its answer, a moving mean
	cut   time.Time     // when one was given up
}

func newGathering(s *Store) *gathering {
	g := &gathering{store: s, query: s.db.Query(selectPart), linger: lingerBy, patience: patienceBy}
	if g.wanted = int32(s.config.Keys); g.wanted == 0 {
		g.wanted = gatherKeys
	}
	g.most.Store(g.wanted)
	g.lowest = g.wanted
	return g
}

func lingerBy(usual time.Duration) time.Duration { return min(usual/lingerShare, lingerMost) }

func patienceBy(usual time.Duration) time.Duration { return max(cutLeast, cutTimes*usual) }

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
		h.answeredLocked(a.began, time.Now())
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
		st.context, st.cancel = context.WithCancelCause(context.Background())
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

// answeredLocked takes note of an answer to what was sent at some time.
func (h *gathered) answeredLocked(sent, now time.Time) {
	if took := now.Sub(sent); h.least == 0 || took < h.least {
		h.least = took
	}
	if sent.After(h.last) {
		h.last = sent
	}
}

// took takes note of how long a statement took that was sent at some time.
func (h *gathered) took(k *kind, sent, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answeredLocked(sent, now)
	k.tookLocked(now.Sub(sent))
}

// gaveUp takes note that a statement was given up which was sent at some time. Of those that were on their way at the
// same time the first one counts: the others waited behind the same.
func (h *gathered) gaveUp(k *kind, sent, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sent.Before(k.cut) {
		return
	}
	k.cut = now
	k.tookLocked(now.Sub(sent))
}

func (k *kind) tookLocked(d time.Duration) {
	if k.usual == 0 {
		k.usual = d
	} else {
		k.usual += (d - k.usual) / usualStatement
	}
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

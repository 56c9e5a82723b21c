package simulate

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/schema"
)

// network carries bytes from end to end. An end is a node, the store or the bucket.
// Transfers from one end to another happen one after another, as over one connection.
// Connections share resources max-min fairly: no connection could have more, unless
// another one that has no more gets less.
//
// Rates are computed again whenever a connection becomes busy or idle. With more than
// exactConns busy connections this happens at most once in settleEvery. A connection that
// becomes busy in between gets the unused rest of its path.
type network struct {
	// mu guards all fields.
	mu        sync.Mutex
	resources []resource
	conns     map[[2]int32]*conn
	busy      finishing // busy connections, soonest end first
	dirty     bool      // busy has changed since rates were computed
	settled   time.Time // when they were computed
	wake      chan struct{}
}

// Above exactConns busy connections, computing all rates at each change would cost most of a
// simulation: the work is quadratic in the connections. settleEvery bounds the error instead.
const (
	exactConns  = 48
	settleEvery = 200 * time.Microsecond
)

// resource is a link in one direction, with a capacity in bytes per second.
type resource struct {
	capacity float64 // +Inf: no limit
	used     float64 // sum of the rates of its users

	// These are used only while rates are computed.
	free    float64
	waiting int
	users   []*conn
}

// conn is the connection from one end to another. It lives as long as the network.
type conn struct {
	path  []int32 // resources
	queue []*transfer
	left  float64   // bytes of the first transfer of queue, at since
	since time.Time // when left and rate were computed
	rate  float64
	at    int // index in busy; -1 if idle
	done  time.Time
	fixed bool
}

// transfer is bytes in flight. done has room for one value, so that run never blocks.
type transfer struct {
	bytes float64
	done  chan struct{}
}

// never is the end of a transfer that does not progress.
var never = time.Unix(1<<40, 0)

// farOff is a long wait for an event that does not come.
const farOff = 1000 * time.Hour

func newNetwork(resources []resource) *network {
	return &network{resources: resources, conns: map[[2]int32]*conn{}, wake: make(chan struct{}, 1)}
}

// send carries bytes from one end to another over a path of resources. It returns when
// they have arrived or ctx ends. The path of two ends never changes, so that path is
// called once.
func (n *network) send(ctx context.Context, from, to int32, path func() []int32, bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	t := &transfer{float64(bytes), make(chan struct{}, 1)}
	n.mu.Lock()
	c := n.conns[[2]int32{from, to}]
	if c == nil {
		c = &conn{path: path(), at: -1}
		n.conns[[2]int32{from, to}] = c
	}
	c.queue = append(c.queue, t)
	if len(c.queue) == 1 {
		n.beginLocked(c)
	}
	n.mu.Unlock()
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) // the bytes are still carried
	}
}

// beginLocked makes an idle connection carry the first transfer of its queue.
func (n *network) beginLocked(c *conn) {
	now := time.Now()
	c.left, c.since, c.rate = c.queue[0].bytes, now, 0
	spare := math.Inf(1)
	for _, r := range c.path {
		spare = min(spare, n.resources[r].capacity-n.resources[r].used)
	}
	n.setRateLocked(c, max(spare, 0))
	heap.Push(&n.busy, c)
	n.changedLocked()
}

// changedLocked schedules a computation of rates.
func (n *network) changedLocked() {
	n.dirty = true
	n.poke()
}

// poke wakes run, at most once until run has woken.
func (n *network) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// setRateLocked changes the rate of a connection from now on.
func (n *network) setRateLocked(c *conn, rate float64) {
	if !math.IsInf(c.rate, 1) {
		for _, r := range c.path {
			n.resources[r].used -= c.rate
		}
	}
	c.rate = rate
	if !math.IsInf(rate, 1) {
		for _, r := range c.path {
			n.resources[r].used += rate
		}
	}
	switch {
	case math.IsInf(rate, 1):
		c.done = c.since
	case rate <= 0:
		c.done = never
	default:
		if s := c.left / rate; s < 1e9 {
			c.done = c.since.Add(time.Duration(math.Ceil(s * 1e9)))
		} else {
			c.done = never
		}
	}
}

// limit changes the capacity of a resource.
func (n *network) limit(resource int32, capacity float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resources[resource].capacity = capacity
	n.changedLocked()
}

// scale multiplies the capacity of a resource.
func (n *network) scale(resource int32, factor float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resources[resource].capacity *= factor
	n.changedLocked()
}

// run carries transfers until ctx ends.
func (n *network) run(ctx context.Context) {
	// When a running timer that was reset expires, Go checks all timers, and there are
	// tens of thousands. Each time therefore has a timer of its own.
	timer, set := time.NewTimer(farOff), never
	defer func() { timer.Stop() }()
	for {
		if next := n.step(); !next.Equal(set) {
			timer.Stop()
			timer, set = time.NewTimer(min(max(time.Until(next), 0), farOff)), next
		}
		select {
		case <-timer.C:
			set = time.Time{} // the timer has expired
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}

// step ends finished transfers, and returns when the next one may end.
func (n *network) step() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for len(n.busy) > 0 && !n.busy[0].done.After(now) {
		c := n.busy[0]
		c.queue[0].done <- struct{}{}
		c.queue[0] = nil
		if c.queue = c.queue[1:]; len(c.queue) == 0 {
			c.queue = nil
			heap.Pop(&n.busy)
			c.since, c.left = now, 0
			n.setRateLocked(c, 0)
			n.dirty = true
			continue
		}
		c.since, c.left = now, c.queue[0].bytes
		n.setRateLocked(c, c.rate)
		heap.Fix(&n.busy, 0)
	}
	next := never
	if n.dirty {
		if due := n.settled.Add(settleEvery); len(n.busy) <= exactConns || !due.After(now) {
			n.settleLocked(now)
		} else {
			next = due
		}
	}
	if len(n.busy) > 0 && n.busy[0].done.Before(next) {
		next = n.busy[0].done
	}
	return next
}

// settleLocked computes all rates by progressive filling. The resource that leaves the
// least for each user is divided evenly among its users. The next one divides what they
// leave, until all users have rates. n.mu is held.
func (n *network) settleLocked(now time.Time) {
	n.dirty, n.settled = false, now
	// First the progress up to now, at the old rates.
	for _, c := range n.busy {
		c.left = max(c.left-c.rate*now.Sub(c.since).Seconds(), 0)
		if math.IsInf(c.rate, 1) {
			c.left = 0
		}
		c.since, c.fixed, c.rate = now, false, 0
	}
	for i := range n.resources {
		r := &n.resources[i]
		r.free, r.used, r.waiting, r.users = r.capacity, 0, 0, r.users[:0]
	}
	// The heap has each resource with users once. Infinite ones limit no user.
	var order shares
	for _, c := range n.busy {
		for _, i := range c.path {
			r := &n.resources[i]
			if r.waiting == 0 && !math.IsInf(r.capacity, 1) {
				order = append(order, share{i, 0})
			}
			r.waiting++
			r.users = append(r.users, c)
		}
	}
	for i := range order {
		order[i].each = n.resources[order[i].resource].each()
	}
	heap.Init(&order)
	for len(order) > 0 {
		top := order[0]
		r := &n.resources[top.resource]
		if r.waiting == 0 {
			heap.Pop(&order)
			continue
		}
		if each := r.each(); each > top.each { // other users have got their rates since
			order[0].each = each
			heap.Fix(&order, 0)
			continue
		}
		heap.Pop(&order)
		for _, c := range r.users {
			if !c.fixed {
				n.fixLocked(c, top.each)
			}
		}
	}
	// Users of infinite resources alone have no limit.
	for _, c := range n.busy {
		if !c.fixed {
			n.fixLocked(c, math.Inf(1))
		}
	}
	heap.Init(&n.busy)
}

// fixLocked gives a connection its rate, and subtracts it from the resources of its path.
func (n *network) fixLocked(c *conn, rate float64) {
	c.fixed = true
	for _, i := range c.path {
		r := &n.resources[i]
		r.free -= rate
		r.waiting--
	}
	n.setRateLocked(c, rate)
}

// each returns what a resource leaves for each user without a rate.
func (r *resource) each() float64 { return max(r.free, 0) / float64(max(r.waiting, 1)) }

// share is what a resource leaves for each of its users.
type share struct {
	resource int32
	each     float64
}

// shares is a heap with the least share first. Equal ones are in the order of the
// resources, so that a run can be repeated.
type shares []share

func (s shares) Len() int { return len(s) }
func (s shares) Less(i, j int) bool {
	return s[i].each < s[j].each || s[i].each == s[j].each && s[i].resource < s[j].resource
}
func (s shares) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *shares) Push(x any)   { *s = append(*s, x.(share)) }
func (s *shares) Pop() any     { x := (*s)[len(*s)-1]; *s = (*s)[:len(*s)-1]; return x }

// finishing is a heap of connections, soonest end first.
type finishing []*conn

func (f finishing) Len() int           { return len(f) }
func (f finishing) Less(i, j int) bool { return f[i].done.Before(f[j].done) }
func (f finishing) Swap(i, j int)      { f[i], f[j] = f[j], f[i]; f[i].at, f[j].at = i, j }
func (f *finishing) Push(x any)        { c := x.(*conn); c.at = len(*f); *f = append(*f, c) }
func (f *finishing) Pop() any {
	c := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	c.at = -1
	return c
}

// link is the connection from a server to a node. Requests and answers take the latency
// between the two, and answers take bandwidth.
type link struct {
	from *life
	to   *node
}

// Up implements peers.Link.
func (l *link) Up() bool { return l.to.lives() != nil }

// Heard implements peers.Link. A node that runs and can be reached sends heartbeats all
// the time.
func (l *link) Heard() time.Time {
	if l.to.lives() == nil || l.to.frozen.Load() || l.to.world.cuts.is(l.to, l.from.node) {
		return time.Time{}
	}
	return time.Now()
}

// Protocol implements peers.Link: all nodes speak the same.
func (*link) Protocol() int { return 2 }

// Secure implements peers.Link.
func (*link) Secure() bool { return true }

// Close implements peers.Link.
func (l *link) Close() error {
	if to := l.to.lives(); to != nil {
		to.inbox.put(l.from, nil)
	}
	return nil
}

// SendProgress implements peers.Link.
func (l *link) SendProgress(list []peers.Progress) {
	if to := l.to.lives(); to != nil && !l.from.node.frozen.Load() && !l.from.node.world.cuts.is(l.from.node, l.to) {
		to.inbox.put(l.from, list)
	}
}

// errDown is the error of an unreachable node.
var errDown = fmt.Errorf("%w: there is no connection to it", schema.ErrUnavailable)

// Get implements peers.Link. It takes the same steps as a real peer read: the request's
// way, the read at the other node, its CPU time, the transfer and the answer's way. Each
// step ends if the other server does.
func (l *link) Get(ctx context.Context, ask peers.Ask) (schema.Blob, error) {
	from, to, w := l.from.node, l.to, l.to.world
	to.mu.Lock()
	there := to.life
	if there == nil {
		to.mu.Unlock()
		return schema.Blob{}, errDown
	}
	there.peerReads.Add(1)
	to.mu.Unlock()
	defer there.peerReads.Done()
	both, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(there.gone, func() { stop(errDown) })()

	if err := w.cuts.wait(both, from, to); err != nil {
		return schema.Blob{}, err
	}
	if err := sleepUntil(both, w.later(from, to)); err != nil {
		return schema.Blob{}, err
	}
	a, err := there.requesterFor(l.from).read(both, ask)
	if err != nil {
		return schema.Blob{}, err
	}
	defer a.Blob.Release() // its bytes are in flight until then
	if err := to.work(both, 1, ask.Ref.Size); err != nil {
		return schema.Blob{}, err
	}
	if err := w.cuts.wait(both, to, from); err != nil {
		return schema.Blob{}, err
	}
	if err := w.carry(both, to, from, ask.Ref.Size); err != nil {
		return schema.Blob{}, err
	}
	if err := sleepUntil(both, w.later(to, from)); err != nil {
		return schema.Blob{}, err
	}
	w.sent(to, from, ask.Ref.Size)
	return schema.NewBlob(content(ask.Ref.Size), nil), nil
}

// requester is a server that reads through another one.
type requester struct {
	requester *fetch.Requester

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan fetch.Answer // one each
}

// requesterFor returns the requester for the reads of another server. A real server has
// one for each connection.
func (l *life) requesterFor(from *life) *requester {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.requesters[from]
	if b == nil {
		b = &requester{waiting: map[uint32]chan fetch.Answer{}}
		b.requester = l.engine.NewRequester(b.answered)
		l.requesters[from] = b
	}
	return b
}

// answered processes the answer to a peer read.
func (b *requester) answered(a fetch.Answer) {
	b.mu.Lock()
	to := b.waiting[a.ID]
	delete(b.waiting, a.ID)
	b.mu.Unlock()
	if to == nil {
		a.Blob.Release() // the reader has left
		return
	}
	to <- a
}

// read reads a blob, and waits for it. The caller releases it.
func (b *requester) read(ctx context.Context, ask peers.Ask) (fetch.Answer, error) {
	answer := make(chan fetch.Answer, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = answer
	b.mu.Unlock()
	// The answer may be on its way when the reader leaves. Its blob has to be released
	// then.
	leave := func() {
		b.mu.Lock()
		_, waits := b.waiting[id]
		delete(b.waiting, id)
		b.mu.Unlock()
		if !waits {
			a := <-answer // it is being delivered
			a.Blob.Release()
		}
	}
	asked := fetch.PeerRead{ID: id, Tenant: ask.Tenant, Ref: ask.Ref, Snapshot: ask.Snapshot, Position: ask.Position,
		Forward: ask.Forward, Held: ask.Held}
	if err := b.requester.Read(ctx, asked); err != nil {
		b.mu.Lock()
		delete(b.waiting, id)
		b.mu.Unlock()
		return fetch.Answer{}, fmt.Errorf("%w: %w", schema.ErrUnavailable, err)
	}
	select {
	case a := <-answer:
		return a, a.Err
	case <-ctx.Done():
		leave()
		return fetch.Answer{}, context.Cause(ctx)
	}
}

func (b *requester) close() { b.requester.Close() }

// inbox holds the latest progress report of each other server.
type inbox struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	reports map[*life][]peers.Progress // nil for a server that is gone
	turn    []*life                    // processing order
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), reports: map[*life][]peers.Progress{}}
}

// put replaces the latest report of a server. A report that was not taken yet is lost,
// because a newer one has all of its content. nil means that the server has closed its
// connection.
func (x *inbox) put(from *life, list []peers.Progress) {
	x.mu.Lock()
	if _, ok := x.reports[from]; !ok {
		x.turn = append(x.turn, from)
	}
	x.reports[from] = list
	x.mu.Unlock()
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// take removes the report of the server that has waited longest; from is nil if there is none.
func (x *inbox) take() (from *life, list []peers.Progress) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.turn) == 0 {
		return nil, nil
	}
	from, x.turn = x.turn[0], x.turn[1:]
	list = x.reports[from]
	delete(x.reports, from)
	return from, list
}

// follow passes reports to an engine until ctx ends. It has a follower for each server,
// and closes it when the server is gone.
func (x *inbox) follow(ctx context.Context, e *fetch.Engine, failed func(error)) {
	followers := map[*life]*fetch.Follower{}
	defer func() {
		for _, f := range followers {
			f.Close()
		}
	}()
	for {
		select {
		case <-x.wake:
		case <-ctx.Done():
			return
		}
		for from, list := x.take(); from != nil && ctx.Err() == nil; from, list = x.take() {
			f := followers[from]
			switch {
			case list == nil && from.gone.Err() != nil:
				if f != nil {
					f.Close()
					delete(followers, from)
				}
				continue
			case f == nil:
				f = e.Follow()
				followers[from] = f
			}
			if err := f.Update(ctx, list); err != nil && ctx.Err() == nil {
				failed(fmt.Errorf("following node %s: %w", from.node.id, err))
			}
		}
	}
}

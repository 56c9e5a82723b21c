package admission

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
)

// Queue orders items by tenant, then job, then stream.
//
// An item has a class, one for each path that items can take. If a class has no room, streams whose next item is of
// that class wait, and the others go on. Each class is scheduled on its own: start-time fair queueing by cost between
// tenants, with weights, and between the jobs of a tenant (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM
// 1996). So neither a tenant with many jobs nor a job with many streams gets more. The streams of a job are served
// round robin.
//
// It is safe for concurrent use. Its mutex is held for the examination of one item at a time.
type Queue[T any] struct {
	classOf func(*T) int
	take    func(item *T, class int) Taken

	again atomic.Bool // tenants that were set aside are to be tried again

	mu      sync.Mutex
	tenants map[string]*tenant[T] // those with an open stream
	aside   []*place[T]           // places that get no turn until Again
	classes []class[T]            // by number; firstLocked prefers low ones
	served  uint64                // items taken so far; breaks ties between equal tags
	waiting int                   // items
}

// Taken is the result of offering an item.
type Taken struct {
	// OK says that the item was taken. Otherwise its class has no room for it, or the item is of another class.
	OK bool
	// Class is the item's class if it was not taken.
	Class int
	// Cost is what the item uses of its class, in bytes.
	Cost int64
	// Aside says that the tenant may not have more of the class. The tenant gets no turn there until [Queue.Again],
	// and others go on.
	Aside bool
}

// class holds the tenants that have a stream whose next item is of this class.
type class[T any] struct {
	tenants ranked[*place[T]]
	virtual int64 // the start tag of the item taken last
	full    bool  // no room, in this Take
}

// place is a tenant's position in a class. Queue.mu guards its fields.
type place[T any] struct {
	rank
	jobs    ranked[*jobPlace[T]] // jobs that have a stream whose next item is of this class
	virtual int64                // the start tag of the item of the job taken last
	class   int
	aside   bool // the tenant gets no turn
}

// jobPlace is a job's position in a class.
type jobPlace[T any] struct {
	rank
	turns []*Stream[T] // streams whose next item is of this class, next one first
}

// tenant holds the jobs on one account.
type tenant[T any] struct {
	name    string
	weight  int64
	jobs    map[string]*job[T]
	classes []place[T]
}

// job holds streams that share a job's part.
type job[T any] struct {
	name    string
	tenant  *tenant[T]
	streams int
	classes []jobPlace[T]
}

// Stream is a stream's position in a queue. Queue.mu guards its fields.
type Stream[T any] struct {
	queue  *Queue[T]
	job    *job[T]
	items  []T
	class  int // of the first item; -1 without items
	closed bool
}

// NewQueue returns a queue with a number of classes. classOf returns the class of an item. take takes an item, or says
// why not. Both are called with the queue locked, and must not call it.
func NewQueue[T any](classes int, classOf func(*T) int, take func(item *T, class int) Taken) *Queue[T] {
	return &Queue[T]{classOf: classOf, take: take, tenants: map[string]*tenant[T]{}, classes: make([]class[T], classes)}
}

// Open adds a stream of a tenant's job. weight is how many times the share of a tenant with weight 1 this tenant
// gets; less than 1 counts as 1. The caller closes the stream.
func (q *Queue[T]) Open(tenantName string, weight int64, jobName string) *Stream[T] {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.tenants[tenantName]
	if t == nil {
		t = &tenant[T]{name: tenantName, jobs: map[string]*job[T]{}, classes: make([]place[T], len(q.classes))}
		for c := range t.classes {
			t.classes[c].class = c
		}
		q.tenants[tenantName] = t
	}
	t.weight = max(weight, 1)
	j := t.jobs[jobName]
	if j == nil {
		j = &job[T]{name: jobName, tenant: t, classes: make([]jobPlace[T], len(q.classes))}
		t.jobs[jobName] = j
	}
	j.streams++
	return &Stream[T]{queue: q, job: j, class: -1}
}

// SetWeights changes the weights of the current tenants.
func (q *Queue[T]) SetWeights(weight func(tenant string) int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, t := range q.tenants {
		t.weight = max(weight(name), 1)
	}
}

// Again gives tenants that were set aside turns again, from the next Take on. It takes no lock, so take may call it.
func (q *Queue[T]) Again() { q.again.Store(true) }

// Charge adds a cost that was not known when an item was taken. The stream's tenant and job get their next turn in
// the class later by that cost.
func (s *Stream[T]) Charge(class int, cost int64) {
	q, t := s.queue, s.job.tenant
	q.mu.Lock()
	defer q.mu.Unlock()
	p, at := &t.classes[class], &s.job.classes[class]
	p.tag += max(cost, 0) / t.weight
	at.tag += max(cost, 0)
	if len(at.turns) > 0 {
		heap.Fix(&p.jobs, at.at)
	}
	if len(p.jobs) > 0 && !p.aside {
		heap.Fix(&q.classes[class].tenants, p.at)
	}
}

// Put appends copies of items to what the stream waits for. there is false after Close. runnable reports whether the
// stream's first item may be taken, as far as the last Take has found.
func (s *Stream[T]) Put(items ...T) (there, runnable bool) {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.closed || len(items) == 0 {
		return !s.closed, false
	}
	q.waiting += len(items)
	idle := len(s.items) == 0
	s.items = append(s.items, items...)
	if idle {
		q.enterLocked(s)
	}
	return true, !q.classes[s.class].full
}

// Drop removes the items that match, and returns how many.
func (s *Stream[T]) Drop(match func(*T) bool) int {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return s.dropLocked(match)
}

// dropLocked is Drop. It requeues the stream if anything was dropped, because its new first
// item may be of another class.
func (s *Stream[T]) dropLocked(match func(*T) bool) int {
	q := s.queue
	before := len(s.items)
	s.items = slices.DeleteFunc(s.items, func(item T) bool { return match(&item) })
	dropped := before - len(s.items)
	q.waiting -= dropped
	if dropped > 0 {
		q.leaveLocked(s)
		q.enterLocked(s)
	}
	return dropped
}

// Idle reports whether the stream has no items.
func (s *Stream[T]) Idle() bool {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.items) == 0
}

// Close removes the stream, and returns its items. Further calls do nothing.
func (s *Stream[T]) Close() (dropped []T) {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.closed {
		return nil
	}
	dropped = slices.Clone(s.items)
	s.dropLocked(func(*T) bool { return true })
	s.closed = true
	j := s.job
	if j.streams--; j.streams == 0 {
		delete(j.tenant.jobs, j.name)
		if len(j.tenant.jobs) == 0 {
			delete(q.tenants, j.tenant.name)
		}
	}
	return dropped
}

// Waiting is how many items wait, of all streams.
func (q *Queue[T]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// Take takes the next item. left is how many items its stream has left. ok is false if there is no item that has
// room.
func (q *Queue[T]) Take() (item T, left int, ok bool) {
	q.Each(func(i *T, n int) bool {
		item, left, ok = *i, n, true
		return false
	})
	return item, left, ok
}

// Each takes items in turn while more returns true; left is how many items the item's stream has left. It returns
// true if more ended it, false if there is no item that has room.
func (q *Queue[T]) Each(more func(item *T, left int) bool) (ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.classes {
		q.classes[c].full = false
	}
	if q.again.Swap(false) {
		for _, p := range q.aside {
			if p.aside = false; len(p.jobs) > 0 {
				q.arriveLocked(p)
			}
		}
		clear(q.aside)
		q.aside = q.aside[:0]
	}
	for {
		s := q.firstLocked()
		if s == nil {
			return false
		}
		t := q.take(&s.items[0], s.class)
		switch {
		case t.OK:
			item := &s.items[0] // the rest of the slice is still the stream's
			q.takenLocked(s, t.Cost)
			goOn := more(item, len(s.items))
			var none T
			*item = none
			if !goOn {
				return true
			}
		case t.Aside:
			p := &s.job.tenant.classes[s.class]
			p.aside = true
			q.aside = append(q.aside, p)
			heap.Remove(&q.classes[s.class].tenants, p.at)
		case t.Class == s.class:
			q.classes[s.class].full = true
		default:
			q.leaveLocked(s)
			q.enterAsLocked(s, t.Class)
		}
	}
}

// firstLocked returns the next stream of the first class that has room.
func (q *Queue[T]) firstLocked() *Stream[T] {
	for c := range q.classes {
		if l := &q.classes[c]; !l.full && len(l.tenants) > 0 {
			return l.tenants[0].jobs[0].turns[0]
		}
	}
	return nil
}

// takenLocked removes a stream's first item, and charges its cost.
func (q *Queue[T]) takenLocked(s *Stream[T], cost int64) {
	c, p, at := &q.classes[s.class], &s.job.tenant.classes[s.class], &s.job.classes[s.class]
	q.leaveLocked(s)
	if s.items = s.items[1:]; len(s.items) == 0 {
		s.items = nil
	}
	q.waiting--
	q.served++
	c.virtual, p.virtual = p.tag, at.tag
	p.advance(cost/s.job.tenant.weight, q.served)
	at.advance(cost, q.served)
	if len(p.jobs) > 0 { // it has a turn, because an item of it was taken
		heap.Fix(&c.tenants, p.at)
	}
	if len(at.turns) > 0 {
		heap.Fix(&p.jobs, at.at)
	}
	q.enterLocked(s)
}

// enterLocked queues a stream by its next item, if it has one.
func (q *Queue[T]) enterLocked(s *Stream[T]) {
	if len(s.items) > 0 {
		q.enterAsLocked(s, q.classOf(&s.items[0]))
	}
}

// enterAsLocked does so for an item of a known class. A stream that returns to a class has no claim for the time it
// was away.
func (q *Queue[T]) enterAsLocked(s *Stream[T], to int) {
	p, at := &s.job.tenant.classes[to], &s.job.classes[to]
	s.class = to
	at.turns = append(at.turns, s)
	if len(at.turns) > 1 {
		return
	}
	at.tag = max(at.tag, p.virtual)
	heap.Push(&p.jobs, at)
	if len(p.jobs) == 1 && !p.aside {
		q.arriveLocked(p)
	}
}

// arriveLocked gives a tenant turns in a class.
func (q *Queue[T]) arriveLocked(p *place[T]) {
	c := &q.classes[p.class]
	p.tag = max(p.tag, c.virtual)
	heap.Push(&c.tenants, p)
}

// leaveLocked removes a stream from its class.
func (q *Queue[T]) leaveLocked(s *Stream[T]) {
	if s.class < 0 {
		return
	}
	c, p, at := &q.classes[s.class], &s.job.tenant.classes[s.class], &s.job.classes[s.class]
	s.class = -1
	i := slices.Index(at.turns, s)
	at.turns = slices.Delete(at.turns, i, i+1)
	if len(at.turns) > 0 {
		return
	}
	heap.Remove(&p.jobs, at.at)
	if len(p.jobs) == 0 && !p.aside {
		heap.Remove(&c.tenants, p.at)
	}
}

// rank orders entries of a heap: the least tag first, and of equal tags the one that was served longest ago. An entry
// knows its index, so that heap.Fix and heap.Remove need no search.
type rank struct {
	tag  int64  // start tag of its next item: the cost it has been served, in virtual time
	last uint64 // Queue.served when it was last served
	at   int    // its index in the heap
}

func (r *rank) ranking() *rank { return r }

// advance charges the cost of an item, which is the n-th of all.
func (r *rank) advance(cost int64, n uint64) { r.tag, r.last = r.tag+max(cost, 1), n }

// ranked is a heap of ranked entries, for container/heap.
type ranked[E interface{ ranking() *rank }] []E

// Len implements heap.Interface.
func (h ranked[E]) Len() int { return len(h) }

// Less implements heap.Interface.
func (h ranked[E]) Less(i, j int) bool {
	a, b := h[i].ranking(), h[j].ranking()
	return a.tag < b.tag || a.tag == b.tag && a.last < b.last
}

// Swap implements heap.Interface.
func (h ranked[E]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].ranking().at, h[j].ranking().at = i, j
}

// Push implements heap.Interface.
func (h *ranked[E]) Push(x any) {
	e := x.(E)
	e.ranking().at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *ranked[E]) Pop() any {
	old := *h
	e := old[len(old)-1]
	var none E
	old[len(old)-1] = none
	*h = old[:len(old)-1]
	return e
}

package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"bowstring/schema"
)

// BudgetOptions tunes a Budget. The zero value of each field means its default.
type BudgetOptions struct {
	// Tenant names the account that a request is charged to. Default: one for all.
	Tenant func(context.Context) string
	// Sharers is how many processes use the buckets in the same way, this one included:
	// the nodes of a cluster. When their number changes, the rates of this one change at
	// once by the same factor. Default 1.
	Sharers func() int
	// MaxWaiting is how many requests to a bucket may wait for their turn; others are
	// refused. Default 16,384.
	MaxWaiting int
}

func (o *BudgetOptions) ensureDefaults() {
	if o.Tenant == nil {
		o.Tenant = func(context.Context) string { return "" }
	}
	if o.Sharers == nil {
		o.Sharers = func() int { return 1 }
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 16_384
	}
}

// Budget learns how many requests a second buckets allow, and makes requests wait for
// their turn before they take a connection. docs/cost.md describes it.
//
// There is no limit until a bucket refuses requests (a [ThrottledError]). Then the whole
// bucket gets one, separately for reads and for writes. If refusals concentrate on the
// keys below one path, that path gets a limit of its own, and the limit of the rest is
// removed. A request belongs to one limit, the one with the longest prefix, as a key
// belongs to one partition of a store.
//
// A limit moves by the cubic function of CUBIC (Ha, Rhee, Xu: "CUBIC: a new TCP-friendly
// high-speed TCP variant", 2008; RFC 9438) with rates in place of windows, as the
// adaptive retries of the clouds' own libraries do. When refusals show that the rate is
// too high, it goes down by a share. Then it rises towards the former rate, more and more
// slowly, and beyond that rate faster and faster, as long as requests wait.
//
// Buckets also refuse some requests at any rate, for instance while they divide a
// partition. A limit that fell at each such refusal would sink to the rate at which one
// refusal comes in a period of the curve: 10 requests a second if 1 % are refused. So the
// curve itself is the test. If the bucket refuses nothing below the former rate, a refusal
// near it is due to the rate, and the limit falls at once. If the bucket refuses requests
// below it, too, the limit falls only when more than the share tolerated is refused.
//
// It is safe for concurrent use, and has no goroutine: timers wake waiting requests.
type Budget struct {
	opts BudgetOptions

	mu      sync.Mutex
	buckets map[string]*budgeted // by URL; guarded by mu
	heard   map[any]heard        // by node; guarded by mu
}

// NewBudget returns a Budget.
func NewBudget(opts BudgetOptions) *Budget {
	opts.ensureDefaults()
	return &Budget{opts: opts, buckets: map[string]*budgeted{}, heard: map[any]heard{}}
}

// Budgeted returns the bucket with its requests limited to the rates that b has learned.
// Buckets with the same URL share their limits.
func Budgeted(b Bucket, budget *Budget) Bucket {
	url := b.URL()
	budget.mu.Lock()
	defer budget.mu.Unlock()
	of := budget.buckets[url]
	if of == nil {
		of = &budgeted{url: url, opts: &budget.opts}
		for c := range of.limits {
			of.limits[c] = map[string]*limit{"": newLimit(of, Class(c), "", time.Now())}
		}
		budget.buckets[url] = of
	}
	return &paced{b, of}
}

// Class is a class of requests that are limited together.
type Class int

// Classes of requests.
const (
	Reads Class = iota
	Writes

	classes = iota
)

// String names the class.
func (c Class) String() string { return [...]string{"reads", "writes"}[c] }

// Limit is the rate that a Budget allows for the keys with a prefix.
type Limit struct {
	Bucket string `json:"bucket"`
	Prefix string `json:"prefix"` // "" is the whole bucket
	Class  string `json:"class"`  // "reads" or "writes"
	// PerSecond is how many requests a second this process allows itself; 0 means no
	// limit, because the bucket has refused none recently. Most is the rate at the last
	// refusal that made the limit fall.
	PerSecond float64 `json:"requests_per_s"`
	Most      float64 `json:"refused_at_per_s"`
	Served    float64 `json:"served_per_s"`       // recently
	Waiting   int     `json:"waiting"`            // requests now
	Waits     int64   `json:"waits"`              // requests that waited
	Waited    int64   `json:"waited_ns"`          // total of these waits
	Throttled int64   `json:"throttled"`          // requests that the bucket refused
	Paused    int64   `json:"paused_ms,omitzero"` // time left of a pause that the bucket asked for
}

// Limits returns all current limits: for each bucket that of the whole, and that of each
// prefix with a limit of its own.
func (b *Budget) Limits() []Limit {
	b.mu.Lock()
	all := make([]*budgeted, 0, len(b.buckets))
	for _, of := range b.buckets {
		all = append(all, of)
	}
	b.mu.Unlock()
	now := time.Now()
	var list []Limit
	for _, of := range all {
		of.mu.Lock()
		list = of.listLocked(list, now)
		of.mu.Unlock()
	}
	slices.SortFunc(list, func(x, y Limit) int {
		return cmp.Or(cmp.Compare(x.Bucket, y.Bucket), cmp.Compare(x.Class, y.Class), cmp.Compare(x.Prefix, y.Prefix))
	})
	return list
}

// Constants of the learning. Changes are judged by the simulations in budget_test.go
// and background_test.go.
const (
	// A limit goes down by cutPer times the share of requests refused since the last
	// decrease, within these bounds. A bucket that refuses one of many requests is nearly
	// at its limit.
	cutPer   = 15.0
	leastCut = 0.03
	mostCut  = 0.15
	// tolerated is the share of refusals that a bucket may make at any rate. The limit goes
	// down when patience more were refused than that. This is a CUSUM test (Page:
	// "Continuous inspection schemes", 1954). It needs no window, so it answers after as
	// many refusals at each rate. With 3 % refused by chance, one refusal in 50,000 makes
	// the limit fall. A lower patience would cost throughput there, a higher one more
	// refusals at a real limit.
	tolerated = 0.06
	patience  = 8.0
	// If more than the share collapse is refused at less than twice the former rate, what
	// the bucket allowed before is of no use, and the limit is searched for as at first.
	collapse = 1.0 / 3
	// period is how long a limit takes to return to the rate of the last decrease: CUBIC's
	// K.
	period = 10 * time.Second
	// doubling is how long a limit takes to double while its true value is unknown: after
	// the first refusal, after a collapse, and beyond twice the rate of the last decrease.
	doubling = 2 * time.Second
	// leastRate is the minimum of a limit, so that every request is served some time, and
	// the bucket is probed for changes.
	leastRate = 1.0
	// burst is the time over which unused requests accumulate, and leastBurst their
	// number at least.
	burst      = 10 * time.Millisecond
	leastBurst = 1.0
	// mostPause bounds the pause that a bucket may ask for.
	mostPause = time.Minute
	// forgetAfter is how long a limit without refusals is kept.
	forgetAfter = 15 * time.Minute

	// Bounds of memory: mostLimits is how many limits a bucket has, mostTallied how many
	// paths a limit counts, tallyDepth how many components deeper than its own prefix
	// these are, and mostDepth how many components the prefix of a limit has.
	mostLimits  = 64
	mostTallied = 1024
	tallyDepth  = 3
	mostDepth   = 8
	// A limit is divided if of at least splitRefused refusals the share splitShare was
	// below a path that had at most the share splitAsked of the requests. By chance that
	// happens once in a thousand times.
	splitRefused = 16
	splitShare   = 0.9
	splitAsked   = 0.6
	// tallyPeriod is how often the counts of paths are halved, so that old requests fade.
	tallyPeriod = time.Minute
)

// budgeted is the budget of a bucket. Its lock is held for short computations only, never
// while a request runs.
type budgeted struct {
	url  string
	opts *BudgetOptions

	mu      sync.Mutex
	sharers int                        // at the last request; guarded by mu
	limits  [classes]map[string]*limit // by their prefixes; guarded by mu
	waiting int                        // requests in all queues; guarded by mu
	free    []*waiter                  // waiters for reuse; guarded by mu
}

// limit is that of the keys with a prefix. Its fields are guarded by budgeted.mu.
// Requests take tokens, which accumulate at the rate (a token bucket).
type limit struct {
	of     *budgeted
	class  Class
	prefix string            // "" or ends with "/"
	tally  map[string]*tally // of requests by paths below the prefix
	all    tally             // of all requests, for as long
	halved time.Time

	rate    float64       // requests a second; 0: no limit
	most    float64       // rate at the last decrease
	down    time.Time     // time of the last decrease
	grown   time.Duration // time since then in which requests waited: the time of CUBIC's curve
	cut     float64       // share of the last decrease
	asked   float64       // requests begun and answered since then
	denied  float64       // those of them that were refused
	excess  float64       // of refusals over what is tolerated; 0 or more
	fell    time.Time     // time of the last decrease that other nodes follow
	guessed bool          // most is a guess, and the rate doubles
	moved   time.Time     // time up to which rate and tokens are computed
	tokens  float64       // requests that may begin at once; negative after a decrease
	paused  time.Time     // no request begins before it
	refused time.Time     // time of the last refusal
	waited  time.Time     // time at which a request last began to wait

	served served

	queue     turns
	timer     *time.Timer
	throttled int64
	waits     int64
	waitedFor time.Duration
}

// tally counts requests below a path.
type tally struct{ asked, refused float64 }

func newLimit(of *budgeted, class Class, prefix string, now time.Time) *limit {
	l := &limit{of: of, class: class, prefix: prefix, tally: map[string]*tally{}, halved: now, moved: now}
	l.served.since = now
	return l
}

// paths yields the directories of a key that are longer than a prefix, from the shortest
// on. For data/a/1.jpg and "" these are data/ and data/a/.
func paths(key, prefix string) iter.Seq[string] {
	return func(yield func(string) bool) {
		at := len(prefix)
		for at < len(key) {
			n := strings.IndexByte(key[at:], '/')
			if n < 0 {
				return
			}
			at += n + 1
			if !yield(key[:at]) {
				return
			}
		}
	}
}

// findLocked returns the limit that a key belongs to: the one with the longest prefix.
func (b *budgeted) findLocked(class Class, key string) *limit {
	limits := b.limits[class]
	l := limits[""]
	if len(limits) == 1 {
		return l
	}
	depth := 0
	for path := range paths(key, "") {
		if below := limits[path]; below != nil {
			l = below
		}
		if depth++; depth == mostDepth {
			break
		}
	}
	return l
}

// waiter is a request that waits for its turn. Waiters are reused, with their channel.
type waiter struct {
	key    string
	tenant string
	began  time.Time
	at     *limit
	turn   chan struct{} // receives one value
}

// enter waits until a request may be made, and returns when it began. It fails if ctx
// ends or if too many requests wait. A request that entered must leave.
func (b *budgeted) enter(ctx context.Context, class Class, key string) (began time.Time, err error) {
	if ctx.Err() != nil {
		return time.Time{}, context.Cause(ctx)
	}
	tenant := b.opts.Tenant(ctx)
	now := time.Now()
	b.mu.Lock()
	b.shareLocked()
	l := b.findLocked(class, key)
	l.countLocked(key, now)
	if l.queue.len == 0 && l.takeLocked(now) {
		b.mu.Unlock()
		return now, nil
	}
	if b.waiting >= b.opts.MaxWaiting {
		b.mu.Unlock()
		return time.Time{}, fmt.Errorf("%w: %d requests to %s wait for their turn already, which is the most; the bucket "+
			"allows %.0f %s a second", schema.ErrUnavailable, b.opts.MaxWaiting, b.url, l.rate, class)
	}
	var w *waiter
	if n := len(b.free); n > 0 {
		w, b.free = b.free[n-1], b.free[:n-1]
	} else {
		w = &waiter{turn: make(chan struct{}, 1)}
	}
	w.key, w.tenant, w.began, w.at = key, tenant, now, l
	b.waiting++
	l.queue.put(w)
	l.waited = now
	l.wakeLocked(now)
	b.mu.Unlock()

	select {
	case <-w.turn:
		b.mu.Lock()
	case <-ctx.Done():
		b.mu.Lock()
		select {
		case <-w.turn: // the turn came at the same time, and is used
		default:
			w.at.queue.drop(w)
			b.waiting--
			err = fmt.Errorf("waiting for a turn at %s, which allows %.0f %s a second: %w", b.url, w.at.rate, class,
				context.Cause(ctx))
		}
	}
	began = time.Now()
	w.at.waits++
	w.at.waitedFor += began.Sub(w.began)
	w.key, w.tenant, w.at = "", "", nil
	b.free = append(b.free, w)
	b.mu.Unlock()
	return began, err
}

// leave records the result of a request that entered.
func (b *budgeted) leave(class Class, key string, began time.Time, err error) {
	var throttled *ThrottledError
	if err != nil {
		throttled, _ = errors.AsType[*ThrottledError](err)
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.findLocked(class, key)
	present := l.rate == 0 || began.After(l.down) // else it was begun at the former, higher rate
	if present {
		l.asked++
		l.excess = max(l.excess-tolerated, 0)
	}
	if throttled == nil {
		l.served.add(now)
		return
	}
	if present {
		l.denied++
		l.excess++
	}
	l.refusedLocked(key, now, throttled.After, present)
}

// shareLocked scales the limits when the number of nodes changes.
func (b *budgeted) shareLocked() {
	n := max(b.opts.Sharers(), 1)
	if b.sharers == 0 {
		b.sharers = n
	}
	if n == b.sharers {
		return
	}
	by := float64(b.sharers) / float64(n)
	b.sharers = n
	for _, limits := range b.limits {
		for _, l := range limits {
			l.rate, l.most = l.rate*by, l.most*by
		}
	}
}

// countLocked counts a request for each directory of its key, to find out where refusals
// concentrate.
func (l *limit) countLocked(key string, now time.Time) {
	if l.rate == 0 {
		return // no limit, so nothing to divide
	}
	if now.Sub(l.halved) > tallyPeriod {
		l.halved = now
		l.all.asked, l.all.refused = l.all.asked/2, l.all.refused/2
		for name, t := range l.tally {
			if t.asked, t.refused = t.asked/2, t.refused/2; t.asked < 1 {
				delete(l.tally, name)
			}
		}
	}
	l.all.asked++
	for path := range l.below(key) {
		t := l.tally[path]
		if t == nil {
			if len(l.tally) >= mostTallied {
				return
			}
			t = &tally{}
			l.tally[strings.Clone(path)] = t
		}
		t.asked++
	}
}

// below yields the directories of a key below the limit's prefix that are counted.
func (l *limit) below(key string) iter.Seq[string] {
	return func(yield func(string) bool) {
		n := 0
		for path := range paths(key, l.prefix) {
			if n++; n > tallyDepth || !yield(path) {
				return
			}
		}
	}
}

// movedLocked advances rate and tokens to now. The rate grows only while requests wait: a
// limit that is not used is not tested.
func (l *limit) movedLocked(now time.Time) {
	from := l.moved
	if l.paused.After(from) {
		from = l.paused
	}
	past := now.Sub(from)
	l.moved = now
	if l.rate == 0 || past <= 0 {
		return
	}
	if now.Sub(l.refused) > forgetAfter && l.queue.len == 0 {
		l.rate, l.most = 0, 0
		l.forgetLocked()
		return
	}
	l.tokens = min(l.tokens+l.rate*past.Seconds(), max(leastBurst, l.rate*burst.Seconds()))
	if l.queue.len > 0 {
		l.grown += past
		if l.guessed {
			l.rate *= math.Exp2(past.Seconds() / doubling.Seconds())
			return
		}
		// CUBIC around the last decrease: x is -1 at the decrease, 0 at the rate before it.
		x, by := l.grown.Seconds()/period.Seconds()-1, mostCut
		if x < 0 {
			by = l.cut
		}
		l.rate = max(l.rate, l.most*(1+by*x*x*x))
		l.guessed = l.rate >= 2*l.most
	}
}

// takeLocked takes a token for a request, and reports whether there was one.
func (l *limit) takeLocked(now time.Time) bool {
	if now.Before(l.paused) {
		return false
	}
	if l.movedLocked(now); l.rate == 0 {
		return true
	}
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

// grantLocked gives turns to waiting requests while there are tokens, and sets the timer
// for the rest.
func (l *limit) grantLocked(now time.Time) {
	for l.queue.len > 0 && l.takeLocked(now) {
		w := l.queue.take()
		l.of.waiting--
		w.turn <- struct{}{}
	}
	l.wakeLocked(now)
}

// wakeLocked sets the timer for the next turn. It waits a millisecond at least, and so
// grants several turns at high rates.
func (l *limit) wakeLocked(now time.Time) {
	if l.queue.len == 0 {
		return
	}
	l.movedLocked(now)
	wait := l.paused.Sub(now)
	if l.rate > 0 {
		wait = max(wait, time.Duration((1-l.tokens)/l.rate*float64(time.Second)))
	}
	wait = max(wait, time.Millisecond)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, func() {
			l.of.mu.Lock()
			defer l.of.mu.Unlock()
			l.grantLocked(time.Now())
		})
		return
	}
	l.timer.Reset(wait)
}

// refusedLocked records a request that the bucket refused. It may divide the limit, pause
// it, and decrease it.
func (l *limit) refusedLocked(key string, now time.Time, after time.Duration, present bool) {
	l.throttled++
	l.refused = now
	if l.rate > 0 {
		l.all.refused++
		for path := range l.below(key) {
			if t := l.tally[path]; t != nil {
				t.refused++
			}
		}
		if own := l.splitLocked(key, now); own != nil {
			l, present = own, false
			l.throttled++
		}
	}
	if after > 0 {
		if until := now.Add(min(after, mostPause)); until.After(l.paused) {
			l.paused = until
		}
	}
	l.movedLocked(now)
	switch {
	case !present:
	case l.rate == 0, !l.guessed && l.denied == 1 && l.grown >= period/2:
		// Nothing was refused until the curve was within 2 % of the former rate.
		l.downLocked(min(max(cutPer/max(l.asked, 1), leastCut), mostCut), now)
	case l.excess >= patience:
		l.downLocked(mostCut, now)
		l.fell = now
	}
}

// downLocked decreases the limit by a share. The new maximum is the rate that the bucket
// really served, if that is known to be lower. The limit must have moved to now.
func (l *limit) downLocked(cut float64, now time.Time) {
	served := l.served.rate(now)
	collapsed := l.excess >= patience && l.denied >= collapse*l.asked && l.rate < 2*l.most
	l.guessed = l.rate == 0 || collapsed
	if l.rate == 0 {
		l.most = served
	} else {
		// Few may be served only because little was asked for. So the rate that was allowed
		// before bounds the decrease, unless it was cut only just.
		l.most = min(l.rate, max(served, min(l.most, l.rate*(1-2*mostCut))))
	}
	l.most = max(l.most, leastRate)
	l.rate = max((1-cut)*l.most, leastRate)
	l.down, l.grown, l.cut, l.asked, l.denied, l.excess = now, 0, cut, 0, 0, 0
	l.tokens = min(l.tokens, 0)
	if l.moved.Before(now) {
		l.moved = now
	}
}

// splitLocked divides the limit if refusals concentrate on one directory of a key, and
// returns that directory's new limit, else nil.
func (l *limit) splitLocked(key string, now time.Time) *limit {
	limits := l.of.limits[l.class]
	if l.all.refused < splitRefused || len(limits) >= mostLimits {
		return nil
	}
	for path := range l.below(key) {
		t := l.tally[path]
		if t == nil || t.refused < splitShare*l.all.refused || t.asked > splitAsked*l.all.asked ||
			strings.Count(path, "/") > mostDepth || limits[path] != nil {
			continue
		}
		rate := l.rate * t.asked / l.all.asked
		return l.divideLocked(path, rate, rate, now)
	}
	return nil
}

// divideLocked gives a path a limit of its own and removes the limit of the rest.
func (l *limit) divideLocked(path string, rate, most float64, now time.Time) *limit {
	own := newLimit(l.of, l.class, strings.Clone(path), now)
	own.rate, own.most, own.cut, own.down, own.refused = rate, most, leastCut, now, now
	l.of.limits[l.class][own.prefix] = own
	l.rate, l.most = 0, 0
	l.forgetLocked()
	// Waiting requests are sorted to their new limits.
	for _, w := range l.queue.all() {
		w.at = l.of.findLocked(l.class, w.key)
		w.at.queue.put(w)
		w.at.waited = now
	}
	l.grantLocked(now)
	own.wakeLocked(now)
	return own
}

// forgetLocked drops the counts of paths.
func (l *limit) forgetLocked() {
	l.all = tally{}
	clear(l.tally)
}

// listLocked appends the limits. It drops the limit of a prefix that no longer limits
// anything.
func (b *budgeted) listLocked(list []Limit, now time.Time) []Limit {
	for _, limits := range b.limits {
		for prefix, l := range limits {
			l.movedLocked(now)
			one := Limit{
				Bucket: b.url, Prefix: prefix, Class: l.class.String(), PerSecond: round(l.rate), Most: round(l.most),
				Served: round(l.served.rate(now)), Waiting: l.queue.len, Waits: l.waits, Waited: int64(l.waitedFor),
				Throttled: l.throttled,
			}
			if p := l.paused.Sub(now); p > 0 {
				one.Paused = p.Milliseconds()
			}
			list = append(list, one)
			if l.rate == 0 && l.queue.len == 0 && prefix != "" {
				delete(limits, prefix)
			}
		}
	}
	return list
}

// round keeps three decimals.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// served measures how many requests a second succeeded, over the last one to two seconds.
type served struct {
	since       time.Time // when the present second began
	now, before float64
	whole       bool // before covers a whole second
}

const servedPeriod = time.Second

// turn begins a new second if the present one is over.
func (s *served) turn(now time.Time) {
	past := now.Sub(s.since)
	if past < servedPeriod {
		return
	}
	if s.before = s.now; past >= 2*servedPeriod {
		s.before = 0
	}
	s.now, s.since, s.whole = 0, s.since.Add(past.Truncate(servedPeriod)), true
}

func (s *served) add(now time.Time) {
	s.turn(now)
	s.now++
}

func (s *served) rate(now time.Time) float64 {
	s.turn(now)
	past := now.Sub(s.since)
	if !s.whole {
		return s.now / max(past, servedPeriod/10).Seconds()
	}
	// The part of the last second that the present one does not cover yet is taken from
	// the one before.
	return s.now + s.before*(1-past.Seconds()/servedPeriod.Seconds())
}

// turns are waiting requests. Tenants are served in rotation, and each tenant's requests
// in their order. So a tenant with many requests delays others by one request at a time.
type turns struct {
	tenants []*account // that wait; the first one is next
	by      map[string]*account
	len     int
}

// account are the waiting requests of a tenant.
type account struct {
	tenant  string
	waiting []*waiter
}

func (q *turns) put(w *waiter) {
	if q.by == nil {
		q.by = map[string]*account{}
	}
	a := q.by[w.tenant]
	if a == nil {
		a = &account{tenant: w.tenant}
		q.by[w.tenant] = a
		q.tenants = append(q.tenants, a)
	}
	a.waiting = append(a.waiting, w)
	q.len++
}

// take removes and returns the next request. There must be one.
func (q *turns) take() *waiter {
	a := q.tenants[0]
	w := a.waiting[0]
	a.waiting[0] = nil
	a.waiting = a.waiting[1:]
	q.len--
	q.tenants = q.tenants[1:]
	if len(a.waiting) > 0 {
		q.tenants = append(q.tenants, a)
	} else {
		delete(q.by, a.tenant)
	}
	return w
}

// drop removes a request whose context has ended.
func (q *turns) drop(w *waiter) {
	a := q.by[w.tenant]
	a.waiting = slices.DeleteFunc(a.waiting, func(o *waiter) bool { return o == w })
	q.len--
	if len(a.waiting) == 0 {
		delete(q.by, w.tenant)
		q.tenants = slices.DeleteFunc(q.tenants, func(o *account) bool { return o == a })
	}
}

// all removes all requests and returns them in the order of their turns.
func (q *turns) all() (list []*waiter) {
	for q.len > 0 {
		list = append(list, q.take())
	}
	return list
}

// paced is a Bucket whose requests wait for their turn.
type paced struct {
	Bucket
	budget *budgeted
}

// Range implements Bucket.
func (b *paced) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error {
	began, err := b.budget.enter(ctx, Reads, key)
	if err != nil {
		return err
	}
	err = b.Bucket.Range(ctx, key, v, offset, buf)
	b.budget.leave(Reads, key, began, err)
	return err
}

// Get implements Bucket.
func (b *paced) Get(ctx context.Context, key string, v schema.ObjectVersion, limit int64) ([]byte, Info, error) {
	began, err := b.budget.enter(ctx, Reads, key)
	if err != nil {
		return nil, Info{}, err
	}
	data, info, err := b.Bucket.Get(ctx, key, v, limit)
	b.budget.leave(Reads, key, began, err)
	return data, info, err
}

// Stat implements Bucket.
func (b *paced) Stat(ctx context.Context, key string) (Info, error) {
	began, err := b.budget.enter(ctx, Reads, key)
	if err != nil {
		return Info{}, err
	}
	info, err := b.Bucket.Stat(ctx, key)
	b.budget.leave(Reads, key, began, err)
	return info, err
}

// List implements Bucket. Each page waits for a turn of its own, under the limit of the
// listed prefix.
func (b *paced) List(ctx context.Context, opts ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		outer := opts.Page
		var began time.Time
		asked := false
		answered := func(err error) {
			if asked {
				asked = false
				b.budget.leave(Reads, opts.Prefix, began, err)
			}
		}
		opts.Page = func(ctx context.Context) (err error) {
			answered(nil)
			if outer != nil {
				if err = outer(ctx); err != nil {
					return err
				}
			}
			if began, err = b.budget.enter(ctx, Reads, opts.Prefix); err == nil {
				asked = true
			}
			return err
		}
		for info, err := range b.Bucket.List(ctx, opts) {
			answered(err)
			if !yield(info, err) {
				return
			}
		}
		answered(nil)
	}
}

// Put implements Bucket.
func (b *paced) Put(ctx context.Context, key string, body []byte, c Condition) (Info, Outcome, error) {
	began, err := b.budget.enter(ctx, Writes, key)
	if err != nil {
		return Info{}, Failed, err
	}
	info, outcome, err := b.Bucket.Put(ctx, key, body, c)
	b.budget.leave(Writes, key, began, err)
	return info, outcome, err
}

// Delete implements Bucket.
func (b *paced) Delete(ctx context.Context, key string) error {
	began, err := b.budget.enter(ctx, Writes, key)
	if err != nil {
		return err
	}
	err = b.Bucket.Delete(ctx, key)
	b.budget.leave(Writes, key, began, err)
	return err
}

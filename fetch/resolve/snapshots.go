package resolve

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"bowstring/fetch/manifest"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// trust is how long an answer of the catalog is believed, in multiples of the time that
// the answer took. So a fast catalog is asked often, and a distant one seldom.
const trust = 10

// openSnapshot is a snapshot with an open manifest. All jobs on it share it. The cache
// owns it, and closes the manifest some time after its last hold has ended.
type openSnapshot struct {
	key      snapshotKey
	manifest *manifest.Manifest
	cache    *snapshotCache

	splitsMu sync.Mutex
	splits   map[string]plan.Selection // selections of splits that were used; guarded by splitsMu

	believed time.Time     // until when the snapshot counts as existing without asking the catalog; guarded by cache.mu
	newest   time.Time     // when the catalog was last asked and named it as the newest; guarded by cache.mu
	refs     int           // holds of jobs, streams and batches; guarded by cache.mu
	idle     *list.Element // in cache.idle while refs is 0; guarded by cache.mu
}

// snapshotKey names a snapshot.
type snapshotKey struct {
	dataset string
	number  int64
}

func (k snapshotKey) String() string { return fmt.Sprintf("%s@%d", k.dataset, k.number) }

// Retain adds a hold. The caller has one.
func (s *openSnapshot) Retain() {
	s.cache.mu.Lock()
	s.retainLocked()
	s.cache.mu.Unlock()
}

// retainLocked adds a hold, perhaps the first one.
func (s *openSnapshot) retainLocked() {
	s.refs++
	if s.idle != nil {
		s.cache.idle.Remove(s.idle)
		s.idle = nil
	}
}

// Release ends a hold.
func (s *openSnapshot) Release() { s.cache.release(s) }

// snapshotCache keeps manifests open while they are used, and up to maxIdle others. It is
// safe for concurrent use.
type snapshotCache struct {
	store      store.Store
	pages      *manifest.Cache
	maxIdle    int
	opening    computations[*openSnapshot]
	worthwhile time.Duration // see Options

	// of jobs that were opened early; grows under mu only while not closed
	questions sync.WaitGroup
	closing   context.Context //nolint:containedctx // ends them
	end       context.CancelFunc

	mu     sync.Mutex
	byKey  map[snapshotKey]*openSnapshot // guarded by mu
	idle   list.List                     // of *openSnapshot without a hold, the last used last; guarded by mu
	doubts int64                         // calls of doubt so far; guarded by mu
	took   time.Duration                 // the catalog's last answer; guarded by mu
	closed bool                          // idle snapshots are closed at once; guarded by mu
}

// init sets up the cache.
func (c *snapshotCache) init(store store.Store, pages *manifest.Cache, opts Options) {
	c.store, c.pages, c.maxIdle, c.opening.logger = store, pages, opts.IdleSnapshots, opts.Logger
	c.worthwhile, c.byKey = opts.Worthwhile, map[snapshotKey]*openSnapshot{}
	c.closing, c.end = context.WithCancel(context.Background())
}

// get opens a snapshot, or shares the open one, with a hold for the caller. Number 0 is
// the newest. It asks the store, so that a dropped snapshot is not found, even while
// streams read it. An answer for a snapshot that is named by number is trusted for ten
// times as long as it took: a client that has just got the number should not wait for
// another round trip.
func (c *snapshotCache) get(ctx context.Context, dataset string, number int64) (*openSnapshot, error) {
	asked := time.Now()
	if s := c.shared(snapshotKey{dataset, number}, asked, answer{}); s != nil {
		return s, nil
	}
	c.mu.Lock()
	// doubts is read before the store is asked: if a drop is reported meanwhile, the
	// answer may predate it, and is not believed afterwards.
	doubts, closed := c.doubts, c.closed
	c.mu.Unlock()
	if closed {
		return nil, errClosing()
	}
	snap, err := c.store.Snapshot(ctx, dataset, number)
	if err != nil {
		return nil, err
	}
	key := snapshotKey{snap.Dataset, snap.Number}
	// The snapshot is trusted from when it was asked for, for trust times the duration.
	took := time.Since(asked)
	there := answer{until: asked.Add((1 + trust) * took), doubts: doubts, took: took}
	if number == 0 {
		there.newest = asked
	}
	if s := c.shared(key, time.Time{}, there); s != nil {
		return s, nil
	}
	// Callers that want the same snapshot share its opening. It belongs to none of them.
	s, err := c.opening.do(ctx, key.String(), nothing{}, func(ctx context.Context) (*openSnapshot, error) {
		return c.add(ctx, key, snap, there)
	})
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil: // the caller has left
		return nil, context.Cause(ctx)
	}
	// If it was dropped and collected since it was looked up, ErrNotFound says so.
	if _, err := c.store.Snapshot(ctx, key.dataset, key.number); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("opening snapshot %s: %w", key, err)
}

// answer is the catalog's answer about a snapshot that exists. It is believed until a
// time, unless a drop was reported since it was asked.
type answer struct {
	until  time.Time
	newest time.Time     // when the catalog was asked, if it was for the newest snapshot
	took   time.Duration // duration of the answer
	doubts int64         // snapshotCache.doubts before the catalog was asked
}

// shared takes a hold of a snapshot that is open and believed at that time, and records
// the answer. It returns nil if there is none, or the cache is closed.
func (c *snapshotCache) shared(key snapshotKey, at time.Time, there answer) *openSnapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byKey[key]
	if s == nil || c.closed || s.believed.Before(at) {
		return nil
	}
	c.believeLocked(s, there)
	s.retainLocked()
	return s
}

// believeLocked records an answer. An answer from before a drop changes nothing: it may
// be outdated.
func (c *snapshotCache) believeLocked(s *openSnapshot, there answer) {
	if there.until.IsZero() {
		return // the store was not asked
	}
	c.took = there.took
	if there.doubts != c.doubts {
		return
	}
	if there.until.After(s.believed) {
		s.believed = there.until
	}
	if there.newest.After(s.newest) {
		s.newest = there.newest
	}
}

// doubt makes the next use of any snapshot of a dataset ask the catalog. Answers that are
// under way do not count either.
func (c *snapshotCache) doubt(dataset string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubts++
	for key, s := range c.byKey {
		if key.dataset == dataset {
			s.believed = time.Time{}
		}
	}
}

// add opens a snapshot, and returns it with a hold for the caller.
func (c *snapshotCache) add(ctx context.Context, key snapshotKey, snap *schema.Snapshot,
	there answer) (*openSnapshot, error) {
	if s := c.shared(key, time.Time{}, there); s != nil {
		return s, nil // another call has just opened it
	}
	if err := store.ProverOf(c.store).LearnProofs(ctx, snap); err != nil {
		return nil, err
	}
	m, err := c.pages.Open(ctx, snap)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		m.Close()
		return nil, errClosing()
	}
	// A cancelled opening may have succeeded all the same.
	s := c.byKey[key]
	if s != nil {
		m.Close()
	} else {
		s = &openSnapshot{key: key, manifest: m, cache: c}
		c.byKey[key] = s
	}
	c.believeLocked(s, there)
	s.retainLocked()
	return s, nil
}

// release ends a hold. Manifests are closed without the lock, because that may take a
// while.
func (c *snapshotCache) release(s *openSnapshot) {
	c.mu.Lock()
	s.refs--
	if s.refs == 0 {
		s.idle = c.idle.PushBack(s)
	}
	idle := c.takeIdleLocked(c.maxIdle)
	c.mu.Unlock()
	closeAll(idle)
}

// takeIdleLocked removes all idle snapshots from the cache except the keep most recently
// used ones, and returns them. The caller closes them.
func (c *snapshotCache) takeIdleLocked(keep int) []*openSnapshot {
	if c.closed {
		keep = 0
	}
	var taken []*openSnapshot
	for c.idle.Len() > keep {
		s := c.idle.Remove(c.idle.Front()).(*openSnapshot) //nolint:forcetypeassert // nothing else is in it
		s.idle = nil
		delete(c.byKey, s.key)
		taken = append(taken, s)
	}
	return taken
}

// closeAll closes the manifests of snapshots that were removed from the cache.
func closeAll(list []*openSnapshot) {
	for _, s := range list {
		s.manifest.Close()
	}
}

// closeIdle closes every unused snapshot, and releases their pages.
func (c *snapshotCache) closeIdle() {
	c.mu.Lock()
	idle := c.takeIdleLocked(0)
	c.mu.Unlock()
	closeAll(idle)
	c.pages.Trim()
}

// close closes idle snapshots, now and whenever one becomes idle. It cancels running
// openings and questions, and waits for them.
func (c *snapshotCache) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.opening.close()
	c.end()
	c.questions.Wait()
	c.closeIdle()
	c.pages.Close()
}

// inUse lists the snapshots that have holds.
func (c *snapshotCache) inUse() []*schema.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*schema.Snapshot
	for _, s := range c.byKey {
		if s.refs > 0 {
			list = append(list, s.manifest.Snapshot())
		}
	}
	return list
}

// open is the number of open snapshots.
func (c *snapshotCache) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byKey)
}

// ErrSuperseded says that a job that was opened early is for another snapshot than the
// one that its request means now.
var ErrSuperseded = errors.New("the snapshot is not the one that is meant")

// question is a question to the catalog that runs while a job that was opened early is
// already used.
type question struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when err is there
	err    error
}

// OpenEarly opens a job as Open does, without waiting for a slow catalog: it takes the
// snapshot that is probably meant, if it is open, and asks the catalog meanwhile. The
// caller must not pass on anything of the job before Confirm has succeeded.
func (rv *Resolver) OpenEarly(ctx context.Context, req schema.Request) (*Job, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	req, err := rv.Pin(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.Mixture != nil || req.Assign == schema.AssignLocal && req.Owners == "" {
		// The snapshots of a mixture are looked up concurrently already. A layout is
		// reserved, which is permanent, and that asks the catalog itself.
		return rv.open(ctx, req)
	}
	if snap, asked := rv.snapshots.early(ctx, req.Dataset, req.Snapshot); snap != nil {
		j, err := rv.openOn(ctx, snap, req)
		if err == nil {
			j.asked = asked
			return j, nil
		}
		// The request may be wrong for that snapshot only.
		asked.cancel()
	}
	return rv.open(ctx, req)
}

// Confirm waits until the catalog has confirmed that the job's snapshot is the one that
// its request means. If it is not, the error is ErrSuperseded, and the caller opens the
// request again. For a job that was not opened early, Confirm returns at once.
func (j *Job) Confirm(ctx context.Context) error {
	if j.asked == nil {
		return nil
	}
	select {
	case <-j.asked.done:
		return j.asked.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Early reports whether the job was opened early, so that Confirm is needed.
func (j *Job) Early() bool { return j.asked != nil }

// early takes a hold of the open snapshot that is probably meant, and asks the catalog
// whether it is. It returns nil if no such snapshot is open, if the catalog need not be
// asked, or if it is fast enough to wait for. The question ends with ctx.
func (c *snapshotCache) early(ctx context.Context, dataset string, number int64) (*openSnapshot, *question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.took < c.worthwhile {
		return nil, nil
	}
	// A wrong guess costs reads of rows that are thrown away, so only snapshots count
	// that the catalog has named before.
	s := c.byKey[snapshotKey{dataset, number}]
	if number == 0 {
		s = c.newestLocked(dataset)
	}
	if s == nil || s.believed.IsZero() || number != 0 && !s.believed.Before(time.Now()) {
		return nil, nil
	}
	s.retainLocked()
	ctx, cancel := context.WithCancelCause(ctx)
	q := &question{cancel: func() { cancel(nil) }, done: make(chan struct{})}
	c.questions.Go(func() {
		defer close(q.done)
		defer q.cancel()
		defer context.AfterFunc(c.closing, func() { cancel(errClosing()) })()
		defer recovered(ctx, c.opening.logger, &q.err)
		q.err = c.isMeant(ctx, s.key, number)
	})
	return s, q
}

// newestLocked returns the open snapshot of a dataset that the catalog named as the
// newest most recently; nil if there is none.
func (c *snapshotCache) newestLocked(dataset string) (found *openSnapshot) {
	for _, s := range c.byKey {
		if s.key.dataset == dataset && !s.newest.IsZero() && (found == nil || s.newest.After(found.newest)) {
			found = s
		}
	}
	return found
}

// isMeant asks the catalog whether a snapshot is the one with a number; 0 means the
// newest.
func (c *snapshotCache) isMeant(ctx context.Context, key snapshotKey, number int64) error {
	s, err := c.get(ctx, key.dataset, number)
	switch {
	case errors.Is(err, schema.ErrNotFound): // opening it anew reports what there is
		return fmt.Errorf("%w: %w", ErrSuperseded, err)
	case err != nil:
		return err
	}
	defer s.Release()
	if s.key != key {
		return fmt.Errorf("%w: %s, and not %s", ErrSuperseded, s.key, key)
	}
	return nil
}

// opening opens snapshots before a job needs them. The zero value needs init; end cancels
// the work and waits for it.
type opening struct {
	context context.Context //nolint:containedctx // ends when it is to end
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
}

// init sets up the context.
func (a *opening) init() { a.context, a.cancel = context.WithCancelCause(context.Background()) }

// end cancels the work, and waits for it.
func (a *opening) end() {
	a.cancel(errClosing())
	a.running.Wait()
}

// OpenRecent begins to open the newest snapshot of each dataset. Without it, the first
// job on a distant store would wait some round trips for that. If there are more datasets
// than may stay open unused, it opens none, because it is unknown which will be used.
// Jobs that open a snapshot get its errors. OpenRecent is called at most once, before
// Close, which ends it. The channel is closed when it has ended.
func (rv *Resolver) OpenRecent() (ended <-chan struct{}) {
	done := make(chan struct{})
	rv.opening.running.Go(func() {
		defer close(done)
		ctx := rv.opening.context
		names, err := rv.store.Names(ctx)
		if err != nil {
			rv.logger.DebugContext(ctx, "no dataset is opened before its use", "error", err)
			return
		}
		if len(names) > rv.snapshots.maxIdle {
			return
		}
		var opening sync.WaitGroup
		defer opening.Wait()
		for _, name := range names {
			opening.Go(func() {
				if err := rv.openRecent(ctx, name); err != nil {
					rv.logger.DebugContext(ctx, "a dataset is not opened before its use", "dataset", name, "error", err)
				}
			})
		}
	})
	return done
}

// openRecent opens the newest snapshot of a dataset, and releases it: it stays open as
// idle.
func (rv *Resolver) openRecent(ctx context.Context, dataset string) (err error) {
	defer recovered(ctx, rv.logger, &err)
	s, err := rv.snapshots.get(ctx, dataset, 0)
	if err == nil {
		s.Release() // it stays open
	}
	return err
}

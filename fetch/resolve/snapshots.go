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

// trust is for how many times the time that the catalog took to answer the
// answer is believed.
const trust = 10

// openSnapshot is a snapshot whose manifest is open, shared by all jobs on it.
type openSnapshot struct {
	key      snapshotKey
	manifest *manifest.Manifest
	cache    *snapshotCache

	splitsMu sync.Mutex
	splits   map[string]plan.Selection // those asked for so far; guarded by splitsMu

	believed time.Time     // until when the catalog need not be asked whether it is there; guarded by cache.mu
	newest   time.Time     // when it was asked that called it the newest last; guarded by cache.mu
	refs     int           // jobs, streams and batches that use it; guarded by cache.mu
	idle     *list.Element // of cache.idle while refs is 0; guarded by cache.mu
}

type snapshotKey struct {
	dataset string
	number  int64
}

func (k snapshotKey) String() string { return fmt.Sprintf("%s@%d", k.dataset, k.number) }

// Retain adds a hold to one that the caller has.
func (s *openSnapshot) Retain() {
	s.cache.mu.Lock()
	s.retainLocked()
	s.cache.mu.Unlock()
}

func (s *openSnapshot) retainLocked() {
	s.refs++
	if s.idle != nil {
		s.cache.idle.Remove(s.idle)
		s.idle = nil
	}
}

// Release ends a hold.
func (s *openSnapshot) Release() { s.cache.release(s) }

// snapshotCache keeps manifests open while somebody uses them, and a few more.
type snapshotCache struct {
	store      store.Store
	pages      *manifest.Cache
	maxIdle    int
	opening    computations[*openSnapshot]
	worthwhile time.Duration // as Options say

	// of jobs that were opened early; grows under mu only while not closed
	questions sync.WaitGroup
	closing   context.Context //nolint:containedctx // ends them
	end       context.CancelFunc

	mu     sync.Mutex
	byKey  map[snapshotKey]*openSnapshot // guarded by mu
	idle   list.List                     // of *openSnapshot without a hold, the last used last; guarded by mu
	doubts int64                         // drops so far; guarded by mu
	took   time.Duration                 // by the catalog, to answer last; guarded by mu
	closed bool                          // guarded by mu: idle snapshots are not kept any more
}

func (c *snapshotCache) init(store store.Store, pages *manifest.Cache, opts Options) {
	c.store, c.pages, c.maxIdle, c.opening.logger = store, pages, opts.IdleSnapshots, opts.Logger
	c.worthwhile, c.byKey = opts.Worthwhile, map[snapshotKey]*openSnapshot{}
	c.closing, c.end = context.WithCancel(context.Background())
}

// get opens a snapshot, or shares the open one; number 0 is the newest. It asks the
// store, so that a dropped snapshot is not found, even while streams read it. For a
// snapshot named by number it trusts an answer for ten times as long as the answer took:
// a client that has just got the number should not wait for another round trip.
func (c *snapshotCache) get(ctx context.Context, dataset string, number int64) (*openSnapshot, error) {
	asked := time.Now()
	if s := c.shared(snapshotKey{dataset, number}, asked, answer{}); s != nil {
		return s, nil
	}
	c.mu.Lock()
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
	took := time.Since(asked)
	there := answer{until: asked.Add((1 + trust) * took), doubts: doubts, took: took}
	if number == 0 {
		there.newest = asked
	}
	if s := c.shared(key, time.Time{}, there); s != nil {
		return s, nil
	}
	s, err := c.opening.do(ctx, key.String(), nothing{}, func(ctx context.Context) (*openSnapshot, error) {
		return c.add(ctx, key, snap, there)
	})
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil: // whatever became of the snapshot, its caller has gone
		return nil, context.Cause(ctx)
	}
	// It may have been dropped and collected since it was looked up.
	if _, err := c.store.Snapshot(ctx, key.dataset, key.number); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("opening snapshot %s: %w", key, err)
}

// answer is what the catalog says of a snapshot that is there: believed until
// then, unless something was dropped since it was asked.
type answer struct {
	until  time.Time
	newest time.Time     // when it was asked, if it was for the newest one
	took   time.Duration // to answer
	doubts int64         // snapshotCache.doubts before it was asked
}

// shared takes a hold of a snapshot that is open, and believed to be there at
// that time; from now on it is as the answer says. Otherwise, and once closed, it returns nil.
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

// doubt has the catalog asked about the snapshots of a dataset, those included
// that are being opened.
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

// add opens a snapshot, and returns it with a hold.
func (c *snapshotCache) add(ctx context.Context, key snapshotKey, snap *schema.Snapshot,
	there answer) (*openSnapshot, error) {
	if s := c.shared(key, time.Time{}, there); s != nil {
		return s, nil // it was opened since it was looked for
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

// takeIdleLocked removes the idle snapshots except those used last, as many as keep says.
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

// close closes idle snapshots, now and whenever one becomes idle.
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

// inUse lists the snapshots that somebody uses.
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

func (c *snapshotCache) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byKey)
}

// ErrSuperseded says that a job that was opened early is not of the snapshot that its request means.
var ErrSuperseded = errors.New("the snapshot is not the one that is meant")

// question is what the catalog is asked while a job that was opened early is at work already.
type question struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when err is there
	err    error
}

// OpenEarly opens a job as Open does, but does not wait for a slow catalog: it takes the
// snapshot that is probably meant, if that one is open, and asks the catalog meanwhile.
// The caller must not pass on anything of the job before Confirm.
func (rv *Resolver) OpenEarly(ctx context.Context, req schema.Request) (*Job, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	req, err := rv.Pin(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.Mixture != nil || req.Assign == schema.AssignLocal && req.Owners == "" {
		// The catalog is asked for the snapshots of a mixture at once. A layout is claimed, which is written for good and
		// asks the catalog itself.
		return rv.open(ctx, req)
	}
	if snap, asked := rv.snapshots.early(ctx, req.Dataset, req.Snapshot); snap != nil {
		j, err := rv.openOn(ctx, snap, req)
		if err == nil {
			j.asked = asked
			return j, nil
		}
		// It may be wrong of that snapshot alone.
		asked.cancel()
	}
	return rv.open(ctx, req)
}

// Confirm waits until it is certain that the job is of the snapshot that its request means. ErrSuperseded if it is not:
// the request is to be opened anew. A job that was not opened early is certain.
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

// Early reports whether Confirm has something to say.
func (j *Job) Early() bool { return j.asked != nil }

// early takes a hold of the open snapshot that is probably meant, and asks the catalog whether it is. It returns nil if
// there is none, if the catalog need not be asked, and if its answers are worth waiting for. The question ends with ctx.
func (c *snapshotCache) early(ctx context.Context, dataset string, number int64) (*openSnapshot, *question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.took < c.worthwhile {
		return nil, nil
	}
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

// newestLocked is the open snapshot of a dataset that the catalog called its newest last, nil if there is none.
func (c *snapshotCache) newestLocked(dataset string) (found *openSnapshot) {
	for _, s := range c.byKey {
		if s.key.dataset == dataset && !s.newest.IsZero() && (found == nil || s.newest.After(found.newest)) {
			found = s
		}
	}
	return found
}

// isMeant asks the catalog whether a snapshot is what is meant by a number of its dataset.
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

// opening opens snapshots before a job needs them. The zero value needs init; end cancels and
// waits for it.
type opening struct {
	context context.Context //nolint:containedctx // ends when it is to end
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
}

func (a *opening) init() { a.context, a.cancel = context.WithCancelCause(context.Background()) }

// end ends what is being done, and waits for it.
func (a *opening) end() {
	a.cancel(errClosing())
	a.running.Wait()
}

// OpenRecent begins to open the newest snapshot of each dataset. Otherwise the first job
// of a distant store would wait some round trips for it. If there are more datasets than
// may stay open unused, none is opened, as it is unknown which will be used. Errors are
// left to the job that opens the snapshot. OpenRecent is called at most once, before
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

func (rv *Resolver) openRecent(ctx context.Context, dataset string) (err error) {
	defer recovered(ctx, rv.logger, &err)
	s, err := rv.snapshots.get(ctx, dataset, 0)
	if err == nil {
		s.Release() // it stays open
	}
	return err
}

package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// GC implements store.Store. One collection runs at a time in a store, others
// are a schema.ErrUnavailable that says who collects. Blobs that an import left
// unfinished are removed and not counted.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.enter(ctx); err != nil {
		return store.GCReport{}, err
	}
	defer s.calls.done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.tasks.start(s.env, func() {
		if s.env.Wait(ctx, s.ctx.Done(), -1) == nil {
			cancel(context.Cause(s.ctx))
		}
	})
	if err := s.collecting.take(ctx, s.env, struct{}{}); err != nil {
		return store.GCReport{}, err
	}
	defer s.collecting.give(struct{}{})
	c := &collection{s: s, opts: opts, inUse: inUse, pace: newPace(s.env, opts)}
	if err := c.run(ctx); err != nil {
		if ended := ctx.Err(); ended != nil && errors.Is(err, ended) && !errors.Is(err, schema.ErrDataLoss) {
			err = context.Cause(ctx) // a database may say that the context has ended, and not why
		}
		return c.report, fmt.Errorf("collect garbage: %w", err)
	}
	return c.report, nil
}

// collection is one run of GC.
type collection struct {
	s     *Store
	opts  store.GCOptions
	inUse func() []*schema.Snapshot
	pace  *pace

	id    string
	epoch Epoch
	seen  int64 // version of the control partition when a dry run began
	// before is the epoch of which deletions may still be on their way, from a
	// collection that did not come to its end.
	before Epoch
	// keep is the oldest epoch whose touches protect a blob.
	keep  Epoch
	roots roots
	using map[string]bool // snapshots that the caller of GC reads
	early roots           // planted

	mu       sync.Mutex
	report   store.GCReport
	leftover bool // Unclean stays at before, as blobs were met that a dead collection may still remove
}

// run announces an epoch, collects, and records the end. After a failure it records an end that
// is not whole, so that the next collection need not wait until this one lapses.
func (c *collection) run(ctx context.Context) error {
	if c.opts.DryRun {
		return c.dryRun(ctx)
	}
	if c.s.planted(bugRootsEarly) {
		if err := c.rootsEarly(ctx); err != nil {
			return err
		}
	}
	if err := c.announce(ctx); err != nil {
		return err
	}
	if err := c.collect(ctx); err != nil {
		return errors.Join(c.overtaken(ctx, err), c.end(ctx, false))
	}
	return c.end(ctx, true)
}

// rootsEarly is a planted mistake.
func (c *collection) rootsEarly(ctx context.Context) error {
	seen := &collection{s: c.s, opts: store.GCOptions{DryRun: true}, inUse: c.inUse}
	err := seen.findRoots(ctx)
	c.early = seen.roots
	return err
}

// dryRun counts what a collection would find, which it does not begin.
func (c *collection) dryRun(ctx context.Context) error {
	p, err := c.s.db.Peek(ctx, Control)
	if err != nil {
		return err
	}
	state, err := decodeControl(p)
	if err != nil {
		return err
	}
	c.epoch, c.seen = c.s.epochAfter(state), p.Version
	if err := c.findRoots(ctx); err != nil {
		return c.overtaken(ctx, err)
	}
	return c.overtaken(ctx, c.passes(ctx))
}

// overtaken says so of a collection that has failed because another has begun,
// which may have removed what this one was reading.
func (c *collection) overtaken(ctx context.Context, err error) error {
	s := c.s
	if !errors.Is(err, schema.ErrDataLoss) {
		return err
	}
	p, failed := s.db.Load(ctx, Control)
	if failed != nil {
		return errors.Join(err, failed)
	}
	state, failed := decodeControl(p)
	alone := state.Run == c.id
	if c.opts.DryRun {
		alone = state.Run == "" && p.Version == c.seen
	}
	if failed != nil || alone {
		return errors.Join(err, failed)
	}
	return fmt.Errorf("%w: another collection has begun meanwhile (%v)", schema.ErrUnavailable, err) //nolint:errorlint // what is gone is that one's doing
}

// announce begins a new epoch, unless another collection runs in a process
// that is alive.
func (c *collection) announce(ctx context.Context) error {
	s := c.s
	if err := s.ensure(ctx); err != nil {
		return err
	}
	c.id = newID(s.env)
	return c.swap(ctx, func(state *control) error {
		if state.Run == c.id {
			c.epoch = state.Epoch // which of several attempts was made
			return nil
		}
		if state.Run != "" && state.Member != s.member.id {
			members, err := s.members(ctx)
			if err != nil {
				return err
			}
			if _, alive := members[state.Member]; alive {
				return fmt.Errorf("%w: %s collects the store%s", schema.ErrUnavailable, state.Holder, s.where())
			}
			s.log.WarnContext(ctx, "a collection did not come to its end; it is begun again", "holder", state.Holder)
		}
		c.before = state.Unclean
		c.epoch = s.epochAfter(*state)
		*state = control{
			Epoch: c.epoch, Run: c.id, Member: s.member.id, Holder: s.options.Holder, Unclean: c.epoch,
			Blobs: state.Blobs, Bytes: state.Bytes,
		}
		return nil
	})
}

// epochAfter is that of a collection which begins now.
func (s *Store) epochAfter(state control) Epoch {
	next := state.Epoch + 1
	if s.options.LeastEpoch != nil {
		next = max(next, s.options.LeastEpoch())
	}
	return next
}

// swap changes the state of collections, and takes note of it. change is called
// again if another swap came first or the outcome is not known.
func (c *collection) swap(ctx context.Context, change func(state *control) error) error {
	s := c.s
	for try := 0; ; try++ {
		p, err := s.db.Load(ctx, Control)
		if err != nil {
			return err
		}
		if err := s.learn(p); err != nil {
			return err
		}
		state, err := decodeControl(p)
		if err != nil {
			return err
		}
		was := state
		if err := change(&state); err != nil || state == was {
			return err
		}
		value, err := json.Marshal(state)
		if err != nil {
			return err
		}
		err = s.db.Swap(ctx, Control, p.Version, Change{Put: map[string][]byte{rowState: value}})
		if errors.Is(err, ErrUncertain) && try >= 2*uncertainTries {
			return unavailable(err)
		}
		if err != nil && !errors.Is(err, ErrMoved) && !errors.Is(err, ErrUncertain) {
			return err
		}
		if err != nil {
			if err := s.backoff(ctx, try); err != nil {
				return err
			}
		}
		// Loaded again, to see what it came to, and for puts here to know it.
	}
}

// collect is what a collection does between its beginning and its end.
func (c *collection) collect(ctx context.Context) error {
	s := c.s
	// Once all processes have agreed, each put writes in this epoch or knows that it must not
	// rely on older blobs. Only then do the partitions show all that may still be committed.
	if err := c.agree(ctx); err != nil {
		return err
	}
	if err := c.findRoots(ctx); err != nil {
		return err
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	if s.planted(bugRootsEarly) {
		c.roots = c.early
	}
	if err := c.passes(ctx); err != nil {
		return err
	}
	if s.options.Finish != nil {
		return s.options.Finish(ctx, c.opts, &c.report)
	}
	return nil
}

// end records that the collection has ended, and whether it covered the whole store. If
// the record cannot be written, other processes later take the collection for dead.
func (c *collection) end(ctx context.Context, whole bool) error {
	s := c.s
	if !whole {
		var cancel func()
		ctx, cancel = s.within(context.WithoutCancel(ctx), leaveWithin)
		defer cancel()
	}
	err := c.swap(ctx, func(state *control) error {
		switch {
		case state.Run == c.id:
		case state.Epoch == c.epoch && state.Run == "":
			return nil // an attempt whose answer was lost
		default:
			return fmt.Errorf("%w: %s has taken the collection for dead and begun another", schema.ErrUnavailable,
				state.Holder)
		}
		state.Run, state.Member, state.Holder = "", "", ""
		state.Ended = s.env.Now().UTC().Truncate(time.Microsecond)
		if s.planted(bugUncleanForgotten) {
			state.Unclean = c.before
		}
		if state.Whole = whole; whole {
			state.Unclean = 0
			if c.leftover && !s.planted(bugLeftoverForgotten) {
				state.Unclean = c.before
			}
			state.Blobs, state.Bytes = c.report.LiveBlobs, c.report.LiveBytes
		}
		return nil
	})
	if !whole && err != nil {
		s.log.WarnContext(ctx, "a collection that failed is taken for one that runs, until this process ends or "+
			"collects again", "error", err)
		return nil
	}
	return err
}

// members lists the processes at work by their ids.
func (s *Store) members(ctx context.Context) (map[string]Member, error) {
	list, err := s.db.Members(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the processes at work: %w", err)
	}
	members := map[string]Member{}
	for _, m := range list {
		members[m.ID] = m
	}
	return members, nil
}

// agree waits until every process at work knows of the collection.
func (c *collection) agree(ctx context.Context) error {
	s := c.s
	if err := s.renew(ctx); err != nil {
		return err
	}
	logged := false
	for {
		s.member.mu.Lock()
		wake := s.member.wake
		s.member.mu.Unlock()
		members, err := s.members(ctx)
		if err != nil {
			return err
		}
		var waiting []string
		for _, m := range members {
			if m.Acked < c.epoch {
				waiting = append(waiting, m.Holder)
			}
		}
		if len(waiting) == 0 || s.planted(bugNoWait) {
			return nil
		}
		if !logged {
			logged = true
			s.log.InfoContext(ctx, "a collection waits until the processes that write have taken note of it", "processes", waiting)
		}
		if err := c.superseded(); err != nil {
			return err
		}
		// The rows of other processes are polled, because a database sends no notice of
		// changes.
		if err := s.env.Wait(ctx, wake, s.options.RenewEvery/6); err != nil {
			return err
		}
		select {
		case <-wake: // the last put here that did not know has ended
			if err := s.renew(ctx); err != nil {
				return err
			}
		default:
		}
	}
}

// confirm makes sure, by the database, that no other collection had begun when the roots
// were loaded. If one had, its roots may be older than these: a blob that it found live
// may have been dropped since, and is dead here. A put would not store that blob again,
// as the other collection has found it live, and this one could delete it at any time.
func (c *collection) confirm(ctx context.Context) error {
	s := c.s
	if s.planted(bugRootsUnconfirmed) {
		return nil
	}
	p, err := s.db.Load(ctx, Control)
	if err != nil {
		return fmt.Errorf("look whether another collection has begun: %w", err)
	}
	if err := s.learn(p); err != nil {
		return err
	}
	return c.superseded()
}

// superseded spares a collection useless work if another has begun. Its work would be
// harmless, as the database ensures.
func (c *collection) superseded() error {
	if c.opts.DryRun || c.s.planted(bugOwnLaterEpoch) {
		return nil
	}
	if state := c.s.member.current(); state.Run != c.id {
		return fmt.Errorf("%w: another collection has begun", schema.ErrUnavailable)
	}
	return nil
}

// roots are what the blobs in use hang on.
type roots struct {
	snapshots []rooted
	keys      []schema.Key // bitmaps of selections, records of snapshots, object sets
}

// rooted is a snapshot whose blobs are kept. A dropped one is kept for its readers, as
// far as it is there: another collection may have found no reader while the reader was
// out of touch.
type rooted struct {
	*schema.Snapshot
	live bool
}

// row is a snapshot's row in the catalog.
type row struct {
	dataset string
	number  int64
	snapshotRecord
}

// findRoots loads all partitions, and removes the registrations of processes that do not
// say whether they know of the collection. Ingests registered in the partitions as they
// were loaded are waited for and kept; all others can make nothing visible any more, or
// know of the collection.
func (c *collection) findRoots(ctx context.Context) error {
	s := c.s
	names, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	var using []*schema.Snapshot
	if c.inUse != nil {
		using = slices.DeleteFunc(c.inUse(), func(snap *schema.Snapshot) bool { return snap == nil })
	}
	c.using = map[string]bool{}
	for _, snap := range using {
		c.using[snapshotName(snap.Dataset, snap.Number)] = true
	}
	all := make([]*datasetState, len(names))
	err = each(ctx, s.env, s.options.Parallel, len(names), func(ctx context.Context, i int) (err error) {
		if err := c.superseded(); err != nil {
			return err
		}
		all[i], err = c.settle(ctx, names[i])
		return err
	})
	if err != nil {
		return err
	}
	c.keep = c.epoch
	var rows []row
	for _, d := range all {
		for _, r := range d.ingests {
			c.keep = min(c.keep, r.Epoch)
		}
		for _, sel := range d.selections {
			if !s.planted(bugSelectionsUnrooted) {
				c.roots.keys = append(c.roots.keys, sel.Bitmap.Key)
			}
		}
		for _, number := range slices.Sorted(maps.Keys(d.snapshots)) {
			rows = append(rows, row{d.name, number, d.snapshots[number]})
		}
	}
	if s.planted(bugKeepNothing) {
		c.keep = c.epoch
	}
	if err := c.readRecords(ctx, rows, using); err != nil {
		return err
	}
	return c.keepProofs(ctx, all)
}

func (c *collection) readRecords(ctx context.Context, rows []row, using []*schema.Snapshot) error {
	s := c.s
	found := make([]*schema.Snapshot, len(rows))
	err := each(ctx, s.env, s.options.Parallel, len(rows), func(ctx context.Context, i int) (err error) {
		r := rows[i]
		found[i], err = s.record(ctx, r.dataset, r.number, r.snapshotRecord)
		if errors.Is(err, schema.ErrDataLoss) && !r.Dropped.IsZero() {
			s.log.WarnContext(ctx, "a dropped snapshot that is being read is gone", "error", err)
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("nothing may be freed: %w", err)
	}
	live := map[string]bool{}
	for i, r := range rows {
		if found[i] == nil {
			continue
		}
		isLive := r.Dropped.IsZero()
		live[snapshotName(r.dataset, r.number)] = isLive
		c.roots.snapshots = append(c.roots.snapshots, rooted{found[i], isLive})
		c.leftover = c.leftover || !isLive
		if r.Blob != nil && !s.planted(bugRecordsUnrooted) {
			c.roots.keys = append(c.roots.keys, r.Blob.Key)
		}
	}
	for _, snap := range using {
		if !live[snapshotName(snap.Dataset, snap.Number)] {
			c.roots.snapshots = append(c.roots.snapshots, rooted{snap, false})
			c.leftover = true
		}
	}
	for _, snap := range c.roots.snapshots {
		switch {
		case s.planted(bugSetsUnrooted):
		case s.segments != nil:
			c.roots.keys = append(c.roots.keys, setKeys(snap.Snapshot)...)
		default:
			for _, set := range snap.Sets {
				if set.Blob != (schema.BlobRef{}) {
					c.roots.keys = append(c.roots.keys, set.Blob.Key)
				}
			}
		}
	}
	return nil
}

// settle loads a partition until every ingest that is registered in it knows of the
// collection. It removes the others, expired selections, and dropped snapshots without
// readers: before their blobs, so that no other collection looks for these. It returns
// what is left.
func (c *collection) settle(ctx context.Context, name string) (*datasetState, error) {
	s := c.s
	load := s.db.Load
	if c.opts.DryRun || s.planted(bugPeekRoots) {
		load = func(ctx context.Context, name string) (Partition, error) { return s.db.Peek(ctx, name) }
	}
	for try := 0; ; try++ {
		p, err := load(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("load dataset %q: %w", name, err)
		}
		d, err := s.memo.decode(name, p)
		if err != nil {
			return nil, err
		}
		e := &edit{}
		waiting, err := c.clear(ctx, d, e)
		if err != nil {
			return nil, err
		}
		if c.opts.DryRun || s.planted(bugPeekRoots) {
			return d, nil
		}
		if !e.empty() {
			err = s.db.Swap(ctx, name, d.version, e.change)
		}
		switch {
		case err == nil && !waiting:
			return d, nil
		case err == nil:
			if err := s.env.Wait(ctx, nil, s.options.RenewEvery/6); err != nil {
				return nil, err
			}
		case errors.Is(err, ErrMoved), errors.Is(err, ErrUncertain) && try < 2*uncertainTries:
			if err := s.backoff(ctx, try); err != nil {
				return nil, err
			}
		default:
			if errors.Is(err, ErrUncertain) {
				err = unavailable(err)
			}
			return nil, fmt.Errorf("settle dataset %q: %w", name, err)
		}
	}
}

// clear takes out of a partition what the collection need not keep, and says
// whether there are ingests whose processes do not know of it yet.
func (c *collection) clear(ctx context.Context, d *datasetState, e *edit) (waiting bool, err error) {
	s := c.s
	for key, sel := range d.selections {
		if sel.Expired(s.env.Now().Add(-store.ExpiredGrace)) {
			e.remove(rowSelection + key)
			delete(d.selections, key)
		}
	}
	for name, run := range d.runs {
		if run.Expired(s.env.Now().Add(-store.ExpiredGrace)) {
			e.remove(rowRun + name)
		}
	}
	if len(d.ingests) == 0 && len(d.snapshots) == len(d.live()) {
		return false, nil
	}
	// Members are read after the partition: a process that reads a dropped snapshot of it
	// has held it before.
	members, err := s.members(ctx)
	if err != nil {
		return false, err
	}
	for id, r := range d.ingests {
		m, alive := members[r.Member]
		switch {
		case !alive && s.planted(bugLapseUnfenced):
		case !alive:
			e.remove(rowIngest + id)
			delete(d.ingests, id)
		case m.Acked < c.epoch && !s.planted(bugNoWait):
			waiting = true
		}
	}
	held := c.held(members)
	for number, r := range d.snapshots {
		if !r.Dropped.IsZero() && !held(snapshotName(d.name, number)) {
			e.remove(snapshotRow(number))
			delete(d.snapshots, number)
		}
	}
	return waiting, nil
}

// held returns a function that reports whether a process reads a snapshot. For this
// process the caller of GC knows better, except for snapshots opened since the collection
// began. A dry run begins none.
func (c *collection) held(members map[string]Member) func(name string) bool {
	m := &c.s.member
	holds := map[string]bool{}
	for _, other := range members {
		if other.ID != m.id || c.inUse == nil {
			for _, name := range other.Holds {
				holds[name] = true
			}
		}
	}
	m.mu.Lock()
	for name, h := range m.held {
		if h.run == c.id && !c.opts.DryRun {
			holds[name] = true
		}
	}
	m.mu.Unlock()
	return func(name string) bool {
		return (holds[name] || c.using[name]) && !c.s.planted(bugHeldUnrooted)
	}
}

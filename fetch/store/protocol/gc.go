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

// GC implements store.Store. One collection runs at a time in a store. If another process
// collects, the error is a schema.ErrUnavailable that names it. Blobs that an import left
// unfinished are removed and not counted.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.enter(ctx); err != nil {
		return store.GCReport{}, err
	}
	defer s.calls.done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Close of the store cancels the collection.
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

// collection is one run of GC. The goroutine of GC runs it. Its steps call the database
// from several goroutines, which share only what mu guards, and the marks.
type collection struct {
	s     *Store
	opts  store.GCOptions
	inUse func() []*schema.Snapshot
	pace  *pace

	id    string
	epoch Epoch
	seen  int64 // in a dry run, the version of the control partition when it began
	// before is the epoch of a failed collection whose deletions may still arrive; 0 if
	// there is none.
	before Epoch
	// keep is the oldest epoch whose touches protect a blob.
	keep  Epoch
	roots roots
	using map[string]bool // snapshots that the caller of GC reads
	early roots           // of a planted mistake

	mu       sync.Mutex
	report   store.GCReport
	leftover bool // blobs were found that a failed collection may still remove, so Unclean stays at before
}

// run announces an epoch, collects, and records the end. After a failure it records that
// the collection has failed, so that the next one need not wait until this process's row
// lapses.
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

// dryRun counts what a collection would find. It announces nothing and deletes nothing,
// so its counts may be outdated.
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

// overtaken returns the error of a collection that has failed because it found missing
// data. If another collection has begun, that one may have removed the data, and the
// error is a schema.ErrUnavailable. Otherwise the data is lost.
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
			c.epoch = state.Epoch // an earlier attempt of this loop was made
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

// epochAfter is the epoch of a collection that begins now.
func (s *Store) epochAfter(state control) Epoch {
	next := state.Epoch + 1
	if s.options.LeastEpoch != nil {
		next = max(next, s.options.LeastEpoch())
	}
	return next
}

// swap changes the state of collections, and learns the new state. change is called again
// if another swap came first or the outcome is unknown, so it must recognize its own
// change. A call that changes nothing ends the loop.
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
		// Load the partition again, for the outcome, and so that puts of this process
		// know it.
	}
}

// collect runs the steps of a collection between its announcement and its end. Their
// order is what makes it safe: see the package documentation.
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
	// Nothing is deleted before it is certain that the roots belong to the running
	// collection.
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

// end records that the collection has ended, and whether it covered the whole store. If a
// failure cannot be recorded, end logs that: other processes take the collection for
// running until this process ends or collects again. After a failure it has leaveWithin,
// even if ctx has ended.
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
		case state.Epoch == c.epoch && state.Run == "": // an earlier attempt, whose answer was lost, was made
			return nil // an attempt whose answer was lost
		default:
			return fmt.Errorf("%w: %s has taken the collection for dead and begun another", schema.ErrUnavailable,
				state.Holder)
		}
		state.Run, state.Member, state.Holder = "", "", ""
		state.Ended = s.env.Now().UTC().Truncate(time.Microsecond)
		// Unclean stays at this epoch after a failure, because deletions may still
		// arrive.
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

// members lists the running processes by their ids.
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

// agree waits until every running process has acknowledged the collection's epoch. Rows
// that lapse while it waits do not count.
func (c *collection) agree(ctx context.Context) error {
	s := c.s
	if err := s.renew(ctx); err != nil {
		return err
	}
	logged := false
	for {
		// wake is read before the rows, so that no wake-up is missed.
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
		case <-wake: // the last put of this process that did not know of the collection has ended
			if err := s.renew(ctx); err != nil {
				return err
			}
		default:
		}
	}
}

// confirm checks in the database, after the roots were loaded, that no other collection
// has begun. If one has, it took this one for dead, and its roots may be older than
// these. A blob that is live in its roots may have been dropped since, and is dead in
// these. Once the other collection has ended, puts rely on such a blob and do not store
// it again, while this collection could still delete it.
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

// superseded returns an error if another collection has begun, as far as this process
// knows. Outside confirm it only saves useless work: a superseded collection that was
// confirmed does no harm, because its deletions remove only what was written before its
// epoch.
func (c *collection) superseded() error {
	if c.opts.DryRun || c.s.planted(bugOwnLaterEpoch) {
		return nil
	}
	if state := c.s.member.current(); state.Run != c.id {
		return fmt.Errorf("%w: another collection has begun", schema.ErrUnavailable)
	}
	return nil
}

// roots are what refers to the blobs in use.
type roots struct {
	snapshots []rooted
	keys      []schema.Key // bitmaps of selections, records of snapshots, object sets
}

// rooted is a snapshot whose blobs are kept. A dropped snapshot is kept for its readers,
// as far as it exists: another collection may have removed parts of it while the reader
// could not renew its row.
type rooted struct {
	*schema.Snapshot
	live bool
}

// row is the row of a snapshot in the catalog, with its dataset and number.
type row struct {
	dataset string
	number  int64
	snapshotRecord
}

// findRoots loads and settles all partitions, and reads the records of their snapshots.
// It removes the registrations of processes whose row has lapsed. The ingests that stay
// registered have acknowledged the collection, and what they put is kept. All other
// ingests know of the collection, or can make nothing visible any more.
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
	// inUse was called before the partitions are loaded. Snapshots that this process
	// opens later are in member.held.
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
	// Ingests that began before the collection may commit blobs that they touched since.
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

// readRecords adds the snapshots of rows, and those that the caller of GC reads, to the
// roots. If the record of a live snapshot cannot be read, nothing may be freed: it is
// unknown which blobs it needs. A missing record of a dropped snapshot is only logged.
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
		// This process reads it, and its row is gone.
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

// settle loads a partition until every ingest that is registered in it has acknowledged
// the collection. It removes the registrations of lapsed processes, expired selections
// and runs, and the rows of dropped snapshots without readers. These rows go before their
// blobs, so that no other collection looks for the blobs. settle returns the state that
// remains.
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

// clear removes from a partition, in d and in e, what the collection need not keep. It
// reports whether some ingests have not acknowledged the collection yet.
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
// process, inUse of GC's caller is exact, and the row may be outdated. Only snapshots
// that were opened since the collection began are taken from member.held. A dry run has
// no beginning that hold could note.
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

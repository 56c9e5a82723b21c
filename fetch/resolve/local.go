package resolve

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/admission"
	"bowstring/fetch/layout"
	"bowstring/fetch/manifest"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Layouts finds the layouts of a cluster. It is safe for concurrent use.
type Layouts interface {
	// Layout returns a layout by name; schema.ErrNotFound if there is none.
	Layout(ctx context.Context, name string) (*layout.Layout, error)
	// Reserve returns the layout of an epoch of a plan. The first call decides it: the
	// layout consists of the nodes that are running, for size bytes of blobs, and of
	// ranks on those nodes if they are not nil. Later calls get the same layout.
	Reserve(ctx context.Context, plan string, epoch uint64, size int64, ranks []string) (*layout.Layout, error)
}

// lone has the only layout of a server outside a cluster.
type lone struct{}

// Layout implements Layouts.
func (lone) Layout(_ context.Context, name string) (*layout.Layout, error) {
	if l := layout.Lone(); name == l.Name() {
		return l, nil
	}
	return nil, fmt.Errorf("%w: layout %s; this server is in no cluster: serve --cluster makes it a node of one, and "+
		"a request without owners works anywhere", schema.ErrNotFound, name)
}

// Reserve implements Layouts.
func (lone) Reserve(context.Context, string, uint64, int64, []string) (*layout.Layout, error) {
	return layout.Lone(), nil
}

// local determines which ranks get which rows of a step, if ranks get what their nodes
// own.
type local struct {
	layout *layout.Layout
	nodes  []int32 // the node of each data rank, as an index in the layout
	column int     // ordinal of the blob column whose keys decide who owns a sample
}

// localize finds the layout of a request that has its defaults filled in. The returned
// request names the layout. It names the ranks' nodes only if they differ from the
// layout's own, so that equal jobs have equal requests. local is nil if ranks get the
// rows that the plan gives them.
func (rv *Resolver) localize(ctx context.Context, snap *schema.Snapshot,
	req schema.Request) (schema.Request, *local, error) {
	if req.Assign != schema.AssignLocal {
		return req, nil, nil
	}
	if req.Batch > schema.MaxLocalBatch { // it may be the default
		return req, nil, req.Check()
	}
	column, size, err := heaviest(snap, req.Within)
	if err != nil {
		return req, nil, err
	}
	x := &local{column: column}
	if req.Owners == "" {
		x.layout, err = rv.layouts.Reserve(ctx, digest(withEpoch(req, 0)), epochOf(req), size, req.Ranks)
	} else {
		x.layout, err = rv.layouts.Layout(ctx, req.Owners)
	}
	if err != nil {
		return req, nil, err
	}
	x.nodes = x.layout.NodesOf(int(req.DataRanks()))
	// The request may place ranks on nodes otherwise than the layout does.
	if req.Ranks != nil {
		record := x.layout.Record()
		placed, err := record.Placement(req.Ranks)
		if err != nil {
			return req, nil, err
		}
		same := true
		for r, n := range placed {
			same = same && x.nodes[r] == int32(n)
			x.nodes[r] = int32(n)
		}
		if same {
			req.Ranks = nil
		}
	}
	req.Owners = x.layout.Name()
	return req, x, nil
}

// epochOf is the number of a request's epoch, 0 if nothing is shuffled.
func epochOf(req schema.Request) uint64 {
	if req.Shuffle == nil {
		return 0
	}
	return req.Shuffle.Epoch
}

// heaviest returns the ordinal and size of the largest blob column among those that a
// restriction shows. It does not depend on the served columns, so that all readers of an
// epoch assign rows alike.
func heaviest(snap *schema.Snapshot, within *schema.Restriction) (column int, size int64, err error) {
	column = -1
	for i, f := range schema.BlobFields(snap.Schema) {
		if within.Hides(snap.Schema, f.Name) {
			continue
		}
		var n int64
		for _, c := range snap.Chunks {
			if i < len(c.BlobBytes) { // a broken chunk is reported to the reader of its rows
				n += c.BlobBytes[i]
			}
		}
		if column < 0 || n > size {
			column, size = i, n
		}
	}
	if column < 0 {
		return 0, 0, &schema.FieldError{Field: "assign", Got: fmt.Sprintf("%q", schema.AssignLocal),
			Want: fmt.Sprintf("%q, as %s@%d has no blob column by which a node could own a sample", schema.AssignPlan,
				snap.Dataset, snap.Number)}
	}
	return column, size, nil
}

// Layout returns the layout by which steps are assigned; nil if ranks get the rows that
// the plan gives them.
func (o *Resolved) Layout() *layout.Layout {
	if o.local == nil {
		return nil
	}
	return o.local.layout
}

// NodeOf returns the node of a data rank, as an index in the layout.
func (o *Resolved) NodeOf(rank int) int { return int(o.local.nodes[rank]) }

// Layout is that of the job's Resolved.
func (j *Job) Layout() *layout.Layout { return j.resolved.Layout() }

// NodeOf is that of the job's Resolved.
func (j *Job) NodeOf(rank int) int { return j.resolved.NodeOf(rank) }

// Owners returns the owners of the sample at a position, if its slot is known. The job
// has a layout.
func (j *Job) Owners(position int64) (o layout.Owners, known bool) {
	var slot [1]uint16
	if !j.sharing.table.slots.tryGet([]int64{position}, slot[:]) {
		return o, false
	}
	return j.resolved.local.layout.Owners(slot[0]), true
}

// Slots writes the slots of the samples at some positions into to, which is as long as
// positions. Afterwards Owners knows these samples.
func (j *Job) Slots(ctx context.Context, positions []int64, to []uint16) error {
	return j.sharing.table.slots.get(ctx, j.Alone(), positions, to)
}

// SlotOwners returns the owners of a slot in the job's layout.
func (j *Job) SlotOwners(slot uint16) layout.Owners { return j.resolved.local.layout.Owners(slot) }

// SlotColumn is the ordinal of the blob column whose keys assign samples to slots.
func (j *Job) SlotColumn() int { return j.resolved.local.column }

const (
	// keptShares is how many bytes of assigned steps are cached for a job, leastShares
	// how many steps at least, and mostShares how many at most. The ranks of a job are at
	// about the same step, so they use the same ones.
	keptShares  = 1 << 20
	leastShares = 4
	mostShares  = 256
	// sharesAtOnce is how many steps of a job are assigned at the same time.
	sharesAtOnce = 4
	// shareBytes is the memory for a row of a step while the step is being assigned.
	shareBytes = 32
)

// sharing assigns the rows of a job's steps to ranks. All jobs with the same rows and
// ranks have one, in all epochs. It is safe for concurrent use.
type sharing struct {
	jobs     *Resolver
	key      string
	locality *plan.Locality
	table    *result         // the slot table, with a hold
	memory   *admission.Hold // for kept and for the steps being assigned
	turns    chan struct{}   // a semaphore of sharesAtOnce
	most     int             // steps to cache

	refs int // guarded by Resolver.sharingsMu

	mu    sync.Mutex
	kept  map[shareKey]*stepShare
	order []shareKey // of kept, the oldest first
}

// shareKey names a step.
type shareKey struct {
	epoch uint64
	step  int64
}

// stepShare is the assignment of a step's rows, as plan.Locality.Assign returns it. It is
// immutable.
type stepShare struct {
	nothing
	rows []int32
}

// share returns the sharing of a job, with a hold for the caller.
func (rv *Resolver) share(ctx context.Context, snap *openSnapshot, o *Resolved) (*sharing, error) {
	key := digest(withEpoch(o.Request, 0))
	if s := rv.sharingOf(key, nil); s != nil {
		return s, nil
	}
	// No lock is held while the table is computed: a job that ends needs the lock to
	// release its sharing.
	table, err := rv.slotTable(ctx, snap, o.local.column)
	if err != nil {
		return nil, err
	}
	// The memory for cached steps is reserved once for all, so that assigning a step
	// cannot fail for lack of memory.
	batch := min(o.Request.Batch, max(o.Plan.Rows(), 1))
	s := &sharing{
		jobs: rv, key: key, locality: plan.NewLocality(o.local.layout, o.local.nodes), table: table, refs: 1,
		turns: make(chan struct{}, sharesAtOnce), most: int(min(max(keptShares/(4*batch), leastShares), mostShares)),
		kept: map[shareKey]*stepShare{},
	}
	if s.memory, err = rv.results.reserve(store.CallerFrom(ctx).Tenant,
		batch*(4*int64(s.most)+sharesAtOnce*shareBytes)); err != nil {
		table.Release()
		return nil, fmt.Errorf("sharing out batches of %d rows: %w", batch, err)
	}
	if first := rv.sharingOf(key, s); first != s {
		s.end() // another job of these rows came at the same time
		return first, nil
	}
	return s, nil
}

// sharingOf returns the sharing with a key, with a hold for the caller. If there is none,
// it registers made, which has a hold already, and returns it.
func (rv *Resolver) sharingOf(key string, made *sharing) *sharing {
	rv.sharingsMu.Lock()
	defer rv.sharingsMu.Unlock()
	if s := rv.sharings[key]; s != nil {
		s.refs++
		return s
	}
	if made != nil {
		rv.sharings[key] = made
	}
	return made
}

// release ends a hold. The last one frees the sharing.
func (s *sharing) release() {
	if s.leave() {
		s.end()
	}
}

// leave removes a hold, and reports whether it was the last one.
func (s *sharing) leave() bool {
	s.jobs.sharingsMu.Lock()
	defer s.jobs.sharingsMu.Unlock()
	if s.refs--; s.refs > 0 {
		return false
	}
	delete(s.jobs.sharings, s.key)
	return true
}

// end releases the memory and the slot table.
func (s *sharing) end() {
	s.memory.Release()
	s.table.Release()
}

// try returns the cached assignment of a step; nil if there is none.
func (s *sharing) try(k shareKey) *stepShare {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[k]
}

// keep caches the assignment of a step. The oldest is evicted, because ranks move
// forward.
func (s *sharing) keep(k shareKey, x *stepShare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[k] != nil {
		return
	}
	if len(s.order) >= s.most {
		delete(s.kept, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
	s.kept[k], s.order = x, append(s.order, k)
}

// Shared returns the assignment of a step's rows; nil is the plan's own order. Let start
// be the first index of the step, and at a place of the epoch's order, in [lo, hi) of
// plan.Share. The sample at that place is the one at index start + rows[at-start]. Shared
// reads keys from the manifest for those rows of the step that no earlier call has read.
// offset counts epochs from the job's own. The caller must not change the slice.
func (j *Job) Shared(ctx context.Context, offset, step int64) ([]int32, error) {
	rows, ok := j.TryShared(offset, step)
	if ok {
		return rows, nil
	}
	s, k := j.sharing, j.shareKey(offset, step)
	x, err := s.jobs.assigning.do(ctx, fmt.Sprintf("%s %d %d", s.key, k.epoch, k.step), j,
		func(ctx context.Context) (*stepShare, error) {
			if x := s.try(k); x != nil {
				return x, nil // another call has just computed it
			}
			select {
			case s.turns <- struct{}{}:
				defer func() { <-s.turns }()
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			x, err := j.assign(ctx, offset, step)
			if err != nil {
				return nil, fmt.Errorf("sharing out step %d of %s: %w", step, j.SnapshotName(), err)
			}
			s.keep(k, x)
			return x, nil
		})
	if err != nil {
		return nil, err
	}
	return x.rows, nil
}

// TryShared is Shared if that needs no computation; ok is false if it does.
func (j *Job) TryShared(offset, step int64) (rows []int32, ok bool) {
	if j.resolved.local == nil {
		return nil, true
	}
	if x := j.sharing.try(j.shareKey(offset, step)); x != nil {
		return x.rows, true
	}
	return nil, false
}

// shareKey names a step of an epoch. If nothing is shuffled, all epochs have the same
// steps.
func (j *Job) shareKey(offset, step int64) shareKey {
	if j.resolved.Request.Shuffle == nil {
		offset = 0
	}
	return shareKey{j.EpochNumber() + uint64(offset), step}
}

// assign computes the assignment of a step.
func (j *Job) assign(ctx context.Context, offset, step int64) (*stepShare, error) {
	p := j.PlanOf(offset)
	start, size := p.Batch(step)
	positions, slots := make([]int64, size), make([]uint16, size)
	for i := range positions {
		positions[i] = p.Position(start + int64(i))
	}
	if err := j.sharing.table.slots.get(ctx, j.Alone(), positions, slots); err != nil {
		return nil, err
	}
	x := &stepShare{}
	err := j.sharing.jobs.turn(ctx, func() error {
		x.rows = j.sharing.locality.Assign(slots)
		return nil
	})
	return x, err
}

const (
	// slotBlock is how many rows are looked up together: the rows of a page, so that a
	// page that was read for one row is never read again for another.
	slotBlock = 1024
	// slotBlocks is how many blocks are looked up at the same time.
	slotBlocks = 128
)

// slotTable caches the slot of each row of a snapshot that was looked up. It takes 17
// bits per row. Rows are looked up in whole blocks, so that all steps of all epochs
// together read the manifest once. It is safe for concurrent use.
type slotTable struct {
	column int // ordinal of the blob column

	mu    sync.RWMutex
	slots []uint16 // by position
	known []uint64 // a bit for each position: slots has its slot
}

// slotBytes is the memory of a table for a number of rows.
func slotBytes(rows int64) int64 { return 2*rows + 8*(rows/64+1) }

// newSlotTable returns a table that knows no slot.
func newSlotTable(rows int64, column int) *slotTable {
	return &slotTable{column: column, slots: make([]uint16, rows), known: make([]uint64, rows/64+1)}
}

// slotTable returns the table of a snapshot's blob column, with a hold for the caller.
func (rv *Resolver) slotTable(ctx context.Context, snap *openSnapshot, column int) (*result, error) {
	return rv.derive(ctx, snap.key, fmt.Sprintf("slots\x00%d", column), snap, func(context.Context) (*result, error) {
		rows := snap.manifest.Rows()
		// Charged to no tenant: all jobs that share out batches of the snapshot use it.
		memory, err := rv.results.reserve("", slotBytes(rows))
		if err != nil {
			return nil, fmt.Errorf("assign %q keeps two bytes for each of %d rows: %w", schema.AssignLocal, rows, err)
		}
		return &result{slots: newSlotTable(rows, column), memory: memory}, nil
	})
}

// tryGet writes the slots of the rows at some positions into to; false if some are
// unknown.
func (t *slotTable) tryGet(positions []int64, to []uint16) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, pos := range positions {
		if t.known[pos>>6]>>(pos&63)&1 == 0 {
			return false
		}
		to[i] = t.slots[pos]
	}
	return true
}

// get writes the slots of the rows at some positions into to. It reads unknown ones from
// the manifest.
func (t *slotTable) get(ctx context.Context, m *manifest.Manifest, positions []int64, to []uint16) error {
	if t.tryGet(positions, to) {
		return nil
	}
	// Blocks are looked up at once, so that a step waits for about one read.
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(slotBlocks)
	for _, block := range t.missing(positions) {
		from, to := block*slotBlock, min((block+1)*slotBlock, m.Rows())
		g.Go(func() error {
			if t.has(from, to) { // a page of another block had the rows
				return nil // it lay in the pages of other blocks
			}
			return m.Walk(all, from, to, nil, t.visit)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !t.tryGet(positions, to) {
		return fmt.Errorf("a defect of the server: the slots of %d rows were not found in the manifest", len(positions))
	}
	return nil
}

// has reports whether all rows in [from, to) are known.
func (t *slotTable) has(from, to int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for pos := from; pos < to; pos++ {
		if t.known[pos>>6]>>(pos&63)&1 == 0 {
			return false
		}
	}
	return true
}

// missing lists the blocks that have an unknown row among the positions, each once.
func (t *slotTable) missing(positions []int64) []int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var blocks []int64
	for _, pos := range positions {
		if t.known[pos>>6]>>(pos&63)&1 == 0 {
			blocks = append(blocks, pos/slotBlock)
		}
	}
	slices.Sort(blocks)
	return slices.Compact(blocks)
}

// visit enters the slots of a page's rows.
func (t *slotTable) visit(_ context.Context, start int64, p *schema.Page) error {
	found := make([]uint16, p.Rows())
	err := schema.Guard(func() error {
		for row := range found {
			if ref, ok := p.Blob(t.column, row); ok {
				found[row] = layout.SlotOf(ref)
			} else {
				found[row] = slotOfNull(start + int64(row))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	copy(t.slots[start:], found)
	for pos := start; pos < start+int64(len(found)); pos++ {
		t.known[pos>>6] |= 1 << (pos & 63)
	}
	return nil
}

// slotOfNull is the slot of a row without a blob. Nothing has to be read for it, so any
// rank may get it. The multiplication spreads such rows evenly over the slots.
func slotOfNull(pos int64) uint16 { return uint16(uint64(pos) * 0x9e3779b97f4a7c15 >> 48) }

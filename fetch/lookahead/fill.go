package lookahead

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	// maxFills is how many blobs a filler has on their way at most, fewFills where
	// there is no room for them yet.
	maxFills = 256
	fewFills = 8
	// scanRows is how many rows are looked at before others have their turn.
	scanRows = 1024
	// fullRows is how many rows of a job, as a part of an epoch, are used before
	// the spill, which would not keep more of what comes, is asked again.
	fullRows = 1.0 / 256
	// earlyShare is as which part of the time for which chunks are read, as its inverse, they are read ahead of it.
	earlyShare = 128
	// waitShare is the part of their time that consumers wait for the store, lately,
	// from which on the path to the store is what holds them up.
	waitShare = 0.02
	// waitPeriod is over how long that is measured at least.
	waitPeriod = 10 * time.Second
)

// filler brings blobs into the spill while no stream has a use for the way to
// the store. It belongs to one goroutine.
type filler struct {
	ahead   *Ahead
	ctx     context.Context //nolint:containedctx // what the filler looks up ends with it
	cancel  context.CancelFunc
	wake    chan struct{}     // told when the way may have room
	results chan read.Outcome // of reads under way
	blocked atomic.Bool       // it has something to read, and no room

	// of what is under way, or came and is being kept; changed with Ahead.mu locked
	places map[schema.BlobRef]spill.Place
	bytes  int64 // of those
	reads  int   // under way
}

func (a *Ahead) newFiller() *filler {
	ctx, cancel := context.WithCancel(context.Background())
	f := &filler{
		ahead: a, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), results: make(chan read.Outcome, maxFills),
		places: map[schema.BlobRef]spill.Place{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fillers[f] = struct{}{}
	return f
}

// Receive implements read.Receiver. There is room for each outcome.
func (f *filler) Receive(list []read.Outcome) {
	for _, o := range list {
		f.results <- o
	}
}

// More implements read.Receiver: see [Ahead.Wake].
func (*filler) More() {}

// close gives up the reads under way.
func (f *filler) close() {
	f.cancel()
	f.reads -= f.ahead.opts.Reader.Leave(func(to read.Receiver, _ read.Token) bool { return to == read.Receiver(f) })
	for ; f.reads > 0; f.reads-- { // what has just come
		o := <-f.results
		o.Blob.Release()
	}
	f.setBlocked(false)
	f.ahead.mu.Lock()
	defer f.ahead.mu.Unlock()
	delete(f.ahead.fillers, f)
}

func (f *filler) setBlocked(blocked bool) {
	if f.blocked.Swap(blocked) != blocked {
		n := int32(1)
		if !blocked {
			n = -1
		}
		f.ahead.blocked.Add(n)
	}
}

// try begins to read a blob.
func (f *filler) try(c *candidate) read.Filling {
	a := f.ahead
	if a.coming(c.ref) || a.has(c.ref) { // since it was looked for
		return read.UnderWay
	}
	if len(f.places) >= f.most(c.ref.Size) {
		f.setBlocked(true)
		return read.NoRoom
	}
	f.setBlocked(true) // before it is tried, or room that comes in between would be missed
	if !a.streams.Idle() {
		return read.NoRoom
	}
	// While there are streams the way is half full at most, so that what they want
	// next does not wait for long.
	a.mu.Lock()
	f.places[c.ref] = c.at // before it may come
	a.mu.Unlock()
	v := a.opts.Reader.Fill(&read.Want{Ref: c.ref, At: c.at, Use: read.Whenever, To: f}, a.streams.Reading() > 0)
	if v == read.Begun {
		f.bytes += c.ref.Size
		f.reads++
	} else {
		a.mu.Lock()
		delete(f.places, c.ref)
		a.mu.Unlock()
	}
	f.setBlocked(v == read.NoRoom)
	return v
}

// most is how many blobs may be under way, with one of n bytes: few where each
// has to displace another, which may turn out to be worth more.
func (f *filler) most(n int64) int {
	if f.ahead.opts.Cache.Room() < f.bytes+n {
		return fewFills
	}
	return maxFills
}

// has reports whether the spill has a blob.
func (a *Ahead) has(ref schema.BlobRef) bool { return a.opts.Cache.Has(a.opts.Reader.Known(ref)) }

// coming reports whether a filler has a blob on its way, or about to be kept.
func (a *Ahead) coming(ref schema.BlobRef) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for f := range a.fillers {
		if _, ok := f.places[ref]; ok {
			return true
		}
	}
	return false
}

// keep puts a blob that has come into the spill. kept says whether it is there
// now.
func (f *filler) keep(o read.Outcome) (kept bool) {
	f.reads--
	at := f.places[o.Ref]
	cache := f.ahead.opts.Cache
	if o.Err == nil {
		ref := f.ahead.opts.Reader.Known(o.Ref)
		kept = !ref.Unproven() && (cache.Put(ref, at, o.Took, o.Blob.Bytes()) || cache.Has(ref))
		o.Blob.Release()
	}
	f.bytes -= o.Ref.Size
	f.ahead.mu.Lock()
	defer f.ahead.mu.Unlock()
	delete(f.places, o.Ref)
	return kept
}

// scan is how far what a job will use has been looked for in the spill.
type scan struct {
	at     int64 // the row to look at next, counted from the job's first epoch
	column int
	fullAt int64 // where the job was when the spill would keep no more of it; -1: it would
	blocks [2]*block

	whole   bool  // all of the epoch was there from its first row on, as far as was looked
	removed int64 // what the spill had removed when that row was looked at
}

// candidate is a blob that will be used and is not there.
type candidate struct {
	ref  schema.BlobRef
	at   spill.Place
	from *scan
}

// fill has the spill hold what the jobs that run use soonest, until the engine
// closes.
func (a *Ahead) fill() {
	f := a.newFiller()
	defer f.close()
	var next *candidate
	more := false // there are rows that were not looked at
	for {
		select {
		case o := <-f.results:
			f.keep(o)
			continue
		case <-a.closing:
			return
		default:
		}
		if next == nil {
			next, more = f.nextFill()
		}
		if next != nil && f.try(next) != read.NoRoom {
			next.from.column++
			next = nil
			continue
		}
		if next == nil && more {
			continue
		}
		select {
		case o := <-f.results:
			f.keep(o)
		case <-f.wake:
			next = nil // what is soonest may be something else now
		case <-a.closing:
		}
	}
}

// nextFill returns what is used soonest of what is not in the spill and would be
// kept, nil if there is nothing as far as was looked; more says that it was not
// looked at all.
func (f *filler) nextFill() (best *candidate, more bool) {
	a := f.ahead
	demand := a.streams.Demand()
	a.mu.Lock()
	var list []*running
	for _, l := range a.jobs {
		if l.warming == 0 {
			l.order.job.Retain() // the job may end meanwhile
			list = append(list, l)
		}
	}
	displace := a.waitsLatelyLocked(demand)
	a.mu.Unlock()
	defer release(list)
	var soonest float64
	for _, l := range list {
		c, rows, left := f.missing(l, displace)
		more = more || left
		if c == nil {
			continue
		}
		if when := float64(rows) * float64(l.future.RowTime()); best == nil || when < soonest {
			best, soonest = c, when
		}
	}
	return best, more
}

// missing looks for the next blob that a job uses and the spill has not, and
// returns it and how many rows are used before it; more says that there are rows
// left to look at now.
func (f *filler) missing(l *running, displace bool) (c *candidate, before int64, more bool) {
	a := f.ahead
	at, rows, served := &l.ahead, l.order.Rows(), l.future.Served()
	if at.fullAt >= 0 && float64(served-at.fullAt) < fullRows*float64(rows) {
		return nil, 0, false
	}
	at.fullAt = -1
	if at.at < served {
		at.at, at.column, at.whole = served, 0, false
	}
	removed := a.opts.Cache.Removed()
	a.mu.Lock()
	tenant, whole := l.tenant, a.wholeLocked(l, removed)
	a.mu.Unlock()
	if whole {
		return nil, 0, false
	}
	columns := l.order.job.Projection().BlobColumns()
	end := min(served+rows, l.future.End())
	scanned := 0
	defer func() { a.looked.Add(int64(scanned)) }()
	for ; at.at < end && scanned < scanRows; scanned++ {
		b := f.block(l, at.at, end)
		if b == nil {
			return nil, 0, false // the filler is woken when it is there
		}
		if at.at%rows == 0 && at.column == 0 {
			// Of what is drawn, another epoch has other samples.
			at.whole, at.removed = l.order.job.Request().Sample == nil, removed
		}
		i := at.at - b.first
		// What is lost, the job's streams will tell.
		pos, here := b.positions[i], b.here[i] && b.err == nil && !l.future.Used(at.at)
		for ; here && at.column < len(columns); at.column++ {
			ref, ok, err := b.rows[i].TryBlob(columns[at.column])
			if err == nil && (!ok || a.opts.Mine(ref) && a.has(ref)) {
				continue
			}
			at.whole = false
			if err != nil || !a.opts.Mine(ref) {
				continue
			}
			place := l.places.At(pos, tenant)
			if !ref.Hashed() && a.early(at.at-served) {
				at.fullAt = served
				return nil, 0, false
			}
			if !a.opts.Cache.WantsBlob(ref, place, displace) {
				if a.opts.Spare(ref) {
					continue // there may be room yet for what this node owns
				}
				at.fullAt = served
				return nil, 0, false
			}
			return &candidate{ref, place, at}, at.at - served, true
		}
		at.whole = at.whole && here
		if at.at, at.column = at.at+1, 0; at.at%rows == 0 && at.whole {
			a.noteWhole(l, at.removed)
			scanned++
			return nil, 0, false
		}
	}
	return nil, 0, at.at < end
}

// early reports whether it is too early to read a blob of a bucket, rows before it is used, as its chunk comes with
// it: where the spill has room for a part of all, a chunk that is read before its time is read more often.
func (a *Ahead) early(rows int64) bool {
	horizon := a.opts.Future.Horizon(a.opts.Cache.Capacity())
	return horizon > 0 && float64(rows) > horizon/earlyShare/float64(max(a.opts.Future.Len(), 1))
}

// waitsLatelyLocked reports whether consumers have waited for the store of late,
// as far as there were any.
func (a *Ahead) waitsLatelyLocked(d spill.Demand) bool {
	if streamed := d.Streamed - a.measured.Streamed; streamed >= waitPeriod {
		a.waits = float64(d.Waited-a.measured.Waited) > waitShare*float64(streamed)
		a.measured = d
	}
	return a.waits
}

// blockRows is how many rows are looked up in the manifest at once.
const blockRows = 256

// block is rows that a job will use, looked up ahead of being looked at.
type block struct {
	first     int64 // row, counted from the job's first epoch
	positions []int64
	here      []bool // rows that are served here; the others are not looked up
	rows      []schema.Row
	err       error
	done      chan struct{} // closed when rows or err are there
}

// block returns the block that has a row, if it is there already; otherwise the filler is
// woken when it is. The one that follows is looked up meanwhile.
func (f *filler) block(l *running, row, end int64) *block {
	at := &l.ahead
	if b := at.blocks[0]; b == nil || row < b.first || row >= b.first+int64(len(b.positions)) {
		at.blocks[0], at.blocks[1] = at.blocks[1], nil
		if b := at.blocks[0]; b == nil || row < b.first || row >= b.first+int64(len(b.positions)) {
			at.blocks[0] = f.lookUp(l, row, end)
		}
	}
	b := at.blocks[0]
	if next := b.first + int64(len(b.positions)); at.blocks[1] == nil && next < end &&
		!l.order.job.Manifest().Resident() {
		at.blocks[1] = f.lookUp(l, next, end)
	}
	select {
	case <-b.done:
		return b
	default:
		return nil
	}
}

// lookUp begins to look up rows from one on.
func (f *filler) lookUp(l *running, first, end int64) *block {
	rows := l.order.Rows()
	b := &block{first: first, done: make(chan struct{})}
	var wanted []int64
	for row := first; row < end && row < first+blockRows; row++ {
		pos, here := l.order.at(l.order.plan(row/rows), row%rows)
		b.positions, b.here = append(b.positions, pos), append(b.here, here)
		if here {
			wanted = append(wanted, pos)
		}
	}
	found := func(rows []schema.Row, err error) {
		if b.err = err; err == nil {
			b.rows = make([]schema.Row, len(b.positions))
			for i, here := range b.here {
				if here {
					b.rows[i], rows = rows[0], rows[1:]
				}
			}
		}
		close(b.done)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	m := l.order.job.Manifest()
	if l.order.job.Layout() != nil {
		f.lookUpOwned(l, b, wanted, found)
	} else if rows, ok := m.Try(wanted); ok || len(wanted) == 0 {
		found(rows, nil)
	} else if !m.Start(f.ctx, wanted, found) {
		found(nil, context.Canceled)
	}
	return b
}

// lookUpOwned has found told of those rows of a block whose samples are owned here: the others are for other nodes
// to bring. Of a job that reads the blobs alone by which samples are owned, none but the rows that this node keeps are
// looked up in the manifest: one of many nodes would look at as many rows in vain.
func (f *filler) lookUpOwned(l *running, b *block, positions []int64, found func([]schema.Row, error)) {
	j := l.order.job
	var rows []schema.Row
	look := func() error {
		slots := make([]uint16, len(positions))
		if err := j.Slots(f.ctx, positions, slots); err != nil {
			return err
		}
		columns := j.Projection().BlobColumns()
		alone := len(columns) == 1 && columns[0] == j.SlotColumn()
		var wanted []int64
		for i, pos := range positions {
			mine := !alone || f.ahead.opts.Mine(layout.RefIn(slots[i]))
			if b.here[i] = mine && l.order.owns(j.SlotOwners(slots[i])); b.here[i] {
				wanted = append(wanted, pos)
			}
		}
		var err error
		rows, err = j.Manifest().At(f.ctx, wanted)
		return err
	}
	j.Retain() // the job may end meanwhile
	told := func(err error) {
		found(rows, err)
		j.Release()
	}
	if !j.Manifest().Go(look, told) {
		found(nil, context.Canceled)
		j.Release()
	}
}

// warmPeriod is how often a Warm says how far it is.
const warmPeriod = 200 * time.Millisecond

// WarmProgress is how far a Warm is. A blob that several samples have counts for
// each, as there once it is.
type WarmProgress struct {
	Job    string `json:"job"`    // as in JobStats
	Rows   int64  `json:"rows"`   // of the epoch
	Seen   int64  `json:"seen"`   // rows looked at
	There  int64  `json:"there"`  // blobs that were in the spill, or on their way to it
	Stored int64  `json:"stored"` // blobs that were fetched and are there
	Bytes  int64  `json:"bytes"`  // of those
	Failed int64  `json:"failed"` // blobs that could not be read
	Full   bool   `json:"full"`   // it ended because the spill would keep no more
	Done   bool   `json:"done"`   // it has ended
}

// Warm fills the spill with the samples of a job's epoch, in the order in which
// they will be used, until all are there or the spill would keep no more of them.
// What it brings is on the tenant's account. It takes no bandwidth from streams that wait. The job is expected to begin
// within the hour, and what was brought to be of use to it.
//
// progress, if not nil, is called a few times a second and at the end, by the
// caller's goroutine. Samples that cannot be read are counted and logged, and are
// no error.
func (a *Ahead) Warm(ctx context.Context, j *resolve.Job, tenant string, progress func(WarmProgress)) error {
	w, err := a.newWarmer(j, a.Tenant(tenant))
	if err != nil {
		return err
	}
	defer a.filling.Done()
	defer w.close()
	if progress == nil {
		progress = func(WarmProgress) {}
	}
	tick := time.NewTicker(warmPeriod)
	defer tick.Stop()
	for next := w.next(ctx); next != nil || len(w.filler.places) > 0; {
		if next != nil {
			switch w.filler.try(next) {
			case read.UnderWay:
				w.There++
				fallthrough
			case read.Begun:
				next = w.next(ctx)
				continue
			case read.NoRoom:
			}
		}
		select {
		case o := <-w.filler.results:
			w.keep(o)
		case <-w.filler.wake:
		case <-tick.C:
			progress(w.WarmProgress)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.closing:
			return read.ErrClosing()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.Done = true
	progress(w.WarmProgress)
	return nil
}

// warmer is a Warm under way.
type warmer struct {
	WarmProgress
	ahead  *Ahead
	job    *resolve.Job
	places Places
	tenant uint16
	filler *filler
	live   *running // nil if there are no rows, or too many jobs
	column int
	rows   []schema.Row // those from row first on; nil where they cannot be looked up
	first  int64
	known  int64 // rows that were looked up
}

// warmRows is how many rows are looked up in the manifest at once.
const warmRows = 1024

// lookUp looks up the row to look at next, and those after it; false if it cannot.
func (w *warmer) lookUp(ctx context.Context) bool {
	if w.Seen < w.known {
		return w.rows != nil
	}
	positions := make([]int64, min(warmRows, w.Rows-w.Seen))
	for i := range positions {
		positions[i] = w.job.Plan().Position(w.Seen + int64(i))
	}
	w.first, w.known = w.Seen, w.Seen+int64(len(positions))
	var err error
	if w.rows, err = w.job.Manifest().At(ctx, positions); err != nil {
		w.rows = nil
	}
	return err == nil
}

// newWarmer has the spill know of the job, as if it ran.
func (a *Ahead) newWarmer(j *resolve.Job, tenant uint16) (*warmer, error) {
	if a == nil {
		return nil, fmt.Errorf("%w: this server has no spill that could be warmed: serve --spill gives it one",
			schema.ErrInvalid)
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, read.ErrClosing()
	}
	a.filling.Add(1)
	a.mu.Unlock()
	w := &warmer{
		WarmProgress: WarmProgress{Job: j.Group(), Rows: j.Plan().Rows()},
		ahead:        a, job: j, places: a.Places(j), tenant: tenant, filler: a.newFiller(),
	}
	if w.Rows > 0 && w.places.known() {
		l, _, ended := a.join(j, w.places, allRanks, 0, 0, func(l *running, _ int64) {
			if l.streams+l.elsewhere == 0 && l.warming == 0 {
				l.order.serveAllLocked(int(j.Request().DataRanks())) // whichever will be served here
			}
			l.warming++
			l.tenant = cmp.Or(l.tenant, tenant)
		})
		release(ended)
		w.live = l
	}
	return w, nil
}

// close gives up what is under way. The job has some time to begin.
func (w *warmer) close() {
	w.filler.close()
	if w.live != nil {
		w.ahead.mu.Lock()
		defer w.ahead.mu.Unlock()
		w.live.warming--
		w.live.until = time.Now().Add(warmGrace)
	}
}

// next returns the next blob that is not there, nil if there is none that the
// spill would keep, or ctx has ended: many rows may have to be looked at.
func (w *warmer) next(ctx context.Context) *candidate {
	columns := w.job.Projection().BlobColumns()
	for ; w.Seen < w.Rows && !w.Full && ctx.Err() == nil; w.Seen, w.column = w.Seen+1, 0 {
		pos := w.job.Plan().Position(w.Seen)
		if !w.lookUp(ctx) { // what is lost, the job's streams will tell
			w.Failed += int64(len(columns))
			continue
		}
		for w.column < len(columns) {
			ref, ok, err := w.rows[w.Seen-w.first].TryBlob(columns[w.column])
			w.column++
			at := w.places.At(pos, w.tenant)
			switch {
			case err != nil || !ok: // what is lost, the job's streams will tell
			case w.ahead.has(ref):
				w.There++
			case !w.ahead.opts.Mine(ref): // another node's to bring, and to keep
			case !w.ahead.opts.Cache.WantsBlob(ref, at, true):
				if w.ahead.opts.Spare(ref) {
					continue // there may be room yet for what this node owns
				}
				w.Full = true
				return nil
			default:
				return &candidate{ref: ref, at: at}
			}
		}
	}
	return nil
}

// keep counts a blob that has come.
func (w *warmer) keep(o read.Outcome) {
	switch {
	case w.filler.keep(o):
		w.Stored++
		w.Bytes += o.Ref.Size
	case o.Err == nil && w.ahead.opts.Spare(o.Ref): // there may be room yet for what this node owns
	case o.Err == nil:
		w.Full = true // what is there is worth more
	default:
		w.Failed++
	}
}

package upcoming

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
	// maxFills is the most blobs that a filler has in flight, fewFills the most while the spill has no free room for
	// them.
	maxFills = 256
	fewFills = 8
	// scanRows is how many rows are scanned before other work gets a turn.
	scanRows = 1024
	// fullRows is a share of an epoch. After the spill rejects a job's blob, it is asked again once the job has used
	// that share.
	fullRows = 1.0 / 256
	// earlyShare is the inverse of a share: a chunk is read at most 1/earlyShare of the rows for which the spill has
	// room before its use.
	earlyShare = 128
	// waitShare is the share of their time that consumers wait for the store, from which on the path to the store
	// counts as the bottleneck.
	waitShare = 0.02
	// waitPeriod is the shortest time over which that share is measured.
	waitPeriod = 10 * time.Second
)

// filler reads blobs into the spill while no stream uses the path to the store. One goroutine owns it.
type filler struct {
	jobs    *Jobs
	ctx     context.Context //nolint:containedctx // look-ups end with the filler
	cancel  context.CancelFunc
	wake    chan struct{}     // signalled when the path may have room
	results chan read.Outcome // of reads in flight
	blocked atomic.Bool       // it has something to read, and no room

	// Blobs in flight, or arrived and being stored. Changed with Jobs.mu locked.
	places map[schema.BlobRef]spill.Place
	bytes  int64 // of the blobs in places
	reads  int   // in flight
}

func (js *Jobs) newFiller() *filler {
	ctx, cancel := context.WithCancel(context.Background())
	f := &filler{
		jobs: js, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), results: make(chan read.Outcome, maxFills),
		places: map[schema.BlobRef]spill.Place{},
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	js.fillers[f] = struct{}{}
	return f
}

// Receive implements read.Receiver. It does not block, because results has room for each outcome.
func (f *filler) Receive(list []read.Outcome) {
	for _, o := range list {
		f.results <- o
	}
}

// More implements read.Receiver. It does nothing: [Jobs.Wake] wakes fillers.
func (*filler) More() {}

// close cancels the reads in flight.
func (f *filler) close() {
	f.cancel()
	f.reads -= f.jobs.opts.Reader.Cancel(func(to read.Receiver, _ read.Token) bool { return to == read.Receiver(f) })
	for ; f.reads > 0; f.reads-- { // reads that ended before they could be cancelled
		o := <-f.results
		o.Blob.Release()
	}
	f.setBlocked(false)
	f.jobs.mu.Lock()
	defer f.jobs.mu.Unlock()
	delete(f.jobs.fillers, f)
}

func (f *filler) setBlocked(blocked bool) {
	if f.blocked.Swap(blocked) != blocked {
		n := int32(1)
		if !blocked {
			n = -1
		}
		f.jobs.blocked.Add(n)
	}
}

// try starts to read a blob.
func (f *filler) try(c *candidate) read.Filling {
	js := f.jobs
	if js.coming(c.ref) || js.has(c.ref) { // changed since the scan
		return read.UnderWay
	}
	if len(f.places) >= f.most(c.ref.Size) {
		f.setBlocked(true)
		return read.NoRoom
	}
	f.setBlocked(true) // set before the attempt, so that no wake is missed
	if !js.streams.Idle() {
		return read.NoRoom
	}
	// While streams read, fillers use at most half of the path, so that the streams' next reads do not wait for long.
	js.mu.Lock()
	f.places[c.ref] = c.at // set before the read can end
	js.mu.Unlock()
	v := js.opts.Reader.Fill(&read.Want{Ref: c.ref, At: c.at, Use: read.Whenever, To: f}, js.streams.Reading() > 0)
	if v == read.Begun {
		f.bytes += c.ref.Size
		f.reads++
	} else {
		js.mu.Lock()
		delete(f.places, c.ref)
		js.mu.Unlock()
	}
	f.setBlocked(v == read.NoRoom)
	return v
}

// most is how many blobs may be in flight, including one of n bytes. It is few if each has to evict another, because
// the evicted blob may turn out to be worth more.
func (f *filler) most(n int64) int {
	if f.jobs.opts.Cache.Room() < f.bytes+n {
		return fewFills
	}
	return maxFills
}

// has reports whether the spill has a blob.
func (js *Jobs) has(ref schema.BlobRef) bool { return js.opts.Cache.Has(js.opts.Reader.Known(ref)) }

// coming reports whether a filler reads or stores a blob.
func (js *Jobs) coming(ref schema.BlobRef) bool {
	js.mu.Lock()
	defer js.mu.Unlock()
	for f := range js.fillers {
		if _, ok := f.places[ref]; ok {
			return true
		}
	}
	return false
}

// keep stores a blob that has arrived. kept reports whether the spill has it now.
func (f *filler) keep(o read.Outcome) (kept bool) {
	f.reads--
	at := f.places[o.Ref]
	cache := f.jobs.opts.Cache
	if o.Err == nil {
		ref := f.jobs.opts.Reader.Known(o.Ref)
		kept = !ref.Unproven() && (cache.Put(ref, at, o.Took, o.Blob.Bytes()) || cache.Has(ref))
		o.Blob.Release()
	}
	f.bytes -= o.Ref.Size
	f.jobs.mu.Lock()
	defer f.jobs.mu.Unlock()
	delete(f.places, o.Ref)
	return kept
}

// scan is how far a job's future blobs have been looked up in the spill.
type scan struct {
	at     int64 // the next row, counted from the job's first epoch
	column int
	fullAt int64 // rows the job had used when the spill last rejected its blob; -1: it has not
	blocks [2]*block

	whole   bool  // the spill had every blob of this epoch, from its first row to here
	removed int64 // the spill's count of removals at the epoch's first row
}

// candidate is a blob that a job will use and the spill has not.
type candidate struct {
	ref  schema.BlobRef
	at   spill.Place
	from *scan
}

// fill keeps in the spill what the running jobs use soonest, until the engine closes. Its goroutine belongs to
// filling.
func (js *Jobs) fill() {
	f := js.newFiller()
	defer f.close()
	var next *candidate
	more := false // rows are left to scan
	for {
		select {
		case o := <-f.results:
			f.keep(o)
			continue
		case <-js.closing:
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
			next = nil // another blob may be used sooner now
		case <-js.closing:
		}
	}
}

// nextFill returns the blob that is used soonest among those that are not in the spill and that the spill would
// store, nil if the scanned rows have none. more reports that rows are left to scan.
func (f *filler) nextFill() (best *candidate, more bool) {
	js := f.jobs
	demand := js.streams.Demand()
	js.mu.Lock()
	var list []*running
	for _, l := range js.jobs {
		if l.warming == 0 {
			l.order.job.Retain() // the job may end in the meantime
			list = append(list, l)
		}
	}
	displace := js.waitsLatelyLocked(demand)
	js.mu.Unlock()
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

// missing returns the next blob that a job uses and the spill has not, and how many rows the job uses before it. more
// reports that rows are left to scan now.
func (f *filler) missing(l *running, displace bool) (c *candidate, before int64, more bool) {
	js := f.jobs
	at, rows, served := &l.scan, l.order.Rows(), l.future.Served()
	if at.fullAt >= 0 && float64(served-at.fullAt) < fullRows*float64(rows) {
		return nil, 0, false
	}
	at.fullAt = -1
	if at.at < served {
		at.at, at.column, at.whole = served, 0, false
	}
	removed := js.opts.Cache.Removed()
	js.mu.Lock()
	tenant, whole := l.tenant, js.wholeLocked(l, removed)
	js.mu.Unlock()
	if whole {
		return nil, 0, false
	}
	columns := l.order.job.Projection().BlobColumns()
	end := min(served+rows, l.future.End())
	scanned := 0
	defer func() { js.looked.Add(int64(scanned)) }()
	for ; at.at < end && scanned < scanRows; scanned++ {
		b := f.block(l, at.at, end)
		if b == nil {
			return nil, 0, false // wakes the filler when it is loaded
		}
		if at.at%rows == 0 && at.column == 0 {
			// With sampling, the next epoch has other samples.
			at.whole, at.removed = l.order.job.Request().Sample == nil, removed
		}
		i := at.at - b.first
		// The job's streams report rows that cannot be read.
		pos, here := b.positions[i], b.here[i] && b.err == nil && !l.future.Used(at.at)
		for ; here && at.column < len(columns); at.column++ {
			ref, ok, err := b.rows[i].TryBlob(columns[at.column])
			if err == nil && (!ok || js.opts.Owns(ref) && js.has(ref)) {
				continue
			}
			at.whole = false
			if err != nil || !js.opts.Owns(ref) {
				continue
			}
			place := l.places.At(pos, tenant)
			if !ref.Hashed() && js.early(at.at-served) {
				at.fullAt = served
				return nil, 0, false
			}
			if !js.opts.Cache.WantsBlob(ref, place, displace) {
				if js.opts.Spare(ref) {
					continue // the spill may still have room for blobs that this node owns
				}
				at.fullAt = served
				return nil, 0, false
			}
			return &candidate{ref, place, at}, at.at - served, true
		}
		at.whole = at.whole && here
		if at.at, at.column = at.at+1, 0; at.at%rows == 0 && at.whole {
			js.noteWhole(l, at.removed)
			scanned++
			return nil, 0, false
		}
	}
	return nil, 0, at.at < end
}

// early reports whether it is too early to read a blob of a bucket that is used in rows rows. Such a blob comes with
// its chunk, and if the spill has room for a part of the data only, a chunk that is read too early is evicted and
// read again.
func (js *Jobs) early(rows int64) bool {
	horizon := js.opts.Future.Horizon(js.opts.Cache.Capacity())
	return horizon > 0 && float64(rows) > horizon/earlyShare/float64(max(js.opts.Future.Len(), 1))
}

// waitsLatelyLocked reports whether consumers have recently waited for the store. It measures anew once streams have
// run for waitPeriod, and else returns the last result.
func (js *Jobs) waitsLatelyLocked(d spill.Demand) bool {
	if streamed := d.Streamed - js.measured.Streamed; streamed >= waitPeriod {
		js.waits = float64(d.Waited-js.measured.Waited) > waitShare*float64(streamed)
		js.measured = d
	}
	return js.waits
}

// blockRows is how many rows are looked up in the manifest at once.
const blockRows = 256

// block is a run of rows that a job will use, looked up before they are scanned.
type block struct {
	first     int64 // row, counted from the job's first epoch
	positions []int64
	here      []bool // rows that this node serves; only those are looked up
	rows      []schema.Row
	err       error
	done      chan struct{} // closed when rows or err are set
}

// block returns the block that has a row, nil if it is not loaded yet; the filler is woken when it is. The block
// after it is looked up in the meantime.
func (f *filler) block(l *running, row, end int64) *block {
	at := &l.scan
	if b := at.blocks[0]; b == nil || row < b.first || row >= b.first+int64(len(b.positions)) {
		at.blocks[0], at.blocks[1] = at.blocks[1], nil
		if b := at.blocks[0]; b == nil || row < b.first || row >= b.first+int64(len(b.positions)) {
			at.blocks[0] = f.find(l, row, end)
		}
	}
	b := at.blocks[0]
	if next := b.first + int64(len(b.positions)); at.blocks[1] == nil && next < end &&
		!l.order.job.Manifest().Resident() {
		at.blocks[1] = f.find(l, next, end)
	}
	select {
	case <-b.done:
		return b
	default:
		return nil
	}
}

// find starts to look up the rows from first on.
func (f *filler) find(l *running, first, end int64) *block {
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
		f.findOwned(l, b, wanted, found)
	} else if rows, ok := m.Try(wanted); ok || len(wanted) == 0 {
		found(rows, nil)
	} else if !m.Start(f.ctx, wanted, found) {
		found(nil, context.Canceled)
	}
	return b
}

// findOwned calls found with those rows of a block whose samples this node owns; other nodes read the others. If
// the job reads only the blobs that determine ownership, only the rows of this node's own blobs are looked up in the
// manifest. Looking up all of them would be work in vain for most rows of a cluster.
func (f *filler) findOwned(l *running, b *block, positions []int64, found func([]schema.Row, error)) {
	j := l.order.job
	var rows []schema.Row
	find := func() error {
		slots := make([]uint16, len(positions))
		if err := j.Slots(f.ctx, positions, slots); err != nil {
			return err
		}
		columns := j.Projection().BlobColumns()
		alone := len(columns) == 1 && columns[0] == j.SlotColumn()
		var wanted []int64
		for i, pos := range positions {
			owned := !alone || f.jobs.opts.Owns(layout.RefIn(slots[i]))
			if b.here[i] = owned && l.order.owns(j.SlotOwners(slots[i])); b.here[i] {
				wanted = append(wanted, pos)
			}
		}
		var err error
		rows, err = j.Manifest().At(f.ctx, wanted)
		return err
	}
	j.Retain() // the job may end in the meantime
	done := func(err error) {
		found(rows, err)
		j.Release()
	}
	if !j.Manifest().Go(find, done) {
		found(nil, context.Canceled)
		j.Release()
	}
}

// warmPeriod is how often a Warm reports progress.
const warmPeriod = 200 * time.Millisecond

// WarmProgress is the progress of a Warm. A blob of several samples counts once for each sample: as Stored first,
// then as There.
type WarmProgress struct {
	Job    string `json:"job"`    // as in JobStats
	Rows   int64  `json:"rows"`   // of the epoch
	Seen   int64  `json:"seen"`   // rows scanned
	There  int64  `json:"there"`  // blobs that were in the spill, or being read into it
	Stored int64  `json:"stored"` // blobs that were read and stored
	Bytes  int64  `json:"bytes"`  // size of the stored blobs
	Failed int64  `json:"failed"` // blobs that could not be read
	Full   bool   `json:"full"`   // it ended because the spill rejected a blob
	Done   bool   `json:"done"`   // it has ended
}

// Warm reads the samples of a job's epoch into the spill, in the order of their use, until all are there or the spill
// rejects one. The bytes count on the tenant's account. Streams that wait have priority on the path to the store. The
// spill keeps the blobs for the job if it begins within an hour.
//
// If progress is not nil, Warm calls it a few times per second and at the end, from the caller's goroutine. Samples
// that cannot be read are counted and logged; they are no error.
func (js *Jobs) Warm(ctx context.Context, j *resolve.Job, tenant string, progress func(WarmProgress)) error {
	w, err := js.newWarmer(j, js.Tenant(tenant))
	if err != nil {
		return err
	}
	defer js.filling.Done()
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
		case <-js.closing:
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

// warmer is a running Warm.
type warmer struct {
	WarmProgress
	jobs   *Jobs
	job    *resolve.Job
	places Places
	tenant uint16
	filler *filler
	live   *running // nil if the epoch has no rows, or there are too many jobs
	column int
	rows   []schema.Row // from row first on; nil if the look-up failed
	first  int64
	known  int64 // rows that have been looked up
}

// warmRows is how many rows are looked up in the manifest at once.
const warmRows = 1024

// find looks up the next row to scan and those after it. It returns false if that failed.
func (w *warmer) find(ctx context.Context) bool {
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

// newWarmer registers the job, as if it ran.
func (js *Jobs) newWarmer(j *resolve.Job, tenant uint16) (*warmer, error) {
	if js == nil {
		return nil, fmt.Errorf("%w: this server has no spill that could be warmed: serve --spill gives it one",
			schema.ErrInvalid)
	}
	js.mu.Lock()
	if js.closed {
		js.mu.Unlock()
		return nil, read.ErrClosing()
	}
	js.filling.Add(1)
	js.mu.Unlock()
	w := &warmer{
		WarmProgress: WarmProgress{Job: j.Group(), Rows: j.Plan().Rows()},
		jobs:         js, job: j, places: js.Places(j), tenant: tenant, filler: js.newFiller(),
	}
	if w.Rows > 0 && w.places.known() {
		l, _, ended := js.join(j, w.places, allRanks, 0, 0, func(l *running, _ int64) {
			if l.streams+l.elsewhere == 0 && l.warming == 0 {
				// It is not known yet which ranks this node will serve
				l.order.serveAllLocked(int(j.Request().DataRanks()))
			}
			l.warming++
			l.tenant = cmp.Or(l.tenant, tenant)
		})
		release(ended)
		w.live = l
	}
	return w, nil
}

// close cancels the reads in flight. The job stays registered for warmGrace.
func (w *warmer) close() {
	w.filler.close()
	if w.live != nil {
		w.jobs.mu.Lock()
		defer w.jobs.mu.Unlock()
		w.live.warming--
		w.live.until = time.Now().Add(warmGrace)
	}
}

// next returns the next blob that is not in the spill, nil if the spill would store no more, the epoch has no more,
// or ctx has ended, because a scan may take long.
func (w *warmer) next(ctx context.Context) *candidate {
	columns := w.job.Projection().BlobColumns()
	for ; w.Seen < w.Rows && !w.Full && ctx.Err() == nil; w.Seen, w.column = w.Seen+1, 0 {
		pos := w.job.Plan().Position(w.Seen)
		if !w.find(ctx) { // the job's streams report rows that cannot be read
			w.Failed += int64(len(columns))
			continue
		}
		for w.column < len(columns) {
			ref, ok, err := w.rows[w.Seen-w.first].TryBlob(columns[w.column])
			w.column++
			at := w.places.At(pos, w.tenant)
			switch {
			case err != nil || !ok: // the job's streams report rows that cannot be read
			case w.jobs.has(ref):
				w.There++
			case !w.jobs.opts.Owns(ref): // its owner reads and caches it
			case !w.jobs.opts.Cache.WantsBlob(ref, at, true):
				if w.jobs.opts.Spare(ref) {
					continue // the spill may still have room for blobs that this node owns
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

// keep stores and counts a blob that has arrived.
func (w *warmer) keep(o read.Outcome) {
	switch {
	case w.filler.keep(o):
		w.Stored++
		w.Bytes += o.Ref.Size
	case o.Err == nil && w.jobs.opts.Spare(o.Ref): // the spill may still have room for blobs that this node owns
	case o.Err == nil:
		w.Full = true // the blobs in the spill are worth more
	default:
		w.Failed++
	}
}

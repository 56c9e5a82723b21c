package lookahead

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/plan"
	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	// grace is how long a job without a stream is taken to go on: a client may ask
	// for one epoch at a time, and evaluate in between.
	grace = 10 * time.Minute
	// warmGrace is how long what was brought for a job waits for it to begin.
	warmGrace = time.Hour
	// maxJobs is how many jobs are known at once. Each costs time at every eviction.
	// Where there are more, those without a stream that end soonest are forgotten
	// first; then streams that come belong to none.
	maxJobs = 256
)

// running is a job that runs, as the spill sees it: all streams of one plan that
// are about as far, of whatever ranks, epoch after epoch. All fields but order
// and future are guarded by Ahead.mu.
type running struct {
	group   string
	dataset string
	places  Places
	tenant  uint16         // the spill's number of the tenant that began it
	sources []spill.Source // the snapshots, as its future has them
	base    uint64         // the epoch that is the order's 0
	order   *epochOrder
	future  *spill.Job
	ahead   scan          // the filler's
	begun   map[int]int64 // by rank, the last of the job's epochs that a stream of it has begun

	warming   int // Warms that bring it, which nobody else needs to do
	streams   int
	elsewhere int       // streams of other nodes
	until     time.Time // when it is forgotten, if it has no stream

	windowReads, windowBytes, spillReads, spillBytes, peerReads, peerBytes, storeReads, storeBytes atomic.Int64
}

// epochOrder is the order of a job's epochs, for the ranks that are served here.
// It keeps the plans of two epochs. It is safe for concurrent use.
type epochOrder struct {
	job   *resolve.Job // whose snapshot the running job keeps open
	plans [2]atomic.Pointer[lapPlan]
	ranks atomic.Pointer[[]bool] // by data rank; replaced, never changed
	nodes atomic.Pointer[[]bool] // of the job's layout, if it has one: those beside which there is such a rank
}

// lapPlan is the plan of the epoch that comes so many after the job's first.
type lapPlan struct {
	lap int64
	*plan.Plan
}

func newEpochOrder(j *resolve.Job) *epochOrder {
	o := &epochOrder{job: j}
	o.setRanks([]bool{})
	return o
}

// plan returns the plan of an epoch.
func (o *epochOrder) plan(epoch int64) *plan.Plan {
	kept := &o.plans[epoch%2]
	if p := kept.Load(); p != nil && p.lap == epoch {
		return p.Plan
	}
	p := &lapPlan{epoch, o.job.PlanOf(epoch)}
	kept.Store(p)
	return p.Plan
}

// Rows implements spill.Order.
func (o *epochOrder) Rows() int64 { return o.job.Plan().Rows() }

// Index implements spill.Order.
func (o *epochOrder) Index(epoch, position int64) (int64, bool) {
	p := o.plan(epoch)
	i, ok := p.About(position)
	if ok && o.job.Layout() != nil {
		// Nearly all of what is owned here is used here. What is not known yet, may be.
		owned, known := o.owned(position)
		return i, owned || !known
	}
	// Where lengths count, the rank is not known without putting the window in order: it may be one of those here.
	return i, ok && (!p.Exact() || o.serves(p, i))
}

// owned reports whether a node owns the sample at a position beside which a rank is that is served here, if that is
// known. The job has a layout.
func (o *epochOrder) owned(position int64) (owned, known bool) {
	w, known := o.job.Owners(position)
	return known && o.owns(w), known
}

// owns reports whether one of a slot's owners is such a node. What the layout gives nobody, as caches do not hold all,
// goes to any rank, which asks whoever keeps it: that may be this node.
func (o *epochOrder) owns(w layout.Owners) bool {
	nodes := *o.nodes.Load()
	return w.First == layout.None || nodes[w.First] || w.Second != layout.None && nodes[w.Second]
}

// serves reports whether an index is in the share of a rank that is served here.
func (o *epochOrder) serves(p *plan.Plan, index int64) bool {
	if p.Config().World == 1 {
		return true
	}
	ranks, r := *o.ranks.Load(), p.Rank(index)
	return r < len(ranks) && ranks[r]
}

// at returns the position of the sample at an index, and whether it is served here, or may be.
func (o *epochOrder) at(p *plan.Plan, index int64) (position int64, here bool) {
	if o.job.Layout() == nil && !o.serves(p, index) {
		return 0, false
	}
	return p.Position(index), true
}

// serveLocked adds a data rank to those served here; Ahead.mu is held.
func (o *epochOrder) serveLocked(rank int) {
	old := *o.ranks.Load()
	if rank < len(old) && old[rank] {
		return
	}
	ranks := make([]bool, max(len(old), rank+1))
	copy(ranks, old)
	ranks[rank] = true
	o.setRanks(ranks)
}

// setRanks says which ranks are served here.
func (o *epochOrder) setRanks(ranks []bool) {
	o.ranks.Store(&ranks)
	if l := o.job.Layout(); l != nil {
		nodes := make([]bool, l.Nodes())
		for r, here := range ranks {
			if here {
				nodes[o.job.NodeOf(r)] = true
			}
		}
		o.nodes.Store(&nodes)
	}
}

// serveAllLocked adds all data ranks of a world.
func (o *epochOrder) serveAllLocked(world int) {
	ranks := make([]bool, world)
	for r := range ranks {
		ranks[r] = true
	}
	o.setRanks(ranks)
}

// mixedOrder is the order of a job's epochs that may use a sample several times. It is a spill.Repeating.
type mixedOrder struct{ *epochOrder }

// maxSkipped is how many uses of a sample by ranks that are served elsewhere are passed over, to find one that is here.
const maxSkipped = 64

// Next implements spill.Repeating.
func (o mixedOrder) Next(epoch, position, from int64) (int64, bool) {
	p := o.plan(epoch)
	index, ok := p.Next(position, from)
	for range maxSkipped {
		if !ok || o.serves(p, index) {
			break
		}
		index, ok = p.Next(position, index+1)
	}
	return index, ok
}

// Places says where the samples of a job lie, as the spill knows it.
type Places struct {
	job     *resolve.Job
	numbers []uint32 // the spill's of the snapshots; nil where there is no spill
}

// Places says where the samples of a job lie. It is good as long as the job is held.
func (a *Ahead) Places(j *resolve.Job) Places {
	p := Places{job: j}
	if a == nil {
		return p
	}
	p.numbers = make([]uint32, j.Sources())
	for i := range p.numbers {
		s := j.Source(i)
		p.numbers[i] = a.opts.Cache.Dataset(s.SnapshotName())
	}
	return p
}

// sources describes the snapshots to a future.
func (p *Places) sources() []spill.Source {
	list := make([]spill.Source, len(p.numbers))
	for i, number := range p.numbers {
		s := p.job.Source(i)
		list[i] = spill.Source{Dataset: number, Positions: s.End - s.Base, RowBytes: p.job.SourceBytes(i),
			Rows: p.job.SourceRows(i)}
	}
	return list
}

// At is the place of the sample at a position of the job, for a tenant.
func (p *Places) At(position int64, tenant uint16) spill.Place {
	source, at := p.job.Locate(position)
	if p.numbers == nil {
		return spill.Place{Position: at}
	}
	return spill.Place{Dataset: p.numbers[source], Tenant: tenant, Position: at}
}

// known reports whether the spill knows all snapshots.
func (p *Places) known() bool { return p.numbers != nil && !slices.Contains(p.numbers, 0) }

// source is a source of the job that has a dataset, which is one of its own.
func (p *Places) source(dataset uint32) resolve.Source {
	return p.job.Source(slices.Index(p.numbers, dataset))
}

// spillTime is the spill's clock.
func spillTime(t time.Time) spill.Time { return spill.Time(t.UnixNano()) }

// Part is a stream's part in a job that runs. A nil Part is that of a stream
// which the spill has no use to know of.
type Part struct {
	ahead *Ahead
	job   *running
	epoch int64 // of the job, in which the stream begins
	count *int  // of the job, in which it is counted; guarded by Ahead.mu
}

// Follow has a stream of a rank belong to the job that runs, which begins with it
// if it must. at is the index in the epoch's order where the stream begins, epochs
// how many it was asked for, 0 if nothing was said.
func (a *Ahead) Follow(j *resolve.Job, tenant uint16, rank int, at, epochs int64) *Part {
	return a.follow(j, tenant, rank, at, epochs, func(l *running) *int { return &l.streams })
}

// FollowElsewhere is Follow for a stream of another node.
func (a *Ahead) FollowElsewhere(j *resolve.Job, tenant uint16, rank int, at, epochs int64) *Part {
	return a.follow(j, tenant, rank, at, epochs, func(l *running) *int { return &l.elsewhere })
}

func (a *Ahead) follow(j *resolve.Job, tenant uint16, rank int, at, epochs int64, count func(*running) *int) *Part {
	if a == nil || j.Plan().Rows() == 0 {
		return nil
	}
	places := a.Places(j)
	if !places.known() {
		return nil
	}
	l, epoch, ended := a.join(j, places, rank, at, epochs, func(l *running, epoch int64) {
		l.order.serveLocked(j.Request().DataRank(rank))
		l.noteLocked(rank, epoch)
		*count(l)++
		l.tenant = cmp.Or(l.tenant, tenant)
		l.future.SetReach(l.reachLocked(j))
	})
	release(ended)
	if l == nil {
		return nil
	}
	return &Part{a, l, epoch, count(l)}
}

const (
	// loosely is how many rows ahead of its turn a row of a stream is looked for that does not keep the plan's order, and
	// looselyFar it is where the manifest is not in memory as a whole: rows keep their pages there.
	loosely    = 16 << 10
	looselyFar = 2 << 10
)

// Reach is how many rows before its turn a stream of a job may serve a row that is there: 0 of one that keeps the plan's
// order.
func Reach(j *resolve.Job) int64 {
	mode, steps := j.Request().OrderOf()
	rows := int64(loosely)
	if !j.Manifest().Resident() {
		rows = looselyFar
	}
	switch mode {
	case schema.OrderFree:
		return rows
	case schema.OrderWindow:
		return min(rows, max((steps+1)*(j.Request().Batch/j.Request().DataRanks()), 0))
	}
	return 0
}

// reachLocked is how many rows ahead the spill is to take any row for one that is used as soon as it is there: 0 with
// streams of other nodes, as it is not known which rows they have used, and where ranks get what their nodes own, as it
// is not known where in the order those rows are.
func (l *running) reachLocked(j *resolve.Job) int64 {
	if l.elsewhere > 0 || j.Layout() != nil {
		return 0
	}
	return min(Reach(j)*j.Request().DataRanks(), l.order.Rows())
}

// join finds or begins the running job that a stream of a rank, or a Warm (allRanks), belongs to, and
// has it count that in while the lock is held. l is nil if there are too many.
func (a *Ahead) join(j *resolve.Job, places Places, rank int, at, epochs int64,
	count func(l *running, epoch int64)) (l *running, epoch int64, ended []*running) {
	sources := places.sources() // it may take a moment, so without the lock
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	ended = a.forgetLocked(now)
	if l, epoch = a.findLocked(j, rank, at); l == nil {
		if l = a.beginLocked(j, places, sources, at, epochs, now); l == nil {
			return nil, 0, ended
		}
	}
	count(l, epoch)
	return l, epoch, ended
}

// mostNamed is how many snapshots the spill may know by the time that another node names one more. Nobody has looked
// whether there is one of that name.
const (
	mostNamed   = spill.MaxDatasets / 2
	mostNameLen = 2 * schema.MaxNameLen
)

// Place is where a sample of a snapshot lies that another node has named, as the spill knows it: the zero Place
// if there is no spill, no snapshot is named, or too many were.
func (a *Ahead) Place(snapshot string, position int64) spill.Place {
	if a == nil || snapshot == "" || len(snapshot) > mostNameLen {
		return spill.Place{}
	}
	number := a.opts.Cache.DatasetWithin(snapshot, mostNamed)
	if number == 0 {
		return spill.Place{}
	}
	return spill.Place{Dataset: number, Position: position}
}

// Holds reports whether the spill has a blob.
func (a *Ahead) Holds(ref schema.BlobRef) bool { return a != nil && a.opts.Cache.Has(ref) }

// Tenant is the number by which the spill knows a tenant; 0 if there is none.
func (a *Ahead) Tenant(name string) uint16 {
	if a == nil {
		return 0
	}
	return a.opts.Cache.Tenant(name)
}

// Leave takes the stream out of its job. Where that has come to its end, the job
// has too.
func (p *Part) Leave() {
	if p == nil {
		return
	}
	now := time.Now()
	a, l := p.ahead, p.job
	a.mu.Lock()
	if *p.count--; l.streams+l.elsewhere == 0 {
		l.until = now.Add(grace)
		if l.future.Served() >= l.future.End() {
			l.until = now
		}
	}
	ended := a.forgetLocked(now)
	a.mu.Unlock()
	release(ended)
}

// Advance tells the spill how far a stream has read: what is in its window, it
// need not find there again. lap counts the epochs since the stream's first, and
// index is in the order of that one.
func (p *Part) Advance(lap, index int64) {
	if p == nil {
		return
	}
	p.job.future.Advance(p.epoch+lap, index, spillTime(time.Now()))
	p.ahead.moved.Store(true)
	p.ahead.Wake()
}

// Use tells the spill that the stream has used a row before its turn.
func (p *Part) Use(lap, index int64) {
	if p != nil {
		p.job.future.Use(p.epoch+lap, index)
	}
}

// Count counts a blob that came.
func (p *Part) Count(bytes int64, from read.From) {
	if p == nil {
		return
	}
	l := p.job
	switch from {
	case read.FromWindow:
		l.windowReads.Add(1)
		l.windowBytes.Add(bytes)
	case read.FromSpill:
		l.spillReads.Add(1)
		l.spillBytes.Add(bytes)
	case read.FromPeer:
		l.peerReads.Add(1)
		l.peerBytes.Add(bytes)
	default:
		l.storeReads.Add(1)
		l.storeBytes.Add(bytes)
	}
}

// release lets go of the snapshots of jobs that have ended.
func release(ended []*running) {
	for _, l := range ended {
		l.order.job.Release()
	}
}

// JobStats is where the blobs of a job came from, whatever streams it has had
// since it began.
type JobStats struct {
	Job     string `json:"job"`     // what is the same in the plans of all epochs
	Dataset string `json:"dataset"` // and snapshot
	Streams int    `json:"streams"` // of it that are open
	// Elsewhere is how many are at other nodes, as far as they have told.
	Elsewhere int    `json:"elsewhere,omitempty"`
	Epoch     uint64 `json:"epoch"` // where it is
	Row       int64  `json:"row"`   // in the epoch's order
	Rows      int64  `json:"rows"`  // of an epoch
	RowTime   int64  `json:"row_time_ns"`
	// What came from where: from the windows of streams, the spill, other nodes, or the store.
	WindowReads int64 `json:"window_reads"`
	WindowBytes int64 `json:"window_bytes"`
	SpillReads  int64 `json:"spill_reads"`
	SpillBytes  int64 `json:"spill_bytes"`
	PeerReads   int64 `json:"peer_reads"`
	PeerBytes   int64 `json:"peer_bytes"`
	StoreReads  int64 `json:"store_reads"`
	StoreBytes  int64 `json:"store_bytes"`
	// SavedNanos is the time in the store that the blobs from the spill would have
	// taken, at what the others took.
	SavedNanos int64 `json:"saved_ns"`
}

// Jobs lists the jobs that run, by dataset and job. readTime is what a read from
// the store takes.
func (a *Ahead) Jobs(readTime time.Duration) []JobStats {
	if a == nil {
		return []JobStats{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]JobStats, 0, len(a.jobs))
	for _, l := range a.jobs {
		rows, served := l.order.Rows(), l.future.Served()
		list = append(list, JobStats{
			Job: l.group, Dataset: l.dataset, Streams: l.streams, Elsewhere: l.elsewhere,
			Epoch: l.base + uint64(served/rows), Row: served % rows, Rows: rows,
			RowTime: int64(l.future.RowTime()), WindowReads: l.windowReads.Load(), WindowBytes: l.windowBytes.Load(),
			SpillReads: l.spillReads.Load(), SpillBytes: l.spillBytes.Load(),
			PeerReads: l.peerReads.Load(), PeerBytes: l.peerBytes.Load(),
			StoreReads: l.storeReads.Load(), StoreBytes: l.storeBytes.Load(),
			SavedNanos: l.spillReads.Load() * int64(readTime),
		})
	}
	slices.SortStableFunc(list, func(a, b JobStats) int {
		return cmp.Or(cmp.Compare(a.Dataset, b.Dataset), cmp.Compare(a.Job, b.Job))
	})
	return list
}

// sameJob is how far from where a job is, as a part of an epoch, a stream of the same plan may begin and belong to it
// whatever else is known of its rank.
const sameJob = 1.0 / 8

// allRanks stands for no rank in particular.
const allRanks = -1

// findLocked returns the running job that a stream of a rank which begins at an index of its epoch belongs to, nil if
// there is none, and which of the job's epochs that is: the job that is near there, or the one in which that epoch is
// the rank's turn. Where nothing is shuffled, one epoch is like the other, and it is the nearest.
func (a *Ahead) findLocked(j *resolve.Job, rank int, index int64) (found *running, epoch int64) {
	for _, l := range a.jobs {
		if l.group != j.Group() {
			continue
		}
		rows, served := l.order.Rows(), l.future.Served()
		e := int64(j.EpochNumber() - l.base)
		shuffled := j.Request().Shuffle != nil
		if !shuffled {
			e = max(0, (served-index+rows/2)/rows)
		}
		at := float64(e)*float64(rows) + float64(index)
		near := max(sameJob*float64(rows), float64(4*j.Request().Batch))
		if at >= float64(served)-near && at <= float64(served)+near {
			return l, e
		}
		if found == nil && shuffled && rank != allRanks && l.turnLocked(rank, e) {
			found, epoch = l, e
		}
	}
	return found, epoch
}

// turnLocked reports whether a rank goes on with an epoch in this job, however far the others are: windows may hold
// much of an epoch, and what other nodes tell comes late. Each rank goes through each epoch once: one that begins where
// it has been is another job, the same, started again.
func (l *running) turnLocked(rank int, epoch int64) bool {
	served, rows := l.future.Served(), l.order.Rows()
	lap := max(served-1, 0) / rows
	now := epoch == lap || epoch == served/rows
	last, known := l.begun[rank]
	if !known { // who begins late, beside others
		return now && l.streams+l.elsewhere > 0
	}
	return last == epoch-1 && (now || epoch == lap-1)
}

// noteLocked notes that a stream of a rank has begun one of the job's epochs.
func (l *running) noteLocked(rank int, epoch int64) {
	if last, known := l.begun[rank]; !known || epoch > last {
		l.begun[rank] = epoch
	}
}

// beginLocked makes a job of a stream, or of what will be one, and tells the
// spill; nil if there are too many.
func (a *Ahead) beginLocked(j *resolve.Job, places Places, sources []spill.Source, index, epochs int64,
	now time.Time) *running {
	if len(a.jobs) >= maxJobs {
		return nil
	}
	l := &running{
		group: j.Group(), dataset: j.SnapshotName(), places: places, sources: sources, base: j.EpochNumber(),
		order: newEpochOrder(j),
		ahead: scan{fullAt: -1}, begun: map[int]int64{},
	}
	// A client that shuffles and does not say for how many epochs has another one
	// follow. One that does not shuffle looks through the data once.
	if epochs == 0 && j.Request().Shuffle == nil {
		epochs = 1
	}
	var err error
	j.Retain()
	opts := spill.JobOptions{Order: l.order, Epochs: epochs, At: index, Sources: sources}
	if j.Alone() == nil {
		opts.Order = mixedOrder{l.order}
	}
	l.future, err = a.opts.Future.Add(opts, spillTime(now))
	if err != nil {
		panic(err) // a job was checked
	}
	a.jobs = append(a.jobs, l)
	return l
}

// forgetLocked takes out the jobs that will not go on, and as many more of those
// without a stream as there have to be for another one. It returns them, to be
// released without the lock.
func (a *Ahead) forgetLocked(now time.Time) (ended []*running) {
	idle := func(l *running) bool { return l.streams+l.elsewhere == 0 && l.warming == 0 }
	drop := func(gone func(*running) bool) {
		a.jobs = slices.DeleteFunc(a.jobs, func(l *running) bool {
			if !gone(l) {
				return false
			}
			a.opts.Future.Remove(l.future)
			ended = append(ended, l)
			return true
		})
	}
	drop(func(l *running) bool { return idle(l) && !now.Before(l.until) })
	for len(a.jobs) >= maxJobs {
		var first *running
		for _, l := range a.jobs {
			if idle(l) && (first == nil || l.until.Before(first.until)) {
				first = l
			}
		}
		if first == nil {
			break
		}
		drop(func(l *running) bool { return l == first })
	}
	return ended
}

// wholeKey is what jobs have in common that read the same blobs, in whatever order.
type wholeKey struct {
	group  string
	number uint32 // the spill's of the first snapshot
}

// noteWhole notes that the spill has every blob of a job. removed is how many it had removed when the first of them was
// looked for. Until it removes another one, nothing is looked for: a row costs more than a microsecond of a processor,
// which streams may need.
func (a *Ahead) noteWhole(l *running, removed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.whole) >= maxJobs {
		clear(a.whole) // what is true of them will be found out again
	}
	a.whole[wholeKey{l.group, l.places.numbers[0]}] = removed
}

// wholeLocked reports whether the spill, which has removed so many blobs, has every one of a job as far as is known.
func (a *Ahead) wholeLocked(l *running, removed int64) bool {
	then, known := a.whole[wholeKey{l.group, l.places.numbers[0]}]
	return known && then == removed
}

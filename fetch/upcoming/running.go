package upcoming

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
	// grace is how long a job without a stream stays registered: a client may request one epoch at a time, and
	// evaluate between epochs.
	grace = 10 * time.Minute
	// warmGrace is how long a warmed job stays registered before it begins.
	warmGrace = time.Hour
	// maxJobs is the most jobs that are known at once. Each job costs time at every eviction. At the limit, jobs
	// without a stream are forgotten, soonest deadline first; if there is none, new streams belong to no job.
	maxJobs = 256
)

// running is a running job as the spill sees it: all streams of one plan at about the same progress, of any rank,
// over all epochs. Jobs.mu guards all fields except order and future.
type running struct {
	group   string
	dataset string
	places  Places
	tenant  uint16         // the spill's number of the tenant that began the job
	sources []spill.Source // the snapshots, as in future
	base    uint64         // the epoch that order counts as 0
	order   *epochOrder
	future  *spill.Job
	scan    scan          // used by the fill goroutine
	begun   map[int]int64 // by rank: the job's last epoch that a stream of the rank has begun

	warming   int // Warms that read it; fill then skips the job
	streams   int
	elsewhere int       // streams of other nodes
	until     time.Time // when it is forgotten, while it has no stream

	windowReads, windowBytes, spillReads, spillBytes, peerReads, peerBytes, storeReads, storeBytes atomic.Int64
}

// epochOrder is the order of a job's epochs, for the ranks that this node serves. It caches the plans of two epochs.
// It is safe for concurrent use.
type epochOrder struct {
	job   *resolve.Job // the running job keeps its snapshot open
	plans [2]atomic.Pointer[epochPlan]
	ranks atomic.Pointer[[]bool] // by data rank; replaced, never changed
	nodes atomic.Pointer[[]bool] // if the job has a layout: nodes with a rank that is served here
}

// epochPlan is the plan of one epoch, with its offset from the job's first epoch.
type epochPlan struct {
	offset int64
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
	if p := kept.Load(); p != nil && p.offset == epoch {
		return p.Plan
	}
	p := &epochPlan{epoch, o.job.PlanOf(epoch)}
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
		// Nearly all samples that this node owns are used here. A sample whose owner is not known yet may be.
		owned, known := o.owned(position)
		return i, owned || !known
	}
	// If lengths count, the rank is only known once the window is sorted, so it may be one of this node's.
	return i, ok && (!p.Exact() || o.serves(p, i))
}

// owned reports whether a node with a rank that is served here owns the sample at a position, if the owner is known.
// The job has a layout.
func (o *epochOrder) owned(position int64) (owned, known bool) {
	w, known := o.job.Owners(position)
	return known && o.owns(w), known
}

// owns reports whether one of a slot's owners is such a node. A slot without an owner, which exists if the caches do
// not hold everything, goes to any rank, and that rank requests it from the node that caches it, which may be this
// one.
func (o *epochOrder) owns(w layout.Owners) bool {
	nodes := *o.nodes.Load()
	return w.First == layout.None || nodes[w.First] || w.Second != layout.None && nodes[w.Second]
}

// serves reports whether an index belongs to a rank that is served here.
func (o *epochOrder) serves(p *plan.Plan, index int64) bool {
	if p.Config().World == 1 {
		return true
	}
	ranks, r := *o.ranks.Load(), p.Rank(index)
	return r < len(ranks) && ranks[r]
}

// at returns the position of the sample at an index, and whether this node serves it, or may.
func (o *epochOrder) at(p *plan.Plan, index int64) (position int64, here bool) {
	if o.job.Layout() == nil && !o.serves(p, index) {
		return 0, false
	}
	return p.Position(index), true
}

// serveLocked adds a data rank to those served here; Jobs.mu is held.
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

// setRanks sets which ranks are served here.
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

// serveAllLocked sets all data ranks of a world as served here.
func (o *epochOrder) serveAllLocked(world int) {
	ranks := make([]bool, world)
	for r := range ranks {
		ranks[r] = true
	}
	o.setRanks(ranks)
}

// mixedOrder is the order of epochs that may use a sample several times. It implements spill.Repeating.
type mixedOrder struct{ *epochOrder }

// maxSkipped is how many uses by ranks of other nodes are skipped in search of a use by a rank of this node.
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

// Places maps the positions of a job to places in the spill. It is valid while the job is held.
type Places struct {
	job     *resolve.Job
	numbers []uint32 // the spill's numbers of the snapshots; nil without a spill
}

// Places returns the places of a job's samples, valid while the job is held.
func (js *Jobs) Places(j *resolve.Job) Places {
	p := Places{job: j}
	if js == nil {
		return p
	}
	p.numbers = make([]uint32, j.Sources())
	for i := range p.numbers {
		s := j.Source(i)
		p.numbers[i] = js.opts.Cache.Dataset(s.SnapshotName())
	}
	return p
}

// sources describes the snapshots to a spill.Future.
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

// source returns the job's source of a dataset, which must be one of the job's.
func (p *Places) source(dataset uint32) resolve.Source {
	return p.job.Source(slices.Index(p.numbers, dataset))
}

// spillTime is the spill's clock.
func spillTime(t time.Time) spill.Time { return spill.Time(t.UnixNano()) }

// Part is a stream's membership in a running job. A nil Part is that of a stream without a job; its methods do
// nothing.
type Part struct {
	jobs  *Jobs
	job   *running
	epoch int64 // of the job, in which the stream begins
	count *int  // the job's counter that counts the stream; guarded by Jobs.mu
}

// Follow adds a stream of a rank to the running job that it belongs to, or begins one. at is the index in the epoch's
// order at which the stream begins. epochs is how many the client requested, 0 if it gave no number. The caller calls
// Leave at the end of the stream.
func (js *Jobs) Follow(j *resolve.Job, tenant uint16, rank int, at, epochs int64) *Part {
	return js.follow(j, tenant, rank, at, epochs, func(l *running) *int { return &l.streams })
}

// FollowElsewhere is Follow for a stream of another node.
func (js *Jobs) FollowElsewhere(j *resolve.Job, tenant uint16, rank int, at, epochs int64) *Part {
	return js.follow(j, tenant, rank, at, epochs, func(l *running) *int { return &l.elsewhere })
}

func (js *Jobs) follow(j *resolve.Job, tenant uint16, rank int, at, epochs int64, count func(*running) *int) *Part {
	if js == nil || j.Plan().Rows() == 0 {
		return nil
	}
	places := js.Places(j)
	if !places.known() {
		return nil
	}
	l, epoch, ended := js.join(j, places, rank, at, epochs, func(l *running, epoch int64) {
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
	return &Part{js, l, epoch, count(l)}
}

const (
	// loosely is how many rows before its turn a row is looked up for a stream that does not keep the plan's order.
	// looselyFar is the same if the manifest is not resident, because looked-up rows keep their pages in memory.
	loosely    = 16 << 10
	looselyFar = 2 << 10
)

// Reach is how many rows before its turn a stream of the job may serve a row that is already there; 0 if it keeps the
// plan's order.
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

// reachLocked is how many rows ahead a cached row counts as used as soon as it is there. It is 0 with streams of
// other nodes, whose used rows are not known here, and with a layout, where the index of this node's own rows is not
// known.
func (l *running) reachLocked(j *resolve.Job) int64 {
	if l.elsewhere > 0 || j.Layout() != nil {
		return 0
	}
	return min(Reach(j)*j.Request().DataRanks(), l.order.Rows())
}

// join returns the running job that a stream of a rank, or a Warm (allRanks), belongs to, and begins it if needed. It
// calls count while the lock is held. l is nil if there are too many jobs. The caller releases ended.
func (js *Jobs) join(j *resolve.Job, places Places, rank int, at, epochs int64,
	count func(l *running, epoch int64)) (l *running, epoch int64, ended []*running) {
	sources := places.sources() // may take a while, so without the lock
	now := time.Now()
	js.mu.Lock()
	defer js.mu.Unlock()
	ended = js.forgetLocked(now)
	if l, epoch = js.findLocked(j, rank, at); l == nil {
		if l = js.beginLocked(j, places, sources, at, epochs, now); l == nil {
			return nil, 0, ended
		}
	}
	count(l, epoch)
	return l, epoch, ended
}

// mostNamed bounds how many snapshots the spill knows when it adds a name from another node: such a name is not
// checked, so it may be of no snapshot.
const (
	mostNamed   = spill.MaxDatasets / 2
	mostNameLen = 2 * schema.MaxNameLen
)

// Place is the place of a sample of a snapshot that another node has named. It is the zero Place without a spill,
// without a name, or if the spill knows too many.
func (js *Jobs) Place(snapshot string, position int64) spill.Place {
	if js == nil || snapshot == "" || len(snapshot) > mostNameLen {
		return spill.Place{}
	}
	number := js.opts.Cache.DatasetWithin(snapshot, mostNamed)
	if number == 0 {
		return spill.Place{}
	}
	return spill.Place{Dataset: number, Position: position}
}

// Holds reports whether the spill has a blob.
func (js *Jobs) Holds(ref schema.BlobRef) bool { return js != nil && js.opts.Cache.Has(ref) }

// Tenant returns the spill's number of a tenant; 0 without a spill.
func (js *Jobs) Tenant(name string) uint16 {
	if js == nil {
		return 0
	}
	return js.opts.Cache.Tenant(name)
}

// Leave takes the stream out of its job. If the job has reached its end, it is forgotten.
func (p *Part) Leave() {
	if p == nil {
		return
	}
	now := time.Now()
	js, l := p.jobs, p.job
	js.mu.Lock()
	if *p.count--; l.streams+l.elsewhere == 0 {
		l.until = now.Add(grace)
		if l.future.Served() >= l.future.End() {
			l.until = now
		}
	}
	ended := js.forgetLocked(now)
	js.mu.Unlock()
	release(ended)
}

// Advance publishes to the spill how far a stream has read: rows in its window need not be kept for it. offset is the
// epoch, counted from the stream's first one; index is in that epoch's order.
func (p *Part) Advance(offset, index int64) {
	if p == nil {
		return
	}
	p.job.future.Advance(p.epoch+offset, index, spillTime(time.Now()))
	p.jobs.moved.Store(true)
	p.jobs.Wake()
}

// Use publishes that the stream has used a row before its turn.
func (p *Part) Use(offset, index int64) {
	if p != nil {
		p.job.future.Use(p.epoch+offset, index)
	}
}

// Count counts a blob that arrived, by where it came from.
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

// release releases the snapshots of jobs that have ended, without the lock.
func release(ended []*running) {
	for _, l := range ended {
		l.order.job.Release()
	}
}

// JobStats is where the blobs of a job came from since it began, over all its streams.
type JobStats struct {
	Job     string `json:"job"`     // identifies the plan, alike for all epochs
	Dataset string `json:"dataset"` // with the snapshot
	Streams int    `json:"streams"` // open streams on this node
	// Elsewhere is how many streams other nodes have reported.
	Elsewhere int    `json:"elsewhere,omitempty"`
	Epoch     uint64 `json:"epoch"` // current epoch
	Row       int64  `json:"row"`   // in the epoch's order
	Rows      int64  `json:"rows"`  // per epoch
	RowTime   int64  `json:"row_time_ns"`
	// Reads and bytes by source: windows of other streams, spill, peers, store.
	WindowReads int64 `json:"window_reads"`
	WindowBytes int64 `json:"window_bytes"`
	SpillReads  int64 `json:"spill_reads"`
	SpillBytes  int64 `json:"spill_bytes"`
	PeerReads   int64 `json:"peer_reads"`
	PeerBytes   int64 `json:"peer_bytes"`
	StoreReads  int64 `json:"store_reads"`
	StoreBytes  int64 `json:"store_bytes"`
	// SavedNanos is the store time that blobs from the spill saved, estimated from the other reads.
	SavedNanos int64 `json:"saved_ns"`
}

// Stats lists the running jobs by dataset and job. readTime is how long a read from the store takes.
func (js *Jobs) Stats(readTime time.Duration) []JobStats {
	if js == nil {
		return []JobStats{}
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	list := make([]JobStats, 0, len(js.jobs))
	for _, l := range js.jobs {
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

// sameJob is a share of an epoch: a stream of the same plan belongs to a job if it begins within that distance of the
// job's progress, whatever is known of its rank.
const sameJob = 1.0 / 8

// allRanks stands for no particular rank.
const allRanks = -1

// findLocked returns the running job to which a stream of a rank belongs that begins at an index of its epoch, and
// the epoch of that job; nil if there is none. The stream belongs to a job if the job's progress is near that index,
// or if that epoch is the rank's next. Without a shuffle all epochs are alike, and the nearest counts.
func (js *Jobs) findLocked(j *resolve.Job, rank int, index int64) (found *running, epoch int64) {
	for _, l := range js.jobs {
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

// turnLocked reports whether an epoch is this rank's next in the job, however far the other ranks are: windows may
// hold much of an epoch, and reports of other nodes come late. Each rank goes through each epoch once, so a stream
// that begins an epoch its rank has already begun is of a restarted job, which is another one.
func (l *running) turnLocked(rank int, epoch int64) bool {
	served, rows := l.future.Served(), l.order.Rows()
	offset := max(served-1, 0) / rows
	now := epoch == offset || epoch == served/rows
	last, known := l.begun[rank]
	if !known { // a rank that joins late, while others run
		return now && l.streams+l.elsewhere > 0
	}
	return last == epoch-1 && (now || epoch == offset-1)
}

// noteLocked notes that a stream of a rank has begun one of the job's epochs.
func (l *running) noteLocked(rank int, epoch int64) {
	if last, known := l.begun[rank]; !known || epoch > last {
		l.begun[rank] = epoch
	}
}

// beginLocked makes a job for a stream or a Warm, and registers it with the spill; nil if there are too many jobs.
func (js *Jobs) beginLocked(j *resolve.Job, places Places, sources []spill.Source, index, epochs int64,
	now time.Time) *running {
	if len(js.jobs) >= maxJobs {
		return nil
	}
	l := &running{
		group: j.Group(), dataset: j.SnapshotName(), places: places, sources: sources, base: j.EpochNumber(),
		order: newEpochOrder(j),
		scan:  scan{fullAt: -1}, begun: map[int]int64{},
	}
	// If a client shuffles and gives no number of epochs, another epoch is assumed to follow. Without a shuffle, the
	// client is assumed to read the data once.
	if epochs == 0 && j.Request().Shuffle == nil {
		epochs = 1
	}
	var err error
	j.Retain()
	opts := spill.JobOptions{Order: l.order, Epochs: epochs, At: index, Sources: sources}
	if j.Alone() == nil {
		opts.Order = mixedOrder{l.order}
	}
	l.future, err = js.opts.Future.Add(opts, spillTime(now))
	if err != nil {
		panic(err) // the job was checked before
	}
	js.jobs = append(js.jobs, l)
	return l
}

// forgetLocked removes the jobs whose time is over, and, at the limit, as many jobs without a stream as make room for
// another one. It returns them; the caller releases them without the lock.
func (js *Jobs) forgetLocked(now time.Time) (ended []*running) {
	idle := func(l *running) bool { return l.streams+l.elsewhere == 0 && l.warming == 0 }
	drop := func(gone func(*running) bool) {
		js.jobs = slices.DeleteFunc(js.jobs, func(l *running) bool {
			if !gone(l) {
				return false
			}
			js.opts.Future.Remove(l.future)
			ended = append(ended, l)
			return true
		})
	}
	drop(func(l *running) bool { return idle(l) && !now.Before(l.until) })
	for len(js.jobs) >= maxJobs {
		var first *running
		for _, l := range js.jobs {
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

// wholeKey identifies jobs that read the same blobs, in any order.
type wholeKey struct {
	group  string
	number uint32 // the spill's number of the first snapshot
}

// noteWhole notes that the spill has every blob of a job. removed is the spill's count of removals when the first
// blob was looked up. Until that count changes, the job's rows are not scanned again: scanning a row costs more than
// 1 µs of CPU time, which streams may need.
func (js *Jobs) noteWhole(l *running, removed int64) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.whole) >= maxJobs {
		clear(js.whole) // they will be found again
	}
	js.whole[wholeKey{l.group, l.places.numbers[0]}] = removed
}

// wholeLocked reports whether the spill is known to have every blob of a job, given its count of removals.
func (js *Jobs) wholeLocked(l *running, removed int64) bool {
	then, known := js.whole[wholeKey{l.group, l.places.numbers[0]}]
	return known && then == removed
}

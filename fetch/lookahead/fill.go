package lookahead

import (
	"context"
	"sync/atomic"
	"time"

	"bowstring/fetch/read"
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
	if a.coming(c.ref) || a.opts.Cache.Has(c.ref) { // since it was looked for
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
	v := a.opts.Reader.Fill(&read.Want{Ref: c.ref, At: c.at, To: f}, a.streams.Reading() > 0)
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
		kept = cache.Put(o.Ref, at, o.Took, o.Blob.Bytes()) || cache.Has(o.Ref)
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
			at.whole, at.removed = true, removed
		}
		i := at.at - b.first
		pos, here := b.positions[i], b.here[i] && b.err == nil // what is lost, the job's streams will tell
		for ; here && at.column < len(columns); at.column++ {
			ref, ok, err := b.rows[i].TryBlob(columns[at.column])
			if err == nil && (!ok || a.opts.Mine(ref.Key) && a.opts.Cache.Has(ref)) {
				continue
			}
			at.whole = false
			if err != nil || !a.opts.Mine(ref.Key) {
				continue
			}
			place := spill.Place{Dataset: l.number, Tenant: tenant, Position: pos}
			if !a.opts.Cache.WantsBlob(ref, place, displace) {
				if a.opts.Spare(ref.Key) {
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

// waitsLatelyLocked reports whether consumers have waited for the store of late,
// as far as there were any.
func (a *Ahead) waitsLatelyLocked(d spill.Demand) bool {
	if streamed := d.Streamed - a.measured.Streamed; streamed >= waitPeriod {
		a.waits = float64(d.Waited-a.measured.Waited) > waitShare*float64(streamed)
		a.measured = d
	}
	return a.waits
}

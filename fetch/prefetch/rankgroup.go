package prefetch

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// Ranks of a mesh that get the same samples read each blob once. The reader shares a blob among streams as long as one of
// them holds it (see package read). So there is one thing to do: a blob that one stream hands out is held until the
// others have it, too. It is found in the window tier then, like any other that a stream holds.

// comeWithin is how long blobs are held for a rank that has not come, or whose stream broke off: the processes of a job
// begin one after another, and one that is cut off comes again. A rank of another node never comes.
const comeWithin = 10 * time.Second

// spot is a row in the order of a job's epochs.
type spot struct {
	epoch uint64 // where nothing is shuffled, counted from the stream's first
	index int64
}

func (a spot) before(b spot) bool {
	return a.epoch < b.epoch || a.epoch == b.epoch && a.index < b.index
}

// plus is the spot n rows later in the same epoch.
func (a spot) plus(n int) spot { return spot{a.epoch, a.index + int64(n)} }

func later(a, b spot) spot {
	if a.before(b) {
		return b
	}
	return a
}

const (
	// noRank is the rank of a claim of some rank that has not come.
	noRank = -1
	// mostClaims is how many ranks are waited for at most that have not come: a node has not more.
	mostClaims = 64
)

// claim is what blobs are held for: a rank that gets them. All fields but rank and columns are guarded by rankGroup.mu.
type claim struct {
	rank    int
	columns []int // ordinals of blob columns that it reads; nil: not known, so all
	back    spot  // the rows before it have come
	floor   spot  // it is too far behind for blobs of the rows before it
	// until is when a claim without a stream ends; zero of one that has a stream.
	until time.Time
}

func (c *claim) wants(column int) bool {
	return c.columns == nil || slices.Contains(c.columns, max(column, resultsOf(column)))
}

// resultsOf is the column of what operators make of a blob column, and the other way round.
func resultsOf(column int) int { return -1 - column }

// from is the first row whose blobs are held for it.
func (c *claim) from() spot { return later(c.back, c.floor) }

// kept is blobs of one column, of rows that follow one another.
type kept struct {
	from, to spot
	blobs    []schema.Blob // no nulls
	bytes    int64
}

// rankGroup is the streams of ranks that get the same samples, and the blobs that are held until all have them.
//
// Together these blobs take as much of the memory of windows as one stream may. Where that is not enough, the rank that
// is furthest behind is given up: it gets no share in what the others have handed out by then, and reads it again from
// the spill or the store. It has a share again in what is handed out from then on.
type rankGroup struct {
	tenant  *tenant
	behind  *atomic.Int64 // of the set: how often a rank was given up
	streams int           // guarded by Set.mu

	bytes atomic.Int64 // of what is kept; written with mu held

	mu     sync.Mutex
	hold   *admission.Hold // the memory of what is kept
	claims []*claim
	shelf  map[int][]kept    // by column, in the order of rows; none overlap. Results have columns of their own: see resultsOf
	cells  map[cellKey]*once // that one of the streams makes for all, or has made
	freed  []schema.Blob     // that are to be released when mu is not held
}

// enterGroupLocked gives a stream a part in what its group reads, where it has one; Set.mu is held. What it returns
// is to be released without.
func (s *Set) enterGroupLocked(st *Stream) []schema.Blob {
	if st.sequence == "" {
		return nil
	}
	c := &claim{rank: st.ticket.Rank, columns: make([]int, len(st.columns)), back: st.begins}
	for i := range st.columns {
		c.columns[i] = st.columns[i].ordinal
	}
	g := s.groups[st.sequence]
	if g == nil {
		g = &rankGroup{tenant: st.tenant, behind: &s.count.behind, shelf: map[int][]kept{},
			cells: map[cellKey]*once{}}
		g.hold, _ = s.opts.Ledger.TryFor(admission.Windows, st.caller.Tenant, 0)
		until := time.Now().Add(comeWithin)
		for range min(st.job.Request().Replicas(), mostClaims) {
			g.claims = append(g.claims, &claim{rank: noRank, back: st.begins, until: until})
		}
		s.groups[st.sequence] = g
	}
	g.streams++
	st.group, st.claim = g, c
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admitLocked(c)
	return g.takeFreedLocked()
}

// admitLocked counts the claim of a stream in, in the place of one that waited for its rank, or for any.
func (g *rankGroup) admitLocked(c *claim) {
	for _, rank := range []int{c.rank, noRank} {
		at := slices.IndexFunc(g.claims, func(old *claim) bool { return old.rank == rank && !old.until.IsZero() })
		if at >= 0 {
			g.claims[at] = c
			g.sweepLocked()
			return
		}
	}
	g.claims = append(g.claims, c)
}

// leaveGroupLocked takes a stream out; Set.mu is held. Where it has not served all, its rank is waited for. What it
// returns is to be released without.
func (s *Set) leaveGroupLocked(st *Stream) []schema.Blob {
	g := st.group
	if g == nil {
		return nil
	}
	if g.streams--; g.streams == 0 {
		delete(s.groups, st.sequence)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.streams == 0:
		g.claims = nil
	case st.served.Load():
		g.claims = slices.DeleteFunc(g.claims, func(c *claim) bool { return c == st.claim })
	default:
		st.claim.until = time.Now().Add(comeWithin)
	}
	g.sweepLocked()
	return g.takeFreedLocked()
}

// release gives up what is held, for streams that have nothing.
func (g *rankGroup) release() {
	g.mu.Lock()
	var end spot
	for _, list := range g.shelf {
		if n := len(list); n > 0 {
			end = later(end, list[n-1].to)
		}
	}
	for g.dropClaimLocked(nil, end) {
	}
	free := g.takeFreedLocked()
	g.mu.Unlock()
	releaseBlobs(free)
}

// dropClaimLocked gives up the claim that is furthest behind, of those from before a row on, but for one; false if there
// is none. A rank that has not come goes first.
func (g *rankGroup) dropClaimLocked(but *claim, end spot) bool {
	var last *claim
	for _, c := range g.claims {
		switch {
		case c == but || !c.from().before(end):
		case last == nil, last.until.IsZero() && !c.until.IsZero(),
			last.until.IsZero() == c.until.IsZero() && c.from().before(last.from()):
			last = c
		}
	}
	if last == nil {
		return false
	}
	if last.until.IsZero() {
		last.floor = end
		g.behind.Add(1)
	} else {
		g.claims = slices.DeleteFunc(g.claims, func(c *claim) bool { return c == last })
	}
	g.sweepLocked()
	return true
}

// sweepLocked puts blobs aside to be released that every rank has which wants them.
func (g *rankGroup) sweepLocked() {
	var less int64
	for column, list := range g.shelf {
		first, wanted := g.firstLocked(nil, column)
		n := 0
		for n < len(list) && (!wanted || !first.before(list[n].to)) {
			less += list[n].bytes
			g.freed = append(g.freed, list[n].blobs...)
			list[n] = kept{}
			n++
		}
		if g.shelf[column] = list[n:]; n == len(list) {
			delete(g.shelf, column)
		}
	}
	if less > 0 {
		g.bytes.Add(-less)
		g.hold.Shrink(less)
	}
}

// firstLocked is the first row of a column that a rank waits for, but for one; false if none reads the column.
func (g *rankGroup) firstLocked(but *claim, column int) (first spot, wanted bool) {
	for _, c := range g.claims {
		if from := c.from(); c != but && c.wants(column) && (!wanted || from.before(first)) {
			first, wanted = from, true
		}
	}
	return first, wanted
}

func (g *rankGroup) takeFreedLocked() []schema.Blob {
	free := g.freed
	g.freed = nil
	return free
}

func releaseBlobs(list []schema.Blob) {
	for i := range list {
		list[i].Release()
	}
}

// keepLocked holds blobs of a column, of rows from one on, until the other ranks have them. It leaves out the rows that
// these have already, and those that are held.
func (g *rankGroup) keepLocked(own *claim, column int, from spot, blobs []schema.Blob) {
	end := from.plus(len(blobs))
	first, wanted := g.firstLocked(own, column)
	first = later(first, from)
	if !wanted || !first.before(end) {
		return
	}
	// What another one keeps ends at the rows that are missing.
	list := g.shelf[column]
	at, _ := slices.BinarySearchFunc(list, first, func(k kept, s spot) int {
		if s.before(k.to) {
			return 1
		}
		return -1
	})
	for first.before(end) {
		upTo := end
		if at < len(list) && list[at].from.before(end) {
			if !first.before(list[at].from) {
				first = list[at].to
				at++
				continue
			}
			upTo = list[at].from
		}
		k := kept{from: first, to: upTo}
		for i := first.index - from.index; i < upTo.index-from.index; i++ {
			if b, ok := blobs[i].Share(); ok {
				k.blobs = append(k.blobs, b)
				k.bytes += int64(len(b.Bytes()))
			}
		}
		if len(k.blobs) > 0 && !g.roomLocked(k.bytes) {
			g.freed = append(g.freed, k.blobs...)
			g.shelf[column] = list
			if g.dropClaimLocked(own, end) {
				g.keepLocked(own, column, from, blobs)
			}
			return
		}
		if len(k.blobs) > 0 {
			list = slices.Insert(list, at, k)
			at++
		}
		first = upTo
	}
	g.shelf[column] = list
}

// roomLocked counts bytes in, if there is room for them.
func (g *rankGroup) roomLocked(n int64) bool {
	if g.bytes.Load()+n > g.tenant.share.Load() || !g.hold.TryGrow(n) {
		return false
	}
	g.bytes.Add(n)
	return true
}

// moveLocked notes that the rows before a spot have come to a rank. What is given back by a stream is wanted again.
func (g *rankGroup) moveLocked(c *claim, back spot) {
	now := time.Now()
	g.claims = slices.DeleteFunc(g.claims, func(old *claim) bool { return !old.until.IsZero() && now.After(old.until) })
	c.back = back
	g.sweepLocked()
}

// sequenceOf names the ranks that get the same rows as a stream: by what is the same in all their tickets. It is "" where
// there are no others.
func (s *Stream) sequenceOf() string {
	r := s.job.Request()
	if r.Replicas() < 2 {
		return ""
	}
	stride := max(s.ticket.Stride, 1)
	return fmt.Sprintf("%s %d %d/%d %s", s.job.Sequence(), r.DataRank(s.ticket.Rank), s.ticket.Step%stride, stride,
		s.caller.Tenant)
}

// spotOf is where a row of one of the stream's epochs is.
func (s *Stream) spotOf(offset, index int64) spot {
	epoch := uint64(offset)
	if sh := s.ticket.Shuffle; sh != nil {
		epoch += sh.Epoch
	}
	return spot{epoch, index}
}

// shareOut has what a batch holds be held for the other ranks.
func (s *owner) shareOut(p *part) {
	g := s.group
	if g == nil {
		return
	}
	from := s.spotOf(p.walk.epochOffset, p.walk.at)
	back := s.backTo()
	g.mu.Lock()
	g.moveLocked(s.claim, back)
	for i := range s.columns {
		column := s.columns[i].ordinal
		if s.columns[i].made != nil {
			column = resultsOf(column)
		}
		g.keepLocked(s.claim, column, from, p.blobs[i])
	}
	free := g.takeFreedLocked()
	g.mu.Unlock()
	s.saidBack = back
	releaseBlobs(free)
}

// shareCell has a blob be held for the other ranks: the stream itself keeps what is made of it alone.
func (s *owner) shareCell(r *run, cell int, blob schema.Blob) {
	g := s.group
	if g == nil {
		return
	}
	row, column := cell/len(s.columns), cell%len(s.columns)
	g.mu.Lock()
	g.keepLocked(s.claim, s.columns[column].ordinal, s.spotOf(r.epochOffset, r.index+int64(row)), []schema.Blob{blob})
	free := g.takeFreedLocked()
	g.mu.Unlock()
	releaseBlobs(free)
}

// sayBack says how far what the stream wants has come, where others hold something for it.
func (s *owner) sayBack() {
	g := s.group
	if g == nil || g.bytes.Load() == 0 {
		return
	}
	back := s.backTo()
	if back == s.saidBack {
		return
	}
	s.saidBack = back
	g.mu.Lock()
	g.moveLocked(s.claim, back)
	free := g.takeFreedLocked()
	g.mu.Unlock()
	releaseBlobs(free)
}

// backTo is the first row that is not back as a whole.
func (s *owner) backTo() spot {
	pl := &s.pipeline
	for pl.whole < len(pl.runs) && pl.runs[pl.whole].missing == 0 {
		pl.whole++
	}
	if pl.whole < len(pl.runs) {
		r := pl.runs[pl.whole]
		row := slices.IndexFunc(r.state, func(st rowState) bool { return !st.taken && st.pending > 0 })
		return s.spotOf(r.epochOffset, r.index+int64(max(row, 0)))
	}
	if n := len(pl.runs); n > 0 {
		r := pl.runs[n-1]
		return s.spotOf(r.epochOffset, r.index).plus(len(r.positions))
	}
	return s.spotOf(s.slot.epochOffset, s.slot.at)
}

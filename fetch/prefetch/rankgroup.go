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

// Ranks of a mesh that get the same samples read each blob once. The reader shares a blob
// among streams as long as one of them holds it (see package read). So a blob that one
// stream delivers is held until the streams of the other ranks have it too. These find it
// in the window tier, like every blob that a stream holds.

// comeWithin is how long blobs are held for a rank that has no stream yet, or whose
// stream was cut off. The processes of a job begin one after another, and a process that
// was cut off connects again. A rank that another node serves never has a stream here.
const comeWithin = 10 * time.Second

// spot is a row in the order of a job's epochs.
type spot struct {
	epoch uint64 // the epoch's number; without a shuffle, the offset from the stream's first epoch
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
	// noRank is the rank of a claim for an unknown rank that has no stream yet.
	noRank = -1
	// mostClaims is the most ranks without a stream for which blobs are held. No node
	// serves more.
	mostClaims = 64
)

// claim is a rank for which blobs are held. rankGroup.mu guards all fields except rank
// and columns, which do not change.
type claim struct {
	rank    int
	columns []int // ordinals of the blob columns that the rank reads; nil: unknown, so all
	back    spot  // the rows before it have arrived
	floor   spot  // blobs of the rows before it are not held, because the rank is too far behind
	// until is when a claim without a stream ends; zero if the claim has a stream.
	until time.Time
}

func (c *claim) wants(column int) bool {
	return c.columns == nil || slices.Contains(c.columns, max(column, resultsOf(column)))
}

// resultsOf is the column of what operators make of a blob column, and the other way round.
func resultsOf(column int) int { return -1 - column }

// from is the first row whose blobs are held for the claim.
func (c *claim) from() spot { return later(c.back, c.floor) }

// kept is blobs of one column, of consecutive rows.
type kept struct {
	from, to spot
	blobs    []schema.Blob // no nulls
	bytes    int64
}

// rankGroup is the streams of ranks that get the same samples, and the blobs that are
// held until all of them have these. It is safe for concurrent use.
//
// The held blobs take at most one stream's share of the windows' memory. If that is not
// enough, the group drops the claim of the rank that is furthest behind: blobs delivered
// up to then are no longer held for that rank, and it reads them again from the spill or
// the store. Blobs delivered later are held for it again.
type rankGroup struct {
	tenant  *tenant
	behind  *atomic.Int64 // counters.behind: how often a rank was too far behind
	streams int           // guarded by Set.mu

	bytes atomic.Int64 // of the held blobs; written with mu held

	mu     sync.Mutex
	hold   *admission.Hold // the memory of the held blobs
	claims []*claim
	shelf  map[int][]kept    // by column, in the order of rows, without overlap; results: see resultsOf
	cells  map[cellKey]*once // cells that one of the streams makes or has made
	freed  []schema.Blob     // to release without mu
}

// enterGroupLocked adds a stream to its group, if it has one, and makes the group if
// needed; Set.mu is held. The caller releases the returned blobs without the lock.
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

// admitLocked adds the claim of a stream. It replaces a claim without a stream: that of
// the same rank, or else one for an unknown rank.
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

// leaveGroupLocked removes a stream from its group; Set.mu is held. If the stream has not
// served its whole ticket, its claim stays for comeWithin. The caller releases the
// returned blobs without the lock.
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

// release releases all held blobs, for streams that have no memory. Ranks that lack them
// read them again.
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

// dropClaimLocked drops the claim that is furthest behind: among the claims, except but,
// that begin before end. Claims without a stream go first, and are removed; others get a
// floor. It returns false if there is none.
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

// sweepLocked moves blobs that no rank needs any more to freed.
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

// firstLocked is the first row of a column that a claim, except but, still needs; false
// if none reads the column.
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

// keepLocked holds blobs of a column, of consecutive rows from from on, until the other
// ranks have them. It leaves out rows that these ranks have already, and rows that are
// held. If there is no room, it drops claims of other ranks.
func (g *rankGroup) keepLocked(own *claim, column int, from spot, blobs []schema.Blob) {
	end := from.plus(len(blobs))
	first, wanted := g.firstLocked(own, column)
	first = later(first, from)
	if !wanted || !first.before(end) {
		return
	}
	// Fill the gaps between the runs of rows that are held already.
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

// roomLocked reserves n bytes if there is room for them.
func (g *rankGroup) roomLocked(n int64) bool {
	if g.bytes.Load()+n > g.tenant.share.Load() || !g.hold.TryGrow(n) {
		return false
	}
	g.bytes.Add(n)
	return true
}

// moveLocked sets the spot before which a rank has all rows, and removes claims whose time
// is over. The spot may move back: a stream that has freed rows needs them again.
func (g *rankGroup) moveLocked(c *claim, back spot) {
	now := time.Now()
	g.claims = slices.DeleteFunc(g.claims, func(old *claim) bool { return !old.until.IsZero() && now.After(old.until) })
	c.back = back
	g.sweepLocked()
}

// sequenceOf names the ranks that get the same rows as a stream, by what all their tickets
// have in common. It is "" if there are no other such ranks.
func (s *Stream) sequenceOf() string {
	r := s.job.Request()
	if r.Replicas() < 2 {
		return ""
	}
	stride := max(s.ticket.Stride, 1)
	return fmt.Sprintf("%s %d %d/%d %s", s.job.Sequence(), r.DataRank(s.ticket.Rank), s.ticket.Step%stride, stride,
		s.caller.Tenant)
}

// spotOf is the spot of an index in one of the stream's epochs.
func (s *Stream) spotOf(offset, index int64) spot {
	epoch := uint64(offset)
	if sh := s.ticket.Shuffle; sh != nil {
		epoch += sh.Epoch
	}
	return spot{epoch, index}
}

// shareOut holds the blobs of a batch for the other ranks.
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

// shareCell holds the blob of a cell for the other ranks. Otherwise it would be released
// early, because the stream keeps only the operators' result.
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

// sayBack publishes backTo to the group, so that blobs which the stream has are released.
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

// backTo is the first row with a cell that has not arrived.
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

package spans

import (
	"cmp"
	"context"
	"hash/maphash"
	"math"
	"slices"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

const (
	// urgentRows is the distance to its stream's position below which a cell may be read alone, so that the consumer
	// does not wait for a whole span.
	urgentRows = 512
	// urgentShare bounds those single reads, as a share of the requests that the whole dataset takes.
	urgentShare = 1.0 / 20
	// maxMisses is how many neighbours in a row may be in other objects, as other columns are, before the search
	// ends.
	maxMisses = 64
	// dueShare is the inverse of a share of the horizon: the next use of a blob that is due is at most that far
	// ahead.
	dueShare = 4
	// lateSpans is how far a run goes on, in spans of the largest size, before it drops a span. The goroutines of a
	// stream request cells nearly in order: a cell that came after its span was dropped would be read again, and the
	// cells after it too.
	lateSpans = 2
	// maxTrails bounds the runs through objects that are known at once.
	maxTrails = 64
)

// trail is the position of a run of cells through an object, in order.
type trail struct {
	at          place
	begin, next int64    // the last range read
	passing     []passed // spans that cells may still come for, in the run's order
	bytes       int64    // of the run so far
	whole       bool     // the object is read to its end
}

// passed is a span of a run.
type passed struct {
	*span
	end int64 // the bytes of the run up to its end
}

// plans says how each cell of a call is read. It belongs to the goroutine of that call.
type plans struct {
	spans []*span // to be read by the caller
	alone []*cell // to be read by the store
	there []*cell // with a hold of a span that has their bytes
	kept  []*cell // in the spill since they were requested
}

// plan decides how cells of an object set are read. It begins the spans that are needed; the caller reads them.
func (t *Tier) plan(list []*cell) (p plans) {
	slices.SortStableFunc(list, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(a.loc.Object.Key, b.loc.Object.Key), cmp.Compare(a.begin, b.begin))
	})
	// Waits calls the engine, so it is asked before the lock.
	waits := t.opts.Waits()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range list {
		if c.gone {
			continue
		}
		if s := t.coveringLocked(c.place(), c.begin, c.end); s != nil {
			if again(c) && t.overdueLocked(s) {
				p.alone = append(p.alone, c)
				continue
			}
			t.count.joined.Add(1)
			c.joined = !slices.Contains(p.spans, s) // else the span begins with this Fetch
			if t.joinLocked(s, c) {
				p.there = append(p.there, c)
				t.passedLocked(s)
			}
			continue
		}
		// A repeated attempt does not use the spill, because the late attempt may be one at the spill.
		if t.keeps(c) && !again(c) && t.opts.Cache.Has(t.prover.Proven(c.Ref)) {
			p.kept = append(p.kept, c)
			continue
		}
		s := t.beginLocked(list[i:], waits)
		if s == nil {
			p.alone = append(p.alone, c)
			continue
		}
		t.joinLocked(s, c)
		p.spans = append(p.spans, s)
	}
	return p
}

// beginLocked begins the span of the first of the cells, which are sorted; nil if that cell is to be read alone.
func (t *Tier) beginLocked(list []*cell, waits bool) *span {
	c := list[0]
	at := c.place()
	if c.end-c.begin > t.most {
		return nil
	}
	set, _ := t.opts.Set(c.Ref)
	s := &span{tier: t, set: set, at: at, begin: c.begin, end: c.end}
	near, apart := 1, t.nearLocked(at.bucket)
	for _, o := range list[1:] {
		if o.place() != at || o.begin > s.end+apart || max(o.end, s.end)-s.begin > t.most ||
			t.coveringLocked(at, o.begin, o.end) != nil {
			break
		}
		if o.end > s.end {
			s.end = o.end
		}
		near++
	}
	switch {
	case t.keeps(c):
		if near == 1 && t.urgentLocked(c) {
			return nil
		}
		t.neighboursLocked(s, c, list[:near], waits)
	default:
		t.followLocked(s, c)
	}
	if near == 1 && s.others == 0 && !s.keep {
		return nil
	}
	s.wakeAt.Store(never)
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(c.Context))
	t.addLocked(s)
	return s
}

// keeps reports whether the spill may keep the neighbours of a cell.
func (t *Tier) keeps(c *cell) bool {
	return t.opts.Cache != nil && t.opts.Neighbours != nil && c.At.Dataset != 0 && !c.At.IsPage()
}

// urgentLocked reports whether a cell is to be read alone, because its stream needs it soon, and counts it. The bound
// keeps the number of requests of an epoch about the same.
func (t *Tier) urgentLocked(c *cell) bool {
	if c.Use >= urgentRows {
		return false
	}
	chunks := t.opts.Bytes(c.At.Dataset) / max(min(t.chunk, c.objectEnd()), 1)
	n := t.starts[c.At.Dataset]
	if float64(n+1) > urgentShare*float64(chunks) {
		return false
	}
	t.starts[c.At.Dataset] = n + 1
	return true
}

// neighboursLocked extends a span to neighbours of its cells, within the chunk of the first cell: those that are used
// while the spill keeps them, if the gap to them costs no more than a request.
func (t *Tier) neighboursLocked(s *span, c *cell, due []*cell, waits bool) {
	low := c.begin / t.chunk * t.chunk
	high := min(low+t.chunk, c.objectEnd())
	gap := t.costsLocked(s.at.bucket).gap(&t.link, waits)
	k := t.keepingLocked(s.at, low, c.At.Dataset)
	for _, after := range []bool{false, true} {
		misses := 0
		for ref, at := range t.opts.Neighbours(c.At, after) {
			begin, end, ok := t.neighbourOf(c, ref)
			if !ok || begin < low || begin >= high || after && begin > s.end+gap || !after && end < s.begin-gap {
				if misses++; misses > maxMisses {
					break
				}
				continue
			}
			misses = 0
			if max(end, s.end)-min(begin, s.begin) > t.most+t.most/8 || t.coveringLocked(s.at, begin, end) != nil {
				continue
			}
			i := slices.IndexFunc(due, func(d *cell) bool { return d.Ref == ref })
			isDue := i >= 0 && due[i].Use != read.Whenever
			turn, wanted := k.wants(t, at, isDue)
			if !wanted {
				continue
			}
			at.Until = k.until
			s.wanted++
			switch {
			case t.opts.Cache.Keep(t.prover.Proven(ref), k.until):
				continue
			case !t.opts.Cache.WantsBlob(ref, at, true):
				s.refused++
				continue
			case i < 0:
				s.others++
			}
			s.begin, s.end = min(s.begin, begin), max(s.end, end)
			s.neighbours = append(s.neighbours, neighbour{ref, at, begin, turn})
		}
	}
	s.chunks = k.chunks
	if s.others == 0 {
		return
	}
	if gap >= t.chunk { // the whole chunk, which also has what streams request in the meantime
		s.begin = min(s.begin, low)
		if c.loc.Object.Size > 0 {
			s.end = max(s.end, high)
		}
	}
	if k.until > 0 {
		t.pace.read(k.chunk, k.now, k.horizon, k.until)
	}
}

// keeping is what is kept of a chunk that is read.
type keeping struct {
	chunk               uint64
	chunks              float64 // of the dataset
	now, horizon, until float64 // in turns; until is 0 if all that jobs use fits into the cache
}

// keepingLocked returns what is kept of the chunk at an offset of an object.
func (t *Tier) keepingLocked(at place, low int64, dataset uint32) (k keeping) {
	k.chunks = float64(t.opts.Bytes(dataset)) / float64(max(t.chunk, 1))
	if t.opts.Future == nil {
		return k
	}
	if k.horizon = t.opts.Future.Horizon(t.opts.Cache.Capacity() * int64(max(t.opts.Sharers(), 1))); k.horizon == 0 {
		return k
	}
	k.chunk = maphash.Comparable(t.seed, chunk{at, low})
	k.now = t.opts.Future.Turn()
	k.until = t.pace.next(k.chunk, k.now, k.horizon)
	return k
}

// wants reports whether a blob is used while its chunk is kept, and when. A blob that is due is being used right now.
func (k *keeping) wants(t *Tier, at spill.Place, due bool) (turn float64, wanted bool) {
	if t.opts.Future == nil {
		return 0, !due
	}
	soon := 0.0
	if due {
		soon = math.MaxFloat64
		if k.until > 0 {
			soon = k.horizon / dueShare
		}
	}
	turn, ok := t.opts.Future.NextTurn(at, soon)
	return turn, k.until == 0 || ok && turn <= k.until
}

// chunk identifies a chunk of an object.
type chunk struct {
	place
	low int64
}

// neighbourOf returns the range of a neighbour, if it is in the same object as the cell.
func (t *Tier) neighbourOf(c *cell, ref schema.BlobRef) (begin, end int64, ok bool) {
	if set, in := t.opts.Set(ref); !in {
		return 0, 0, false
	} else if own, _ := t.opts.Set(c.Ref); own != set {
		return 0, 0, false
	}
	// The set is open, because it is also the cell's.
	loc, in, err := t.opts.Store.Locate(c.Context, ref)
	if err != nil || !in || loc.Unit != nil || loc.Length != ref.Size || loc.Length == 0 ||
		loc.Object.Key != c.loc.Object.Key || loc.Object.Version != c.loc.Object.Version || loc.Bucket != c.loc.Bucket {
		return 0, 0, false
	}
	return loc.Offset, loc.Offset + loc.Length, true
}

// trailLocked returns the index of the trail that continues at an offset of an object, -1 if none does.
func (t *Tier) trailLocked(at place, begin int64) int {
	near := t.nearLocked(at.bucket)
	return slices.IndexFunc(t.trails, func(r trail) bool {
		if r.at == at {
			return begin >= r.begin && begin <= r.next+near
		}
		return r.whole && r.at.bucket == at.bucket && begin <= nearGap
	})
}

// followLocked extends a span that continues a trail, as a run without a shuffle does: it is twice as long as the
// last one, and is kept for the cells that follow.
func (t *Tier) followLocked(s *span, c *cell) {
	i := t.trailLocked(s.at, s.begin)
	r := trail{at: s.at}
	if i >= 0 {
		r = t.trails[i]
		t.trails = slices.Delete(t.trails, i, i+1)
		size := min(max(2*(r.next-r.begin), s.size()), t.most)
		end := min(s.begin+size, c.loc.Object.Size) // none if the size is unknown
		for _, o := range t.places[s.at] {          // ranges that other spans have read, or are reading
			if o.begin > s.begin {
				end = min(end, o.begin)
			}
		}
		if end > s.end {
			s.end, s.keep = end, true
		}
	} else if len(t.trails) >= maxTrails {
		t.trails = slices.Delete(t.trails, 0, 1)
	}
	r.passing = slices.DeleteFunc(r.passing, func(p passed) bool {
		late := r.bytes-p.end >= lateSpans*t.most
		if late && slices.Contains(t.kept, p.span) {
			t.dropLocked(p.span)
		}
		return late || p.over
	})
	r.bytes += s.size()
	if s.keep {
		r.passing = append(r.passing, passed{s, r.bytes})
	}
	r.at, r.begin, r.next = s.at, s.begin, s.end
	r.whole = s.end+nearGap >= c.objectEnd()
	t.trails = append(t.trails, r)
}

var _ read.Gatherer = (*Tier)(nil)

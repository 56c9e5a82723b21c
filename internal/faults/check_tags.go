package faults

import (
	"maps"
	"math"
	"slices"
)

// checkTags takes each tag for a register that is set (tag), cleared (untag) and
// read (tagged), and which must be linearizable.
func (d *dataset) checkTags() {
	byTag := map[string][]*op{}
	for _, o := range d.ops {
		if o.Do == Tag || o.Do == Untag || o.Do == Tagged {
			byTag[o.Tag] = append(byTag[o.Tag], o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byTag)) {
		r := newRegister(byTag[name])
		r.stale(d, name)
		r.zones(d, name)
		r.dropped(d, name)
	}
	for _, o := range d.ops {
		if o.Do == Tag && o.how == OK || o.Do == Tagged && o.how == OK && o.Number != 0 {
			if s := d.snapshots[o.Number]; s.gone < o.invoke {
				d.found(TaggedDropped, d.name, "%v of tag %s, which %v had found to be gone", o, o.Tag, s.goneBy)
			}
		}
	}
}

// register is a tag's history. Its value is a snapshot's number, 0 for none.
type register struct {
	writes, reads []*op
}

func newRegister(ops []*op) (r register) {
	for _, o := range ops {
		switch {
		case o.Do == Tagged && o.how == OK:
			r.reads = append(r.reads, o)
		case o.Do == Untag && o.how == Fail && o.Absent: // there was none to remove
			r.reads = append(r.reads, o)
		case o.Do != Tagged && o.how != Fail:
			r.writes = append(r.writes, o)
		}
	}
	return r
}

// value is what an operation has written or read.
func value(o *op) int64 {
	if o.Do == Untag {
		return 0
	}
	return o.Number
}

// stale: what was read was written, and was not certainly overwritten before the read began.
func (r register) stale(d *dataset, tag string) {
	for _, read := range r.reads {
		fits := func(from int64) bool { // from when it was there
			for _, w := range r.writes {
				if w.how == OK && w.invoke > from && w.end < read.invoke && value(w) != value(read) {
					return false
				}
			}
			return true
		}
		found := value(read) == 0 && fits(math.MinInt64)
		for _, w := range r.writes {
			found = found || value(w) == value(read) && w.invoke < read.end && fits(w.end)
		}
		if !found {
			d.found(StaleTag, d.name, "%v found that %s names %d, which it did not at the time", read, tag, value(read))
		}
	}
}

// zone is when a value that was written once was there: at least from the end of the first
// operation on it to the beginning of the last one. Where the end comes first
// (a forward zone) it was there all the time between.
type zone struct {
	value       int64
	ends, lasts int64
}

// zones is the test of Gibbons and Korach (Testing Shared Memories, 1997) for
// values that were written once: it finds values that come back, and orders that two readers
// saw differently.
func (r register) zones(d *dataset, tag string) {
	byValue := map[int64][]*op{}
	written := map[int64]int{}
	for _, w := range r.writes {
		written[value(w)]++
		byValue[value(w)] = append(byValue[value(w)], w)
	}
	for _, read := range r.reads {
		byValue[value(read)] = append(byValue[value(read)], read)
	}
	var forward, backward []zone
	for _, v := range slices.Sorted(maps.Keys(byValue)) {
		if v == 0 || written[v] != 1 {
			continue // it may have been there more than once
		}
		z := zone{value: v, ends: neverEnded, lasts: math.MinInt64}
		known := false
		for _, o := range byValue[v] {
			z.ends, z.lasts = min(z.ends, o.end), max(z.lasts, o.invoke)
			known = known || o.how == OK
		}
		switch {
		case !known: // it may never have been written
		case z.ends < z.lasts:
			forward = append(forward, z)
		default:
			backward = append(backward, z)
		}
	}
	for i, a := range forward {
		for _, b := range forward[:i] {
			if a.ends < b.lasts && b.ends < a.lasts {
				d.found(StaleTag, d.name, "%s named %d, then %d, then the first again, though each was given once", tag,
					a.value, b.value)
			}
		}
		for _, b := range backward {
			if a.ends < b.lasts && b.ends < a.lasts {
				d.found(StaleTag, d.name, "%s named %d while it named %d", tag, b.value, a.value)
			}
		}
	}
	// Clearing has no value of its own, but ends every zone.
	for _, w := range r.writes {
		if w.Do != Untag || w.how != OK {
			continue
		}
		for _, a := range forward {
			if a.ends < w.invoke && w.end < a.lasts {
				d.found(StaleTag, d.name, "%v was done while %s named %d, before and after", w, tag, a.value)
			}
		}
	}
}

// dropped: what has a tag is not dropped while it has.
func (r register) dropped(d *dataset, tag string) {
	for _, w := range r.writes {
		if w.Do != Tag || w.how != OK {
			continue
		}
		for _, drop := range d.ops {
			if drop.Do != Drop || drop.how != OK || drop.Number != w.Number || drop.invoke < w.end {
				continue
			}
			moved := slices.ContainsFunc(r.writes, func(o *op) bool {
				return value(o) != w.Number && o.invoke < drop.end && o.end > w.invoke
			})
			if !moved {
				d.found(TaggedDropped, d.name, "%v was done though it had the tag %s", drop, tag)
			}
		}
	}
}

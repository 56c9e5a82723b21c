package faults

import (
	"maps"
	"math"
	"slices"
)

// checkTags checks each tag as a register that tag sets, untag clears and tagged reads.
// The register must be linearizable.
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

// register is the history of a tag. Its value is the number of a snapshot, or 0 for none.
// Operations that certainly had no effect are left out.
type register struct {
	writes, reads []*op
}

// newRegister divides the operations into writes and reads. An untag that found nothing
// is a read of 0.
func newRegister(ops []*op) (r register) {
	for _, o := range ops {
		switch {
		case o.Do == Tagged && o.how == OK:
			r.reads = append(r.reads, o)
		case o.Do == Untag && o.how == Fail && o.Absent: // found no tag to remove
			r.reads = append(r.reads, o)
		case o.Do != Tagged && o.how != Fail:
			r.writes = append(r.writes, o)
		}
	}
	return r
}

// value returns the value that an operation wrote or read.
func value(o *op) int64 {
	if o.Do == Untag {
		return 0
	}
	return o.Number
}

// stale checks that each value that was read had been written, and had not certainly been
// overwritten before the read began.
func (r register) stale(d *dataset, tag string) {
	for _, read := range r.reads {
		fits := func(from int64) bool { // from is when the value was there
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

// zone is the time in which a value that was written once was there. It lasts at least
// from the first end to the last begin of the operations on it. If the end comes first,
// the zone is a forward zone, and the value was there all the time between. Otherwise it
// is a backward zone, and the value was there at some moment of it.
type zone struct {
	value       int64
	ends, lasts int64
}

// zones is the test of Gibbons and Korach (Testing Shared Memories, 1997) for values that
// were written once. It finds values that come back, and orders that two readers saw
// differently. It takes quadratic time, which is little for the tags of a run; a search
// for an order would take exponential time.
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
			continue // it may have been there several times
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
	// Two forward zones that overlap, and a backward zone inside a forward one, have no
	// order.
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

// dropped checks that a snapshot is not dropped while it has the tag. A write of another
// value that may have come between allows the drop.
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

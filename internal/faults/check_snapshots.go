package faults

import (
	"cmp"
	"maps"
	"slices"
)

// snapshot is what a history says of a snapshot. A time is neverEnded if the event did
// not happen. All bounds are conservative: known and gone are the earliest end of an
// operation that proves it, and drop is the earliest begin of one that may have caused
// it.
type snapshot struct {
	imports map[string]bool
	known   int64           // from then on it was certainly committed
	seen    *op             // the operation that proves known
	drop    int64           // earliest begin of a drop that may have taken effect
	gone    int64           // from then on it was certainly dropped
	goneBy  *op             // the operation that proves gone
	whole   map[string]bool // processes that have read it whole without faults
}

// dataset is a dataset of a history. Each dataset is checked alone, because the store
// promises nothing across datasets.
type dataset struct {
	*checker
	name string
	ops  []*op

	imports   map[string]*op // commits by what they import
	snapshots map[int64]*snapshot
}

// newDataset collects the facts about the snapshots in three passes: the imports, then
// the times of presence and drops, and then the times of absence. The last pass needs the
// result of the second.
func newDataset(c *checker, name string, ops []*op) *dataset {
	d := &dataset{checker: c, name: name, ops: ops, imports: map[string]*op{}, snapshots: map[int64]*snapshot{}}
	for _, o := range ops {
		if o.Do == Commit {
			if d.imports[o.Import] != nil {
				c.found(BadHistory, name, "two imports are called %s", o.Import)
			}
			d.imports[o.Import] = o
		}
	}
	for _, o := range ops {
		for _, n := range present(o) {
			s := d.snapshot(n)
			if o.end < s.known {
				s.known, s.seen = o.end, o
			}
			if (o.Do == Commit || o.Do == Read) && o.Number == n {
				s.imports[o.Import] = true
			}
		}
		if o.Do == Drop && o.how != Fail {
			s := d.snapshot(o.Number)
			s.drop = min(s.drop, o.invoke)
		}
	}
	for _, o := range ops {
		for n, s := range d.snapshots {
			if (o.Do == Drop && o.how == OK && o.Number == n || o.invoke > s.known && absent(o, n)) && o.end < s.gone {
				s.gone, s.goneBy = o.end, o
			}
		}
	}
	c.stats.Numbers += len(d.snapshots)
	return d
}

// snapshot returns the record of a snapshot, and makes it if needed.
func (d *dataset) snapshot(n int64) *snapshot {
	if d.snapshots[n] == nil {
		d.snapshots[n] = &snapshot{
			imports: map[string]bool{}, known: neverEnded, drop: neverEnded, gone: neverEnded, whole: map[string]bool{},
		}
	}
	return d.snapshots[n]
}

// present returns the snapshots that certainly existed at some moment of an operation. A
// commit proves its parent as well.
func present(o *op) []int64 {
	switch {
	case o.how != OK || o.Absent:
		return nil
	case o.Do == List:
		return o.Numbers
	case o.Number == 0 || o.Do == Untag:
		return nil
	case o.Do == Commit && o.Parent != 0:
		return []int64{o.Number, o.Parent}
	default:
		return []int64{o.Number}
	}
}

// absent reports whether a snapshot certainly did not exist at some moment of an
// operation.
func absent(o *op, n int64) bool {
	if o.Do == List {
		return o.how == OK && !slices.Contains(o.Numbers, n)
	}
	return o.Absent && o.Number == n
}

// check checks all guarantees about snapshots. An anomaly needs a contradiction for each
// possible order of the operations. Times are therefore compared as "end of one before
// begin of the other".
func (d *dataset) check() {
	d.checkNumbers()
	d.checkParents()
	for _, o := range d.ops {
		for _, n := range present(o) {
			if s := d.snapshots[n]; o.invoke > s.gone {
				d.found(Resurrected, d.name, "%v found %d, which was gone before, as %v has found", o, n, s.goneBy)
			}
		}
		switch {
		case o.Do == Read && o.how == OK && !o.Absent:
			d.checkRead(o)
		case o.Do == Read && o.Damage == Missing && d.snapshot(o.Number).drop > o.end:
			d.found(Torn, d.name, "%v did not find its record, which had not been dropped: %s", o, o.Error)
		case o.Do == Commit && o.Damage == Missing:
			d.found(Torn, d.name, "%v got the answer that a stored snapshot was absent: %s", o, o.Error)
		}
		// Loss: a snapshot that was known before the operation began, and that no drop
		// can have removed before it ended.
		for _, n := range slices.Sorted(maps.Keys(d.snapshots)) {
			if s := d.snapshots[n]; absent(o, n) && o.invoke > s.known && o.end < s.drop {
				d.found(LostCommit, d.name, "%v did not find %d, which %v had, and which had not been dropped", o, n,
					s.seen)
			}
		}
	}
	// Without a phase without faults, nothing promises that a snapshot can be read.
	if d.healed == neverEnded {
		return
	}
	for _, n := range slices.Sorted(maps.Keys(d.snapshots)) {
		s := d.snapshots[n]
		if s.known != neverEnded && s.drop > d.healed && len(s.whole) < needsReadersOf {
			d.found(Unread, d.name, "%d was read whole by %d", n, len(s.whole))
		}
	}
}

// checkNumbers checks that each import has at most one number, that each number has one
// import, and that numbers follow the order of time.
func (d *dataset) checkNumbers() {
	numbers := map[string][]int64{}
	order := slices.Sorted(maps.Keys(d.snapshots))
	for _, n := range order {
		s := d.snapshots[n]
		if len(s.imports) > 1 {
			d.found(Doubled, d.name, "%d is of the imports %v", n, slices.Sorted(maps.Keys(s.imports)))
		}
		for name := range s.imports {
			numbers[name] = append(numbers[name], n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		if len(numbers[name]) > 1 {
			d.found(Doubled, d.name, "import %s has the numbers %v", name, numbers[name])
		}
	}
	// The sweep keeps the largest number that was known before each operation began.
	slices.SortFunc(order, func(a, b int64) int { return cmp.Compare(d.snapshots[a].known, d.snapshots[b].known) })
	var last int64
	next := 0
	for _, o := range d.ops { // in the order of their beginnings
		for next < len(order) && d.snapshots[order[next]].known < o.invoke {
			last = max(last, order[next])
			next++
		}
		if o.Do == Commit && o.how == OK && o.Number <= last {
			d.found(Reordered, d.name, "%v was given a number when %d was known already", o, last)
		}
	}
}

// checkParents checks that the parent of a commit was the newest snapshot. Numbers are
// assigned in the order of commits. A snapshot between the parent and its child was
// therefore committed before the child, and must have been dropped by then.
func (d *dataset) checkParents() {
	for _, o := range d.ops {
		if o.Do != Commit || o.how != OK {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(d.snapshots)) {
			s := d.snapshots[n]
			if o.Parent < n && n < o.Number && s.known != neverEnded && s.drop > o.end {
				d.found(LostUpdate, d.name, "%v has the parent %d, though %d was newer and not dropped", o, o.Parent, n)
			}
		}
	}
}

// checkRead checks that a reader found what was imported.
func (d *dataset) checkRead(o *op) {
	s := d.snapshots[o.Number]
	from := d.imports[o.Import]
	switch {
	case from == nil:
		d.found(Phantom, d.name, "%v found the import %q, which was never made", o, o.Import)
		return
	case from.how == Fail:
		d.found(Phantom, d.name, "%v found the import %s, which has failed", o, o.Import)
	case o.end < from.invoke:
		d.found(Phantom, d.name, "%v found the import %s before it was committed", o, o.Import)
	}
	switch {
	case o.Damage == Wrong:
		d.found(Torn, d.name, "%v found other bytes than were imported: %s", o, o.Error)
	case o.Damage == Missing && s.drop > o.end:
		d.found(Torn, d.name, "%v did not find all blobs, and it had not been dropped: %s", o, o.Error)
	case o.Damage == "" && o.Digest != from.Digest:
		d.found(Torn, d.name, "%v found the digest %s, and %s was imported", o, o.Digest, from.Digest)
	case o.Damage == "":
		d.stats.Reads++
		if o.invoke > d.healed {
			s.whole[o.Process] = true
		}
	}
}

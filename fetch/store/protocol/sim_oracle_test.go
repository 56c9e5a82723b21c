package protocol

import (
	"maps"
	"slices"
	"strings"

	"bowstring/schema"
)

// oracle sees every change of the catalog and every deletion at the moment it is made. It
// checks that the guarantees of the package's documentation hold.
type oracle struct {
	w        *world
	datasets map[string]*datasetState
	rooted   map[string][]schema.Key // what a row of the catalog refers to, all the way down
	refs     map[schema.Key]int
	sets     map[string][]string // the prefixes of object sets of a snapshot
	made     map[string][]int64  // the numbers under which a commit became visible, by its mark
}

func newOracle(w *world) *oracle {
	return &oracle{
		w: w, datasets: map[string]*datasetState{}, rooted: map[string][]schema.Key{},
		refs: map[schema.Key]int{}, sets: map[string][]string{}, made: map[string][]int64{},
	}
}

// changed is called with each new version of a partition.
func (o *oracle) changed(name string, p Partition) {
	if name == Control {
		return
	}
	d, err := o.w.memo.decode(name, p)
	if err != nil {
		o.w.wrong("the catalog is broken: %v", err)
		return
	}
	was := o.datasets[name]
	if was == nil {
		was, _ = o.w.memo.decode(name, Partition{})
	}
	o.datasets[name] = d
	o.snapshots(was, d)
	for key, sel := range d.selections {
		if was.selections[key] == nil {
			o.root(name+" "+key, []schema.Key{sel.Bitmap.Key})
		}
	}
	for key := range was.selections {
		if d.selections[key] == nil {
			o.unroot(name + " " + key)
		}
	}
	o.proofs(was, d)
	for tag, t := range d.tags {
		if r, ok := d.snapshots[t.Number]; !ok || !r.Dropped.IsZero() {
			o.w.wrong("%s has the tag %s and is dropped", snapshotName(name, t.Number), tag)
		}
	}
	if d.head.Newest != d.newest() {
		o.w.wrong("the newest snapshot of %q is %d, the head says %d", name, d.newest(), d.head.Newest)
	}
}

// proofs compares the checksums that are kept: of a set that a snapshot names none is lost, and each is there.
func (o *oracle) proofs(was, d *datasetState) {
	for prefix := range was.proofs {
		if _, there := d.proofs[prefix]; !there {
			o.unroot(d.name + " proof " + prefix)
		}
	}
	for prefix, r := range d.proofs {
		old := was.proofs[prefix]
		if slices.Equal(old.Runs, r.Runs) {
			continue
		}
		var keys []schema.Key
		for _, run := range r.Runs {
			keys = append(keys, run.Key)
		}
		o.unroot(d.name + " proof " + prefix)
		o.root(d.name+" proof "+prefix, keys)
	}
	for prefix, old := range was.proofs {
		if proven(d.proofs[prefix].Runs) >= proven(old.Runs) {
			continue
		}
		for number, r := range d.snapshots {
			if r.Dropped.IsZero() && slices.Contains(o.sets[snapshotName(d.name, number)], prefix) {
				o.w.wrong("of %d checksums of object set %s of %s %d are left", proven(old.Runs), prefix,
					snapshotName(d.name, number), proven(d.proofs[prefix].Runs))
			}
		}
	}
}

func (o *oracle) snapshots(was, d *datasetState) {
	for _, number := range slices.Sorted(maps.Keys(d.snapshots)) {
		r, old := d.snapshots[number], was.snapshots[number]
		name := snapshotName(d.name, number)
		switch {
		case old.Commit == "" && number <= was.head.Last, old.Commit != "" && old.Commit != r.Commit:
			o.w.wrong("the number of %s was given out before", name)
		case old.Commit == "":
			o.committed(d.name, number, r)
		case old.Dropped.IsZero() && !r.Dropped.IsZero():
			o.w.say(nil, "%s is dropped", name)
			o.unroot(name)
		case !old.Dropped.IsZero() && r.Dropped.IsZero():
			o.w.wrong("%s was dropped and is back", name)
		}
	}
	for number, old := range was.snapshots {
		if _, there := d.snapshots[number]; !there && old.Dropped.IsZero() {
			o.w.wrong("%s is lost", snapshotName(d.name, number))
		}
	}
}

// committed is called with each snapshot that becomes visible.
func (o *oracle) committed(dataset string, number int64, r snapshotRecord) {
	name := snapshotName(dataset, number)
	record := r.Record
	var keys []schema.Key
	if r.Blob != nil {
		record = o.w.db.content[r.Blob.Key]
		keys = append(keys, r.Blob.Key)
	}
	snap, err := decodeRecord(dataset, number, record)
	if err != nil {
		o.w.wrong("%s has no record: %v", name, err)
		return
	}
	if o.w.packed {
		keys = append(keys, setKeys(snap)...)
	}
	for _, chunk := range snap.Chunks {
		keys = append(keys, chunk.Key)
		keys = append(keys, keysIn(o.w.db.content[chunk.Key])...)
	}
	for _, set := range snap.Sets {
		o.sets[name] = append(o.sets[name], set.Prefix.String())
		if set.Blob != (schema.BlobRef{}) {
			keys = append(keys, set.Blob.Key)
		}
	}
	mark, _, _ := strings.Cut(snap.Source, " ")
	o.made[mark] = append(o.made[mark], number)
	if len(o.made[mark]) > 1 {
		o.w.wrong("one commit to %q was made as %d", dataset, o.made[mark])
	}
	o.w.say(nil, "%s is there, commit %s", name, mark)
	o.root(name, keys)
}

func (o *oracle) root(name string, keys []schema.Key) {
	o.rooted[name] = keys
	for _, key := range keys {
		o.refs[key]++
		if !o.whole(key) {
			o.w.wrong("%s is visible and lacks blob %s", name, key.String()[:8])
		}
	}
}

func (o *oracle) unroot(name string) {
	for _, key := range o.rooted[name] {
		if o.refs[key]--; o.refs[key] == 0 {
			delete(o.refs, key)
		}
	}
	delete(o.rooted, name)
}

// whole says whether every quorum has the bytes of a blob.
func (o *oracle) whole(key schema.Key) bool {
	r := o.w.db
	if o.w.packed {
		return r.segments[segmentKey(key)]
	}
	return r.merged(key, 0, 1).whole() && r.merged(key, 0, 2).whole() && r.merged(key, 1, 2).whole()
}

// deleted is called when a node removes the bytes of a blob.
func (o *oracle) deleted(key schema.Key) {
	if o.refs[key] > 0 && !o.whole(key) {
		o.w.wrong("blob %s is deleted, which %s refers to", key.String()[:8], o.referrer(key))
	}
}

func (o *oracle) referrer(key schema.Key) string {
	for _, name := range slices.Sorted(maps.Keys(o.rooted)) {
		if slices.Contains(o.rooted[name], key) {
			return name
		}
	}
	return "no process"
}

// leaks lists the stored blobs to which nothing refers, without those that the
// documentation allows a collection to miss.
func (o *oracle) leaks() []string {
	if o.w.packed {
		return o.leakedSegments()
	}
	var list []string
	for _, key := range o.w.db.keys() {
		if _, ok := o.w.db.row(key, o.w.db.merged(key, 0, 1, 2)); ok && o.refs[key] == 0 && !o.stray(key) {
			list = append(list, key.String()[:8])
		}
	}
	return list
}

// stray reports whether only a touch of a blob exists, and some quorum does not know of
// the touch. A size or bytes, even on one node, come after a touch that a quorum knows.
func (o *oracle) stray(key schema.Key) bool {
	r := o.w.db
	all := r.merged(key, 0, 1, 2)
	if all.size > all.sizeGone || max(all.bytes[0], all.bytes[1]) > all.bytesGone {
		return false
	}
	for none := range nodes {
		among := slices.DeleteFunc([]int{0, 1, 2}, func(node int) bool { return node == none })
		if _, ok := r.row(key, r.merged(key, among...)); !ok {
			return true
		}
	}
	return false
}

// keysIn reads a chunk as the actors write it: the keys of its rows.
func keysIn(chunk []byte) []schema.Key {
	var keys []schema.Key
	for k := range slices.Chunk(chunk, len(schema.Key{})) {
		keys = append(keys, schema.Key(k))
	}
	return keys
}

package attach

import (
	"context"
	"iter"
	"sort"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/source"
	"bowstring/schema"
)

// Kept holds the rows of objects that have not changed, by object. It implements
// source.Kept, for one goroutine: All loads a chunk at a time and remembers the last one.
//
// The source of an unchanged object is not read again. That is allowed only if the rows
// of the object are known exactly: they follow each other in a snapshot, are all in one
// split, and have blobs in no other object. The addresses of the blobs in the manifest
// show that.
type Kept struct {
	dataset string
	bases   []*Rows
	// files maps the key of an object to its rows.
	files map[string]run
	// names maps an object's address back to its key.
	names map[objectAt]string

	// The chunk that was read last. All is called for objects in the order of the rows,
	// so that the next row is mostly in the same chunk.
	of      *Rows
	begin   int64 // the rows of the chunk are [begin, until)
	until   int64
	columns map[string]arrow.Array
	all     []string // names of all metadata columns
}

// run is the range of rows [start, end) of an object.
type run struct {
	base       *Rows
	start, end int64
	split      string
	// broken excludes the object: its rows do not follow each other, some of them also
	// belong to another object, or they are in several splits.
	broken bool
}

// objectAt identifies an object by its set and its number in that set.
type objectAt struct {
	prefix schema.ObjectPrefix
	number uint32
}

// Kept finds the rows of objects that have not changed. bases have the same schema. If
// several bases have rows of an object, the first base wins.
func (l *Listing) Kept(dataset string, bases []*Rows) *Kept {
	k := &Kept{dataset: dataset, bases: bases, files: map[string]run{}, names: map[objectAt]string{}}
	if len(bases) == 0 {
		return k
	}
	for _, f := range schema.MetaFields(bases[0].Schema()) {
		k.all = append(k.all, f.Name)
	}
	// Only objects that kept their place in a set of the previous snapshot are unchanged.
	here := map[objectAt]int{}
	for i, p := range l.places {
		if s := &l.sets[p.set]; s.known != nil {
			here[objectAt{s.prefix, p.number}] = i
		}
	}
	for _, base := range bases {
		for at, r := range base.runs() {
			if i, ok := here[at]; ok && !r.broken {
				if _, ok := k.files[l.objects[i].Key]; !ok {
					k.files[l.objects[i].Key], k.names[at] = *r, l.objects[i].Key
				}
			}
		}
	}
	return k
}

// runs finds the range of rows of each object in one pass over the snapshot.
//
// A row without any blob shows no object. It is taken for a row of the object before and
// after it if both are the same one. If they differ, the row may belong to either, and
// both objects are broken.
func (r *Rows) runs() map[objectAt]*run {
	found := map[objectAt]*run{}
	var last *run
	// unclear: the rows since those of last, or since the beginning, have no blob that
	// shows their object.
	unclear := false
	for pos := range r.ids {
		var own *run
		first := objectAt{}
		several, elsewhere := false, false // the row is in several objects; it has a blob of the store
		for c := range r.refs {
			ref := &r.refs[c][pos]
			if ref.Size == null {
				continue
			}
			a, ok := schema.ParseObjectAddress(ref.Key)
			at := objectAt{a.Prefix, a.Object}
			if !ok {
				several, elsewhere = true, true
				continue
			}
			if found[at] == nil {
				found[at] = &run{base: r, start: int64(pos), end: int64(pos), split: r.form.SplitOf(int64(pos))}
			}
			if own == nil {
				own, first = found[at], at
			}
			several = several || at != first
		}
		// A row with blobs in several objects cannot be dropped or kept with any one of
		// them.
		if several {
			for c := range r.refs {
				if a, ok := schema.ParseObjectAddress(r.refs[c][pos].Key); ok && r.refs[c][pos].Size != null {
					found[objectAt{a.Prefix, a.Object}].broken = true
				}
			}
		}
		if own == nil && elsewhere { // the row belongs to no object, as imported rows do
			if unclear && last != nil {
				last.broken = true
			}
			last, unclear = nil, false
			continue
		}
		if own == nil {
			unclear = true
			continue
		}
		if unclear && own != last {
			own.broken = true
			if last != nil {
				last.broken = true
			}
		}
		// The object appears again after rows of another one, or in a second split.
		if own.end != int64(pos) && own != last || own.split != r.form.SplitOf(int64(pos)) {
			own.broken = true
		}
		own.end, last, unclear = int64(pos)+1, own, false
	}
	// The rows at the end may belong to the last object or to one that is gone.
	if unclear && last != nil {
		last.broken = true
	}
	return found
}

// Any reports whether there is any unchanged object.
func (k *Kept) Any() bool { return len(k.files) > 0 }

// Schema implements source.Kept.
func (k *Kept) Schema() *arrow.Schema { return k.bases[0].Schema() }

// Rows implements source.Kept.
func (k *Kept) Rows(file string) (n int64, split string, ok bool) {
	r, ok := k.files[file]
	return r.end - r.start, r.split, ok
}

// Is implements source.Kept. It compares ids, because a snapshot does not store keys.
func (k *Kept) Is(file string, row int64, key string) bool {
	r := k.files[file]
	return r.base.ids[r.start+row] == schema.SampleID(k.dataset, key)
}

// Has implements source.Kept. The first blob that is not null decides to which object the
// row belongs: an object that is not broken shares no row.
func (k *Kept) Has(key string) bool {
	id := schema.SampleID(k.dataset, key)
	for _, base := range k.bases {
		pos, ok := base.find(id)
		for c := range base.refs {
			if a, is := schema.ParseObjectAddress(base.refs[c][pos].Key); ok && is && base.refs[c][pos].Size != null {
				r := k.files[k.names[objectAt{a.Prefix, a.Object}]]
				return r.base == base && r.start <= int64(pos) && int64(pos) < r.end
			}
		}
	}
	return false
}

// All implements source.Kept.
func (k *Kept) All(ctx context.Context, file string) iter.Seq2[source.KeptRow, error] {
	return func(yield func(source.KeptRow, error) bool) {
		r := k.files[file]
		for pos := r.start; pos < r.end; pos++ {
			if err := k.load(ctx, r.base, pos); err != nil {
				yield(source.KeptRow{}, err)
				return
			}
			known := r.base.known(int(pos), k.columns, int(k.begin))
			if !yield(source.KeptRow{ID: r.base.ids[pos], Known: known}, nil) {
				return
			}
		}
	}
}

// load reads the metadata columns of the chunk that contains a row, unless they are in
// memory. Reading all chunks at once would hold the metadata of the whole snapshot.
func (k *Kept) load(ctx context.Context, base *Rows, pos int64) (err error) {
	chunks := base.form.Snapshot().Chunks
	if k.of == base && k.begin <= pos && pos < k.until {
		return nil
	}
	starts := make([]int64, len(chunks)+1)
	for i, c := range chunks {
		starts[i+1] = starts[i] + c.Rows
	}
	i := sort.Search(len(chunks), func(i int) bool { return starts[i+1] > pos })
	k.of, k.begin, k.until = base, starts[i], starts[i+1]
	k.columns, err = base.read(ctx, chunks[i:i+1], k.all, func(*schema.Page) error { return nil })
	return err
}

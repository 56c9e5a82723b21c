// Package attach makes keys from the extents of the blobs of a source. An attached
// dataset does not copy blobs into the store: the key of each blob is its address in an
// object of the user's bucket.
//
// A Listing cuts the listed objects into object sets, reuses the sets of the previous
// snapshot, and collects the compressed units. Rows and Kept return what the previous
// snapshot knows of rows whose objects have not changed. Prove reads blobs that have no
// checksum yet. Reading the formats themselves is in package source. Begin with
// NewListing and Listing.Ref.
package attach

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bowstring/cmd/bowstring/source"
	"bowstring/schema"
)

// Listing is the objects of a source and the sets that they are in. One goroutine may
// call its methods; Known is the exception.
type Listing struct {
	bucket  string
	reading string
	// unread means that blobs of the sets made here are not read, and so have no
	// checksum.
	unread  bool
	objects []schema.Object // in ascending order of keys
	places  []place         // by object
	sets    []set
	units   map[int][]schema.Unit // by object, in ascending order of offsets
	// last is the object that find returned last. The next blob is mostly in the same
	// object or in the one after it.
	last int
}

// place is the position of an object: the index of its set in the listing, and its number
// in that set. Before an object has a set, set is -1.
type place struct {
	set    int32
	number uint32
}

// set is an object set that keys may name.
type set struct {
	prefix  schema.ObjectPrefix
	known   *schema.SetRef // set of the previous snapshot; nil for a new set
	objects []int          // indexes of the objects of a new set
	used    bool           // some key names the set
}

// NewListing cuts objects into sets.
//
// bucket is the URL of their bucket. reading says how the source is read: sets of another
// reading are not reused, because the same extents would be other blobs. unread says that
// the blobs are not read. base are the object sets of the previous snapshot. An object
// that one of them contains with the same size and version stays there, so that its blobs
// keep their keys. The objects must ascend by key; otherwise the error wraps
// schema.ErrUnavailable.
func NewListing(bucket, reading string, unread bool, objects []schema.Object, base []Base) (*Listing, error) {
	for i := 1; i < len(objects); i++ {
		if objects[i-1].Key >= objects[i].Key {
			return nil, fmt.Errorf("%w: the bucket lists %s behind %s: keys must ascend", schema.ErrUnavailable,
				schema.Quote(objects[i].Key), schema.Quote(objects[i-1].Key))
		}
	}
	l := &Listing{bucket: bucket, reading: reading, unread: unread, objects: objects, places: make([]place, len(objects)),
		units: map[int][]schema.Unit{}}
	for i := range l.places {
		l.places[i].set = -1
	}
	for b := range base {
		if base[b].Set.Bucket == bucket && base[b].Set.Reading == reading {
			l.keep(&base[b])
		}
	}
	var fresh []int
	for i := range objects {
		if l.places[i].set < 0 {
			fresh = append(fresh, i)
		}
	}
	for part := range slices.Chunk(fresh, schema.MaxObjects) {
		made := schema.ObjectSet{Bucket: bucket, Reading: reading, Unproven: unread, Objects: make([]schema.Object, len(part))}
		for n, i := range part {
			made.Objects[n] = objects[i]
			l.places[i] = place{int32(len(l.sets)), uint32(n)}
		}
		l.sets = append(l.sets, set{prefix: made.Prefix(), objects: part})
	}
	return l, nil
}

// Base is an object set of the previous snapshot and its reference.
type Base struct {
	Ref schema.SetRef
	Set *schema.ObjectSet
	// Rows are the rows that may have blobs in the set, from one snapshot or several. An
	// object without any row is not reused. nil means that all objects are.
	Rows []*Rows
}

// has reports whether any row has a blob in an object of the set.
func (b *Base) has(number int) bool {
	return b.Rows == nil || slices.ContainsFunc(b.Rows, func(r *Rows) bool {
		in := r.used[b.Ref.Prefix]
		return in != nil && in.has(uint32(number))
	})
}

// keep assigns the objects that a set of the previous snapshot contains unchanged. Both
// lists ascend by key, so that one merge pass finds them.
func (l *Listing) keep(b *Base) {
	// The set is added even if no object matches. KeptSets leaves out sets without blobs.
	number := int32(len(l.sets))
	l.sets = append(l.sets, set{prefix: b.Ref.Prefix, known: &b.Ref})
	i := 0
	for n := range b.Set.Objects {
		was := &b.Set.Objects[n]
		for i < len(l.objects) && l.objects[i].Key < was.Key {
			i++
		}
		if i == len(l.objects) {
			return
		}
		if is := &l.objects[i]; is.Key == was.Key && is.Size == was.Size && is.Version == was.Version && b.has(n) {
			l.places[i] = place{number, uint32(n)}
			if was.Units != nil {
				l.units[i] = was.Units
			}
		}
	}
}

// find returns the index of a file in the listing. It tries the object found last and the
// next one before it searches, because sources read their objects in order.
func (l *Listing) find(file string) (int, bool) {
	for i := l.last; i < min(l.last+2, len(l.objects)); i++ {
		if l.objects[i].Key == file {
			l.last = i
			return i, true
		}
	}
	i, ok := l.index(file)
	if ok {
		l.last = i
	}
	return i, ok
}

// index is find without the memory of the last object, and so safe for concurrent use.
func (l *Listing) index(file string) (int, bool) {
	return slices.BinarySearchFunc(l.objects, file, func(o schema.Object, key string) int {
		return strings.Compare(o.Key, key)
	})
}

// A key has 6 bytes for an offset in an object, and 5 for one in a unit.
const (
	mostOffset = 1<<48 - 1 // offset in an object
	mostInUnit = 1<<40 - 1
)

// Ref makes the reference of a blob. Its key is the address of its extent. A nil data
// means that the blob was not read: the reference then has no checksum.
//
// If the file is not in the listing, the error wraps schema.ErrConflict. An extent
// outside its object wraps schema.ErrDataLoss, and an offset that an address cannot hold
// wraps schema.ErrNotSupported.
func (l *Listing) Ref(at source.Extent, data []byte) (schema.BlobRef, error) {
	read := data != nil
	i, ok := l.find(at.File)
	if !ok {
		return schema.BlobRef{}, fmt.Errorf("%w: %s came into the bucket after it was listed; attach it again",
			schema.ErrConflict, source.Quoted(at.File))
	}
	size, most := l.objects[i].Size, int64(mostOffset)
	if at.Unit != nil {
		size, most = at.Unit.Size, mostInUnit
	}
	if read && at.Length != int64(len(data)) || at.Length < 0 || at.Offset < 0 || at.Length > size-at.Offset {
		return schema.BlobRef{}, fmt.Errorf("%w: a blob of %d bytes is said to be at %d in %s, of %d bytes",
			schema.ErrDataLoss, at.Length, at.Offset, source.Quoted(at.File), size)
	}
	if at.Offset > most || at.Unit != nil && at.Unit.Offset > mostOffset {
		return schema.BlobRef{}, fmt.Errorf("%w: %s is further in its object than an address reaches",
			schema.ErrNotSupported, source.Quoted(at.File))
	}
	p := l.places[i]
	s := &l.sets[p.set]
	s.used = true
	a := schema.ObjectAddress{Prefix: s.prefix, Object: p.number, Offset: at.Offset}
	if at.Unit != nil {
		if err := l.addUnit(i, *at.Unit); err != nil {
			return schema.BlobRef{}, err
		}
		a.Packed, a.Unit = true, at.Unit.Offset
	}
	if !read {
		return schema.UnprovenRef(a, at.Length), nil
	}
	ref := schema.BlobRef{Size: at.Length, Sum: schema.Checksum(data)}
	ref.Key = a.Key(ref.Sum)
	return ref, nil
}

// addUnit records a compressed unit of an object. A second unit at the same offset must
// be equal. An object of a previous set cannot gain a unit: its set is stored, and its
// units with it.
func (l *Listing) addUnit(object int, u schema.Unit) error {
	units := l.units[object]
	at, found := slices.BinarySearchFunc(units, u.Offset, func(u schema.Unit, at int64) int {
		return cmp.Compare(u.Offset, at)
	})
	switch {
	case found && units[at] == u:
		return nil
	case found:
		return fmt.Errorf("%w: %s has two units at %d: %+v and %+v", schema.ErrDataLoss,
			source.Quoted(l.objects[object].Key), u.Offset, units[at], u)
	case l.sets[l.places[object].set].known != nil:
		return fmt.Errorf("%w: %s has a unit at %d that it had not when it was attached: %+v", schema.ErrDataLoss,
			source.Quoted(l.objects[object].Key), u.Offset, u)
	}
	l.units[object] = slices.Insert(units, at, u)
	return nil
}

// Keep records that a row keeps a reference of the previous snapshot. The set in its key
// stays part of the new snapshot.
func (l *Listing) Keep(key schema.Key) {
	a, _ := schema.ParseObjectAddress(key)
	for i := range l.sets {
		if l.sets[i].prefix == a.Prefix {
			l.sets[i].used = true
			return
		}
	}
}

// Keeps reports whether any object is in a set of the previous snapshot.
func (l *Listing) Keeps() bool {
	return slices.ContainsFunc(l.places, func(p place) bool { return l.sets[p.set].known != nil })
}

// KeptSets lists the sets of the previous snapshot that still have blobs.
func (l *Listing) KeptSets() []schema.SetRef {
	var kept []schema.SetRef
	for _, s := range l.sets {
		if s.known != nil && s.used {
			kept = append(kept, *s.known)
		}
	}
	return kept
}

// Made yields the new sets that have blobs, with the units known so far. It is called
// after the last Ref: a set that was yielded earlier would lack later units.
func (l *Listing) Made(yield func(*schema.ObjectSet) bool) {
	for _, s := range l.sets {
		if s.known != nil || !s.used {
			continue
		}
		made := &schema.ObjectSet{Bucket: l.bucket, Reading: l.reading, Unproven: l.unread,
			Objects: make([]schema.Object, len(s.objects))}
		for n, i := range s.objects {
			made.Objects[n] = l.objects[i]
			made.Objects[n].Units = l.units[i]
		}
		if !yield(made) {
			return
		}
	}
}

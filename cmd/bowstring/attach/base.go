package attach

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Rows are the rows of the previous snapshot: their ids, their references and some
// columns. An attachment reuses them for rows whose objects have not changed. A row takes
// about 20 bytes of memory, plus 48 for each blob and its columns.
//
// Rows do not change after ReadRows: any number of goroutines may use them.
type Rows struct {
	store store.Store
	form  *schema.Form
	ids   []schema.ID // ids by position
	order []uint32    // positions, sorted by their ids
	// refs holds the references of each blob column by position. A null has the size
	// null.
	refs    [][]schema.BlobRef
	columns map[string]arrow.Array
	used    map[schema.ObjectPrefix]*numbers // numbers of the objects with blobs, by set
	// columns are the kept columns by name, each as long as the snapshot. A column that the
	// snapshot lacks is absent.
}

// numbers is a set of object numbers within one object set. A bitmap of schema.MaxObjects
// bits costs the same for any content, and a lookup is one load.
type numbers [schema.MaxObjects / 64]uint64

func (n *numbers) add(i uint32)      { n[i/64] |= 1 << (i % 64) }
func (n *numbers) has(i uint32) bool { return n[i/64]&(1<<(i%64)) != 0 }

// null is the size of a reference that stands for a null. A pointer for each reference
// would cost a heap object for each blob.
const null = -1

// ReadRows reads all rows of a snapshot. columns names the columns that are kept in
// memory; the snapshot may lack some of them. An error of the store ends it, and so does
// a cancelled ctx.
func ReadRows(ctx context.Context, st store.Store, snap *schema.Snapshot, columns []string) (*Rows, error) {
	form, err := schema.NewForm(snap)
	if err != nil {
		return nil, err
	}
	blobs := schema.BlobFields(snap.Schema)
	r := &Rows{store: st, form: form, ids: make([]schema.ID, 0, snap.Rows()), refs: make([][]schema.BlobRef, len(blobs)),
		used: map[schema.ObjectPrefix]*numbers{}}
	for c := range r.refs {
		r.refs[c] = make([]schema.BlobRef, 0, snap.Rows())
	}
	r.columns, err = r.read(ctx, snap.Chunks, columns, func(page *schema.Page) error {
		for i := range page.Rows() {
			r.ids = append(r.ids, page.ID(i))
			for c := range blobs {
				ref, ok, err := page.TryBlob(c, i)
				if err != nil {
					return err
				}
				if !ok {
					ref.Size = null
				} else if a, ok := schema.ParseObjectAddress(ref.Key); ok && a.Object < schema.MaxObjects {
					r.use(a)
				}
				r.refs[c] = append(r.refs[c], ref)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The ids stay in the order of the snapshot, because columns and splits go by
	// position. Lookups by id use a permutation of 4 bytes a row instead of a map, which
	// would take several times that.
	r.order = make([]uint32, len(r.ids))
	for i := range r.order {
		r.order[i] = uint32(i)
	}
	slices.SortFunc(r.order, func(a, b uint32) int { return bytes.Compare(r.ids[a][:], r.ids[b][:]) })
	return r, nil
}

// use records that an object has a blob, so that Base.has can answer without its rows.
func (r *Rows) use(a schema.ObjectAddress) {
	in := r.used[a.Prefix]
	if in == nil {
		in = &numbers{}
		r.used[a.Prefix] = in
	}
	in.add(a.Object)
}

// read reads the named columns of some chunks and passes each of their pages to visit. It
// makes one pass over the pages, because each page is fetched and decoded once. The
// arrays of a name that the schema lacks, or has twice, are absent from the result.
func (r *Rows) read(ctx context.Context, chunks []schema.Chunk, columns []string,
	visit func(*schema.Page) error) (map[string]arrow.Array, error) {
	snap := r.form.Snapshot()
	builders, at := map[string]*schema.ColumnBuilder{}, map[string]int{}
	for _, name := range columns {
		if i := snap.Schema.FieldIndices(name); len(i) == 1 {
			var err error
			if at[name], err = r.form.ColumnIndex(name); err != nil {
				return nil, err
			}
			builders[name] = schema.NewColumnBuilder(snap.Schema.Field(i[0]))
		}
	}
	err := store.EachPage(ctx, snap, chunks, r.store.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		page := m.Page(0)
		for name, b := range builders {
			if err := b.Append(page.Column(at[name]), 0, page.Rows()); err != nil {
				return err
			}
		}
		return visit(page)
	})
	if err != nil {
		return nil, fmt.Errorf("read the rows of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	found := map[string]arrow.Array{}
	for name, b := range builders {
		found[name] = b.Array()
	}
	return found, nil
}

// Schema is the schema of the snapshot that the rows come from.
func (r *Rows) Schema() *arrow.Schema { return r.form.Snapshot().Schema }

// Fits reports whether rows of schema s can take references and columns of these rows.
// The blob columns must be the same, in the same order, because references go by
// position. A kept column that s has must have the same type.
func (r *Rows) Fits(s *arrow.Schema) bool {
	same := func(a, b arrow.Field) bool { return a.Name == b.Name && arrow.TypeEqual(a.Type, b.Type) }
	if !slices.EqualFunc(schema.BlobFields(r.Schema()), schema.BlobFields(s), same) {
		return false
	}
	for name, column := range r.columns {
		i := s.FieldIndices(name)
		if len(i) == 1 && !arrow.TypeEqual(s.Field(i[0]).Type, column.DataType()) {
			return false
		}
	}
	return true
}

// Has reports whether the rows contain an id.
func (r *Rows) Has(id schema.ID) bool {
	_, ok := r.find(id)
	return ok
}

// Same reports whether the rows contain an id with exactly these references. ref returns
// the reference of a blob column, nil for a null.
func (r *Rows) Same(id schema.ID, ref func(column int) *schema.BlobRef) bool {
	row, ok := r.find(id)
	for c := range r.refs {
		if !ok {
			break
		}
		have, got := &r.refs[c][row], ref(c)
		ok = got == nil && have.Size == null || got != nil && *got == *have
	}
	return ok
}

// find returns the position of an id in the snapshot.
func (r *Rows) find(id schema.ID) (row int, ok bool) {
	at, ok := slices.BinarySearchFunc(r.order, id, func(x uint32, id schema.ID) int { return bytes.Compare(r.ids[x][:], id[:]) })
	if !ok {
		return 0, false
	}
	return int(r.order[at]), true
}

// known assembles a source.Known from row's references and columns. begin is the row of
// the snapshot at which the arrays in columns start. The references point into r: the
// caller does not change them.
func (r *Rows) known(row int, columns map[string]arrow.Array, begin int) source.Known {
	refs := make([]*schema.BlobRef, len(r.refs))
	for c := range refs {
		if ref := &r.refs[c][row]; ref.Size != null {
			refs[c] = ref
		}
	}
	return source.Known{Refs: refs, Column: func(name string) any {
		if column := columns[name]; column != nil {
			return source.Cell{Array: column, Row: row - begin}
		}
		return nil
	}}
}

// Known returns the stored row of a sample if its blobs are at the same extents of
// objects that have not changed, and nil otherwise. Any number of goroutines may call it,
// also while another one calls Ref and Keep: it uses index, which does not touch l.last.
func (l *Listing) Known(rows *Rows, id schema.ID, at []source.Extent) *source.Known {
	row, ok := rows.find(id)
	if !ok || len(at) != len(rows.refs) {
		return nil
	}
	for c, e := range at {
		ref := &rows.refs[c][row]
		if e.IsZero() != (ref.Size == null) {
			return nil
		}
		if e.IsZero() {
			continue
		}
		i, ok := l.index(e.File)
		if !ok || e.Length != ref.Size {
			return nil
		}
		// An address names its object by set and number. If the object had changed,
		// NewListing would have put it into another set, so equal addresses mean equal
		// content.
		p := l.places[i]
		want := schema.ObjectAddress{Prefix: l.sets[p.set].prefix, Object: p.number, Offset: e.Offset}
		if e.Unit != nil {
			want.Packed, want.Unit = true, e.Unit.Offset
		}
		if have, ok := schema.ParseObjectAddress(ref.Key); !ok || have != want {
			return nil
		}
	}
	known := rows.known(row, rows.columns, 0)
	return &known
}

// Proves reports whether a row has its blobs at the same extents of the same versions of
// the same objects, and whether it gained at least one checksum by that. Each blob must
// have a checksum now. sets are the object sets of the previous snapshot, at returns the
// extent of a blob column, and ref its new reference. Keys cannot be compared, because
// the key of a blob without a checksum differs from its key with one.
func (l *Listing) Proves(rows *Rows, sets []Base, id schema.ID, at func(column int) source.Extent,
	ref func(column int) *schema.BlobRef) bool {
	row, ok := rows.find(id)
	unproven := false
	for c := range rows.refs {
		if !ok {
			return false
		}
		was, is, e := &rows.refs[c][row], ref(c), at(c)
		if was.Size == null || is == nil {
			ok = was.Size == null && is == nil
			continue
		}
		i, found := l.index(e.File)
		a, addressed := schema.ParseObjectAddress(was.Key)
		s := slices.IndexFunc(sets, func(b Base) bool { return b.Ref.Prefix == a.Prefix })
		if !found || !addressed || s < 0 || int(a.Object) >= len(sets[s].Set.Objects) || is.Unproven() {
			return false
		}
		object, now := &sets[s].Set.Objects[a.Object], &l.objects[i]
		ok = sets[s].Set.Bucket == l.bucket && object.Key == now.Key && object.Size == now.Size &&
			object.Version == now.Version && is.Size == was.Size && a.Offset == e.Offset && a.Packed == (e.Unit != nil) &&
			(e.Unit == nil || a.Unit == e.Unit.Offset)
		unproven = unproven || was.Unproven()
	}
	return ok && unproven
}

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

// Rows are the rows of the snapshot before: their ids, references and some columns, which an update keeps of rows whose
// objects have not changed. It takes about 24 bytes a row, 48 for each blob, and the columns.
type Rows struct {
	schema  *arrow.Schema
	ids     []idAt // in order
	refs    [][]schema.BlobRef
	columns map[string]arrow.Array
}

type idAt struct {
	id  schema.ID
	row int
}

// null is the size of a reference in the place of a null.
const null = -1

// ReadRows reads the rows of a snapshot. columns names those that are kept; the snapshot may lack
// some.
func ReadRows(ctx context.Context, st store.Store, snap *schema.Snapshot, columns []string) (*Rows, error) {
	form, err := schema.NewForm(snap)
	if err != nil {
		return nil, err
	}
	blobs := schema.BlobFields(snap.Schema)
	r := &Rows{schema: snap.Schema, ids: make([]idAt, 0, snap.Rows()), refs: make([][]schema.BlobRef, len(blobs)),
		columns: map[string]arrow.Array{}}
	builders, at := map[string]*schema.ColumnBuilder{}, map[string]int{}
	for _, name := range columns {
		if i := snap.Schema.FieldIndices(name); len(i) == 1 {
			if at[name], err = form.ColumnIndex(name); err != nil {
				return nil, err
			}
			builders[name] = schema.NewColumnBuilder(snap.Schema.Field(i[0]))
		}
	}
	err = store.EachPage(ctx, snap, snap.Chunks, st.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		page := m.Page(0)
		for i := range page.Rows() {
			r.ids = append(r.ids, idAt{page.ID(i), len(r.ids)})
			for c := range blobs {
				ref, ok, err := page.TryBlob(c, i)
				if err != nil {
					return err
				}
				if !ok {
					ref.Size = null
				}
				r.refs[c] = append(r.refs[c], ref)
			}
		}
		for name, b := range builders {
			if err := b.Append(page.Column(at[name]), 0, page.Rows()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the rows of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	for name, b := range builders {
		r.columns[name] = b.Array()
	}
	slices.SortFunc(r.ids, func(a, b idAt) int { return bytes.Compare(a.id[:], b.id[:]) })
	return r, nil
}

// Fits reports whether rows of a schema can take references and columns of these: the blob columns are the same, and so
// are the columns that were kept.
func (r *Rows) Fits(s *arrow.Schema) bool {
	same := func(a, b arrow.Field) bool { return a.Name == b.Name && arrow.TypeEqual(a.Type, b.Type) }
	if !slices.EqualFunc(schema.BlobFields(r.schema), schema.BlobFields(s), same) {
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

// Has reports whether there is a row with an id.
func (r *Rows) Has(id schema.ID) bool {
	_, ok := r.find(id)
	return ok
}

// Same reports whether there is a row with an id and these references.
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

func (r *Rows) find(id schema.ID) (row int, ok bool) {
	at, ok := slices.BinarySearchFunc(r.ids, id, func(x idAt, id schema.ID) int { return bytes.Compare(x.id[:], id[:]) })
	if !ok {
		return 0, false
	}
	return r.ids[at].row, true
}

// Known returns what is known of a sample whose blobs lie where they lay, in objects that have not changed; nil of any
// other. It is safe for concurrent use, and beside one caller of Ref and Keep.
func (l *Listing) Known(rows *Rows, id schema.ID, at []source.Extent) *source.Known {
	row, ok := rows.find(id)
	if !ok || len(at) != len(rows.refs) {
		return nil
	}
	refs := make([]*schema.BlobRef, len(at))
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
		p := l.places[i]
		want := schema.ObjectAddress{Prefix: l.sets[p.set].prefix, Object: p.number, Offset: e.Offset}
		if e.Unit != nil {
			want.Packed, want.Unit = true, e.Unit.Offset
		}
		if have, ok := schema.ParseObjectAddress(ref.Key); !ok || have != want {
			return nil
		}
		refs[c] = ref
	}
	return &source.Known{Refs: refs, Column: func(name string) any {
		if column := rows.columns[name]; column != nil {
			return source.Cell{Array: column, Row: row}
		}
		return nil
	}}
}

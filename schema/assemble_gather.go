package schema

import (
	"encoding/hex"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
)

// gatherer makes columns of rows.
type gatherer struct {
	form  *Form
	rows  []Row
	pages []*Page // that the rows lie in, each once
}

// gatherColumn gathers a stored column. Where there are no rows, there is no page to
// take the type from.
func (m *gatherer) gatherColumn(a *arena, col int, runs []run, n int) (Vector, error) {
	if len(m.pages) == 0 {
		v := emptyView(m.form.snap.Schema.Field(col).Type)
		return gather(a, []*view{&v}, nil, 0)
	}
	views := make([]*view, len(m.pages))
	for i, p := range m.pages {
		views[i] = &p.columns[col]
	}
	return gather(a, views, runs, n)
}

// emptyView is a column of no rows.
func emptyView(dt arrow.DataType) view {
	v := view{dt: dt, off32: make([]int32, 1), off64: make([]int64, 1)}
	v.shape, v.width = shapeOf(dt)
	if nested, ok := dt.(arrow.NestedType); ok {
		for _, f := range nested.Fields() {
			v.children = append(v.children, emptyView(f.Type))
		}
	}
	return v
}

// runs cuts the rows into runs of consecutive ones of a page, and lists the pages.
func (m *gatherer) runs(a *arena) []run {
	count := 0
	for i, r := range m.rows {
		if i == 0 || r.Page != m.rows[i-1].Page || r.At != m.rows[i-1].At+1 {
			count++
		}
	}
	out := arenaRuns(a, count)[:0]
	var at map[*Page]int
	for i := 0; i < len(m.rows); {
		first := m.rows[i]
		n := 1
		for i+n < len(m.rows) && m.rows[i+n] == (Row{first.Page, first.At + n}) {
			n++
		}
		page := len(m.pages) - 1
		if page < 0 || m.pages[page] != first.Page {
			known, ok := at[first.Page]
			if page = known; !ok {
				if at == nil {
					at = map[*Page]int{}
				}
				page = len(m.pages)
				at[first.Page] = page
				m.pages = append(m.pages, first.Page)
			}
		}
		out = append(out, run{page, first.At, n})
		i += n
	}
	return out
}

// emptyCells reports whether the cell of a row is an empty blob and not null:
// the store may return a nil slice for it, as for the zero Blob.
func (m *gatherer) emptyCells(col int) func(row int) bool {
	return func(row int) bool {
		ref, ok := m.rows[row].Blob(col)
		return ok && ref.Size == 0
	}
}

// emptyOf is emptyCells of a column. What operators made is nil only where it is null.
func (m *gatherer) emptyOf(p *Projection, c outColumn) func(row int) bool {
	if c.form != nil {
		return func(int) bool { return false }
	}
	return m.emptyCells(p.blobs[c.src])
}

// refsOf returns the references of a column's cells by row.
func (m *gatherer) refsOf(col int) func(row int) BlobRef {
	return func(row int) BlobRef {
		ref, _ := m.rows[row].Blob(col)
		return ref
	}
}

// mediaColumn is a blob column as struct<bytes: binary, path: utf8>.
func (m *gatherer) mediaColumn(a *arena, c outColumn, blobs []Blob, ordinal int, runs []run) (Vector, error) {
	n := len(blobs)
	content, err := blobColumn[int32](a, arrow.BinaryTypes.Binary, blobs, m.emptyCells(ordinal), m.refsOf(ordinal))
	if err != nil {
		return Vector{}, err
	}
	var path Vector
	if c.path < 0 {
		path = Vector{Type: arrow.BinaryTypes.String, Len: n, Nulls: n, Buffers: []Buffer{
			pieces(a.zeroed((n + 7) / 8)), pieces(a.zeroed(4 * (n + 1))), {}}}
	} else if path, err = m.gatherColumn(a, c.path, runs, n); err != nil {
		return Vector{}, err
	} else if path.Type.ID() == arrow.LARGE_STRING {
		if path, err = narrow(a, path); err != nil {
			return Vector{}, err
		}
	}
	return Vector{Type: mediaType, Len: n, Nulls: content.Nulls,
		Buffers: content.Buffers[:1:1], Children: []Vector{content, path}}, nil
}

// narrow makes a utf8 of a large_utf8.
func narrow(a *arena, v Vector) (Vector, error) {
	if v.Buffers[2].Len > math.MaxInt32 {
		return Vector{}, fmt.Errorf("%w: a batch holds more than 2^31-1 bytes of paths", ErrLimit)
	}
	dst := cast[int32](a.bytes(4 * (v.Len + 1)))
	for i, o := range cast[int64](v.Buffers[1].Pieces[0]) { // offsets are one piece
		dst[i] = int32(o)
	}
	return Vector{Type: arrow.BinaryTypes.String, Len: v.Len, Nulls: v.Nulls,
		Buffers: []Buffer{v.Buffers[0], pieces(asBytes(dst)), v.Buffers[2]}}, nil
}

// unfix makes a binary of a fixed_size_binary.
func unfix(a *arena, v Vector) (Vector, error) {
	width := int64(v.Type.(*arrow.FixedSizeBinaryType).ByteWidth)
	if width*int64(v.Len) > math.MaxInt32 {
		return Vector{}, fmt.Errorf("%w: a batch holds more than 2^31-1 bytes of a column of type binary", ErrLimit)
	}
	dst := cast[int32](a.bytes(4 * (v.Len + 1)))
	for i := range dst {
		dst[i] = int32(int64(i) * width)
	}
	return Vector{Type: arrow.BinaryTypes.Binary, Len: v.Len, Nulls: v.Nulls,
		Buffers: []Buffer{v.Buffers[0], pieces(asBytes(dst)), v.Buffers[1]}}, nil
}

const idTextLen = 36

// idText is the id column in the canonical form of 36 characters.
func (m *gatherer) idText(a *arena) Vector {
	n := len(m.rows)
	off := cast[int32](a.bytes(4 * (n + 1)))
	text := a.bytes(idTextLen * n)
	for i, row := range m.rows {
		off[i] = int32(idTextLen * i)
		putID(text[idTextLen*i:], row.ID())
	}
	off[n] = int32(idTextLen * n)
	return Vector{Type: arrow.BinaryTypes.String, Len: n, Buffers: []Buffer{{}, pieces(asBytes(off)), pieces(text)}}
}

// putID writes the canonical form of id into dst.
func putID(dst []byte, id ID) {
	at := 0
	for i, n := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			dst[at] = '-'
			at++
		}
		from := [...]int{0, 4, 6, 8, 10}[i]
		at += hex.Encode(dst[at:], id[from:from+n])
	}
}

// sizeColumn is the virtual column of the sizes of a blob column.
func (m *gatherer) sizeColumn(a *arena, col int) Vector {
	n := len(m.rows)
	dst := cast[int64](a.bytes(8 * n))
	validity, nulls := m.eachBlob(a, col, func(i int, ref BlobRef) { dst[i] = ref.Size })
	return Vector{Type: arrow.PrimitiveTypes.Int64, Len: n, Nulls: nulls,
		Buffers: []Buffer{pieces(validity), pieces(asBytes(dst))}}
}

// keyColumn is the virtual column of the keys of a blob column.
func (m *gatherer) keyColumn(a *arena, col int) Vector {
	n := len(m.rows)
	dst := a.bytes(len(Key{}) * n)
	validity, nulls := m.eachBlob(a, col, func(i int, ref BlobRef) { copy(dst[i*len(ref.Key):], ref.Key[:]) })
	return Vector{Type: keyType, Len: n, Nulls: nulls, Buffers: []Buffer{pieces(validity), pieces(dst)}}
}

// eachBlob calls f with the references of a blob column, the zero one for null, and returns which of them are not null,
// if some are.
func (m *gatherer) eachBlob(a *arena, col int, f func(i int, ref BlobRef)) (validity []byte, nulls int) {
	for i, row := range m.rows {
		ref, ok := row.Blob(col)
		f(i, ref)
		if ok {
			continue
		}
		if validity == nil {
			validity = ones(a, len(m.rows))
		}
		validity[i>>3] &^= 1 << (i & 7)
		nulls++
	}
	return validity, nulls
}

package schema

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
)

// Assemble is AssembleRows for the samples at positions of an open manifest, which must
// stay open until the batch is released.
func (p *Projection) Assemble(m *Manifest, positions []int64, blobs [][]Blob) (*Batch, error) {
	rows, err := m.At(positions)
	if err != nil {
		releaseBlobs(blobs)
		return nil, err
	}
	return p.AssembleRows(m.form, positions, rows, blobs, nil)
}

// AssembleRows makes the batch of the samples at positions, in that order; repeats are
// allowed. rows are their rows, whose pages must stay open until the batch is released.
// blobs holds the blobs of each column of BlobColumns, by row; the zero Blob is a null.
// The batch owns the pins from now on, and they are released if AssembleRows fails.
// computed holds the columns that Computed names, with as many rows, which the batch
// keeps pointing at; without rows it may be nil.
//
// Neither blobs nor long runs of consecutive rows are copied: the batch points at them.
// Scattered cells are copied into memory that the batch owns.
func (p *Projection) AssembleRows(f *Form, positions []int64, rows []Row, blobs [][]Blob,
	computed []Vector) (*Batch, error) {
	b := &Batch{Schema: p.Schema, Rows: len(positions), Blobs: blobs, arena: newArena(len(positions))}
	err := Guard(func() error {
		if err := p.assemble(b, f, positions, rows, computed); err != nil {
			return err
		}
		// The sender of the batch cannot report a page that cannot be read, so all pages
		// are touched here. Blobs were checked before.
		for i, c := range p.columns {
			if c.kind == outStored {
				b.Columns[i].touch()
			}
		}
		p.slices.cut(b)
		return nil
	})
	if err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// assemble checks the arguments and fills b.Columns. Page faults become errors in
// AssembleRows, which also releases the blobs on failure.
func (p *Projection) assemble(b *Batch, f *Form, positions []int64, rows []Row, computed []Vector) error {
	if len(rows) != len(positions) {
		return fmt.Errorf("%w: %d rows at %d positions", ErrInvalid, len(rows), len(positions))
	}
	if len(b.Blobs) != len(p.blobs) {
		return fmt.Errorf("%w: %d columns of blobs, the projection has %d", ErrInvalid, len(b.Blobs), len(p.blobs))
	}
	for i := range b.Blobs {
		if len(b.Blobs[i]) != len(positions) {
			return fmt.Errorf("%w: %d blobs for %d rows", ErrInvalid, len(b.Blobs[i]), len(positions))
		}
	}
	if len(computed) != len(p.computed) && len(positions) > 0 {
		return fmt.Errorf("%w: %d columns were computed, the projection has %d", ErrInvalid, len(computed),
			len(p.computed))
	}
	m := gatherer{form: f, rows: rows}
	runs := m.runs(b.arena)
	n := len(positions)
	b.Columns = make([]Vector, len(p.columns))
	for i, c := range p.columns {
		var v Vector
		var err error
		switch c.kind {
		case outStored:
			v, err = m.gatherColumn(b.arena, c.src, runs, n)
		case outText:
			v = m.idText(b.arena)
		case outUnfixed:
			if v, err = m.gatherColumn(b.arena, c.src, runs, n); err == nil {
				v, err = unfix(b.arena, v)
			}
		case outPosition:
			dst := cast[int64](b.arena.bytes(8 * n))
			copy(dst, positions)
			f.positionsIn(dst)
			v = Vector{Type: arrow.PrimitiveTypes.Int64, Len: n, Buffers: []Buffer{{}, pieces(asBytes(dst))}}
		case outSplit:
			v, err = f.splitColumn(b.arena, positions)
		case outSource:
			v, err = f.sourceColumn(b.arena, positions)
		case outSize:
			v = m.sizeColumn(b.arena, c.src)
		case outKey:
			v = m.keyColumn(b.arena, c.src)
		case outAnyKey:
			v, err = unfix(b.arena, m.keyColumn(b.arena, c.src))
		case outBlob8:
			v, err = blobColumn[int64](b.arena, arrow.BinaryTypes.LargeBinary, b.Blobs[c.src], m.emptyOf(p, c),
				m.refsOf(p.blobs[c.src]))
			v.Blobs = b.Blobs[c.src]
		case outBlob4:
			v, err = blobColumn[int32](b.arena, arrow.BinaryTypes.Binary, b.Blobs[c.src], m.emptyOf(p, c),
				m.refsOf(p.blobs[c.src]))
			v.Blobs = b.Blobs[c.src]
		case outMedia:
			v, err = m.mediaColumn(b.arena, c, b.Blobs[c.src], p.blobs[c.src], runs)
		case outMade:
			v, err = madeColumn(b.arena, c.form, p.Schema.Field(i).Type, b.Blobs[c.src])
		case outParams:
			v, err = paramsColumn(b.arena, b.Blobs[c.src])
		case outLength:
			v = lengthColumn(b.arena, b.Blobs[c.src], c.form.ragged())
		case outComputed:
			v, err = p.computedColumn(b.arena, computed, c.src, n)
		case outPacked:
		}
		if err != nil {
			return fmt.Errorf("column %q: %w", p.Schema.Field(i).Name, err)
		}
		b.Columns[i] = v
	}
	return nil
}

// computedColumn is a column of computed. If there are no rows, it may be missing there.
func (p *Projection) computedColumn(a *arena, computed []Vector, at, n int) (Vector, error) {
	dt := p.computed[at].Type
	if n == 0 {
		v := emptyView(dt)
		return gather(a, []*view{&v}, nil, 0)
	}
	if v := computed[at]; v.Len != n || !arrow.TypeEqual(v.Type, dt) {
		return Vector{}, fmt.Errorf("%w: what was computed is %d rows of %s, want %d of %s", ErrInvalid, v.Len,
			ShownType(v.Type), n, ShownType(dt))
	}
	return computed[at], nil
}

// blobColumn lays out blobs as a binary column without copying them. empty reports
// whether a row is an empty blob, which a nil slice alone does not show. ref is called
// for rows whose blobs were not checked.
func blobColumn[T int32 | int64](a *arena, dt arrow.DataType, blobs []Blob, empty func(row int) bool,
	ref func(row int) BlobRef) (Vector, error) {
	n := len(blobs)
	width, most := 8, int64(math.MaxInt64)
	if dt.ID() == arrow.BINARY {
		width, most = 4, math.MaxInt32
	}
	off := cast[T](a.bytes((n + 1) * width))
	values := make([][]byte, 0, n)
	nulls, total := 0, int64(0)
	var validity []byte
	var unchecked []Unchecked
	if slices.ContainsFunc(blobs, func(b Blob) bool { return b.Unchecked() }) {
		unchecked = make([]Unchecked, 0, n)
	}
	for i := range blobs {
		off[i] = T(total)
		b := blobs[i].Bytes()
		if b == nil && !empty(i) {
			if validity == nil {
				validity = ones(a, n)
			}
			validity[i>>3] &^= 1 << (i & 7)
			nulls++
			continue
		}
		if int64(len(b)) > most-total {
			return Vector{}, fmt.Errorf("%w: %d blobs hold more than 2^31-1 bytes, the most of a batch in the layout "+
				"%q; ask for a smaller batch or the layout %q",
				ErrLimit, n, LayoutBinary, LayoutLargeBinary)
		}
		if len(b) > 0 {
			values = append(values, b)
			if unchecked != nil {
				unchecked = append(unchecked, Unchecked{Row: i, Ref: ref(i)})
			}
			total += int64(len(b))
		}
	}
	off[n] = T(total)
	return Vector{Type: dt, Len: n, Nulls: nulls,
			Buffers: []Buffer{pieces(validity), pieces(asBytes(off)),
				{Pieces: values, Len: total, Unchecked: unchecked}}},
		nil
}

// ones returns a bitmap of n ones, followed by zeros.
func ones(a *arena, n int) []byte {
	bits := a.bytes((n + 7) / 8)
	for i := range bits {
		bits[i] = 0xff
	}
	if n&7 != 0 {
		bits[len(bits)-1] = 1<<(n&7) - 1
	}
	return bits
}

// splitColumn is the virtual column split. It reserves room for the longest name in each
// row, which wastes little: splits have short names.
func (f *Form) splitColumn(a *arena, positions []int64) (Vector, error) {
	n := len(positions)
	longest := 0
	for _, s := range f.splits {
		longest = max(longest, len(s.name))
	}
	if n > math.MaxInt32/MaxNameLen {
		return Vector{}, fmt.Errorf("%w: a batch of %d rows is too long for a column of type utf8", ErrLimit, n)
	}
	off := cast[int32](a.bytes(4 * (n + 1)))
	text := a.bytes(n * longest)
	total := 0
	var last *splitRange // neighbours are mostly in one split
	for i, pos := range positions {
		off[i] = int32(total)
		if last == nil || pos < last.Start || pos >= last.End {
			last = f.splitAt(pos)
		}
		if last != nil {
			total += copy(text[total:], last.name)
		}
	}
	off[n] = int32(total)
	return Vector{Type: arrow.BinaryTypes.String, Len: n,
		Buffers: []Buffer{{}, pieces(asBytes(off)), pieces(text[:total])}}, nil
}

// gatherer makes columns of scattered rows. It is for one batch.
type gatherer struct {
	form  *Form
	rows  []Row
	pages []*Page // the pages of rows, each once
}

// gatherColumn gathers a stored column. Without rows there is no page to take the type
// from, so an empty view is used.
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

// runs divides the rows into runs of consecutive rows of one page, and lists the pages.
// In a shuffled order most runs have one row; in a sequential one, a run is copied or
// referenced at once.
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

// emptyOf is emptyCells for a column. A cell that operators made is nil only if it is
// null.
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

// narrow converts a large_utf8 column to utf8.
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

// unfix converts a fixed_size_binary column to binary.
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

// putID writes the canonical text of an id into dst: 8-4-4-4-12 hexadecimal digits.
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

// eachBlob calls f with each reference of a blob column, the zero one for null. It
// returns the validity bitmap, nil if no cell is null.
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

// zeroCells replaces null tensors in a column of fixed size. All nulls share it, so they
// take no memory.
var zeroCells = alignedBytes(64 << 10)

// madeColumn lays out cells that operators have made, without copying them.
func madeColumn(a *arena, form *MadeForm, dt arrow.DataType, blobs []Blob) (Vector, error) {
	if form.Elements() >= 0 {
		return fixedTensors(a, form, dt, blobs)
	}
	return variableTensors(a, form, dt, blobs)
}

// missing is the validity bitmap of cells, nil if all are there, and the number of nulls.
func missing(a *arena, blobs []Blob) (validity []byte, nulls int) {
	for i := range blobs {
		if blobs[i].Made() != nil {
			continue
		}
		if validity == nil {
			validity = ones(a, len(blobs))
		}
		validity[i>>3] &^= 1 << (i & 7)
		nulls++
	}
	return validity, nulls
}

// fixedTensors lays out tensors of one shape: arrow.fixed_shape_tensor, a fixed_size_list
// without offsets.
func fixedTensors(a *arena, form *MadeForm, dt arrow.DataType, blobs []Blob) (Vector, error) {
	size := form.CellBytes()
	values := Buffer{Pieces: make([][]byte, 0, len(blobs)), Len: size * int64(len(blobs))}
	validity, nulls := missing(a, blobs)
	for i := range blobs {
		if blobs[i].Made() == nil {
			for left := size; left > 0; {
				n := min(left, int64(len(zeroCells)))
				values.Pieces = append(values.Pieces, zeroCells[:n])
				left -= n
			}
			continue
		}
		b := blobs[i].Bytes()
		if int64(len(b)) != size {
			return Vector{}, fmt.Errorf("%w: a tensor has %d bytes, its column's have %d", ErrInvalid, len(b), size)
		}
		values.Pieces = append(values.Pieces, b)
	}
	child := Vector{Type: elements[form.DType], Len: int(form.Elements()) * len(blobs), Buffers: []Buffer{{}, values}}
	return Vector{Type: dt, Len: len(blobs), Nulls: nulls, Buffers: []Buffer{pieces(validity)},
		Children: []Vector{child}}, nil
}

// variableTensors lays out tensors of several shapes: arrow.variable_shape_tensor, a
// struct of a list of elements and a list of sizes.
func variableTensors(a *arena, form *MadeForm, dt arrow.DataType, blobs []Blob) (Vector, error) {
	n, axes := len(blobs), len(form.Shape)
	validity, nulls := missing(a, blobs)
	offsets := cast[int32](a.bytes(4 * (n + 1)))
	shapes := cast[int32](a.zeroed(4 * n * axes))
	values := Buffer{Pieces: make([][]byte, 0, n)}
	at := int64(0)
	for i := range blobs {
		offsets[i] = int32(at)
		cell := blobs[i].Made()
		if cell == nil {
			continue
		}
		b := blobs[i].Bytes()
		if at += int64(len(b)) / form.ElementBytes(); at > math.MaxInt32 || len(cell.Shape) != axes {
			return Vector{}, fmt.Errorf("%w: %d tensors have more than 2^31-1 elements, the most of a batch; ask for "+
				"a smaller batch or batch_bytes", ErrLimit, n)
		}
		if len(b) > 0 {
			values.Pieces, values.Len = append(values.Pieces, b), values.Len+int64(len(b))
		}
		copy(shapes[i*axes:], cell.Shape)
	}
	offsets[n] = int32(at)
	fields := dt.(*arrow.StructType).Fields()
	data := Vector{Type: fields[0].Type, Len: n, Buffers: []Buffer{{}, pieces(asBytes(offsets))},
		Children: []Vector{{Type: elements[form.DType], Len: int(at), Buffers: []Buffer{{}, values}}}}
	shape := Vector{Type: fields[1].Type, Len: n, Buffers: []Buffer{{}},
		Children: []Vector{{Type: arrow.PrimitiveTypes.Int32, Len: n * axes,
			Buffers: []Buffer{{}, pieces(asBytes(shapes))}}}}
	return Vector{Type: dt, Len: n, Nulls: nulls, Buffers: []Buffer{pieces(validity)}, Children: []Vector{data, shape}},
		nil
}

// paramsColumn is the column of the random parameters of each cell, as JSON.
func paramsColumn(a *arena, blobs []Blob) (Vector, error) {
	n := len(blobs)
	validity, nulls := missing(a, blobs)
	offsets := cast[int32](a.bytes(4 * (n + 1)))
	total := 0
	for i := range blobs {
		offsets[i] = int32(total)
		if cell := blobs[i].Made(); cell != nil {
			total += len(cell.Params)
		}
		if total > math.MaxInt32 {
			return Vector{}, fmt.Errorf("%w: a batch holds more than 2^31-1 bytes of drawn parameters", ErrLimit)
		}
	}
	offsets[n] = int32(total)
	text := a.bytes(total)
	for i := range blobs {
		if cell := blobs[i].Made(); cell != nil {
			copy(text[offsets[i]:], cell.Params)
		}
	}
	return Vector{Type: arrow.BinaryTypes.String, Len: n, Nulls: nulls,
		Buffers: []Buffer{pieces(validity), pieces(asBytes(offsets)), pieces(text)}}, nil
}

// lengthColumn is the size of each cell along an axis.
func lengthColumn(a *arena, blobs []Blob, axis int) Vector {
	validity, nulls := missing(a, blobs)
	dst := cast[int64](a.zeroed(8 * len(blobs)))
	for i := range blobs {
		if cell := blobs[i].Made(); cell != nil && axis < len(cell.Shape) {
			dst[i] = int64(cell.Shape[axis])
		}
	}
	return Vector{Type: arrow.PrimitiveTypes.Int64, Len: len(blobs), Nulls: nulls,
		Buffers: []Buffer{pieces(validity), pieces(asBytes(dst))}}
}

package tokens

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/where"
	"bowstring/schema"
)

// inTurn is how many tokens one turn processes: some milliseconds.
const inTurn = 1 << 20

// Make makes the column for the rows at positions, in its own memory. The caller keeps
// the rows' pages open meanwhile. Long work is done within turns. A row in which a source
// column is null is null. A row that fails is a fault, and null in the column. If
// on_error does not permit faults, Make returns the first fault and no column.
func (m *Maker) Make(ctx context.Context, f *schema.Form, positions []int64, rows []schema.Row,
	turn where.Turn) (schema.Vector, []where.RowFault, error) {
	w := &making{Maker: m, rows: rows, pages: map[*schema.Page][]list{}}
	for _, name := range m.columns {
		column, err := f.ColumnIndex(name)
		if err != nil {
			return schema.Vector{}, nil, fmt.Errorf("%s: %w", m.place, err)
		}
		w.columns = append(w.columns, column)
	}
	if err := schema.Guard(w.measure); err != nil {
		return schema.Vector{}, nil, err
	}
	// A turn has a cost of its own: see where.Turn.
	if w.small() {
		turn = func(_ context.Context, piece func() error) error { return piece() }
	}
	for w.at < len(rows) {
		if ctx.Err() != nil {
			return schema.Vector{}, nil, context.Cause(ctx)
		}
		if err := turn(ctx, func() error { return schema.Guard(w.piece) }); err != nil {
			return schema.Vector{}, nil, err
		}
		if m.fails && len(w.faults) > 0 {
			return schema.Vector{}, w.faults, nil
		}
	}
	return w.vector(), w.faults, nil
}

// making is one run of Make. It belongs to the goroutine that called Make.
type making struct {
	*Maker
	columns []int // indexes of the source columns
	rows    []schema.Row
	pages   map[*schema.Page][]list // opened lists, by column
	at      int                     // next row
	most    int64                   // bound of the tokens of all rows
	cell    cell                    // of the current row, reused
	values  []byte
	ends    []int32 // ends of pieces, in tokens; of cells if they are not cut
	cells   []int32 // ends of cells that are cut, in pieces
	absent  []int   // null rows
	faults  []where.RowFault
}

// list is a source column of a page.
type list struct {
	*array.List
	append func(to []int64, from, end int64) []int64
	nulls  bool // some tokens are null
}

// lists returns the source columns of a page.
func (w *making) lists(p *schema.Page) []list {
	known := w.pages[p]
	if known != nil {
		return known
	}
	for _, column := range w.columns {
		l := list{List: p.Column(column).(*array.List)}
		values := l.ListValues()
		l.append, l.nulls = reading(values), values.NullN() > 0
		known = append(known, l)
	}
	w.pages[p] = known
	return known
}

// reading returns a function that appends tokens of an array.
func reading(a arrow.Array) func(to []int64, from, end int64) []int64 {
	switch a := a.(type) {
	case *array.Uint8:
		return widened(a.Uint8Values())
	case *array.Uint16:
		return widened(a.Uint16Values())
	case *array.Uint32:
		return widened(a.Uint32Values())
	case *array.Int8:
		return widened(a.Int8Values())
	case *array.Int16:
		return widened(a.Int16Values())
	case *array.Int32:
		return widened(a.Int32Values())
	case *array.Int64:
		return widened(a.Int64Values())
	}
	panic(fmt.Sprintf("a defect of the server: tokens of type %s", a.DataType()))
}

// widened returns a function that appends values as int64.
func widened[T uint8 | uint16 | uint32 | int8 | int16 | int32 | int64](v []T) func(to []int64, from, end int64) []int64 {
	return func(to []int64, from, end int64) []int64 {
		for _, t := range v[from:end] {
			to = append(to, int64(t))
		}
		return to
	}
}

// sizeOf is how many tokens a row has in its source columns; false if one of these is
// null.
func (w *making) sizeOf(r schema.Row) (n int64, ok bool) {
	for _, l := range w.lists(r.Page) {
		if l.IsNull(r.At) {
			return 0, false
		}
		from, end := l.ValueOffsets(r.At)
		n += end - from
	}
	return n, true
}

// measure bounds the tokens of all rows, and allocates their memory once. It fails with
// schema.ErrLimit if 32-bit offsets do not suffice.
func (w *making) measure() error {
	for _, r := range w.rows {
		// Rows of more than MaxCell tokens fail later and add nothing.
		if n, ok := w.sizeOf(r); !ok {
			w.most += w.nullTokens()
		} else if n <= MaxCell {
			w.most += w.bound(n + int64(len(w.columns)) + 1)
		}
	}
	size := width(w.form.dtype)
	if w.most > math.MaxInt32/size {
		return fmt.Errorf("%w: %s: a batch of %d rows has up to %d tokens, of %d bytes each, which is more than 2^31-1 bytes; "+
			"ask for a smaller batch or batch_bytes", schema.ErrLimit, w.place, len(w.rows), w.most, size)
	}
	w.values = make([]byte, 0, w.most*size)
	w.ends = append(make([]int32, 0, len(w.rows)+1), 0)
	if w.form.cut {
		w.cells = append(make([]int32, 0, len(w.rows)+1), 0)
	}
	return nil
}

// nullTokens is how many tokens the row of a null has: as many as all others if the
// length is fixed, as Arrow's fixed_size_list requires.
func (w *making) nullTokens() int64 {
	if w.form.length > 0 && (!w.form.cut || w.form.pieces > 0) {
		return w.form.length * max(w.form.pieces, 1)
	}
	return 0
}

// small reports whether the rows take so little time that they need no turn.
func (w *making) small() bool { return w.most <= inTurn/16 && len(w.rows) <= inTurn/16 }

// piece makes rows until the turn's tokens are used up.
func (w *making) piece() error {
	for spent := 0; w.at < len(w.rows) && spent < inTurn; w.at++ {
		made, err := w.row(w.rows[w.at])
		if err != nil {
			w.faults = append(w.faults, where.RowFault{Row: w.at, Err: err})
			if w.fails {
				return nil
			}
		}
		if !made {
			w.absent = append(w.absent, w.at)
			w.null()
		}
		spent += len(w.cell.tokens) + 16
	}
	return nil
}

// row makes a cell: it joins the source columns, then applies the steps. It returns false
// for null.
func (w *making) row(r schema.Row) (bool, error) {
	c := &w.cell
	c.reset()
	n, ok := w.sizeOf(r)
	if !ok {
		return false, nil
	}
	if n > MaxCell {
		return false, tooMany(w.place, n)
	}
	if w.concat != nil {
		c.add(w.concat.BOS)
	}
	for i, l := range w.lists(r.Page) {
		if i > 0 {
			c.add(w.concat.Separator)
		}
		from, end := l.ValueOffsets(r.At)
		if l.nulls {
			for at := from; at < end; at++ {
				if l.ListValues().IsNull(int(at)) {
					return false, &schema.FieldError{Field: fmt.Sprintf("%s.tokens[%d]", w.place, i),
						Got: "a token that is null", Want: "lists without nulls"}
				}
			}
		}
		c.tokens = l.append(c.tokens, from, end)
	}
	if w.concat != nil {
		c.add(w.concat.EOS)
	}
	for _, s := range w.steps {
		if err := s.run(c); err != nil {
			return false, locate(s.at, err)
		}
	}
	if len(c.tokens) > MaxCell {
		return false, tooMany(w.place, int64(len(c.tokens)))
	}
	w.put()
	return true, nil
}

// tooMany is the error of a row with more than MaxCell tokens.
func tooMany(at string, n int64) error {
	return fmt.Errorf("%w: %s: a row has %d tokens, at most %d are allowed", schema.ErrLimit, at, n, MaxCell)
}

// put adds the cell to the column. Every step has checked that tokens fit the type.
func (w *making) put() {
	start := int32(len(w.values) / int(width(w.form.dtype)))
	if !w.form.cut {
		w.ends = append(w.ends, start+int32(len(w.cell.tokens)))
	} else {
		for _, end := range w.cell.ends {
			w.ends = append(w.ends, start+int32(end))
		}
		w.cells = append(w.cells, int32(len(w.ends)-1))
	}
	// Two's complement, little-endian: signed and unsigned types of a width have the same
	// bytes.
	switch width(w.form.dtype) {
	case 1:
		for _, t := range w.cell.tokens {
			w.values = append(w.values, byte(t))
		}
	case 2:
		for _, t := range w.cell.tokens {
			w.values = binary.LittleEndian.AppendUint16(w.values, uint16(t))
		}
	case 4:
		for _, t := range w.cell.tokens {
			w.values = binary.LittleEndian.AppendUint32(w.values, uint32(t))
		}
	default:
		for _, t := range w.cell.tokens {
			w.values = binary.LittleEndian.AppendUint64(w.values, uint64(t))
		}
	}
}

// null adds the zero tokens of a null row.
func (w *making) null() {
	n := int(w.nullTokens() * width(w.form.dtype))
	w.values = append(w.values, make([]byte, n)...)
	end := int32(len(w.values) / int(width(w.form.dtype)))
	if !w.form.cut {
		w.ends = append(w.ends, end)
		return
	}
	// All pieces have the fixed length.
	for i := range w.form.pieces {
		w.ends = append(w.ends, end-int32((w.form.pieces-1-i)*w.form.length))
	}
	w.cells = append(w.cells, int32(len(w.ends)-1))
}

// vector is the column of all rows. It takes over the memory.
func (w *making) vector() schema.Vector {
	f := &w.form
	values := schema.Vector{Type: f.dtype, Len: len(w.values) / int(width(f.dtype)),
		Buffers: []schema.Buffer{{}, bufferOf(w.values)}}
	list := func(dt arrow.DataType, fixed bool, ends []int32, child schema.Vector) schema.Vector {
		v := schema.Vector{Type: dt, Len: len(ends) - 1, Buffers: []schema.Buffer{{}}, Children: []schema.Vector{child}}
		if !fixed {
			offsets := make([]byte, 0, 4*len(ends))
			for _, end := range ends {
				offsets = binary.LittleEndian.AppendUint32(offsets, uint32(end))
			}
			v.Buffers = append(v.Buffers, bufferOf(offsets))
		}
		return v
	}
	dt := w.field.Type
	var v schema.Vector
	if f.cut {
		v = list(dt, f.pieces > 0, w.cells, list(dt.(arrow.ListLikeType).Elem(), f.length > 0, w.ends, values))
	} else {
		v = list(dt, f.length > 0, w.ends, values)
	}
	// A validity bitmap, least significant bit first. Without nulls Arrow needs none.
	if v.Nulls = len(w.absent); v.Nulls > 0 {
		valid := make([]byte, (v.Len+7)/8)
		for i := range v.Len {
			valid[i/8] |= 1 << (i % 8)
		}
		for _, i := range w.absent {
			valid[i/8] &^= 1 << (i % 8)
		}
		v.Buffers[0] = bufferOf(valid)
	}
	return v
}

// bufferOf makes b a buffer of one piece.
func bufferOf(b []byte) schema.Buffer {
	if len(b) == 0 {
		return schema.Buffer{}
	}
	return schema.Buffer{Pieces: [][]byte{b}, Len: int64(len(b))}
}

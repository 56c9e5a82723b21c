package schema

import (
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
)

// Assemble is AssembleRows for the samples at positions of an open manifest,
// which must stay open until the batch is released.
func (p *Projection) Assemble(m *Manifest, positions []int64, blobs [][]Blob) (*Batch, error) {
	rows, err := m.At(positions)
	if err != nil {
		releaseBlobs(blobs)
		return nil, err
	}
	return p.AssembleRows(m.form, positions, rows, blobs, nil)
}

// AssembleRows makes the batch of the samples at positions, in that order; repeats
// are allowed. rows says where they lie; their pages must stay open until the batch is
// released. blobs holds the blobs of each column that BlobColumns names, by
// row; the zero Blob is a null. The batch owns the pins from now on; when
// AssembleRows fails they are released. computed holds the columns that Computed names, of as many
// rows, which the batch goes on to point at; without rows it may be nil.
//
// Neither blobs nor long runs of consecutive rows are copied: the batch
// points at them. Gathered cells are copied into memory that the batch owns.
func (p *Projection) AssembleRows(f *Form, positions []int64, rows []Row, blobs [][]Blob,
	computed []Vector) (*Batch, error) {
	b := &Batch{Schema: p.Schema, Rows: len(positions), Blobs: blobs, arena: newArena(len(positions))}
	err := Guard(func() error {
		if err := p.assemble(b, f, positions, rows, computed); err != nil {
			return err
		}
		// Who sends the batch has no way to tell of a page that cannot be read. Blobs were just checked.
		for i, c := range p.columns {
			if c.kind == outStored {
				b.Columns[i].touch()
			}
		}
		return nil
	})
	if err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

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
			v = Vector{Type: arrow.PrimitiveTypes.Int64, Len: n, Buffers: []Buffer{{}, pieces(asBytes(dst))}}
		case outSplit:
			v, err = f.splitColumn(b.arena, positions)
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
		}
		if err != nil {
			return fmt.Errorf("column %q: %w", p.Schema.Field(i).Name, err)
		}
		b.Columns[i] = v
	}
	return nil
}

// computedColumn is a column that was handed over. Where there are no rows, it may have been left out.
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

// blobColumn lays out blobs without copying them. It asks for references where blobs were not checked.
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

// splitColumn is the virtual column split.
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

package schema

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
)

// Values of Slices.By. The default is contiguous.
const (
	SliceContiguous = "contiguous" // rank r of n gets the r-th of n consecutive parts
	SliceZigzag     = "zigzag"     // each rank gets parts r and 2n-1-r of 2n, which have equal costs in causal attention
)

// MaxSliceColumns bounds Slices.Columns.
const MaxSliceColumns = 64

// Slices gives each context parallel rank its part of every sequence. Other columns are
// the same for these ranks.
type Slices struct {
	By string `json:"by,omitempty"`
	// Columns are the sequences: metadata columns of lists of one length. With pack it is
	// not set: all columns with a value for each token are cut.
	Columns []string `json:"columns,omitempty"`
}

// check implements checker.
func (s *Slices) check(field string) error {
	path := "slices." + field
	switch field {
	case "by":
		return checkOneOf(path, s.By, SliceContiguous, SliceZigzag)
	case "columns":
		if n := len(s.Columns); n == 0 || n > MaxSliceColumns {
			return &FieldError{Field: path, Got: fmt.Sprintf("%d names", n), Want: fmt.Sprintf("1 to %d", MaxSliceColumns)}
		}
		for i, name := range s.Columns {
			if slices.Contains(s.Columns[:i], name) {
				return &FieldError{Field: fmt.Sprintf("%s[%d]", path, i), Got: Quote(name) + " again", Want: "each column once"}
			}
		}
	}
	return nil
}

// checkSlices checks Slices, which are set, and the fields that they depend on.
func (r *Request) checkSlices() error {
	s := r.Slices
	if err := checkAll(s); err != nil {
		return err
	}
	_, ranks := r.World.along("cp", 0)
	switch {
	case r.World != nil && ranks == 0:
		return &FieldError{Field: "slices", Got: "it without cp in world.mesh",
			Want: `a mesh with context parallel ranks, such as "dp=2,cp=4", or no world for whole sequences`}
	case r.Layout == LayoutHuggingFace:
		return &FieldError{Field: "layout", Got: Quote(string(r.Layout)) + " with slices",
			Want: strconv.Quote(string(LayoutLargeBinary))}
	case r.Pack == nil && s.Columns == nil:
		return &FieldError{Field: "slices.columns", Got: "none", Want: "the columns of lists to be cut; or pack"}
	case r.Pack == nil:
		return nil
	case s.Columns != nil:
		return &FieldError{Field: "slices.columns", Got: "it with pack",
			Want: "it left out: tokens, position_ids and segment_ids are cut"}
	case r.Pack.Pad == nil:
		return &FieldError{Field: "pack.pad", Got: "none with slices", Want: "a token, as sequences that are cut have one length"}
	}
	return s.checkLength("pack.length", r.Pack.Length, ranks)
}

// parts is the number of parts that a sequence is cut into for that number of ranks.
func (s *Slices) parts(ranks int64) int64 {
	if s.By == SliceZigzag && ranks > 1 {
		return 2 * ranks
	}
	return max(ranks, 1)
}

// checkLength checks that sequences can be cut into equal parts.
func (s *Slices) checkLength(field string, length, ranks int64) error {
	parts := s.parts(ranks)
	if length%parts == 0 {
		return nil
	}
	what := fmt.Sprintf("as world.mesh has %d context parallel ranks", ranks)
	if parts != ranks {
		what += fmt.Sprintf(", each with two parts by %q", SliceZigzag)
	}
	return &FieldError{Field: field, Got: fmt.Sprintf("sequences of %d", length),
		Want: fmt.Sprintf("a multiple of %d, %s", parts, what)}
}

// slicer is the part of a projection that cuts sequences.
type slicer struct {
	slices  *Slices
	ranks   int64
	rank    int64 // rank whose parts are served
	columns []int // indexes of the columns to cut
}

// Sliced returns the projection of a request with slices: it shows the parts of rank 0
// where p shows whole sequences. SliceOf returns the projection of another rank.
func (p *Projection) Sliced(snap *Snapshot, within *Restriction, s *Slices, world *World) (*Projection, error) {
	_, ranks := world.along("cp", 0)
	c := &slicer{slices: s, ranks: max(ranks, 1)}
	for i, name := range s.Columns {
		if err := c.checkColumn(fmt.Sprintf("slices.columns[%d]", i), name, snap, within, p.computed); err != nil {
			return nil, err
		}
	}
	fields := slices.Clone(p.Schema.Fields())
	for i, f := range fields {
		if p.packs != nil && !p.packs.columns[i].each() || p.packs == nil && !slices.Contains(s.Columns, f.Name) {
			continue
		}
		list := f.Type.(*arrow.FixedSizeListType)
		fields[i].Type = arrow.FixedSizeListOfField(list.Len()/int32(c.ranks), list.ElemField())
		c.columns = append(c.columns, i)
	}
	cut := *p
	meta := p.Schema.Metadata()
	cut.Schema, cut.slices = arrow.NewSchema(fields, &meta), c
	return &cut, nil
}

// each reports whether a column has a value for each token.
func (c packedColumn) each() bool {
	return c.kind == packedTokens || c.kind == packedPositionIDs || c.kind == packedSegmentIDs
}

// checkColumn checks that a column has sequences that can be cut.
func (c *slicer) checkColumn(at, name string, snap *Snapshot, within *Restriction, computed []arrow.Field) error {
	var have []string
	for _, f := range slices.Concat(MetaFields(snap.Schema), computed) {
		list, ok := f.Type.(*arrow.FixedSizeListType)
		if !ok || within.Hides(snap.Schema, f.Name) && snap.Schema.HasField(f.Name) {
			continue
		}
		if id := list.Elem().ID(); !arrow.IsInteger(id) && !arrow.IsFloating(id) {
			continue
		}
		if f.Name == name {
			return c.slices.checkLength(at, int64(list.Len()), c.ranks)
		}
		have = append(have, f.Name)
	}
	return &FieldError{Field: at, Got: Quote(name), Want: "a column of lists of numbers of one length: " + ShownList(have)}
}

// SliceOf returns the projection with the parts of a rank. It is p if sequences are
// served whole.
func (p *Projection) SliceOf(world *World, rank int) *Projection {
	if p.slices == nil {
		return p
	}
	cut, c := *p, *p.slices
	c.rank, _ = world.along("cp", rank)
	cut.slices = &c
	return &cut
}

// ranges are the parts of a sequence for the rank, in ascending order.
func (c *slicer) ranges(length int64) [][2]int64 {
	parts := c.slices.parts(c.ranks)
	n := length / parts
	if parts == c.ranks {
		return [][2]int64{{c.rank * n, (c.rank + 1) * n}}
	}
	last := parts - 1 - c.rank
	return [][2]int64{{c.rank * n, (c.rank + 1) * n}, {last * n, (last + 1) * n}}
}

// cut cuts the sequences of a batch in place.
func (c *slicer) cut(b *Batch) {
	if c == nil || c.ranks == 1 {
		return
	}
	for _, i := range c.columns {
		b.Columns[i] = c.column(b.arena, b.Columns[i], b.Schema.Field(i).Type.(*arrow.FixedSizeListType))
	}
}

// column copies the rank's parts of each sequence of a column.
func (c *slicer) column(a *arena, v Vector, dt *arrow.FixedSizeListType) Vector {
	item := &v.Children[0]
	width := int64(dt.Elem().(arrow.FixedWidthDataType).BitWidth() / 8)
	length := int64(dt.Len()) * c.ranks
	ranges := c.ranges(length)
	n := v.Len * int(dt.Len())
	out := a.bytes(n * int(width))
	from, to := forward{}, out
	if n > 0 {
		from.pieces = item.Buffers[1].Pieces
	}
	for row := range int64(v.Len) {
		for _, r := range ranges {
			size := (r[1] - r[0]) * width
			from.copy(to[:size], (row*length+r[0])*width)
			to = to[size:]
		}
	}
	items := Vector{Type: item.Type, Len: n, Buffers: []Buffer{{}, pieces(out)}}
	if item.Nulls > 0 {
		items.Nulls, items.Buffers[0] = c.validity(a, item.Buffers[0].Pieces, v.Len, length, ranges)
	}
	v.Type, v.Children = dt, []Vector{items}
	return v
}

// validity is the validity bitmap of the rank's items.
func (c *slicer) validity(a *arena, bits [][]byte, rows int, length int64, ranges [][2]int64) (nulls int, b Buffer) {
	whole := slices.Concat(bits...)
	out := a.zeroed((rows*int(length/c.ranks) + 7) / 8)
	at := 0
	for row := range int64(rows) {
		for _, r := range ranges {
			for i := row*length + r[0]; i < row*length+r[1]; i++ {
				if whole[i>>3]>>(i&7)&1 == 1 {
					out[at>>3] |= 1 << (at & 7)
				} else {
					nulls++
				}
				at++
			}
		}
	}
	return nulls, pieces(out)
}

// forward reads bytes that are in several pieces, in ascending order. Its position only
// moves forward, so all copies of a batch together are linear in the pieces.
type forward struct {
	pieces [][]byte
	start  int64 // offset of the first piece
}

// copy fills to with the bytes from at on. at must not be before the end of the last
// copy.
func (c *forward) copy(to []byte, at int64) {
	for len(to) > 0 {
		first := c.pieces[0]
		if end := c.start + int64(len(first)); at >= end {
			c.pieces, c.start = c.pieces[1:], end
			continue
		}
		n := copy(to, first[at-c.start:])
		to, at = to[n:], at+int64(n)
	}
}

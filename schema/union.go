package schema

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"
)

// SourceColumn is virtual, and exists only if the samples of several snapshots are served
// together: the name of the sample's source, a utf8. A stored column of that name hides
// it.
const SourceColumn = "source"

// Part is one of several snapshots whose samples are served together.
type Part struct {
	Name     string // of the source
	Snapshot *Snapshot
	// Within is the visible part of the snapshot's columns; nil: all.
	Within *Restriction
}

// union is set in a Snapshot that represents several.
type union struct {
	parts   []Part
	sources []string // names of the parts
	clashes []clash
}

// clash is a column that has different types in the sources.
type clash struct {
	name string
	err  *FieldError
}

// Parts are the snapshots that this one represents; nil if it represents itself.
func (s *Snapshot) Parts() []Part {
	if s.union == nil {
		return nil
	}
	return s.union.parts
}

// formPart is one of the snapshots that a Form represents.
type formPart struct {
	name string
	base int64 // position of its first row in the union
	// columns is the index of the part's column for each column of the form, -1 if it has
	// none; nil if the columns are the same.
	columns []int
	first   int // index of the part's first blob column
}

// NewUnion returns the form of several snapshots, whose rows follow one another in one
// space of positions, and the visible columns. Columns match by name. A column that a
// part lacks or hides is null in its rows. A column with different types in several parts
// is left out, and a request that names it gets an error. The id is hidden if one part
// hides it.
func NewUnion(parts []Part) (*Form, *Restriction, error) {
	if len(parts) == 0 {
		return nil, nil, fmt.Errorf("%w: a union of no snapshots", ErrInvalid)
	}
	fields, u, hidden := unionFields(parts)
	snap := &Snapshot{Schema: arrow.NewSchema(fields, nil), union: u}
	if err := CheckSchema(snap.Schema); err != nil {
		return nil, nil, err // too many columns
	}
	blobs := BlobFields(snap.Schema)
	first := len(fields) - len(blobs)
	list := make([]formPart, len(parts))
	splits := map[string]int{} // index in snap.Splits
	base := int64(0)
	for i := range parts {
		p := &parts[i]
		list[i] = partOf(p, fields, base)
		snap.Chunks = append(snap.Chunks, sumOf(p, list[i].columns, first, len(blobs)))
		for _, s := range p.Snapshot.Splits {
			at, ok := splits[s.Name]
			if !ok {
				at = len(snap.Splits)
				splits[s.Name], snap.Splits = at, append(snap.Splits, Split{Name: s.Name})
			}
			for _, r := range s.Ranges {
				snap.Splits[at].Ranges = append(snap.Splits[at].Ranges, Range{base + r.Start, base + r.End})
			}
		}
		for _, set := range p.Snapshot.Sets {
			if !slices.ContainsFunc(snap.Sets, func(s SetRef) bool { return s.Prefix == set.Prefix }) {
				snap.Sets = append(snap.Sets, set)
			}
		}
		rows := p.Snapshot.Rows()
		if rows > math.MaxInt64-base {
			return nil, nil, fmt.Errorf("%w: sources of 2^63 rows and more", ErrLimit)
		}
		base += rows
	}
	f, err := NewForm(snap)
	if err != nil {
		return nil, nil, err
	}
	f.parts = list
	var within *Restriction
	if hidden {
		within = &Restriction{Columns: []string{}}
		for _, field := range fields[1:] {
			within.Columns = append(within.Columns, field.Name)
		}
	}
	return f, within, nil
}

// unionFields returns the columns of a union: the id, metadata, and blobs, each in the
// order of their first part; and whether the id is hidden.
func unionFields(parts []Part) (fields []arrow.Field, u *union, hidden bool) {
	u = &union{parts: parts}
	type known struct {
		field arrow.Field
		part  int // first part that has it
		in    int // number of parts that have it
		clash bool
	}
	var meta, blobs []*known
	byName := map[string]*known{}
	id := IDField()
	for i := range parts {
		p := &parts[i]
		u.sources = append(u.sources, p.Name)
		for n, f := range p.Snapshot.Schema.Fields() {
			if n == 0 {
				hidden = hidden || p.Within.Hides(p.Snapshot.Schema, f.Name)
				continue
			}
			if p.Within.Hides(p.Snapshot.Schema, f.Name) {
				continue
			}
			k := byName[f.Name]
			if k == nil {
				k = &known{field: f, part: i}
				byName[f.Name] = k
				if IsBlob(f) {
					blobs = append(blobs, k)
				} else {
					meta = append(meta, k)
				}
			}
			if k.in++; k.clash {
				continue
			}
			if IsBlob(f) != IsBlob(k.field) || !arrow.TypeEqual(f.Type, k.field.Type) {
				k.clash = true
				u.clashes = append(u.clashes, clash{f.Name, &FieldError{Field: "mixture",
					Got: fmt.Sprintf("column %q as %s in source %q and as %s in source %q", f.Name, shownKind(k.field),
						parts[k.part].Name, shownKind(f), p.Name),
					Want: "one type in all sources, or columns that leave it out"}})
				continue
			}
			k.field.Nullable = k.field.Nullable || f.Nullable
			k.field.Metadata = commonMetadata(k.field.Metadata, f.Metadata)
		}
	}
	fields = append(fields, id)
	for _, k := range slices.Concat(meta, blobs) {
		if k.clash {
			continue
		}
		k.field.Nullable = k.field.Nullable || k.in < len(parts)
		fields = append(fields, k.field)
	}
	return fields, u, hidden
}

// shownKind is the type of a column in messages.
func shownKind(f arrow.Field) string {
	if IsBlob(f) {
		return "blobs"
	}
	return ShownType(f.Type)
}

// commonMetadata is the metadata that two fields share. Different tables of classes are
// left out, because a number then means different classes.
func commonMetadata(a, b arrow.Metadata) arrow.Metadata {
	if a.Equal(b) {
		return a
	}
	var keys, values []string
	for i, key := range a.Keys() {
		if at := b.FindKey(key); at >= 0 && b.Values()[at] == a.Values()[i] {
			keys, values = append(keys, key), append(values, a.Values()[i])
		}
	}
	return arrow.NewMetadata(keys, values)
}

// partOf maps the columns of a union to those of a part.
func partOf(p *Part, fields []arrow.Field, base int64) formPart {
	own := p.Snapshot.Schema
	out := formPart{name: p.Name, base: base, columns: make([]int, len(fields)),
		first: own.NumFields() - len(BlobFields(own))}
	same := len(fields) == own.NumFields()
	for i, f := range fields {
		out.columns[i] = -1
		if at := own.FieldIndices(f.Name); len(at) > 0 && (i == 0 || !p.Within.Hides(own, f.Name)) {
			out.columns[i] = at[0]
		}
		same = same && out.columns[i] == i
	}
	if same {
		out.columns = nil
	}
	return out
}

// sumOf is a chunk with the rows and bytes of a part, and without content: a union needs
// only its size.
func sumOf(p *Part, columns []int, first, blobs int) Chunk {
	own := p.Snapshot.Schema
	ownFirst := own.NumFields() - len(BlobFields(own))
	sum := Chunk{BlobBytes: make([]int64, blobs)}
	for _, c := range p.Snapshot.Chunks {
		sum.Rows += c.Rows
		sum.Size += c.ManifestBytes()
		for i := range sum.BlobBytes {
			at := i
			if columns != nil {
				at = columns[first+i] - ownFirst
			}
			if at >= 0 && at < len(c.BlobBytes) {
				sum.BlobBytes[i] += c.BlobBytes[at]
			}
		}
	}
	return sum
}

// Part returns the index of the snapshot that contains a position, and the position in
// it. A form of one snapshot is its own part 0.
func (f *Form) Part(pos int64) (part int, at int64) {
	if f.parts == nil {
		return 0, pos
	}
	part = sort.Search(len(f.parts), func(i int) bool { return f.parts[i].base > pos }) - 1
	return part, pos - f.parts[part].base
}

// PositionIn is a position in its own snapshot.
func (f *Form) PositionIn(pos int64) int64 {
	_, at := f.Part(pos)
	return at
}

// positionsIn replaces positions by those in their own snapshots.
func (f *Form) positionsIn(positions []int64) {
	if f.parts == nil {
		return
	}
	for i, pos := range positions {
		positions[i] = f.PositionIn(pos)
	}
}

// Adopt returns a page of a part with the columns of the form. It refers to the part's
// page, which has to stay open as long. Missing columns share one array of zeros.
func (f *Form) Adopt(part int, p *Page) *Page {
	if f.parts == nil || f.parts[part].columns == nil {
		return p
	}
	of := &f.parts[part]
	// Releasing the blob remains the part's task.
	q := &Page{rows: p.rows, ids: p.ids, blob: p.blob, columns: make([]view, len(of.columns)), refs: make([]refs, len(f.blobs))}
	for i, c := range of.columns {
		if c >= 0 {
			q.columns[i] = p.columns[c]
		} else {
			q.columns[i] = nullView(f.physical.Field(i).Type, p.rows)
		}
	}
	for i := range q.refs {
		if c := of.columns[f.first+i]; c >= 0 {
			q.refs[i] = p.refs[c-of.first]
		} else {
			q.refs[i] = refs{view: &q.columns[f.first+i]}
		}
	}
	return q
}

// Adopts reports whether Adopt returns other pages than it is given for a part.
func (f *Form) Adopts(part int) bool { return f.parts != nil && f.parts[part].columns != nil }

// nullView is a column of n nulls.
func nullView(dt arrow.DataType, n int) view {
	v := zeroView(dt, n)
	v.nulls, v.validity = n, zeros((n+7)/8)
	return v
}

// zeroView is a column of n values that are empty, or zero bytes.
func zeroView(dt arrow.DataType, n int) view {
	v := view{dt: dt, n: n}
	v.shape, v.width = shapeOf(dt)
	below := n
	switch v.shape {
	case shapeBits:
		v.values = zeros((n + 7) / 8)
	case shapeFixed:
		v.values = zeros(n * v.width)
	case shapeBytes:
		v.off32 = cast[int32](zeros(4 * (n + 1)))
	case shapeBytes8:
		v.off64 = cast[int64](zeros(8 * (n + 1)))
	case shapeList:
		v.off32, below = cast[int32](zeros(4*(n+1))), 0
	case shapeFixedList:
		below = n * v.width
	}
	if nested, ok := dt.(arrow.NestedType); ok {
		for _, f := range nested.Fields() {
			v.children = append(v.children, zeroView(f.Type, below))
		}
	}
	return v
}

// zeroed are the zero bytes that all missing columns share. The array only grows.
var zeroed atomic.Pointer[[]byte]

// zeros returns n zero bytes, which must not be changed.
func zeros(n int) []byte {
	for {
		old := zeroed.Load()
		if old != nil && len(*old) >= n {
			return (*old)[:n:n]
		}
		size := 64 << 10
		for size < n {
			size *= 2
		}
		more := alignedBytes(size)
		zeroed.CompareAndSwap(old, &more)
	}
}

// sourceColumn is the virtual column source.
func (f *Form) sourceColumn(a *arena, positions []int64) (Vector, error) {
	n := len(positions)
	longest := 0
	for i := range f.parts {
		longest = max(longest, len(f.parts[i].name))
	}
	if longest > 0 && n > math.MaxInt32/longest {
		return Vector{}, fmt.Errorf("%w: a batch of %d rows is too long for a column of type utf8", ErrLimit, n)
	}
	off, text := cast[int32](a.bytes(4*(n+1))), a.bytes(n*longest)
	total := 0
	for i, pos := range positions {
		off[i] = int32(total)
		part, _ := f.Part(pos)
		total += copy(text[total:], f.parts[part].name)
	}
	off[n] = int32(total)
	return Vector{Type: arrow.BinaryTypes.String, Len: n,
		Buffers: []Buffer{{}, pieces(asBytes(off)), pieces(text[:total])}}, nil
}

// checkClashes returns an error if a request names a column that has different types in
// the sources; nil names all columns.
func (u *union) checkClashes(columns []string) error {
	if u == nil {
		return nil
	}
	for _, c := range u.clashes {
		if columns == nil || slices.ContainsFunc(columns, func(name string) bool {
			return name == c.name || name == c.name+"."+SizePart || name == c.name+"."+KeyPart
		}) {
			return c.err
		}
	}
	return nil
}

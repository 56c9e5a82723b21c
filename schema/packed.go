package schema

import (
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
)

// Packing describes how the documents of a batch form sequences.
type Packing struct {
	// Parts are the parts of documents to serve, one for each row.
	Parts []PackPart
	// Ends is, for each sequence, the number of parts up to its end.
	Ends []int
}

// PackPart is the part of a document in a sequence: Tokens tokens, beginning with token
// From. The document has Of.
type PackPart struct{ From, Tokens, Of int }

// packer is the part of a projection for rows that are sequences.
type packer struct {
	rows    *Projection // what is assembled of documents, before they are joined
	columns []packedColumn
	pack    *Pack
	stored  int // index of the tokens' column in the schema
	list    *arrow.ListType
}

// packedColumn is a column of sequences.
type packedColumn struct {
	kind packedKind
	src  int // packedList: the column of documents
}

type packedKind uint8

const (
	packedList packedKind = iota // the documents' values as a list
	packedTokens
	packedPositionIDs
	packedSegmentIDs
	packedCuSeqlens
)

// PackKey is the metadata key of a column of sequences. Its value is the name of the
// tokens' column.
const PackKey = "bowstring.pack"

// PackedColumns returns those columns of a request with pack that belong to documents. If
// the request names none, these are all columns except blobs, and those in computed.
func PackedColumns(snap *Snapshot, within *Restriction, columns []string, computed []arrow.Field) []string {
	if columns == nil {
		for _, f := range snap.Schema.Fields() {
			if !IsBlob(f) && !within.Hides(snap.Schema, f.Name) {
				columns = append(columns, f.Name)
			}
		}
		for _, f := range computed {
			columns = append(columns, f.Name)
		}
		return columns
	}
	return slices.DeleteFunc(slices.Clone(columns), func(name string) bool { return slices.Contains(packColumns, name) })
}

// Packed returns the projection of a request with pack: it shows sequences where p shows
// documents, in the order of columns, or with all columns of pack if columns is nil. p
// must be the projection of PackedColumns.
func (p *Projection) Packed(snap *Snapshot, within *Restriction, columns []string, pack *Pack) (*Projection, error) {
	k := &packer{pack: pack}
	if err := k.find(snap, within); err != nil {
		return nil, err
	}
	for _, name := range packColumns {
		if snap.Schema.HasField(name) && !within.Hides(snap.Schema, name) {
			return nil, &FieldError{Field: "pack", Got: fmt.Sprintf("a dataset that has a column %q", name),
				Want: "a dataset whose columns have other names than those that packing makes"}
		}
	}
	if len(p.blobs) > 0 {
		return nil, &FieldError{Field: "columns", Got: fmt.Sprintf("the blob column %s with pack",
			Quote(BlobFields(snap.Schema)[p.blobs[0]].Name)), Want: "columns without blobs"}
	}
	rows := *p
	rows.columns = slices.Clone(p.columns)
	for i, c := range rows.columns {
		if c.kind == outStored && c.src == k.stored {
			rows.columns[i].kind = outPacked
		}
	}
	k.rows = &rows
	if columns == nil {
		for _, f := range p.Schema.Fields() {
			columns = append(columns, f.Name)
		}
		columns = append(columns, packColumns...)
	}
	fields := make([]arrow.Field, len(columns))
	of := 0
	for i, name := range columns {
		c, f := packedColumn{}, arrow.Field{Name: name}
		switch name {
		case PositionIDsColumn:
			c.kind, f.Type = packedPositionIDs, k.tokenList(arrow.Field{Name: "item", Type: arrow.PrimitiveTypes.Int32})
		case SegmentIDsColumn:
			c.kind, f.Type = packedSegmentIDs, k.tokenList(arrow.Field{Name: "item", Type: arrow.PrimitiveTypes.Int32})
		case CuSeqlensColumn:
			c.kind, f.Type = packedCuSeqlens, arrow.ListOfNonNullable(arrow.PrimitiveTypes.Int32)
		default:
			of++
			c.src = of - 1
			if rows.columns[c.src].kind == outPacked {
				c.kind, f.Type, f.Metadata = packedTokens, k.tokenList(k.list.ElemField()), p.Schema.Field(c.src).Metadata
			} else {
				d := p.Schema.Field(c.src)
				d.Name = "item" // the item keeps the metadata of its column
				f.Type = arrow.ListOfField(d)
			}
		}
		f.Metadata = arrow.NewMetadata(append(slices.Clone(f.Metadata.Keys()), PackKey),
			append(slices.Clone(f.Metadata.Values()), pack.Column))
		k.columns, fields[i] = append(k.columns, c), f
	}
	return &Projection{Schema: arrow.NewSchema(fields, nil), computed: p.computed, packs: k}, nil
}

// find finds the column of tokens.
func (k *packer) find(snap *Snapshot, within *Restriction) error {
	var have []string
	for i, f := range MetaFields(snap.Schema) {
		list, ok := TokenList(f.Type)
		if !ok || within.Hides(snap.Schema, f.Name) {
			continue
		}
		if f.Name == k.pack.Column {
			k.stored, k.list = i+1, list // after the id
			return k.checkPad()
		}
		have = append(have, f.Name)
	}
	return &FieldError{Field: "pack.column", Got: Quote(k.pack.Column), Want: "a column of lists of integers: " +
		ShownList(have)}
}

// TokenList reports whether values of a type are lists of integers.
func TokenList(dt arrow.DataType) (*arrow.ListType, bool) {
	list, ok := dt.(*arrow.ListType)
	return list, ok && arrow.IsInteger(list.Elem().ID())
}

// checkPad checks that the padding is a token of the column.
func (k *packer) checkPad() error {
	if k.pack.Pad == nil {
		return nil
	}
	bits := k.list.Elem().(arrow.FixedWidthDataType).BitWidth()
	if arrow.IsSignedInteger(k.list.Elem().ID()) {
		bits--
	}
	if bits < 63 {
		return checkRange("pack.pad", *k.pack.Pad, 0, 1<<bits-1)
	}
	return nil
}

// tokenList is the type of a column with a value for each token: of fixed size with
// padding, else variable.
func (k *packer) tokenList(item arrow.Field) arrow.DataType {
	if k.pack.Pad != nil {
		return arrow.FixedSizeListOfField(int32(k.pack.Length), item)
	}
	return arrow.ListOfField(item)
}

// AssemblePacked is AssembleRows for a projection that is Packed: rows and computed
// belong to documents, which packing joins to sequences.
//
// If documents are stored consecutively, or are long, the batch points at their tokens.
// If they are short and scattered, or sequences are padded, tokens are copied once.
func (p *Projection) AssemblePacked(f *Form, positions []int64, rows []Row, packing *Packing,
	computed []Vector) (*Batch, error) {
	k := p.packs
	b := &Batch{Schema: p.Schema, Rows: len(packing.Ends), arena: newArena(len(positions))}
	err := Guard(func() error {
		documents := &Batch{Schema: k.rows.Schema, arena: b.arena}
		if err := k.rows.assemble(documents, f, positions, rows, computed); err != nil {
			return err
		}
		if err := k.assemble(b, documents.Columns, f, positions, rows, packing); err != nil {
			return err
		}
		for i, c := range k.columns {
			if c.kind == packedTokens || c.kind == packedList && k.rows.columns[c.src].kind == outStored {
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

// assemble makes the columns of sequences from those of documents.
func (k *packer) assemble(b *Batch, documents []Vector, f *Form, positions []int64, rows []Row, packing *Packing) error {
	total := 0
	for _, part := range packing.Parts {
		total += part.Tokens
	}
	if len(packing.Parts) != len(rows) || len(packing.Ends) == 0 && len(rows) > 0 {
		return fmt.Errorf("%w: %d parts in %d sequences of %d documents", ErrInvalid, len(packing.Parts),
			len(packing.Ends), len(rows))
	}
	if total > math.MaxInt32 {
		return fmt.Errorf("%w: a batch has more than 2^31-1 tokens; ask for a smaller batch or batch_bytes", ErrLimit)
	}
	parts, tokens := k.offsets(b.arena, packing)
	b.Columns = make([]Vector, len(k.columns))
	for i, c := range k.columns {
		v := Vector{Type: b.Schema.Field(i).Type, Len: len(packing.Ends)}
		switch c.kind {
		case packedList:
			v.Buffers, v.Children = []Buffer{{}, pieces(asBytes(parts))}, []Vector{documents[c.src]}
		case packedTokens:
			values, err := k.tokens(b.arena, f, positions, rows, packing, total)
			if err != nil {
				return fmt.Errorf("column %s: %w", Quote(k.pack.Column), err)
			}
			v.Buffers, v.Children = k.listBuffers(tokens), []Vector{values}
		case packedPositionIDs, packedSegmentIDs:
			v.Buffers, v.Children = k.listBuffers(tokens), []Vector{k.ids(b.arena, packing, total, c.kind)}
		case packedCuSeqlens:
			v.Buffers, v.Children = cuSeqlens(b.arena, packing)
		}
		b.Columns[i] = v
	}
	return nil
}

// offsets are the beginnings of sequences, counted in parts and in tokens; the latter is
// nil with padding.
func (k *packer) offsets(a *arena, packing *Packing) (parts, tokens []int32) {
	n := len(packing.Ends)
	parts = cast[int32](a.zeroed(4 * (n + 1)))
	for i, end := range packing.Ends {
		parts[i+1] = int32(end)
	}
	if k.pack.Pad != nil {
		return parts, nil
	}
	tokens = cast[int32](a.zeroed(4 * (n + 1)))
	at, sum := 0, 0
	for i, end := range packing.Ends {
		for ; at < end; at++ {
			sum += packing.Parts[at].Tokens
		}
		tokens[i+1] = int32(sum)
	}
	return parts, tokens
}

// listBuffers are the buffers of a column that has a value for each token.
func (k *packer) listBuffers(tokens []int32) []Buffer {
	if k.pack.Pad != nil {
		return []Buffer{{}}
	}
	return []Buffer{{}, pieces(asBytes(tokens))}
}

// tokens gathers the tokens of all sequences, with padding if there is some. It checks
// each document's length against the packing: a wrong column of lengths would shift all
// following documents.
func (k *packer) tokens(a *arena, f *Form, positions []int64, rows []Row, packing *Packing, total int) (Vector, error) {
	if len(rows) == 0 {
		v := emptyView(k.list.Elem())
		return gather(a, []*view{&v}, nil, 0)
	}
	m := gatherer{form: f, rows: rows}
	m.runs(a)
	views, chunk := make([]*view, len(m.pages)), make(map[*Page]int, len(m.pages))
	for i, p := range m.pages {
		views[i], chunk[p] = &p.columns[k.stored].children[0], i
	}
	runs := arenaRuns(a, len(rows))[:0]
	for i, r := range rows {
		v, part := &r.Page.columns[k.stored], packing.Parts[i]
		start, n := int(v.off32[r.At]), int(v.off32[r.At+1]-v.off32[r.At])
		if v.null(r.At) {
			n = 0
		}
		if n != part.Of || part.From < 0 || part.Tokens < 0 || part.Tokens > n-part.From {
			return Vector{}, k.wrongLength(positions[i], n, part)
		}
		next := run{chunk[r.Page], start + part.From, part.Tokens}
		if last := len(runs) - 1; last >= 0 && runs[last].chunk == next.chunk &&
			runs[last].start+runs[last].n == next.start {
			runs[last].n += next.n
		} else {
			runs = append(runs, next)
		}
	}
	if k.pack.Pad != nil {
		return k.padded(a, views, rows, packing, chunk)
	}
	return gather(a, views, runs, total)
}

// wrongLength is the error for a document with another length than expected. With a
// column of lengths, the column is wrong; otherwise the data has changed.
func (k *packer) wrongLength(position int64, n int, part PackPart) error {
	got := fmt.Sprintf("%d tokens at position %d, where it says %d", n, position, part.Of)
	if k.pack.Lengths == "" || n == part.Of {
		return fmt.Errorf("%w: %s (%d from %d)", ErrDataLoss, got, part.Tokens, part.From)
	}
	return &FieldError{Field: "pack.lengths", Got: Quote(k.pack.Lengths) + " with " + got,
		Want: fmt.Sprintf("a column that says how many tokens %s has", Quote(k.pack.Column))}
}

// padded copies the tokens of sequences, each followed by padding.
func (k *packer) padded(a *arena, views []*view, rows []Row, packing *Packing, chunk map[*Page]int) (Vector, error) {
	width := views[0].width
	if k.pack.Length > math.MaxInt32/int64(width)/int64(max(len(packing.Ends), 1)) {
		return Vector{}, fmt.Errorf("%w: %d sequences of %d tokens are more than 2^31-1 bytes; ask for a smaller batch or "+
			"batch_bytes", ErrLimit, len(packing.Ends), k.pack.Length)
	}
	n := int(k.pack.Length) * len(packing.Ends)
	out := a.bytes(n * width)
	var pad [8]byte
	for i := range width {
		pad[i] = byte(uint64(*k.pack.Pad) >> (8 * i))
	}
	row := 0
	for i, end := range packing.Ends {
		to := out[i*int(k.pack.Length)*width : (i+1)*int(k.pack.Length)*width]
		at := 0
		for ; row < end; row++ {
			r, part := rows[row], packing.Parts[row]
			v := views[chunk[r.Page]]
			from := int(r.Page.columns[k.stored].off32[r.At]) + part.From
			for j := from; v.validity != nil && j < from+part.Tokens; j++ {
				if v.null(j) {
					return Vector{}, fmt.Errorf("%w: a token is null, and a sequence with null cannot be padded", ErrInvalid)
				}
			}
			if at+part.Tokens*width > len(to) {
				return Vector{}, fmt.Errorf("%w: a sequence has more than %d tokens", ErrInvalid, k.pack.Length)
			}
			at += copy(to[at:], v.values[from*width:(from+part.Tokens)*width])
		}
		fill(to[at:], pad[:width])
	}
	return Vector{Type: k.list.Elem(), Len: n, Buffers: []Buffer{{}, pieces(out)}}, nil
}

// fill fills to with copies of value. It doubles the filled part, which is faster than
// copying one value at a time.
func fill(to, value []byte) {
	for n := copy(to, value); n < len(to); n *= 2 {
		copy(to[n:], to[:n])
	}
}

// ids has, for each token, its position in its part or the number of the part in its
// sequence.
func (k *packer) ids(a *arena, packing *Packing, total int, kind packedKind) Vector {
	if k.pack.Pad != nil {
		total = int(k.pack.Length) * len(packing.Ends)
	}
	out := cast[int32](a.bytes(4 * total))
	at, part := 0, 0
	for i, end := range packing.Ends {
		for segment := int32(1); part < end; segment++ {
			to := out[at : at+packing.Parts[part].Tokens]
			for j := range to {
				if kind == packedPositionIDs {
					to[j] = int32(j)
				} else {
					to[j] = segment
				}
			}
			at, part = at+len(to), part+1
		}
		if k.pack.Pad != nil {
			next := (i + 1) * int(k.pack.Length)
			clear(out[at:next])
			at = next
		}
	}
	return Vector{Type: arrow.PrimitiveTypes.Int32, Len: total, Buffers: []Buffer{{}, pieces(asBytes(out))}}
}

// cuSeqlens are the cumulative lengths of the parts of each sequence, beginning with 0.
func cuSeqlens(a *arena, packing *Packing) ([]Buffer, []Vector) {
	n := len(packing.Ends)
	offsets, values := cast[int32](a.zeroed(4*(n+1))), cast[int32](a.bytes(4*(n+len(packing.Parts))))
	at, part := 0, 0
	for i, end := range packing.Ends {
		sum := int32(0)
		values[at] = sum
		at++
		for ; part < end; part++ {
			sum += int32(packing.Parts[part].Tokens)
			values[at] = sum
			at++
		}
		offsets[i+1] = int32(at)
	}
	return []Buffer{{}, pieces(asBytes(offsets))}, []Vector{{Type: arrow.PrimitiveTypes.Int32, Len: at,
		Buffers: []Buffer{{}, pieces(asBytes(values))}}}
}

package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
)

// Projection is the columns that a client gets, in their order and layout. It is
// immutable and safe for concurrent use.
type Projection struct {
	// Schema is the schema that the client sees.
	Schema *arrow.Schema

	columns  []outColumn
	blobs    []int         // ordinals of the blob columns to read
	computed []arrow.Field // columns that are passed in with the rows
	packs    *packer       // nil if rows are samples
	slices   *slicer       // nil if sequences are served whole
}

// outColumn is one column that a client gets.
type outColumn struct {
	kind outKind
	// src is, for a stored column, its index in the schema; for a blob, its index in
	// Projection.blobs; for outSize and outKey, the blob column's ordinal; for
	// outComputed, its index in Projection.computed.
	src  int
	path int       // outMedia: index of the column for path, -1 for none
	form *MadeForm // form of cells that operators made, else nil
}

type outKind uint8

const (
	outStored  outKind = iota // a stored column, unchanged
	outText                   // the id as text
	outUnfixed                // fixed_size_binary as binary
	outPosition
	outSplit
	outSource
	outSize   // of a blob
	outKey    // of a blob, as fixed_size_binary
	outAnyKey // the same, as binary
	outBlob8  // large_binary
	outBlob4  // binary
	outMedia  // struct<bytes: binary, path: utf8>
	outMade   // tensors
	outParams // random parameters of made cells
	outLength // sizes of made cells along an axis
	outComputed
	outPacked // tokens, which are gathered by sequences
)

var keyType = &arrow.FixedSizeBinaryType{ByteWidth: len(Key{})}

var mediaType = arrow.StructOf(
	arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
	arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true},
)

// NewProjection resolves the columns of a request: names of stored or virtual columns, in
// the wanted order; nil for all stored ones. A name that does not exist is a FieldError
// that lists the existing ones.
//
// Blob columns are nullable in the result, whatever the dataset says, because a blob that
// cannot be read is served as null if the request asks for that.
//
// The layout "huggingface" is that of the datasets library. Image and audio columns are
// struct<bytes: binary, path: utf8>, with the path from the metadata column file_name if
// there is one. Other blobs are binary. The id is text, and fixed_size_binary is binary,
// as the library has no such type. Every field is nullable, and the schema's metadata
// describes the features.
func NewProjection(snap *Snapshot, columns []string, layout Layout) (*Projection, error) {
	return NewProjectionWithin(snap, nil, columns, layout, nil, nil)
}

// NewProjectionWithin is NewProjection under a restriction: hidden columns do not exist.
// Blob columns in made are served as operators make them, in that form. The fields in
// computed are additional columns, which come last if columns is nil; the assembler of
// batches passes their values in. Their names must be unique.
func NewProjectionWithin(snap *Snapshot, within *Restriction, columns []string, layout Layout,
	made map[string]*MadeForm, computed []arrow.Field) (*Projection, error) {
	switch layout {
	case "":
		layout = LayoutLargeBinary
	case LayoutLargeBinary, LayoutBinary, LayoutHuggingFace:
	default:
		return nil, notOneOf("layout", string(layout), []string{string(LayoutLargeBinary), string(LayoutBinary),
			string(LayoutHuggingFace)})
	}
	all := snap.Schema.Fields()
	stored := make([]string, len(all))
	ordinal := make(map[string]int) // of blob columns
	path := -1
	for i, f := range all {
		stored[i] = f.Name
		if IsBlob(f) {
			ordinal[f.Name] = len(ordinal)
		} else if id := f.Type.ID(); f.Name == PathColumn && (id == arrow.STRING || id == arrow.LARGE_STRING) &&
			!within.Hides(snap.Schema, f.Name) {
			path = i
		}
	}
	wanted := columns
	if columns == nil {
		columns = slices.DeleteFunc(slices.Clone(stored), func(name string) bool {
			return within.Hides(snap.Schema, name)
		})
		for _, f := range computed {
			columns = append(columns, f.Name)
		}
	}
	if err := snap.union.checkClashes(wanted); err != nil {
		return nil, err
	}
	p := &Projection{}
	fields := make([]arrow.Field, 0, len(columns))
	for i, name := range columns {
		at := fmt.Sprintf("columns[%d]", i)
		if slices.Contains(columns[:i], name) {
			return nil, &FieldError{Field: at, Got: Quote(name) + " again", Want: "each column once"}
		}
		switch name {
		case PositionColumn:
			p.columns = append(p.columns, outColumn{kind: outPosition})
			fields = append(fields, arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64})
			continue
		case SplitColumn:
			p.columns = append(p.columns, outColumn{kind: outSplit})
			fields = append(fields, arrow.Field{Name: name, Type: arrow.BinaryTypes.String})
			continue
		case SourceColumn:
			if snap.union != nil && !snap.Schema.HasField(name) {
				p.columns = append(p.columns, outColumn{kind: outSource})
				fields = append(fields, arrow.Field{Name: name, Type: arrow.BinaryTypes.String})
				continue
			}
		}
		if i := slices.IndexFunc(computed, func(f arrow.Field) bool { return f.Name == name }); i >= 0 {
			p.columns = append(p.columns, outColumn{kind: outComputed, src: len(p.computed)})
			p.computed, fields = append(p.computed, computed[i]), append(fields, computed[i])
			continue
		}
		if blob, part, ok := MadePart(snap.Schema, made, name); ok {
			c, f := outColumn{kind: outParams, src: p.reads(ordinal[blob]), form: made[blob]},
				arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true}
			if part == LengthPart {
				c.kind, f.Type = outLength, arrow.PrimitiveTypes.Int64
			}
			p.columns, fields = append(p.columns, c), append(fields, f)
			continue
		}
		src := slices.Index(stored, name)
		if within.Hides(snap.Schema, name) {
			return nil, unknownColumn(at, name, knownColumns(snap, within))
		}
		if col, blob, part, ok := BlobPart(snap.Schema, name); ok {
			c, f := outColumn{kind: outSize, src: col}, arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64,
				Nullable: blob.Nullable}
			if part == KeyPart {
				c.kind, f.Type = outKey, keyType
				if layout == LayoutHuggingFace {
					c.kind, f.Type = outAnyKey, arrow.BinaryTypes.Binary
				}
			}
			p.columns, fields = append(p.columns, c), append(fields, f)
			continue
		}
		if src < 0 {
			return nil, unknownColumn(at, name, knownColumns(snap, within))
		}
		f, c := all[src], outColumn{src: src, path: -1}
		if IsBlob(f) {
			c.src = p.reads(ordinal[name])
			f.Nullable = true
			form := made[name]
			if form != nil {
				c.form, f = form, form.field(f, layout)
			}
			switch {
			case form != nil && !form.Encoded():
				c.kind = outMade
			case layout == LayoutLargeBinary:
				c.kind = outBlob8
			case layout == LayoutHuggingFace && Media(f) != "":
				c.kind, c.path, f.Type = outMedia, path, mediaType
			default:
				c.kind, f.Type = outBlob4, arrow.BinaryTypes.Binary
			}
		} else if layout == LayoutHuggingFace {
			switch {
			case src == 0:
				c.kind, f.Type, f.Metadata = outText, arrow.BinaryTypes.String, arrow.Metadata{}
			case f.Type.ID() == arrow.FIXED_SIZE_BINARY:
				c.kind, f.Type = outUnfixed, arrow.BinaryTypes.Binary
			}
		}
		p.columns = append(p.columns, c)
		fields = append(fields, f)
	}
	var meta *arrow.Metadata
	if layout == LayoutHuggingFace {
		for i := range fields {
			fields[i].Nullable = true
		}
		md := arrow.NewMetadata([]string{"huggingface"}, []string{string(features(fields))})
		meta = &md
	}
	p.Schema = arrow.NewSchema(fields, meta)
	return p, nil
}

// OperatorsKey is the metadata key of a blob column whose operators the client runs. Its
// value is a [Pipeline] as JSON.
const OperatorsKey = "bowstring.operators"

// WithOperators returns a projection of the same columns whose schema names their
// operators.
func (p *Projection) WithOperators(operators Operators) *Projection {
	named := *p
	fields := slices.Clone(p.Schema.Fields())
	for i, f := range fields {
		pipeline, ok := operators[f.Name]
		if !ok || pipeline.Computes() {
			continue
		}
		fields[i].Metadata = arrow.NewMetadata(append(slices.Clone(f.Metadata.Keys()), OperatorsKey),
			append(slices.Clone(f.Metadata.Values()), string(marshal(pipeline))))
	}
	meta := p.Schema.Metadata()
	named.Schema = arrow.NewSchema(fields, &meta)
	return &named
}

// reads makes a blob column be read, by its ordinal, and returns its index in p.blobs.
// Several columns may be made of one blob column.
func (p *Projection) reads(ordinal int) int {
	if i := slices.Index(p.blobs, ordinal); i >= 0 {
		return i
	}
	p.blobs = append(p.blobs, ordinal)
	return len(p.blobs) - 1
}

// BlobColumns returns the blob columns to read, as ordinals among the snapshot's blob
// columns, in order of appearance. The caller must not change the slice.
func (p *Projection) BlobColumns() []int { return p.blobs }

// Computed returns the fields of the columns that the assembler of a batch passes in, in
// that order. The caller must not change the slice.
func (p *Projection) Computed() []arrow.Field { return p.computed }

// Restriction is the part of a dataset that a caller may see. Hidden data does not exist
// for the caller: it is in no schema, count, message or result. A Restriction comes from
// the server's rules, never from a client, and so has no JSON. It is immutable and safe
// for concurrent use; nil hides nothing.
type Restriction struct {
	// Where is an expression that visible samples meet; "" hides none. It may name hidden
	// columns.
	Where string
	// Columns are the visible stored columns; nil hides none. A visible blob column shows
	// its size and key, too. The virtual columns position and split are always visible.
	Columns []string
}

// Hides reports whether a column does not exist for the caller: a stored one, or a part
// of one such as image.size.
func (r *Restriction) Hides(s *arrow.Schema, column string) bool {
	if r == nil || r.Columns == nil || column == PositionColumn || column == SplitColumn {
		return false
	}
	if _, blob, _, ok := BlobPart(s, column); ok {
		column = blob.Name
	}
	return !slices.Contains(r.Columns, column)
}

// HidesRows reports whether there may be hidden samples.
func (r *Restriction) HidesRows() bool { return r != nil && r.Where != "" }

// Visible is a logical schema without hidden columns. It may lack even the id.
func (r *Restriction) Visible(s *arrow.Schema) *arrow.Schema {
	if r == nil || r.Columns == nil {
		return s
	}
	fields := slices.DeleteFunc(slices.Clone(s.Fields()), func(f arrow.Field) bool {
		return !slices.Contains(r.Columns, f.Name)
	})
	return arrow.NewSchema(fields, nil)
}

// Key names the restriction: different ones have different keys, nil has "". Caches
// include it, so that a result for one key is never returned for another.
func (r *Restriction) Key() string {
	if r == nil || r.Where == "" && r.Columns == nil {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %t", r.Where, r.Columns != nil)
	columns := slices.Sorted(slices.Values(r.Columns))
	for _, c := range slices.Compact(columns) {
		fmt.Fprintf(h, " %q", c)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NoPosition is the ErrNotFound for a position that does not exist or is hidden. It is
// the same for both, so that it does not reveal the number of rows.
func NoPosition(field, snapshot string, position int64) error {
	return fmt.Errorf("%w: %s: no sample of %s has position %d", ErrNotFound, field, snapshot, position)
}

// knownColumns lists the names that a request may use under a restriction.
func knownColumns(snap *Snapshot, within *Restriction) []string {
	var known, parts []string
	s := snap.Schema
	for _, f := range s.Fields() {
		if within.Hides(s, f.Name) {
			continue
		}
		known = append(known, f.Name)
		if IsBlob(f) {
			for _, part := range []string{SizePart, KeyPart} {
				if name := f.Name + "." + part; !within.Hides(s, name) {
					parts = append(parts, name)
				}
			}
		}
	}
	virtual := []string{PositionColumn, SplitColumn}
	if snap.union != nil && !s.HasField(SourceColumn) {
		virtual = append(virtual, SourceColumn)
	}
	return slices.Concat(known, virtual, parts)
}

// unknownColumn is the FieldError for a column that does not exist or is hidden.
func unknownColumn(field, name string, known []string) error {
	want := "one of " + ShownList(known)
	if n := Nearest(name, known); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &FieldError{Field: field, Got: Quote(name), Want: want}
}

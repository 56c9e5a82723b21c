package source

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/storedtype"
	"bowstring/schema"
)

// storedSchema reads the ARROW:schema of a Parquet file: it says more of the columns than Parquet does. nil if it
// cannot be read: it is only of help.
func storedSchema(text string) (s *arrow.Schema) {
	defer func() {
		if recover() != nil { // the decoder panics about malformed ones
			s = nil
		}
	}()
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	if s, err = flight.DeserializeSchema(b, memory.DefaultAllocator); err != nil {
		return nil
	}
	return s
}

// ownColumns says what the columns of a file are that Bowstring wrote, or that another program wrote of what Bowstring
// served.
type ownColumns struct {
	fields    []arrow.Field // as they were in the dataset
	id, split int           // of the file's columns, or -1
}

// ownColumnsOf returns nil for other files: Bowstring says of blob columns that they are ones. read are the columns that
// are read.
func ownColumnsOf(path string, read []arrow.Field) (*ownColumns, error) {
	stored, err := storedFields(path)
	if err != nil || !slices.ContainsFunc(stored, schema.IsBlob) {
		return nil, err
	}
	own := &ownColumns{id: -1, split: -1}
	for i, column := range read {
		at := slices.IndexFunc(stored, func(f arrow.Field) bool { return f.Name == column.Name })
		if at < 0 {
			return nil, nil //nolint:nilnil // of another file
		}
		f := stored[at]
		f.Nullable = true
		if f.Type = storedtype.Restored(column.Type, f.Type); schema.IsBlob(f) {
			f.Type = column.Type
		}
		own.fields = append(own.fields, f)
		switch id := f.Type.ID(); {
		case f.Name == schema.IDColumn && (arrow.TypeEqual(f.Type, schema.IDField().Type) || id == arrow.STRING):
			own.id = i
		case f.Name == schema.SplitColumn && id == arrow.STRING:
			own.split = i
		}
	}
	return own, nil
}

// storedFields returns the fields of a Parquet file as they were in Arrow, with their metadata; nil if it does not tell.
func storedFields(path string) (fields []arrow.Field, err error) {
	f, err := openParquetFile(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if stored := storedSchema(f.Metadata("ARROW:schema")); stored != nil {
		fields = stored.Fields()
	}
	return fields, nil
}

// restore gives the columns of a record, which it takes over, the types that they had in the dataset.
func (o *ownColumns) restore(rec arrow.Record) (arrow.Record, error) {
	if o == nil {
		return rec, nil
	}
	defer rec.Release()
	columns := make([]arrow.Array, 0, len(o.fields))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, f := range o.fields {
		c, err := storedtype.Convert(rec.Column(i), f.Type)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", Quoted(f.Name), err)
		}
		columns = append(columns, c)
	}
	return array.NewRecord(arrow.NewSchema(o.fields, nil), columns, rec.NumRows()), nil
}

// tell sets the id and the split of a sample.
func (o *ownColumns) tell(s *Sample, cell func(column int) Cell) {
	if o.id >= 0 {
		id, ok := idOf(cell(o.id))
		if !ok && s.Bad == "" {
			s.Bad = "id missing, or no UUID"
		}
		s.ID = &id
	}
	if o.split < 0 {
		return
	}
	switch split := cell(o.split); {
	case split.Array.IsNull(split.Row):
	case schema.CheckName("split", text(split.Array, split.Row)) != nil:
		if text(split.Array, split.Row) != "" && s.Bad == "" {
			s.Bad = "split " + Quoted(text(split.Array, split.Row)) + " is no name of a split"
		}
	default:
		s.Split = text(split.Array, split.Row)
	}
}

// leavesOut says whether a sample is in another split than the one asked for. nil tells no splits.
func (o *ownColumns) leavesOut(split, asked string) bool {
	return o != nil && o.split >= 0 && asked != "" && split != asked
}

// idOf reads an id: 16 bytes, or a UUID as text.
func idOf(c Cell) (schema.ID, bool) {
	if c.Array.IsNull(c.Row) {
		return schema.ID{}, false
	}
	if b, ok := c.Array.(*array.FixedSizeBinary); ok && len(b.Value(c.Row)) == len(schema.ID{}) {
		return schema.ID(b.Value(c.Row)), true
	}
	id, err := schema.ParseID(text(c.Array, c.Row))
	return id, err == nil
}

const positionNote = `column "position" is that of the dataset that was exported, and was left out`

// addOwn adds a column as it was in the dataset.
func (s *parquetSource) addOwn(i int) {
	f := s.own.fields[i]
	if i == s.own.id || i == s.own.split {
		return
	}
	if schema.IsBlob(f) {
		s.blobs = append(s.blobs, blobColumn{field: schema.BlobField(f.Name, schema.Media(f), true), index: i,
			nested: !isBytes(f.Type), element: -1})
		return
	}
	if f.Name == schema.PositionColumn {
		s.notes = append(s.notes, positionNote)
		return
	}
	s.meta = append(s.meta, metaColumn{ownMeta(f), i})
}

// ownMeta is the field of a metadata column as it was in the dataset.
func ownMeta(f arrow.Field) arrow.Field {
	out := arrow.Field{Name: f.Name, Type: f.Type, Nullable: true}
	if names := schema.Classes(f); names != nil {
		out.Metadata = schema.ClassField(f.Name, names).Metadata
	}
	return out
}

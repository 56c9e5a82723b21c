package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/cmd/bowstring/storedtype"
	"bowstring/schema"
)

// parquetLayout is the common columns of several files. Columns are matched by name, and
// have the narrowest type that holds the values of all files. add is called for each
// file, then settle once; after that it does not change.
type parquetLayout struct {
	place  *Files
	choice *choice
	files  []parquetColumns
	times  map[string]parquet.Times // INT96 timestamps by column, over all files
	fields []arrow.Field            // set by settle
	first  string                   // file with which the others are compared
	notes  []string
}

// parquetColumns are the wanted columns of a file.
type parquetColumns struct {
	name    string
	columns []parquet.Column
	info    string // the file's metadata "huggingface"
}

// newParquetLayout returns a layout of no files.
func newParquetLayout(place *Files, c *choice) *parquetLayout {
	return &parquetLayout{place: place, choice: c, times: map[string]parquet.Times{}}
}

// inspect adds the columns of a file. Its error is the reason why the file cannot be
// read.
func (l *parquetLayout) inspect(ctx context.Context, name, path string) (err error) {
	f, err := l.place.openParquet(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return l.add(name, f)
}

// add adds the columns of an open file.
func (l *parquetLayout) add(name string, f *parquet.File) error {
	wants := func(name string) bool { return l.choice.wants(name, freeName(name, nil)) }
	columns, err := f.Columns(wants)
	if err != nil {
		return err
	}
	// Unwanted columns are removed first: they may have any type, or none that can be
	// read.
	columns = slices.DeleteFunc(columns, func(c parquet.Column) bool { return !wants(c.Name) })
	for i, c := range columns {
		if c.Err != nil {
			return fmt.Errorf("column %s cannot be read: %w; --leave-out leaves it out", Quoted(c.Name), c.Err)
		}
		if columnNamed(columns[:i], c.Name) >= 0 {
			return fmt.Errorf("two columns are named %s", Quoted(c.Name))
		}
	}
	// The unit of a timestamp column must suit all files.
	for _, c := range columns {
		l.times[c.Name] = l.times[c.Name].Or(c.Times)
	}
	l.files = append(l.files, parquetColumns{name, columns, f.Metadata("huggingface")})
	return nil
}

// columnNamed returns the index of a column, or -1.
func columnNamed(columns []parquet.Column, name string) int {
	return slices.IndexFunc(columns, func(c parquet.Column) bool { return c.Name == name })
}

// micro reports whether the INT96 timestamps of a column become microseconds. They do if
// one is outside the range of nanoseconds and all are whole microseconds.
func (l *parquetLayout) micro(column string) bool {
	t := l.times[column]
	return t.Far && !t.Fine
}

// settle decides the types of the columns, after all files were added. It yields the
// files whose columns do not fit those of the files before, with the reason.
func (l *parquetLayout) settle() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var whole []arrow.Field
		for _, f := range l.files {
			if l.first == "" {
				l.first, whole = f.name, l.fieldsOf(f)
				continue
			}
			joined, err := l.join(whole, f)
			if err != nil {
				if !yield(f.name, err) {
					return
				}
				continue
			}
			whole = joined
		}
		// Types of the dataset are decided last, because null unifies with any type
		// before.
		for _, f := range whole {
			if f.Type.ID() == arrow.NULL {
				l.notes = append(l.notes, fmt.Sprintf("column %s holds nothing: it is kept as text, all null",
					Quoted(f.Name)))
			}
			f.Type = storedType(f.Type, true)
			l.fields = append(l.fields, f)
		}
	}
}

// fieldsOf returns the fields of a file, with the unit that micro has decided.
func (l *parquetLayout) fieldsOf(f parquetColumns) []arrow.Field {
	var fields []arrow.Field
	for _, c := range f.columns {
		if l.micro(c.Name) {
			c.Type = c.Micro
		}
		fields = append(fields, c.Field)
	}
	return fields
}

// join widens the columns so that they hold those of another file. A column that only one
// of them has is an error, because nulls in its place would go unnoticed.
func (l *parquetLayout) join(whole []arrow.Field, f parquetColumns) ([]arrow.Field, error) {
	whole = slices.Clone(whole)
	have := l.fieldsOf(f)
	// The order of columns is that of the first file.
	for i, w := range whole {
		at := columnNamed(f.columns, w.Name)
		if at < 0 {
			return nil, fmt.Errorf("its columns are not those of %s: %s is missing", Quoted(l.first), Quoted(w.Name))
		}
		t, ok := unify(w.Type, have[at].Type)
		if !ok {
			return nil, fmt.Errorf("column %s is %s here and %s in %s, and no type holds both; --leave-out leaves it out",
				Quoted(w.Name), schema.ShownType(have[at].Type), schema.ShownType(w.Type), Quoted(l.first))
		}
		whole[i].Type = t
	}
	for _, c := range have {
		if !slices.ContainsFunc(whole, func(w arrow.Field) bool { return w.Name == c.Name }) {
			return nil, fmt.Errorf("its columns are not those of %s: %s is one more; --leave-out leaves it out",
				Quoted(l.first), Quoted(c.Name))
		}
	}
	return whole, nil
}

// info returns the metadata "huggingface" of the first file; "" if it has none.
func (l *parquetLayout) info() string {
	for _, f := range l.files {
		if f.name == l.first {
			return f.info
		}
	}
	return ""
}

const (
	// parquetRows is how many rows are decoded at a time, at most. Each sample retains
	// its whole record, so records are small.
	parquetRows = 64
	// parquetBytes is the size of such a record; a single row may be larger.
	parquetBytes = 16 << 20
)

// footerBytes is how much of the end of a Parquet file in a bucket the first request
// reads. Most footers fit.
const footerBytes = 64 << 10

// openParquet opens a file for its metadata.
func (f *Files) openParquet(ctx context.Context, path string) (*parquet.File, error) {
	in, err := f.openParts(ctx, path, footerBytes)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	return parquet.Open(in)
}

// parquetRecords reads the rows of a file in the form of a layout.
type parquetRecords struct {
	file    *parquet.File
	records *parquet.Records
	fields  []arrow.Field // fields of the records
}

// openRecords opens a file whose columns the layout knows.
func (l *parquetLayout) openRecords(ctx context.Context, path string) (*parquetRecords, error) {
	return l.recordsOf(l.place.open(ctx, path))
}

// recordsOf is openRecords for an open file, or for the error of opening it.
func (l *parquetLayout) recordsOf(in *File, opened error) (_ *parquetRecords, err error) {
	if opened != nil {
		return nil, errors.New(reason(opened))
	}
	f, err := parquet.Open(in)
	if err != nil {
		return nil, err
	}
	r := &parquetRecords{file: f, fields: l.fields}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	// The timestamps were read when the file was added; their unit is known.
	columns, err := f.Columns(func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	var (
		at    []int
		micro []bool
	)
	for _, want := range l.fields {
		i := columnNamed(columns, want.Name)
		if i < 0 {
			return nil, fmt.Errorf("column %q is gone", want.Name)
		}
		at, micro = append(at, i), append(micro, l.micro(want.Name))
	}
	// Records are smaller if rows are large, by the mean of the row group with the
	// largest rows.
	rows := int64(parquetRows)
	if n := f.RowBytes(); n > 0 {
		rows = min(rows, max(parquetBytes/n, 1))
	}
	r.records, err = f.Records(at, micro, int(rows))
	return r, err
}

func (r *parquetRecords) close() error { return r.file.Close() }

// next returns the next record, which the caller releases, or io.EOF. bad has, by row,
// why a value does not fit the type of its column; the record has a null there.
func (r *parquetRecords) next(ctx context.Context) (_ arrow.Record, bad map[int]string, err error) {
	rec, err := r.records.Next(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer rec.Release()
	var columns []arrow.Array
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, f := range r.fields {
		// Usually all values fit, and the whole array is converted at once.
		wide, err := widen(ctx, rec.Column(i), f.Type)
		if err != nil {
			if bad == nil {
				bad = map[int]string{}
			}
			if wide, err = widenRows(ctx, rec.Column(i), f, bad); err != nil {
				return nil, nil, err
			}
		}
		columns = append(columns, wide)
	}
	return array.NewRecord(arrow.NewSchema(r.fields, nil), columns, rec.NumRows()), bad, nil
}

// widenRows is widen row by row. A row that cannot be converted becomes null, with its
// reason in bad. It is slow, and used only after widen has failed for the whole array.
func widenRows(ctx context.Context, a arrow.Array, f arrow.Field, bad map[int]string) (arrow.Array, error) {
	var parts []arrow.Array
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	for row := range a.Len() {
		one := array.NewSlice(a, int64(row), int64(row)+1)
		// A slice of a list column refers to the values of all rows. Without the copy
		// they would be converted as well, and fail as well.
		alone, err := array.Concatenate([]arrow.Array{one}, memory.DefaultAllocator)
		if err == nil {
			var wide arrow.Array
			if wide, err = widen(ctx, alone, f.Type); err == nil {
				parts = append(parts, wide)
			}
			alone.Release()
		}
		if err != nil {
			bad[row] = fmt.Sprintf("%s: %s of type %s is none of %s, which other files need", Quoted(f.Name),
				one.ValueStr(0), schema.ShownType(a.DataType()), schema.ShownType(f.Type))
			parts = append(parts, array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 1))
		}
		one.Release()
	}
	return array.Concatenate(parts, memory.DefaultAllocator)
}

// readParquetTable reads Parquet files of one layout into memory, as a table of metadata.
func (f *Files) readParquetTable(ctx context.Context, root string, files []string, choice *choice) (*table, error) {
	t := &table{}
	l := newParquetLayout(f, choice)
	for _, name := range files {
		if err := l.inspect(ctx, name, filepath.Join(root, name)); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(name), err)
		}
	}
	for name, err := range l.settle() {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(name), err)
	}
	t.fields = l.fields
	parts := make([][]arrow.Array, len(t.fields))
	for _, name := range files {
		if err := t.readParquet(ctx, l, root, name, parts); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(name), err)
		}
	}
	t.rows = len(t.lines)
	for c, f := range t.fields {
		if len(parts[c]) == 0 {
			t.columns = append(t.columns, array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 0))
			continue
		}
		// The functions of table expect one chunk for each column.
		column, err := array.Concatenate(parts[c], memory.DefaultAllocator)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
		t.columns = append(t.columns, column)
		for _, p := range parts[c] {
			p.Release()
		}
	}
	return t, nil
}

// readParquet appends the records of a file. Unlike in a data set, a value that does not
// fit is an error.
func (t *table) readParquet(ctx context.Context, l *parquetLayout, root, name string, parts [][]arrow.Array) error {
	records, err := l.openRecords(ctx, filepath.Join(root, name))
	if err != nil {
		return err
	}
	defer func() { _ = records.close() }()
	for line := 0; ; {
		rec, bad, err := records.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// A table must be complete: the first bad row is an error.
		for row, why := range bad {
			rec.Release()
			return fmt.Errorf("%w: row %d: %s", schema.ErrInvalid, line+row, why)
		}
		for c, column := range rec.Columns() {
			column.Retain()
			parts[c] = append(parts[c], column)
		}
		for range rec.NumRows() {
			t.lines = append(t.lines, place{name, line})
			line++
		}
		rec.Release()
	}
}

// recordBytes returns the size of a record's buffers.
func recordBytes(rec arrow.Record) (n int64) {
	for _, c := range rec.Columns() {
		n += dataBytes(c.Data())
	}
	return n
}

// dataBytes adds up the buffers of an array and its children.
func dataBytes(d arrow.ArrayData) (n int64) {
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, child := range d.Children() {
		n += dataBytes(child)
	}
	return n
}

// ownColumns describes the columns of a file that Bowstring wrote, or that another
// program wrote from served data.
type ownColumns struct {
	fields    []arrow.Field // fields in the dataset
	id, split int           // columns of the file, or -1
}

// ownColumnsOf returns nil for a file of other origin. Bowstring marks blob columns in
// the field metadata of the stored Arrow schema. read are the columns that are read.
func (f *Files) ownColumnsOf(ctx context.Context, path string, read []arrow.Field) (*ownColumns, error) {
	stored, err := f.storedFields(ctx, path)
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

// storedFields returns the fields of the stored Arrow schema, with their metadata; nil if
// the file has no such schema.
func (f *Files) storedFields(ctx context.Context, path string) (fields []arrow.Field, err error) {
	in, err := f.openParquet(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if stored, err := parquet.Origin(in.Metadata("ARROW:schema")); err == nil { // the schema is only a hint
		fields = stored.Fields()
	}
	return fields, nil
}

// restore returns a record with the types that the columns had in the dataset. It takes
// over rec.
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

// identify sets the id and the split of a sample from the columns that have them.
func (o *ownColumns) identify(s *Sample, cell func(column int) Cell) {
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

// leavesOut reports whether a sample is in another split than the one asked for. A nil o
// has no splits.
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

// ownMeta returns the field of a metadata column as it was in the dataset, with its
// classes and without other metadata.
func ownMeta(f arrow.Field) arrow.Field {
	out := arrow.Field{Name: f.Name, Type: f.Type, Nullable: true}
	if names := schema.Classes(f); names != nil {
		out.Metadata = schema.ClassField(f.Name, names).Metadata
	}
	return out
}

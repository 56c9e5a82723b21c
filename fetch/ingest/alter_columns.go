package ingest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// alterPlan says what becomes of the columns of a snapshot.
type alterPlan struct {
	base        *schema.Snapshot
	form        *schema.Form
	schema      *arrow.Schema // of the new snapshot
	meta, blobs []columnPlan
	key         int  // the column of the base that rows are found by
	rewrite     bool // pages of the base are none of the new snapshot
	// classes says that names of classes were added: pages of the oldest form have them in themselves.
	classes bool
}

// columnPlan is where a column of the new snapshot comes from.
type columnPlan struct {
	field arrow.Field
	// from is its index in the base's schema, for a blob column among the blob columns; -1 if it is new.
	from int
	// rows is its index among the metadata or blob columns of the rows; -1 if they do not have it.
	rows int
	// key says that rows are found by it, so that their values are those of their samples.
	key bool
}

// plan finds out what the new snapshot's columns are.
func (a *Alteration) plan(base *schema.Snapshot) (*alterPlan, error) {
	p := &alterPlan{base: base}
	var err error
	if p.form, err = schema.NewForm(base); err != nil {
		return nil, err
	}
	if err := a.checkNamed(base); err != nil {
		return nil, err
	}
	if a.opts.Rows != nil {
		if err := a.findKey(p); err != nil {
			return nil, err
		}
	}
	p.columnsOf(&a.opts)
	if a.opts.Rows != nil && !a.opts.Delete {
		if err := a.mergeColumns(p); err != nil {
			return nil, err
		}
	}
	if p.schema, err = schema.NewSchema(fieldsOf(p.meta), fieldsOf(p.blobs)); err != nil {
		return nil, err
	}
	p.rewrite = !schema.ChunkSchema(base.Schema).Equal(schema.ChunkSchema(p.schema))
	return p, nil
}

func fieldsOf(columns []columnPlan) []arrow.Field {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = c.field
	}
	return fields
}

// checkNamed looks for the columns that are to be dropped or renamed.
func (a *Alteration) checkNamed(base *schema.Snapshot) error {
	for _, name := range a.opts.Drop {
		if !base.Schema.HasField(name) || name == schema.IDColumn {
			return unknown("drop_columns", base, name)
		}
	}
	for _, name := range a.renamed() {
		if !base.Schema.HasField(name) || name == schema.IDColumn {
			return unknown("rename_columns", base, name)
		}
		if slices.Contains(a.opts.Drop, name) {
			return &schema.FieldError{Field: "rename_columns", Got: schema.Quote(name),
				Want: "a column that is not to be dropped"}
		}
	}
	return nil
}

// findKey finds the column of the base that rows are found by.
func (a *Alteration) findKey(p *alterPlan) error {
	if a.opts.On == schema.IDColumn {
		return nil
	}
	at := p.base.Schema.FieldIndices(a.opts.On)
	if len(at) == 0 || schema.IsBlob(p.base.Schema.Field(at[0])) {
		return unknown("on", p.base, a.opts.On)
	}
	p.key = at[0]
	have, got := p.base.Schema.Field(p.key), a.added.meta[a.added.key]
	if keyKind(have.Type) != keyKind(got.Type) {
		return &schema.FieldError{Field: "on", Got: fmt.Sprintf("column %s of type %s", schema.Quote(got.Name),
			schema.ShownType(got.Type)), Want: "the dataset's type, " + schema.ShownType(have.Type)}
	}
	if names := schema.Classes(got); names != nil && !slices.Equal(names, schema.Classes(have)) {
		return &schema.FieldError{Field: "on", Got: fmt.Sprintf("column %s with other classes than the dataset's",
			schema.Quote(got.Name)), Want: "the same classes, as rows are found by their numbers"}
	}
	return nil
}

// columnsOf lists the base's columns that stay, by their new names.
func (p *alterPlan) columnsOf(o *AlterOptions) {
	blob := 0
	for i, f := range p.base.Schema.Fields() {
		isBlob := schema.IsBlob(f)
		c := columnPlan{field: f, from: i, rows: -1}
		if isBlob {
			c.from = blob
			blob++
		}
		if i == 0 || slices.Contains(o.Drop, f.Name) {
			continue
		}
		if name, ok := o.Rename[f.Name]; ok {
			c.field.Name = name
		}
		if isBlob {
			p.blobs = append(p.blobs, c)
		} else {
			p.meta = append(p.meta, c)
		}
	}
}

// mergeColumns adds the columns of the rows.
func (a *Alteration) mergeColumns(p *alterPlan) error {
	for i, f := range a.added.meta {
		if at := indexOf(p.blobs, f.Name); at >= 0 {
			return &schema.FieldError{Field: "column " + schema.Quote(f.Name), Got: describeField(f),
				Want: "binary, as it is a blob column of the dataset"}
		}
		if _, blob, part, ok := schema.BlobPart(p.base.Schema, f.Name); ok {
			return &schema.FieldError{Field: "column " + schema.Quote(f.Name), Got: "it in the rows",
				Want: fmt.Sprintf("another name or none: it tells the %s of blobs of %s", part, schema.Quote(blob.Name))}
		}
		at := indexOf(p.meta, f.Name)
		if at < 0 {
			f.Nullable = true // in samples that no row is for
			p.meta = append(p.meta, columnPlan{field: f, from: -1, rows: i})
			continue
		}
		c := &p.meta[at]
		c.rows = i
		if a.opts.On == f.Name {
			c.key = true
			continue
		}
		field, err := a.withClasses(c.field, f, i)
		if err != nil {
			return err
		}
		p.classes = p.classes || !field.Equal(c.field)
		c.field = field
	}
	for i, f := range a.added.blobs {
		if at := indexOf(p.meta, f.Name); at >= 0 {
			return &schema.FieldError{Field: "column " + schema.Quote(f.Name), Got: "blobs",
				Want: fmt.Sprintf("%s, as it is a metadata column of the dataset",
					schema.ShownType(p.meta[at].field.Type))}
		}
		at := indexOf(p.blobs, f.Name)
		if at < 0 {
			f.Nullable = true
			p.blobs = append(p.blobs, columnPlan{field: f, from: -1, rows: i})
			continue
		}
		p.blobs[at].rows = i
	}
	return nil
}

func indexOf(columns []columnPlan, name string) int {
	return slices.IndexFunc(columns, func(c columnPlan) bool { return c.field.Name == name })
}

// withClasses is the field of a column of the dataset, with classes added that column i of the rows names. Classes keep
// their numbers.
func (a *Alteration) withClasses(have, got arrow.Field, i int) (arrow.Field, error) {
	names := schema.Classes(have)
	if names == nil {
		if schema.Classes(got) != nil {
			return have, &schema.FieldError{Field: "column " + schema.Quote(have.Name), Got: "numbers of classes",
				Want: fmt.Sprintf("values of the dataset's type %s, which has no classes; to make another column of it, "+
					"name it in drop_columns (--drop-column), too", schema.ShownType(have.Type))}
		}
		return have, nil
	}
	known := make(map[string]bool, len(names))
	for _, name := range names {
		known[name] = true
	}
	add := func(name string) {
		if !known[name] {
			known[name] = true
			names = append(names, name)
		}
	}
	old := len(names)
	switch {
	case schema.Classes(got) != nil:
		for _, name := range schema.Classes(got) {
			add(name)
		}
	case keyKind(got.Type) == "text":
		for _, b := range a.added.batches {
			at := keysOf(b.meta[i])
			for row := range b.meta[i].Len() {
				if name, ok := at(nil, row); ok {
					add(string(name))
				}
			}
		}
	}
	if len(names) > old {
		values := have.Metadata.ToMap()
		maps.Copy(values, schema.ClassField(have.Name, names).Metadata.ToMap())
		have.Metadata = arrow.MetadataFrom(values)
	}
	return have, nil
}

// fit is a column of the rows as the dataset's type has it, by batch.
func (a *Alteration) fit(c columnPlan) ([]arrow.Array, error) {
	got := a.added.meta[c.rows]
	classes := schema.Classes(c.field)
	var toNumber func(arrow.Array) (arrow.Array, *misfit)
	switch {
	case c.from < 0 || classes == nil || c.field.Name == a.opts.On:
	case keyKind(got.Type) == "text":
		toNumber = numbersOfNames(classes)
	case schema.Classes(got) != nil:
		toNumber = numbersOfNumbers(schema.Classes(got), classes)
	default:
		toNumber = numbersWithin(len(classes))
	}
	out := make([]arrow.Array, len(a.added.batches))
	for i, b := range a.added.batches {
		column, bad := b.meta[c.rows], (*misfit)(nil)
		err := a.turn(column.Len(), func() error {
			if toNumber != nil && column.NullN() < column.Len() {
				column, bad = toNumber(column)
			}
			if bad == nil {
				column, bad = fit(column, c.field.Type)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if bad != nil {
			return nil, describeMisfit(c.field.Name, b.first, got.Type, c.field.Type, bad)
		}
		if !c.field.Nullable && column.NullN() > 0 {
			row := 0
			for !column.IsNull(row) {
				row++
			}
			return nil, &schema.FieldError{Field: fmt.Sprintf("column %s, row %d", schema.Quote(c.field.Name),
				b.first+row), Got: "null", Want: "a value, as the dataset's column has no nulls"}
		}
		out[i] = column
	}
	return out, nil
}

// turn runs a piece of work on n rows when it may.
func (a *Alteration) turn(n int, piece func() error) error {
	if a.opts.Turn == nil || n <= rowsAtOnce {
		return piece()
	}
	return a.opts.Turn(piece)
}

// numbersOfNames makes numbers of the names of classes.
func numbersOfNames(classes []string) func(arrow.Array) (arrow.Array, *misfit) {
	number := make(map[string]int64, len(classes))
	for i, name := range classes {
		number[name] = int64(i)
	}
	return func(a arrow.Array) (arrow.Array, *misfit) {
		at := keysOf(a)
		return mapped(a, func(i int) (int64, bool) {
			name, _ := at(nil, i)
			n, ok := number[string(name)]
			return n, ok
		})
	}
}

// numbersOfNumbers makes numbers of a table of classes of those of another one that has all its names.
func numbersOfNumbers(from, to []string) func(arrow.Array) (arrow.Array, *misfit) {
	number := make(map[string]int64, len(to))
	for i, name := range to {
		number[name] = int64(i)
	}
	return func(a arrow.Array) (arrow.Array, *misfit) {
		at := numbersOf(a)
		return mapped(a, func(i int) (int64, bool) {
			n, ok := at(i).integer()
			if n < 0 || !ok {
				return n, ok
			}
			if n >= int64(len(from)) {
				return 0, false
			}
			return number[from[n]], true
		})
	}
}

// numbersWithin lets numbers of so many classes pass, and negative ones, which stand for none.
func numbersWithin(classes int) func(arrow.Array) (arrow.Array, *misfit) {
	return func(a arrow.Array) (arrow.Array, *misfit) {
		if !isNumber(a.DataType()) {
			return nil, &misfit{row: -1}
		}
		at := numbersOf(a)
		return mapped(a, func(i int) (int64, bool) {
			n, ok := at(i).integer()
			return n, ok && n < int64(classes)
		})
	}
}

// mapped makes a column of integers; where one is not ok, that is the misfit.
func mapped(a arrow.Array, at func(i int) (int64, bool)) (arrow.Array, *misfit) {
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	for i := range a.Len() {
		if a.IsNull(i) {
			b.AppendNull()
		} else if n, ok := at(i); ok {
			b.Append(n)
		} else {
			return nil, &misfit{i, "class number " + a.ValueStr(i)}
		}
	}
	return b.NewArray(), nil
}

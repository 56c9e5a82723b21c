package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Missing says what to do with rows whose key the dataset does not have.
type Missing string

const (
	// MissingError fails, with an error that names some of them.
	MissingError Missing = "error"
	// MissingInsert adds them as new samples after all others.
	MissingInsert Missing = "insert"
	// MissingIgnore leaves them out.
	MissingIgnore Missing = "ignore"
)

// ParseMissing parses "error", "insert" or "ignore".
func ParseMissing(s string) (Missing, error) {
	switch m := Missing(s); m {
	case MissingError, MissingInsert, MissingIgnore:
		return m, nil
	}
	return "", &schema.FieldError{Field: "missing", Got: schema.Quote(s), Want: `"error", "insert" or "ignore"`}
}

// MaxKept bounds the memory of an alteration's rows in bytes, if AlterOptions have no Keep.
const MaxKept = 4 << 30

// AlterOptions describe a change of a dataset's newest snapshot. Columns and rows that
// they do not name stay as they are. Rows are deleted by DeleteWhere first, then columns
// are dropped and renamed, then rows are merged.
type AlterOptions struct {
	Dataset string
	Source  string // where the change comes from, for people; "" keeps the snapshot's

	// DeleteWhere is evaluated on the columns before the other changes.
	DeleteWhere string            // expression of package where; rows for which it is true are deleted
	Drop        []string          // columns to drop
	Rename      map[string]string // new names of columns, by the old ones

	// Rows is the logical schema of the rows for Write; nil if there are none.
	Rows *arrow.Schema
	// On is the column whose values identify rows: the id, or a metadata column of
	// integers, text or bytes.
	On string
	// Missing says what to do with rows whose key the dataset does not have.
	Missing Missing
	// Delete deletes the samples that rows are found for. Only the keys of the rows
	// matter then.
	Delete bool
	// Split is the split of inserted samples whose row has none; DefaultSplit if empty.
	Split string

	Workers  int              // as of Options
	Mem      memory.Allocator // as of Options
	PageRows int              // as of Options
	Turn     func(piece func() error) error
	// Keep is called before that number of bytes is held in memory until the alteration
	// is closed. It fails if there is no room for them. If nil, MaxKept is the limit.
	Keep func(bytes int64) error
}

// Altered is the result of an alteration. It counts for the snapshot that was committed,
// not for earlier attempts.
type Altered struct {
	// Changed is false if the newest snapshot was already as intended.
	Changed bool
	// Matched rows were found, Inserted rows were added, and Ignored rows were left out.
	Matched, Inserted, Ignored int64
	// Deleted is the number of deleted samples.
	Deleted int64
}

// Alteration changes metadata columns and rows of a dataset by committing a snapshot
// based on its newest one. Blobs keep their keys, and manifest pages without a change are
// shared. It holds the rows of Write in memory, and one page of the dataset at a time. It
// is not safe for concurrent use.
type Alteration struct {
	putter
	store store.Store
	opts  AlterOptions
	added incoming
	kept  int64 // bytes in memory, if opts.Keep is nil
	err   error // why it can no longer be used
}

// Alter opens an alteration, which the caller must Close. schema.ErrNotFound if there is no such dataset.
func Alter(ctx context.Context, st store.Store, opts AlterOptions) (*Alteration, error) {
	if err := schema.CheckName("dataset", opts.Dataset); err != nil {
		return nil, err
	}
	if opts.Split == "" {
		opts.Split = DefaultSplit
	}
	if err := schema.CheckName("split", opts.Split); err != nil {
		return nil, err
	}
	// An empty change is more likely a mistake of the client than a wish.
	if opts.Rows == nil && len(opts.Drop) == 0 && len(opts.Rename) == 0 && opts.DeleteWhere == "" {
		return nil, fmt.Errorf("%w: nothing is to be altered", schema.ErrInvalid)
	}
	a := &Alteration{store: st, opts: opts}
	a.added.byKey = map[string]int32{}
	if opts.Rows != nil {
		if err := a.checkRows(); err != nil {
			return nil, err
		}
	}
	base, err := a.newest(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := a.plan(base); err != nil { // so that a client does not send rows in vain
		return nil, err
	}
	in, err := st.Begin(ctx, opts.Dataset)
	if err != nil {
		return nil, fmt.Errorf("open an ingest into %s: %w", opts.Dataset, err)
	}
	a.putter = newPutter(in, opts.Workers)
	return a, nil
}

// newest is the snapshot to alter.
func (a *Alteration) newest(ctx context.Context) (*schema.Snapshot, error) {
	base, err := a.store.Snapshot(ctx, a.opts.Dataset, 0)
	if err != nil {
		return nil, fmt.Errorf("alter %s: %w", a.opts.Dataset, err)
	}
	return base, nil
}

// checkRows compares the schema of the rows with the options.
func (a *Alteration) checkRows() error {
	o := &a.opts
	if err := schema.CheckSchema(o.Rows); err != nil {
		return err
	}
	a.added.meta, a.added.blobs = schema.MetaFields(o.Rows), schema.BlobFields(o.Rows)
	if o.Delete && o.Missing == MissingInsert {
		return &schema.FieldError{Field: "missing", Got: `"insert"`, Want: `"error" or "ignore" where rows are deleted`}
	}
	// Rows are matched on the base's columns, before columns are dropped. A key that is
	// dropped or renamed would be ambiguous.
	if slices.Contains(o.Drop, o.On) || o.Rename[o.On] != "" {
		return &schema.FieldError{Field: "on", Got: schema.Quote(o.On), Want: "a column that is neither dropped nor renamed"}
	}
	if o.On == "" || o.On == schema.IDColumn {
		o.On = schema.IDColumn
		return nil
	}
	a.added.key = slices.IndexFunc(a.added.meta, func(f arrow.Field) bool { return f.Name == o.On })
	if a.added.key < 0 {
		return &schema.FieldError{Field: "on", Got: schema.Quote(o.On),
			Want: "a metadata column of the rows: " + schema.ShownList(namesOf(o.Rows.Fields()))}
	}
	f := a.added.meta[a.added.key]
	if !isKey(f.Type) {
		return &schema.FieldError{Field: "on", Got: fmt.Sprintf("column %s of type %s", schema.Quote(f.Name),
			schema.ShownType(f.Type)), Want: "integers, text or bytes"}
	}
	return nil
}

// namesOf are the names of fields, in their order.
func namesOf(fields []arrow.Field) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names
}

// keep reserves memory for rows.
func (a *Alteration) keep(bytes int64) error {
	if a.opts.Keep != nil {
		return a.opts.Keep(bytes)
	}
	if a.kept += bytes; a.kept > MaxKept {
		return fmt.Errorf("%w: the rows to merge take more than %d bytes of memory; merge them in several parts",
			schema.ErrLimit, int64(MaxKept))
	}
	return nil
}

// Commit makes the altered snapshot, or finds that the newest one is equal to it. If
// another writer commits first, Commit alters the new newest snapshot, and fails with
// schema.ErrConflict after several attempts. After Commit the Alteration can only be
// closed. Blobs that the rows brought are stored once; pages are built anew on each base.
func (a *Alteration) Commit(ctx context.Context) (*schema.Snapshot, Altered, error) {
	if a.err != nil {
		return nil, Altered{}, a.err
	}
	// Also after an error: pages may have been stored that a second attempt would not
	// expect.
	a.err = errors.New("the alteration has been committed")
	for range rebases {
		base, err := a.newest(ctx)
		if err != nil {
			return nil, Altered{}, err
		}
		// apply reads the whole manifest of the base, in pages.
		next, done, err := a.apply(ctx, base)
		if err != nil {
			// Pages of a dropped snapshot may vanish while they are read. The newest one
			// is then another.
			if a.superseded(ctx, base, err) {
				continue
			}
			return nil, Altered{}, err
		}
		// Shared pages keep their keys, so equal content is visible without reading it.
		if sameContent(base, next) {
			return base, done, nil
		}
		snap, err := a.in.Commit(ctx, *next)
		if err == nil {
			done.Changed = true
			return snap, done, nil
		}
		if !errors.Is(err, schema.ErrConflict) {
			return nil, Altered{}, fmt.Errorf("commit to %s: %w", a.opts.Dataset, err)
		}
	}
	return nil, Altered{}, fmt.Errorf("commit to %s: %w: other writers were first %d times in a row", a.opts.Dataset,
		schema.ErrConflict, rebases)
}

// superseded reports whether an error may be due to a snapshot that was dropped and
// collected while it was read.
func (a *Alteration) superseded(ctx context.Context, base *schema.Snapshot, err error) bool {
	if !errors.Is(err, schema.ErrNotFound) && !errors.Is(err, schema.ErrDataLoss) {
		return false
	}
	now, err := a.newest(ctx)
	return err == nil && now.Number != base.Number
}

// Close ends the alteration. Without a Commit nothing of it is visible. Close may be
// called again, and after Commit.
func (a *Alteration) Close() error {
	if a.err == nil {
		a.err = errors.New("the alteration is closed")
	}
	return a.end()
}

// unknown is the error for a column that a snapshot does not have.
func unknown(field string, base *schema.Snapshot, name string) error {
	have := namesOf(base.Schema.Fields()[1:])
	want := fmt.Sprintf("a column of %s@%d: %s", base.Dataset, base.Number, schema.ShownList(have))
	if near := schema.Nearest(name, have); near != "" {
		want += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return &schema.FieldError{Field: field, Got: schema.Quote(name), Want: want}
}

// renamed are the old names of columns to rename, in order.
func (a *Alteration) renamed() []string { return slices.Sorted(maps.Keys(a.opts.Rename)) }

// incoming are the rows of an alteration, in memory of its own: the caller of Write reuses
// its arrays. Write fills it, and apply only reads it. So a commit can be repeated on
// another base.
type incoming struct {
	meta, blobs []arrow.Field
	key         int // index of the key among the metadata columns, if it is not the id
	batches     []incomingBatch
	rows        []incomingRow
	byKey       map[string]int32 // numbers of rows, by their keys
}

// incomingBatch are the rows of one call of Write.
type incomingBatch struct {
	first int    // number of its first row
	split string // "" keeps the split of samples
	ids   []schema.ID
	meta  []arrow.Array
	refs  [][]*schema.BlobRef // by column; null references keep a sample's blob
}

// incomingRow is the place of a row.
type incomingRow struct{ batch, at int32 }

const (
	// rowKept is the memory of a row besides its values, in bytes: its place, its entry in
	// the table of keys, its sample's position, and its id. It is an estimate.
	rowKept = 160
	// refKept is the memory of a blob's reference.
	refKept = 96
)

// Write adds rows, in the form of Writer.Write. ids may be nil if On is another column. A
// split of "" keeps samples in their splits. Write keeps nothing of its arguments.
func (a *Alteration) Write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record,
	blobs [][][]byte) error {
	if a.err != nil {
		return a.err
	}
	if err := a.add(ctx, split, ids, meta, blobs); err != nil {
		a.err = err
		return err
	}
	return nil
}

// add checks, copies and indexes rows, and stores their blobs.
func (a *Alteration) add(ctx context.Context, split string, ids []schema.ID, meta arrow.Record,
	blobs [][][]byte) error {
	if split != "" {
		if err := schema.CheckName("split", split); err != nil {
			return err
		}
	}
	n, err := a.count(ids, meta, blobs)
	if err != nil || n == 0 {
		return err
	}
	if len(a.added.rows) > math.MaxInt32-n {
		return fmt.Errorf("%w: more than 2^31-1 rows to merge", schema.ErrLimit)
	}
	// Memory is reserved before anything is copied.
	var size int64
	for i := range a.added.meta {
		size += sizeOf(meta.Column(i).Data())
	}
	// Values count twice, because they may be converted to other types.
	if err := a.keep(2*size + int64(n)*(rowKept+refKept*int64(len(blobs)))); err != nil {
		return err
	}
	b := incomingBatch{first: len(a.added.rows), split: split, ids: append([]schema.ID(nil), ids...)}
	for i, f := range a.added.meta {
		f.Nullable = true // the dataset's own rule is checked when the rows are merged
		column := schema.NewColumnBuilder(f)
		if err := column.Append(meta.Column(i), 0, n); err != nil {
			return fmt.Errorf("column %s: %w", schema.Quote(f.Name), err)
		}
		b.meta = append(b.meta, column.Array())
	}
	// Rows for a deletion are only keys; blobs in them are not stored.
	if !a.opts.Delete {
		if b.refs, err = a.put(ctx, blobs); err != nil {
			return err
		}
	}
	a.added.batches = append(a.added.batches, b)
	return a.index(&a.added.batches[len(a.added.batches)-1], n)
}

// count checks the shape of rows, and returns their number. The schema of every call is
// compared with that of the options: rows of different calls become one column.
func (a *Alteration) count(ids []schema.ID, meta arrow.Record, blobs [][][]byte) (int, error) {
	r := &a.added
	n := len(ids)
	if ids == nil && meta != nil {
		n = int(meta.NumRows())
	}
	switch {
	case a.opts.Rows == nil:
		return 0, fmt.Errorf("%w: rows for an alteration that takes none", schema.ErrInvalid)
	case ids == nil && n > 0 && a.opts.On == schema.IDColumn:
		return 0, &schema.FieldError{Field: "on", Got: `"id" for rows without ids`,
			Want: "a column \"id\" in the rows, or on=\"…\", the name of a column whose values are unique"}
	}
	if meta == nil && len(r.meta) > 0 || meta != nil && (int(meta.NumCols()) != len(r.meta) || int(meta.NumRows()) != n) ||
		len(blobs) != len(r.blobs) {
		return 0, fmt.Errorf("%w: the rows do not have the columns of their schema", schema.ErrInvalid)
	}
	for i, f := range r.meta {
		if !arrow.TypeEqual(meta.Column(i).DataType(), f.Type) {
			return 0, fmt.Errorf("%w: column %s is %s, the schema says %s", schema.ErrInvalid, schema.Quote(f.Name),
				schema.ShownType(meta.Column(i).DataType()), schema.ShownType(f.Type))
		}
	}
	for _, column := range blobs {
		if len(column) != n {
			return 0, fmt.Errorf("%w: %d rows with %d blobs", schema.ErrInvalid, n, len(column))
		}
	}
	return n, nil
}

// index enters the keys of a batch of n rows, and fails if a key is null or occurs twice.
func (a *Alteration) index(b *incomingBatch, n int) error {
	r := &a.added
	key := keysOfIDs(b.ids)
	// The key column's values are compared in the batch's own copy.
	if a.opts.On != schema.IDColumn {
		key = keysOf(b.meta[r.key])
	}
	var text []byte
	for i := range n {
		number := len(r.rows)
		var ok bool
		if text, ok = key(text[:0], i); !ok {
			return &schema.FieldError{Field: fmt.Sprintf("column %s, row %d", schema.Quote(a.opts.On), number),
				Got: "null", Want: "a key in every row"}
		}
		// Two rows for one sample would make the result depend on their order.
		if other, twice := r.byKey[string(text)]; twice {
			return fmt.Errorf("%w: rows %d and %d have the same key %s in column %s, want each key once",
				schema.ErrInvalid, other, number, a.shownKey(text), schema.Quote(a.opts.On))
		}
		r.byKey[string(text)] = int32(number)
		r.rows = append(r.rows, incomingRow{int32(len(r.batches) - 1), int32(i)})
	}
	return nil
}

// shownKey is a key in the form of messages.
func (a *Alteration) shownKey(key []byte) string {
	if a.opts.On == schema.IDColumn && len(key) == len(schema.ID{}) {
		return schema.FormatID(schema.ID(key))
	}
	return schema.Quote(string(key))
}

// keyOf is the key of a row. It is computed again from the row, for messages and ids: the
// keys of byKey are not reachable by the row's number.
func (a *Alteration) keyOf(row int32) []byte {
	at := a.added.rows[row]
	b := &a.added.batches[at.batch]
	if a.opts.On == schema.IDColumn {
		return b.ids[at.at][:]
	}
	key, _ := keysOf(b.meta[a.added.key])(nil, int(at.at))
	return key
}

// sizeOf is the size of an array's buffers in bytes.
func sizeOf(d arrow.ArrayData) (n int64) {
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, c := range d.Children() {
		n += sizeOf(c)
	}
	return n
}

// alterPlan describes the columns of the new snapshot. It depends on the base, and is made
// anew for each. It is immutable after plan.
type alterPlan struct {
	base        *schema.Snapshot
	form        *schema.Form
	schema      *arrow.Schema // of the new snapshot
	meta, blobs []columnPlan
	key         int  // index of the base's column that identifies rows
	rewrite     bool // no page of the base can be shared, as the schema of pages differs
}

// columnPlan is the source of a column of the new snapshot.
type columnPlan struct {
	field arrow.Field
	// from is its index in the base's schema, for a blob column among the blob columns;
	// -1 for a new column.
	from int
	// rows is its index among the metadata or blob columns of the rows; -1 if these do
	// not have it.
	rows int
	// key marks the column that identifies rows: the values of the rows and of their
	// samples are equal there.
	key bool
}

// plan determines the columns of the new snapshot, and fails if the options do not fit
// the base.
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
	// The order matters: columns of the rows are merged into those that remain, under their
	// new names.
	p.columnsOf(&a.opts)
	if a.opts.Rows != nil && !a.opts.Delete {
		if err := a.mergeColumns(p); err != nil {
			return nil, err
		}
	}
	if p.schema, err = schema.NewSchema(fieldsOf(p.meta), fieldsOf(p.blobs)); err != nil {
		return nil, err
	}
	// Renaming alone changes the schema of pages as well, and so rewrites them.
	p.rewrite = !schema.ChunkSchema(base.Schema).Equal(schema.ChunkSchema(p.schema))
	return p, nil
}

// fieldsOf are the fields of the altered dataset's columns, in their order.
func fieldsOf(columns []columnPlan) []arrow.Field {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = c.field
	}
	return fields
}

// checkNamed checks the columns to drop or rename.
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

// findKey finds the base's column that identifies rows.
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
	// Keys are compared as stored: numbers of different tables of classes mean different
	// classes.
	if names := schema.Classes(got); names != nil && !slices.Equal(names, schema.Classes(have)) {
		return &schema.FieldError{Field: "on", Got: fmt.Sprintf("column %s with other classes than the dataset's",
			schema.Quote(got.Name)), Want: "the same classes, as rows are found by their numbers"}
	}
	return nil
}

// columnsOf lists the base's remaining columns by their new names. The id is not listed: it
// is in every schema and never changes.
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

// mergeColumns adds the columns of the rows to the plan. New columns are nullable,
// because most samples have no row.
func (a *Alteration) mergeColumns(p *alterPlan) error {
	for i, f := range a.added.meta {
		if at := indexOf(p.blobs, f.Name); at >= 0 {
			return &schema.FieldError{Field: "column " + schema.Quote(f.Name), Got: describeField(f),
				Want: "binary, as it is a blob column of the dataset"}
		}
		if _, blob, part, ok := schema.BlobPart(p.base.Schema, f.Name); ok {
			return &schema.FieldError{Field: "column " + schema.Quote(f.Name), Got: "it in the rows",
				Want: fmt.Sprintf("another name or none: it is the %s of blobs of %s", part, schema.Quote(blob.Name))}
		}
		at := indexOf(p.meta, f.Name)
		if at < 0 {
			f.Nullable = true // null in samples without a row
			p.meta = append(p.meta, columnPlan{field: f, from: -1, rows: i})
			continue
		}
		c := &p.meta[at]
		c.rows = i
		if a.opts.On == f.Name {
			// Its values need no merge: they are equal by definition.
			c.key = true
			continue
		}
		field, err := a.withClasses(c.field, f, i)
		if err != nil {
			return err
		}
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

// indexOf is the index of a column, or -1.
func indexOf(columns []columnPlan, name string) int {
	return slices.IndexFunc(columns, func(c columnPlan) bool { return c.field.Name == name })
}

// withClasses is the field of a column of the dataset, extended by the classes that
// column i of the rows names. Existing classes keep their numbers, because labels are
// stored as numbers.
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
	// New classes are appended in the order of their first occurrence, so equal uploads
	// give equal numbers.
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

// fit converts a column of the rows to the dataset's type, by batch.
func (a *Alteration) fit(c columnPlan) ([]arrow.Array, error) {
	got := a.added.meta[c.rows]
	classes := schema.Classes(c.field)
	// A column with classes stores numbers. Names and numbers of another table are
	// translated first, and then fitted to the type.
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

// turn runs a piece of work on n rows within a turn, or at once if it is short.
func (a *Alteration) turn(n int, piece func() error) error {
	if a.opts.Turn == nil || n <= rowsAtOnce {
		return piece()
	}
	return a.opts.Turn(piece)
}

// numbersOfNames converts names of classes to their numbers.
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

// numbersOfNumbers converts numbers of one table of classes to those of another table
// that has all its names. Negative numbers mean no class and stay.
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

// numbersWithin accepts numbers below the number of classes, including negative ones,
// which mean no class.
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

// mapped makes a column of integers. The first value that is not ok is the misfit. It is an
// int64 column at first: fit converts it to the dataset's type.
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

// keyFunc appends the key of row i to text; ok is false if the key is null. Appending
// lets callers reuse one buffer for all rows.
type keyFunc func(text []byte, i int) (key []byte, ok bool)

// isKey reports whether values of a type can identify rows.
func isKey(t arrow.DataType) bool { return keyKind(t) != "" }

// keyKind is the kind of keys of a type. Keys of one kind are comparable, whatever their
// types; "" if values cannot be keys.
func keyKind(t arrow.DataType) string {
	switch t.ID() {
	case arrow.STRING, arrow.LARGE_STRING:
		return "text"
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.FIXED_SIZE_BINARY:
		return "bytes"
	}
	if arrow.IsInteger(t.ID()) {
		return "integers"
	}
	return ""
}

// keysOfIDs returns keys that are the bytes of ids. They are never null.
func keysOfIDs(ids []schema.ID) keyFunc {
	return func(text []byte, i int) ([]byte, bool) { return append(text, ids[i][:]...), true }
}

// keysOf returns the keys of a column whose type isKey. Integers of all widths give the
// same text.
func keysOf(a arrow.Array) keyFunc {
	// As with numbers, the type is examined once for the column.
	var one keyFunc
	switch a := a.(type) {
	case *array.String:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.LargeString:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.Binary:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.LargeBinary:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.FixedSizeBinary:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	default:
		at := numbersOf(a)
		one = func(t []byte, i int) ([]byte, bool) {
			n := at(i)
			if n.kind == kindUint {
				return strconv.AppendUint(t, n.u, 10), true
			}
			return strconv.AppendInt(t, n.i, 10), true
		}
	}
	return func(text []byte, i int) ([]byte, bool) {
		if a.IsNull(i) {
			return text, false
		}
		return one(text, i)
	}
}

package source

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// table is metadata of samples in memory, from CSV, TSV, JSON lines or Parquet. It is
// changed while a source is opened, and only read afterwards.
type table struct {
	fields  []arrow.Field
	columns []arrow.Array // one chunk each
	rows    int
	lines   []place // place of each row, for messages
	bad     []badRow
	notes   []string
}

// badRow is a row that cannot be read.
type badRow struct {
	at     place
	reason string
}

// sample returns the row as a bad sample, so that it is reported with the others.
func (r *badRow) sample() Sample { return Sample{Key: r.at.String(), Bad: r.reason} }

const (
	// maxColumns bounds the columns that come from keys of JSON objects. Data used as
	// keys would make one for each row.
	maxColumns = 1000
	// maxBadRows bounds the rows that cannot be read. A file with more of them is no
	// table.
	maxBadRows = 1 << 20
)

// place is a row of a file. line counts from 1 in text files, and from 0 in Parquet.
type place struct {
	file string
	line int
}

// String returns the place as FILE:LINE.
func (p place) String() string { return fmt.Sprintf("%s:%d", Quoted(p.file), p.line) }

// tableExtensions are the endings of names of tables, in lower case.
var tableExtensions = []string{"csv", "tsv", "jsonl", "ndjson", "json", "parquet"}

// tableOptions configure how a table is read.
type tableOptions struct {
	choice *choice
	// Columns in paths and text are read even if choice does not want them. Columns in
	// text are text, whatever their cells look like. In paths, this holds
	// only for the first column that exists.
	paths, text []string
	// typed are the columns that may have another type than text; nil means all.
	typed []string
}

// readTable reads files of one kind as one table. Parquet files must have the same
// columns; others may have any, and missing cells are null. files are relative to root.
func (f *Files) readTable(ctx context.Context, root string, files []string, opts tableOptions) (*table, error) {
	kind := extension(files[0])
	for _, other := range files[1:] {
		if extension(other) != kind {
			return nil, fmt.Errorf("%w: %s and %s: metadata in two formats", schema.ErrInvalid, Quoted(files[0]),
				Quoted(other))
		}
	}
	if kind == "parquet" {
		return f.readParquetTable(ctx, root, files, nil)
	}
	t := newLooseTable(opts)
	for _, file := range files {
		if err := t.readFile(ctx, f, root, file, kind); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(file), err)
		}
	}
	return t.build()
}

// maxTable bounds a table that is read into memory, by the bytes of its file. Parquet is
// bounded by its rows.
const maxTable = 2 << 30

// readFile opens a text file and calls read with its content in UTF-8.
func (f *Files) readFile(ctx context.Context, path string, read func(*bufio.Reader) error) error {
	file, err := f.open(ctx, path)
	if err != nil {
		return errors.New(reason(err))
	}
	if file.Size() > maxTable {
		err := fmt.Errorf("%w: %w; a larger table is read as Parquet", schema.ErrLimit, tooLarge(maxTable))
		return errors.Join(err, file.Close())
	}
	in, err := asUTF8(bufio.NewReaderSize(file, 1<<16))
	if err == nil {
		err = read(in)
	}
	return errors.Join(err, file.Close())
}

// find returns the index of the first of the named columns that exists; -1 if none does.
func (t *table) find(names ...string) int {
	for _, name := range names {
		if i := slices.IndexFunc(t.fields, func(f arrow.Field) bool { return f.Name == name }); i >= 0 {
			return i
		}
	}
	return -1
}

// choose removes the columns that c does not want.
func (t *table) choose(c *choice) {
	// From the end, so that indexes of the remaining columns stay valid.
	for i := len(t.fields) - 1; i >= 0; i-- {
		if name := t.fields[i].Name; !c.wants(name, freeName(name, nil)) {
			t.remove(i)
		}
	}
}

// remove removes a column and returns its values.
func (t *table) remove(i int) arrow.Array {
	c := t.columns[i]
	t.fields, t.columns = slices.Delete(t.fields, i, i+1), slices.Delete(t.columns, i, i+1)
	return c
}

// classes replaces a label column of names by indexes of the sorted names. Sorting makes
// the labels independent of the order of rows. A column of numbers stays as it is.
func (t *table) classes(i int) error {
	text, ok := t.columns[i].(array.StringLike)
	if !ok {
		return nil
	}
	var names []string
	for row := range text.Len() {
		if text.IsValid(row) {
			names = append(names, text.Value(row))
		}
	}
	// Binary search in the sorted names gives the index of each class.
	slices.Sort(names)
	names = slices.Compact(names)
	b := array.NewInt64Builder(memory.DefaultAllocator)
	for row := range text.Len() {
		if text.IsNull(row) {
			b.AppendNull()
			continue
		}
		class, _ := slices.BinarySearch(names, text.Value(row))
		b.Append(int64(class))
	}
	t.columns[i] = b.NewArray()
	t.fields[i] = schema.ClassField(t.fields[i].Name, names)
	return nil
}

// rename renames columns whose names a dataset does not allow, or which are in taken. It
// returns notes about them.
func (t *table) rename(taken ...string) (notes []string) {
	names := freeNames("source_", fieldNames(t.fields), taken)
	for i, f := range t.fields {
		if names[i] != f.Name {
			notes = append(notes, keptAs("column", f.Name, names[i]))
			t.fields[i].Name = names[i]
		}
	}
	return notes
}

// cells returns a row as the metadata of a sample.
func (t *table) cells(row int) []any {
	values := make([]any, len(t.columns))
	for i, c := range t.columns {
		values[i] = Cell{c, row}
	}
	return values
}

// text returns a text cell; "" for a null and for another type.
func text(column arrow.Array, row int) string {
	if s, ok := column.(array.StringLike); ok && s.IsValid(row) {
		return s.Value(row)
	}
	return ""
}

// maxGaps bounds the cells that no row has written. With a new key in each row, a small
// file would make as many columns as rows, and so a quadratic number of cells.
const maxGaps = 1 << 26

// left is the index of a column that is left out.
const left = -1

// looseTable collects rows whose columns and types become known while they are read.
// build turns it into a table. One goroutine uses it.
type looseTable struct {
	opts  tableOptions
	names []string
	// index has the index of each name, left for columns that are not read.
	index map[string]int
	// values has the cells by column. A column is shorter than the table if its last rows
	// have no cell.
	values [][]written
	// unnamed are the columns without a name in the header.
	unnamed map[string]bool
	lines   []place
	bad     []badRow
	notes   []string
	// gaps counts cells that no row wrote; see maxGaps.
	gaps int
}

// newLooseTable returns an empty table.
func newLooseTable(opts tableOptions) *looseTable {
	return &looseTable{opts: opts, index: map[string]int{}, unnamed: map[string]bool{}}
}

// readFile reads a file below root. A TSV is read twice: only the whole file shows
// whether its quotation marks are text.
func (t *looseTable) readFile(ctx context.Context, f *Files, root, file, kind string) error {
	path := filepath.Join(root, file)
	literal := false
	if kind == "tsv" {
		if err := f.readFile(ctx, path, func(in *bufio.Reader) (err error) {
			literal, err = quotesAreText(in)
			return err
		}); err != nil {
			return err
		}
	}
	return f.readFile(ctx, path, func(in *bufio.Reader) error {
		switch kind {
		case "txt":
			return t.readTranscripts(file, in)
		case "jsonl", "ndjson", "json":
			return t.readJSON(ctx, file, in)
		}
		return t.readDelimited(ctx, file, kind, literal, in)
	})
}

// column returns the index of a column, which is added if it is new; left if it is not
// wanted.
func (t *looseTable) column(name string) int {
	c, ok := t.index[name]
	if ok {
		return c
	}
	c = len(t.names)
	needed := slices.Contains(t.opts.paths, name) || slices.Contains(t.opts.text, name)
	if !needed && !t.opts.choice.wants(name, freeName(name, nil)) {
		t.index[name] = left
		return left
	}
	t.index[name] = c
	t.names = append(t.names, name)
	t.values = append(t.values, nil)
	return c
}

// set appends the cell of the last row to a column, after nulls for the rows that lack
// one.
func (t *looseTable) set(column int, v written) error {
	row := len(t.lines) - 1
	t.gaps += row - len(t.values[column])
	if t.gaps > maxGaps {
		return fmt.Errorf("%w: line %d: more than %d cells are empty in the lines before, as few of them have "+
			"the same keys", schema.ErrLimit, t.lines[row].line, maxGaps)
	}
	if missing := row - len(t.values[column]); missing > 0 {
		t.values[column] = append(t.values[column], make([]written, missing)...)
	}
	t.values[column] = append(t.values[column], v)
	return nil
}

// refuse records a row that cannot be read. Its error says that there are too many.
func (t *looseTable) refuse(at place, format string, args ...any) error {
	if len(t.bad) == maxBadRows {
		return fmt.Errorf("%w: more than %d lines cannot be read; the first is %s: %s", schema.ErrLimit, maxBadRows,
			t.bad[0].at, t.bad[0].reason)
	}
	t.bad = append(t.bad, badRow{at, fmt.Sprintf(format, args...)})
	return nil
}

// note adds a note once.
func (t *looseTable) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(t.notes, n) {
		t.notes = append(t.notes, n)
	}
}

// readDelimited reads CSV or TSV. If literal is set, quotation marks are text.
func (t *looseTable) readDelimited(ctx context.Context, file, kind string, literal bool, in *bufio.Reader) error {
	d := &delimited{lines: newLineReader(in), comma: '\t', literal: literal}
	if literal && kind == "tsv" {
		t.note("%s: quotation marks are text", Quoted(file))
	}
	header, err := d.lines.next()
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: the file is empty, want a line with the names of the columns", schema.ErrInvalid)
	case err != nil:
		return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
	}
	if kind == "csv" {
		d.comma = separator(header)
		if c, found := strings.CutPrefix(withoutEnd(header), "sep="); found && len(c) == 1 { // Excel writes and reads such a line
			d.comma = c[0]
			header = ""
		}
		if d.comma != ',' {
			t.note("%s: its cells are separated by %q", Quoted(file), string(d.comma))
		}
	}
	// The header is parsed like any record, with the separator that is known now.
	d.lines.unread([]string{header})
	columns, err := t.header(d)
	if err != nil {
		return err
	}
	for {
		bad, err := d.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		// A record with the wrong number of cells is bad: guessing which cell is missing
		// would shift values into other columns.
		if bad == "" {
			bad = d.unfit(columns)
		}
		if bad != "" {
			if err := t.refuse(place{file, d.line}, "%s", bad); err != nil {
				return err
			}
			continue
		}
		t.lines = append(t.lines, place{file, d.line})
		for i, c := range columns {
			if c == left {
				continue
			}
			if err := t.set(c, cell(d.cells[i].text, d.cells[i].quoted)); err != nil {
				return err
			}
		}
	}
}

// header reads the line with the names of the columns. A column without a name, or with
// the name of an earlier one, gets another name.
func (t *looseTable) header(d *delimited) (columns []int, err error) {
	bad, err := d.next()
	if errors.Is(err, io.EOF) {
		bad, err = "it has no line with the names of the columns", nil
	}
	if bad != "" {
		err = errors.New(bad)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: line %d: %w", schema.ErrInvalid, d.line, err)
	}
	// All names are known before one is made up, so that a made-up name never takes that
	// of a later column.
	used := map[string]bool{}
	var names []string
	for _, c := range d.cells {
		if !utf8.ValidString(c.text) {
			return nil, fmt.Errorf("%w: line %d is not valid UTF-8; convert the file, such as by iconv -f latin1 "+
				"-t utf8",
				schema.ErrInvalid, d.line)
		}
		name := strings.TrimSpace(c.text)
		names = append(names, name)
		used[name] = true
	}
	first := map[string]bool{}
	for i, name := range names {
		switch {
		case name == "":
			name = nextFree(fmt.Sprintf("column_%d", i+1), used)
			t.unnamed[name] = true
		case first[name]:
			name = nextFree(name, used)
			t.note("%s", keptAs(fmt.Sprintf("column %d has the name of one before it:", i+1), names[i], name))
		}
		used[name], first[name] = true, true
		columns = append(columns, t.column(name))
		if len(t.names) > schema.MaxColumns {
			return nil, fmt.Errorf("%w: it has %d columns, more than the %d that a dataset may have; --columns or "+
				"--leave-out choose among them", schema.ErrLimit, len(d.cells), schema.MaxColumns)
		}
	}
	return columns, nil
}

// unfit returns why the cells of a record do not fit the columns; "" if they do.
// Additional cells are accepted if they are empty: spreadsheets write such.
func (d *delimited) unfit(columns []int) string {
	extra := d.cells[min(len(columns), len(d.cells)):]
	if len(d.cells) < len(columns) || slices.ContainsFunc(extra, func(c rawCell) bool { return c != rawCell{} }) {
		return fmt.Sprintf("the number of its cells is %d, and that of columns %d", len(d.cells), len(columns))
	}
	for i, c := range d.cells {
		if !utf8.ValidString(c.text) {
			return fmt.Sprintf("cell %d is not valid UTF-8", i+1)
		}
	}
	return ""
}

// build decides each column's type by all of its values and makes its array. The cells
// are freed column by column.
func (t *looseTable) build() (*table, error) {
	if len(t.lines) == 0 && len(t.bad) > 0 {
		return nil, fmt.Errorf("%w: no line can be read; the first of %d is %s: %s", schema.ErrInvalid, len(t.bad),
			t.bad[0].at, t.bad[0].reason)
	}
	// If no line at all can be read, the file is probably no table.
	out := &table{rows: len(t.lines), lines: t.lines, bad: t.bad}
	isPath := func(name string) bool { _, ok := t.index[name]; return ok }
	path := slices.IndexFunc(t.opts.paths, isPath)
	for c, name := range t.names {
		var typ inferred
		for _, v := range t.values[c] {
			typ.observe(v)
		}
		if t.unnamed[name] && typ.empty() {
			t.note("a column without a name holds nothing and was left out")
			continue
		}
		if t.unnamed[name] {
			t.note("a column without a name is kept as %q", name)
		}
		if slices.Contains(t.opts.text, name) || path >= 0 && name == t.opts.paths[path] ||
			t.opts.typed != nil && !slices.Contains(t.opts.typed, name) || t.opts.choice.isText(name, freeName(name,
			nil)) {
			typ.observe(textOf(""))
		}
		b := array.NewBuilder(memory.DefaultAllocator, typ.dataType())
		for row := range out.rows {
			var v written
			if row < len(t.values[c]) {
				v = t.values[c][row]
			}
			if err := appendValue(b, typ.convert(v)); err != nil {
				return nil, fmt.Errorf("%s, column %q: %w", t.lines[row], name, err)
			}
		}
		out.fields = append(out.fields, arrow.Field{Name: name, Type: typ.dataType(), Nullable: true})
		out.columns = append(out.columns, b.NewArray())
		t.values[c] = nil
	}
	out.notes = t.notes
	return out, nil
}

// Frame is a table as it is: no cell is taken for a path to a file.
type Frame struct {
	Schema  *arrow.Schema
	Columns []arrow.Array
	Rows    int
}

// ReadFrame reads a .csv, .tsv, .jsonl or .parquet file into memory. Columns named in
// text stay text. In files without types, the cells decide the types of the other
// columns. A row that cannot be read is an error.
func ReadFrame(ctx context.Context, path string, text []string) (*Frame, error) {
	if !slices.Contains(tableExtensions, extension(path)) {
		return nil, fmt.Errorf("%w: %s is no table: want a file that ends in .csv, .tsv, .jsonl or .parquet",
			schema.ErrInvalid, Quoted(path))
	}
	t, err := localFiles(path).readTable(ctx, filepath.Dir(path), []string{filepath.Base(path)}, tableOptions{text: text})
	if err != nil {
		return nil, err
	}
	if len(t.bad) > 0 {
		return nil, fmt.Errorf("%w: %d rows cannot be read; the first is %s: %s", schema.ErrInvalid, len(t.bad), t.bad[0].at,
			t.bad[0].reason)
	}
	return &Frame{arrow.NewSchema(t.fields, nil), t.columns, t.rows}, nil
}

// frameMessage is the approximate size of a batch of a frame in bytes.
const frameMessage = 8 << 20

// Batches yields the frame as batches of about frameMessage bytes. A batch is valid only
// during the call.
func (f *Frame) Batches(yield func(arrow.Record) bool) {
	var size int64
	for _, c := range f.Columns {
		size += dataBytes(c.Data())
	}
	// Rows are taken to be about equally large.
	step := max(1, int(int64(f.Rows)*frameMessage/max(size, frameMessage)))
	for start := 0; start < f.Rows; start += step {
		end := min(start+step, f.Rows)
		columns := make([]arrow.Array, len(f.Columns))
		for i, c := range f.Columns {
			columns[i] = array.NewSlice(c, int64(start), int64(end))
		}
		rec := array.NewRecord(f.Schema, columns, int64(end-start))
		for _, c := range columns {
			c.Release()
		}
		more := yield(rec)
		rec.Release()
		if !more {
			return
		}
	}
}

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

// table is metadata of samples, in memory: CSV, TSV, JSON lines or Parquet.
type table struct {
	fields  []arrow.Field
	columns []arrow.Array // one chunk each
	rows    int
	lines   []place // where each row stands, for messages
	bad     []badRow
	notes   []string
}

// badRow is a row that cannot be read, and why.
type badRow struct {
	at     place
	reason string
}

// sample is the row as a bad sample.
func (r *badRow) sample() Sample { return Sample{Key: r.at.String(), Bad: r.reason} }

const (
	// maxColumns bounds the columns that come from the keys of JSON objects.
	maxColumns = 1000
	// maxBadRows bounds the rows that cannot be read: a file with more of them is no
	// table.
	maxBadRows = 1 << 20
)

// place is a row in a file.
type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", Quoted(p.file), p.line) }

var tableExtensions = []string{"csv", "tsv", "jsonl", "ndjson", "json", "parquet"}

// tableOptions say how a table is read.
type tableOptions struct {
	choice *choice
	// text are columns whose cells are text, whatever they look like, and which are read
	// whatever choice says. Only the first column of paths that exists holds text.
	paths, text []string
	// typed are the columns that may be other than text; nil means all.
	typed []string
}

// readTable reads files of one kind as one table: Parquet with columns of the same names,
// the others with any. files are relative to root.
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

// maxTable bounds a table that is read into memory, by the bytes of its file.
const maxTable = 2 << 30

// readFile opens a file of text for read, which gets UTF-8.
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

// find returns the index of the first of the columns that there is, or -1.
func (t *table) find(names ...string) int {
	for _, name := range names {
		if i := slices.IndexFunc(t.fields, func(f arrow.Field) bool { return f.Name == name }); i >= 0 {
			return i
		}
	}
	return -1
}

// choose removes the columns that are not wanted.
func (t *table) choose(c *choice) {
	for i := len(t.fields) - 1; i >= 0; i-- {
		if name := t.fields[i].Name; !c.wants(name, freeName(name, nil)) {
			t.remove(i)
		}
	}
}

// remove takes a column out.
func (t *table) remove(i int) arrow.Array {
	c := t.columns[i]
	t.fields, t.columns = slices.Delete(t.fields, i, i+1), slices.Delete(t.columns, i, i+1)
	return c
}

// classes turns a label column of names into indices of the sorted names.
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

// rename gives columns whose names cannot be those of the dataset others, and says so.
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

// cells returns a row as values of a sample.
func (t *table) cells(row int) []any {
	values := make([]any, len(t.columns))
	for i, c := range t.columns {
		values[i] = Cell{c, row}
	}
	return values
}

// text returns a cell of a column of text, "" for null or another type.
func text(column arrow.Array, row int) string {
	if s, ok := column.(array.StringLike); ok && s.IsValid(row) {
		return s.Value(row)
	}
	return ""
}

// maxGaps bounds the cells that no row wrote: a few bytes of a new key in each row would
// make as many columns as there are rows.
const maxGaps = 1 << 26

// left is the index of a column that is left out.
const left = -1

// looseTable collects rows whose columns and types show only as they are read.
type looseTable struct {
	opts    tableOptions
	names   []string
	index   map[string]int // of names, and left for those that are not read
	values  [][]written    // by column, shorter where the last rows have none
	unnamed map[string]bool
	lines   []place
	bad     []badRow
	notes   []string
	gaps    int // cells that no row wrote
}

func newLooseTable(opts tableOptions) *looseTable {
	return &looseTable{opts: opts, index: map[string]int{}, unnamed: map[string]bool{}}
}

// readFile reads a file below root.
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

// column returns the index of a column, which may be left.
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

// set sets a cell of the last row.
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

// refuse notes a row that cannot be read.
func (t *looseTable) refuse(at place, format string, args ...any) error {
	if len(t.bad) == maxBadRows {
		return fmt.Errorf("%w: more than %d lines cannot be read; the first is %s: %s", schema.ErrLimit, maxBadRows,
			t.bad[0].at, t.bad[0].reason)
	}
	t.bad = append(t.bad, badRow{at, fmt.Sprintf(format, args...)})
	return nil
}

// note notes something once.
func (t *looseTable) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(t.notes, n) {
		t.notes = append(t.notes, n)
	}
}

// readDelimited reads CSV or TSV. With literal, quotation marks are text.
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
		if c, found := strings.CutPrefix(withoutEnd(header), "sep="); found && len(c) == 1 { // as Excel writes it
			d.comma = c[0]
			header = ""
		}
		if d.comma != ',' {
			t.note("%s: its cells are separated by %q", Quoted(file), string(d.comma))
		}
	}
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

// header reads the line that names the columns.
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

// unfit says why the cells of a record are none of the columns. More cells than these
// hold nothing, if they may be.
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

// build finds each column's type and makes its array.
func (t *looseTable) build() (*table, error) {
	if len(t.lines) == 0 && len(t.bad) > 0 {
		return nil, fmt.Errorf("%w: no line can be read; the first of %d is %s: %s", schema.ErrInvalid, len(t.bad),
			t.bad[0].at, t.bad[0].reason)
	}
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

// Frame is a table whose cells are all that there is: none is a path to a file that would
// be read.
type Frame struct {
	Schema  *arrow.Schema
	Columns []arrow.Array
	Rows    int
}

// ReadFrame reads a .csv, .tsv, .jsonl or .parquet file into memory. The columns that are
// named by text are text, as they are written. In files that have no types, cells decide
// the types of the others.
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

// frameMessage is how many bytes of a frame a batch has, about.
const frameMessage = 8 << 20

// Batches cuts the frame into batches of a size that a connection carries well.
func (f *Frame) Batches(yield func(arrow.Record) bool) {
	var size int64
	for _, c := range f.Columns {
		size += dataBytes(c.Data())
	}
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
